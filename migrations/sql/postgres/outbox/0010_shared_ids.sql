-- Two rows can have one id after the sequence was set back: the key of a segment knows nothing of the ids in the other
-- seven. A relay that has not read either cannot tell them apart, so the later one gets a new id.
CREATE INDEX outbox_rebased_message_idx ON {schema}outbox_rebased (relay, shard, message_id);
COMMENT ON INDEX {schema}outbox_rebased_message_idx IS 'which messages of a page are left out, whatever their ids are now';

DO $migration$
DECLARE
    home text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = '{schema}outbox_message'::regclass);
BEGIN
    -- Does nothing where no two rows that are not visible in the mark have one id. Otherwise the later of two moves behind
    -- all other rows; and of the keys of such rows so does everything that was written since the first of them, in the
    -- order that the ids had. They stay rows of their transactions. What is parked of them moves along.
    EXECUTE replace($function$
        CREATE FUNCTION %home%.outbox_renumber_rows(snapshot pg_snapshot, floor bigint) RETURNS bigint
        LANGUAGE plpgsql VOLATILE SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp
        AS $body$
        DECLARE
            moved      record;
            fresh      bigint;
            renumbered bigint := 0;
        BEGIN
            LOCK TABLE %home%.outbox_relay IN ACCESS EXCLUSIVE MODE;
            -- A snapshot that sees nothing says nothing about the rows up to its floor. At first without the lock that
            -- keeps producers out: a row that commits now is met by a relay.
            IF NOT EXISTS (
                SELECT FROM %home%.outbox_message AS m
                WHERE m.xid >= pg_snapshot_xmin($1) AND NOT pg_visible_in_snapshot(m.xid, $1)
                    AND (m.id > $2 OR pg_snapshot_xmax($1) > '1')
                GROUP BY m.id HAVING count(*) > 1)
            THEN
                RETURN 0;
            END IF;
            PERFORM %home%.outbox_advance_sequence();
            FOR moved IN
                WITH unseen AS (
                    SELECT m.tableoid AS segment, m.ctid AS place, m.id, m.message_id, m.key, m.enqueued_at,
                        row_number() OVER (PARTITION BY m.id ORDER BY m.enqueued_at, m.message_id) AS nth
                    FROM %home%.outbox_message AS m
                    WHERE m.xid >= pg_snapshot_xmin($1) AND NOT pg_visible_in_snapshot(m.xid, $1)
                        AND (m.id > $2 OR pg_snapshot_xmax($1) > '1')),
                later AS (SELECT u.key, u.enqueued_at FROM unseen AS u WHERE u.nth > 1)
                SELECT u.segment, u.place, u.id, u.message_id, e.id IS NOT NULL AS is_parked
                FROM unseen AS u
                LEFT JOIN (SELECT DISTINCT x.id, x.message_id FROM %home%.outbox_exception AS x) AS e
                    ON e.id = u.id AND e.message_id = u.message_id
                WHERE u.nth > 1
                    OR u.key IN (SELECT l.key FROM later AS l)
                        AND u.enqueued_at >= (SELECT min(l.enqueued_at) FROM later AS l)
                ORDER BY u.id, u.enqueued_at, u.message_id
            LOOP
                UPDATE %home%.outbox_message AS m SET id = DEFAULT
                WHERE m.tableoid = moved.segment AND m.ctid = moved.place RETURNING m.id INTO STRICT fresh;
                IF moved.is_parked THEN
                    UPDATE %home%.outbox_parked AS p SET id = fresh
                    FROM %home%.outbox_relay AS r, %home%.outbox_exception AS e
                    WHERE e.relay = r.relay AND e.shard = r.shard AND e.id = moved.id AND e.message_id = moved.message_id
                        AND p.relay = e.relay AND p.shard = e.shard AND p.id = e.id;
                    UPDATE %home%.outbox_exception AS e SET id = fresh FROM %home%.outbox_relay AS r
                    WHERE e.relay = r.relay AND e.shard = r.shard AND e.id = moved.id AND e.message_id = moved.message_id;
                END IF;
                renumbered := renumbered + 1;
            END LOOP;
            -- Who reads with a mark of before would pass over what has moved: no mark of another run is believed.
            UPDATE %home%.outbox_server_run SET run_id = gen_random_uuid();
            RETURN renumbered;
        END
        $body$
    $function$, '%home%', home);
END
$migration$;

REVOKE ALL ON FUNCTION {schema}outbox_renumber_rows(pg_snapshot, bigint) FROM PUBLIC;
COMMENT ON FUNCTION {schema}outbox_renumber_rows(pg_snapshot, bigint) IS
    'after a sequence went back: of two rows that are not read yet and share an id, the later one gets a new id; else nothing';
