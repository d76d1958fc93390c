-- Numbers for nodes that make ids by themselves, leased on this database's clock. A producer takes, renews and gives back
-- through functions that run with the owner's rights: it cannot turn an epoch back, and two ids are never equal because
-- of it.
CREATE TABLE {schema}outbox_node (
    number      integer     NOT NULL,
    epoch       bigint      NOT NULL,
    holder      text,
    lease_until timestamptz,
    taken_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT outbox_node_pkey PRIMARY KEY (number),
    CONSTRAINT outbox_node_number_has_16_bits CHECK (number BETWEEN 0 AND 65535),
    CONSTRAINT outbox_node_epoch_has_32_bits CHECK (epoch BETWEEN 1 AND 4294967295),
    CONSTRAINT outbox_node_holder_has_1_to_255_bytes CHECK (octet_length(holder) BETWEEN 1 AND 255),
    CONSTRAINT outbox_node_holder_has_a_lease CHECK ((holder IS NULL) = (lease_until IS NULL))
) WITH (fillfactor = 50); -- renewed every few seconds: room for heap-only updates
COMMENT ON TABLE {schema}outbox_node IS 'numbers of nodes that make ids; a row is never removed, because its epoch must not begin anew';
COMMENT ON COLUMN {schema}outbox_node.epoch IS 'the fencing token, a part of every id: a later holder of the number has a larger one';
COMMENT ON INDEX {schema}outbox_node_pkey IS 'takes the lowest free number; renews and gives back one';

DO $migration$
DECLARE
    home text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = '{schema}outbox_node'::regclass);
BEGIN
    -- A number whose row somebody else is changing at this moment is passed over, so no taker waits for another one. A new
    -- number that two want goes to one of them, and the other one looks again.
    EXECUTE replace($function$
        CREATE FUNCTION %home%.outbox_take_node(by_holder text, lease interval)
        RETURNS TABLE (number integer, epoch bigint)
        LANGUAGE plpgsql VOLATILE SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp
        AS $body$
        #variable_conflict use_column
        BEGIN
            IF lease IS NULL OR lease NOT BETWEEN interval '1 second' AND interval '1 day' THEN
                RAISE EXCEPTION 'a number cannot be leased for %', lease
                    USING ERRCODE = 'invalid_parameter_value', HINT = 'A lease lasts 1 second to 1 day.';
            ELSIF by_holder IS NULL THEN
                RAISE EXCEPTION 'a number needs a holder' USING ERRCODE = 'null_value_not_allowed';
            END IF;
            LOOP
                RETURN QUERY
                    UPDATE %home%.outbox_node AS n
                    SET epoch = n.epoch + 1, holder = by_holder, lease_until = clock_timestamp() + lease,
                        taken_at = clock_timestamp()
                    WHERE n.number = (
                        SELECT f.number FROM %home%.outbox_node AS f
                        WHERE (f.lease_until IS NULL OR f.lease_until <= clock_timestamp()) AND f.epoch < 4294967295
                        ORDER BY f.number LIMIT 1 FOR UPDATE SKIP LOCKED)
                    RETURNING n.number, n.epoch;
                IF FOUND THEN
                    RETURN;
                END IF;
                RETURN QUERY
                    INSERT INTO %home%.outbox_node AS n (number, epoch, holder, lease_until)
                    SELECT next.number, 1, by_holder, clock_timestamp() + lease
                    FROM (SELECT coalesce(max(m.number) + 1, 0) AS number FROM %home%.outbox_node AS m) AS next
                    WHERE next.number <= 65535
                    ON CONFLICT DO NOTHING
                    RETURNING n.number, n.epoch;
                IF FOUND OR EXISTS (SELECT FROM %home%.outbox_node AS m WHERE m.number = 65535) THEN
                    RETURN;
                END IF;
            END LOOP;
        END
        $body$
    $function$, '%home%', home);

    -- Also after the lease has ended, as long as nobody has taken the number since.
    EXECUTE replace($function$
        CREATE FUNCTION %home%.outbox_renew_node(of_number integer, of_epoch bigint, lease interval) RETURNS boolean
        LANGUAGE plpgsql VOLATILE SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp
        AS $body$
        BEGIN
            IF lease IS NULL OR lease NOT BETWEEN interval '1 second' AND interval '1 day' THEN
                RAISE EXCEPTION 'a number cannot be leased for %', lease
                    USING ERRCODE = 'invalid_parameter_value', HINT = 'A lease lasts 1 second to 1 day.';
            END IF;
            UPDATE %home%.outbox_node AS n SET lease_until = clock_timestamp() + lease
            WHERE n.number = of_number AND n.epoch = of_epoch AND n.holder IS NOT NULL;
            RETURN FOUND;
        END
        $body$
    $function$, '%home%', home);

    EXECUTE replace($function$
        CREATE FUNCTION %home%.outbox_release_node(of_number integer, of_epoch bigint) RETURNS boolean
        LANGUAGE plpgsql VOLATILE SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp
        AS $body$
        BEGIN
            UPDATE %home%.outbox_node AS n SET holder = NULL, lease_until = NULL
            WHERE n.number = of_number AND n.epoch = of_epoch AND n.holder IS NOT NULL;
            RETURN FOUND;
        END
        $body$
    $function$, '%home%', home);
END
$migration$;

REVOKE ALL ON FUNCTION {schema}outbox_take_node(text, interval), {schema}outbox_renew_node(integer, bigint, interval),
    {schema}outbox_release_node(integer, bigint) FROM PUBLIC;
COMMENT ON FUNCTION {schema}outbox_take_node(text, interval) IS
    'leases the lowest number that nobody holds, with a larger epoch than any holder before; no row when all are held';
COMMENT ON FUNCTION {schema}outbox_renew_node(integer, bigint, interval) IS
    'makes a lease last so long from now on; false when somebody else has the number';
COMMENT ON FUNCTION {schema}outbox_release_node(integer, bigint) IS 'gives a number back';
