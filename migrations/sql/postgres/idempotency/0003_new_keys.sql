-- A new key takes the short way: a look and a plain INSERT instead of two functions. Everything else takes the long one.

DO $migration$
DECLARE
    home text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = '{schema}idempotency_key'::regclass);
    allowed record;
BEGIN
    -- The slot that takes a key nothing is known of; null for every other key. The caller holds the lock of the key, taken
    -- before this function looks. Its one statement locks the slots before it reads, and they stay locked until the
    -- transaction ends: no rotation comes between this look and the outcome, so the slot is still the newest one then.
    --
    -- A function only for its settings, which migration 2 explains. It runs with the rights of its caller, who may read
    -- the tables.
    EXECUTE replace($function$
        CREATE FUNCTION %home%.idempotency_slot_of_new(new_scope text, new_operation text, new_key text) RETURNS smallint
        LANGUAGE plpgsql VOLATILE
        SET enable_seqscan = off
        AS $body$
        BEGIN
            RETURN (
                SELECT (r.generation % 3)::smallint FROM %home%.idempotency_ring AS r
                WHERE r.only_row AND NOT EXISTS (
                    SELECT FROM %home%.idempotency_key AS k
                    WHERE k.scope = new_scope AND k.operation = new_operation AND k.key = new_key));
        END
        $body$
    $function$, '%home%', home);
    EXECUTE format('REVOKE ALL ON FUNCTION %s.idempotency_slot_of_new(text, text, text) FROM PUBLIC', home);

    -- Whoever may store an outcome through a function may do it this way, without a second look at the roles.
    FOR allowed IN
        SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS grantee
        FROM pg_proc AS p CROSS JOIN LATERAL aclexplode(p.proacl) AS a
        WHERE p.pronamespace = home::regnamespace AND p.proname = 'idempotency_finish' AND a.grantee <> p.proowner
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s.idempotency_slot_of_new(text, text, text) TO %s', home, allowed.grantee);
        EXECUTE format('GRANT INSERT (slot, scope, operation, key, fingerprint, state, attempt, holder, outcome, claimed_at, '
            'processed_at, expires_at) ON %1$s.idempotency_key_0, %1$s.idempotency_key_1, %1$s.idempotency_key_2 TO %2$s',
            home, allowed.grantee);
    END LOOP;
END
$migration$;

-- The server parses a CHECK anew in each statement that inserts, and these nine cost as much as the row and its indexes (ADR 19).
-- Only the statements of this toolkit write these columns; its tests look for rows that the constraints would have refused.
ALTER TABLE {schema}idempotency_key
    DROP CONSTRAINT idempotency_key_scope_has_1_to_255_bytes,
    DROP CONSTRAINT idempotency_key_operation_has_1_to_255_bytes,
    DROP CONSTRAINT idempotency_key_key_has_1_to_255_bytes,
    DROP CONSTRAINT idempotency_key_fingerprint_has_32_bytes,
    DROP CONSTRAINT idempotency_key_attempt_is_positive,
    DROP CONSTRAINT idempotency_key_state_is_known,
    DROP CONSTRAINT idempotency_key_in_progress_has_a_lease,
    DROP CONSTRAINT idempotency_key_succeeded_has_an_outcome,
    DROP CONSTRAINT idempotency_key_settled_has_a_time;
