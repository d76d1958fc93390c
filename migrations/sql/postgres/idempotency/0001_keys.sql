-- Idempotency keys: which requests were begun, which have an outcome, and what it was.
--
-- Services need EXECUTE on the functions and SELECT on the tables, nothing else: `relay migrate roles` grants it.

-- One row per scope, operation and key. Three slots take turns: new keys go into one of them, and the oldest is
-- emptied whole when its keys have outlived the retention, in constant time however many there are.
CREATE TABLE {schema}idempotency_key (
    slot         smallint    NOT NULL,
    scope        text        NOT NULL,
    operation    text        NOT NULL,
    key          text        NOT NULL,
    fingerprint  bytea       NOT NULL,
    state        text        NOT NULL,
    -- counts the holders of one key; greater than every earlier holder's
    attempt      integer     NOT NULL,
    -- names one holder; only it may complete
    holder       uuid        NOT NULL,
    lease_until  timestamptz,
    outcome      bytea,
    -- when the holder claimed it or was heard of last; what expires_at counts from
    claimed_at   timestamptz NOT NULL,
    processed_at timestamptz,
    expires_at   timestamptz NOT NULL,
    -- the operator who released or discarded it
    decided_by   text,
    -- Serves every claim: one look into each slot. The slot last, because a claim does not know it. That a key is in one
    -- slot only is the work of idempotency_claim, which looks and writes under a lock of the key.
    CONSTRAINT idempotency_key_pkey PRIMARY KEY (scope, operation, key, slot),
    CONSTRAINT idempotency_key_scope_has_1_to_255_bytes CHECK (octet_length(scope) BETWEEN 1 AND 255),
    CONSTRAINT idempotency_key_operation_has_1_to_255_bytes CHECK (octet_length(operation) BETWEEN 1 AND 255),
    CONSTRAINT idempotency_key_key_has_1_to_255_bytes CHECK (octet_length(key) BETWEEN 1 AND 255),
    CONSTRAINT idempotency_key_fingerprint_has_32_bytes CHECK (octet_length(fingerprint) = 32),
    CONSTRAINT idempotency_key_attempt_is_positive CHECK (attempt > 0),
    CONSTRAINT idempotency_key_state_is_known CHECK (state IN ('in_progress', 'released', 'succeeded', 'failed')),
    CONSTRAINT idempotency_key_in_progress_has_a_lease CHECK ((state = 'in_progress') = (lease_until IS NOT NULL)),
    CONSTRAINT idempotency_key_succeeded_has_an_outcome CHECK (state <> 'succeeded' OR outcome IS NOT NULL),
    CONSTRAINT idempotency_key_settled_has_a_time CHECK ((state IN ('succeeded', 'failed')) = (processed_at IS NOT NULL))
) PARTITION BY LIST (slot);

CREATE TABLE {schema}idempotency_key_0 PARTITION OF {schema}idempotency_key FOR VALUES IN (0);
CREATE TABLE {schema}idempotency_key_1 PARTITION OF {schema}idempotency_key FOR VALUES IN (1);
CREATE TABLE {schema}idempotency_key_2 PARTITION OF {schema}idempotency_key FOR VALUES IN (2);

-- Serves the list of what is stuck, and the rotation, which carries undecided keys over. Keys that are claimed and
-- completed in one transaction never enter it.
CREATE INDEX idempotency_key_in_progress_idx ON {schema}idempotency_key (lease_until) WHERE state = 'in_progress';

-- Which slot takes new keys: generation modulo 3. A slot is emptied half a retention after it was the newest but one, so
-- that it holds no key that is younger than the retention. The retention only ever grows.
CREATE TABLE {schema}idempotency_ring (
    only_row   boolean     NOT NULL DEFAULT true,
    generation bigint      NOT NULL DEFAULT 0,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    retention  interval    NOT NULL DEFAULT '24 hours',
    CONSTRAINT idempotency_ring_pkey PRIMARY KEY (only_row),
    CONSTRAINT idempotency_ring_has_one_row CHECK (only_row),
    CONSTRAINT idempotency_ring_retention_is_positive CHECK (retention > '0')
);
INSERT INTO {schema}idempotency_ring DEFAULT VALUES;

-- The functions run with the owner's rights, so that no service can take a record back or change one that is settled. Each
-- names its tables with their schema and has a search_path of its own: nobody can put other tables in between.
DO $migration$
DECLARE
    home text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = '{schema}idempotency_key'::regclass);
BEGIN
    -- Claims a key, or tells what is known of it. `lease` makes it a claim that outlives the transaction; without one
    -- nothing is written, and the key is held until the transaction ends.
    --
    -- The order of its statements is its proof. (1) The lock of the table excludes a rotation until the transaction ends,
    -- so the slot read in (4) is still the newest one when the outcome is written. (2) The lock of the key excludes every
    -- other claim of it, whichever slots that one sees. (3) Each statement of the function reads what was committed before
    -- it began, so it sees everything that an earlier owner of both locks has done. A snapshot of the whole transaction
    -- would not, so other isolation levels are refused.
    EXECUTE replace($function$
        CREATE FUNCTION %home%.idempotency_claim(
            claim_scope text, claim_operation text, claim_key text, claim_fingerprint bytea, claim_holder uuid,
            claim_retention interval, take_over boolean, lease interval, idle_max interval,
            OUT is_busy boolean, OUT read_at timestamptz, OUT rotation_is_due boolean, OUT fingerprint bytea,
            OUT state text, OUT attempt integer, OUT holder uuid, OUT lease_until timestamptz, OUT outcome bytea,
            OUT claimed_at timestamptz, OUT processed_at timestamptz, OUT expires_at timestamptz)
        LANGUAGE plpgsql VOLATILE SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp
        AS $body$
        #variable_conflict use_column
        DECLARE
            ring  %home%.idempotency_ring;
            known %home%.idempotency_key;
        BEGIN
            IF current_setting('transaction_isolation') <> 'read committed' THEN
                RAISE EXCEPTION 'an idempotency key can be claimed at the isolation level read committed only, not %',
                    current_setting('transaction_isolation') USING ERRCODE = 'invalid_transaction_state',
                    HINT = 'ALTER ROLE ... SET default_transaction_isolation = ''read committed'' for the service''s user.';
            END IF;
            LOCK TABLE %home%.idempotency_key IN ACCESS SHARE MODE;
            -- A lock of the transaction, so it is safe behind PgBouncer. The table's own number keeps schemas apart.
            is_busy := NOT pg_try_advisory_xact_lock(hashtextextended(octet_length(claim_scope) || ':'
                || octet_length(claim_operation) || ':' || claim_scope || claim_operation || claim_key,
                '%home%.idempotency_key'::regclass::oid::bigint));
            SELECT r.* INTO ring FROM %home%.idempotency_ring AS r;
            read_at := clock_timestamp();
            IF claim_retention > ring.retention THEN
                RAISE EXCEPTION 'a key cannot be kept for %, because all are kept for %', claim_retention, ring.retention
                    USING ERRCODE = 'invalid_parameter_value', HINT = 'Call idempotency_retain first.';
            END IF;
            rotation_is_due := read_at >= ring.started_at + ring.retention / 2;
            IF is_busy THEN
                -- What has ended stays as it is, so everybody may see it; anything else is its owner's at this moment.
                SELECT k.* INTO known FROM %home%.idempotency_key AS k
                WHERE k.scope = claim_scope AND k.operation = claim_operation AND k.key = claim_key
                    AND k.state IN ('succeeded', 'failed') AND k.expires_at > read_at;
                is_busy := NOT FOUND;
            ELSE
                LOOP
                    SELECT k.* INTO known FROM %home%.idempotency_key AS k
                    WHERE k.scope = claim_scope AND k.operation = claim_operation AND k.key = claim_key;
                    EXIT WHEN lease IS NULL OR NOT (
                        known.key IS NULL
                        OR (known.state <> 'in_progress' AND known.expires_at <= read_at)
                        OR (known.fingerprint = claim_fingerprint AND known.holder <> claim_holder
                            AND (known.state = 'released'
                                OR (known.state = 'in_progress' AND known.lease_until <= read_at AND take_over))));
                    -- A completion takes no lock of the key: what it has changed meanwhile is looked at again.
                    DELETE FROM %home%.idempotency_key AS k
                    WHERE k.scope = claim_scope AND k.operation = claim_operation AND k.key = claim_key
                        AND k.holder = known.holder AND k.state = known.state
                        AND k.lease_until IS NOT DISTINCT FROM known.lease_until;
                    CONTINUE WHEN NOT FOUND AND known.key IS NOT NULL;
                    INSERT INTO %home%.idempotency_key AS k (slot, scope, operation, key, fingerprint, state, attempt,
                        holder, lease_until, claimed_at, expires_at)
                    VALUES (ring.generation % 3, claim_scope, claim_operation, claim_key, claim_fingerprint, 'in_progress',
                        coalesce(known.attempt, 0) + 1, claim_holder, read_at + lease, read_at, read_at + claim_retention)
                    RETURNING k.* INTO known;
                    EXIT;
                END LOOP;
            END IF;
            IF lease IS NULL AND NOT is_busy THEN
                -- What idempotency_finish looks for: a transaction that was rolled back and begun anew has lost it, and
                -- with it the locks. The server ends a transaction whose service hangs.
                PERFORM set_config('idempotency.holder', claim_holder::text, true);
                PERFORM set_config('idle_in_transaction_session_timeout',
                    ceil(extract(epoch FROM idle_max) * 1000)::bigint::text, true);
            END IF;
            fingerprint := known.fingerprint; state := known.state; attempt := known.attempt; holder := known.holder;
            lease_until := known.lease_until; outcome := known.outcome; claimed_at := known.claimed_at;
            processed_at := known.processed_at; expires_at := known.expires_at;
        END
        $body$
    $function$, '%home%', home);

    -- Stores the outcome of a key that this transaction holds; false when it does not hold it (any more).
    EXECUTE replace($function$
        CREATE FUNCTION %home%.idempotency_finish(
            finish_scope text, finish_operation text, finish_key text, finish_fingerprint bytea, finish_holder uuid,
            finish_retention interval, attempts integer, end_state text, end_outcome bytea) RETURNS boolean
        LANGUAGE plpgsql VOLATILE SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp
        AS $body$
        DECLARE
            now timestamptz := clock_timestamp();
        BEGIN
            IF current_setting('idempotency.holder', true) IS DISTINCT FROM finish_holder::text THEN
                RETURN false;
            END IF;
            -- Only an earlier attempt leaves a row behind. It may have been completed after all, by a holder that was late.
            IF attempts > 1 THEN
                DELETE FROM %home%.idempotency_key AS k
                WHERE k.scope = finish_scope AND k.operation = finish_operation AND k.key = finish_key
                    AND (k.state IN ('in_progress', 'released') OR k.expires_at <= now);
                IF EXISTS (SELECT FROM %home%.idempotency_key AS k
                    WHERE k.scope = finish_scope AND k.operation = finish_operation AND k.key = finish_key)
                THEN
                    RETURN false;
                END IF;
            END IF;
            INSERT INTO %home%.idempotency_key (slot, scope, operation, key, fingerprint, state, attempt, holder, outcome,
                claimed_at, processed_at, expires_at)
            SELECT r.generation % 3, finish_scope, finish_operation, finish_key, finish_fingerprint, end_state, attempts,
                finish_holder, end_outcome, now, now, now + finish_retention
            FROM %home%.idempotency_ring AS r;
            PERFORM set_config('idempotency.holder', '', true);
            RETURN true;
        END
        $body$
    $function$, '%home%', home);

    -- Ends a lease: completes its key ('succeeded', 'failed'), gives it back ('released'), or makes the lease longer
    -- ('in_progress'). Only the holder's; returns the row as it stands then, whoever holds it.
    EXECUTE replace($function$
        CREATE FUNCTION %home%.idempotency_complete(
            done_scope text, done_operation text, done_key text, done_holder uuid, end_state text, end_outcome bytea,
            lease interval) RETURNS SETOF %home%.idempotency_key
        LANGUAGE plpgsql VOLATILE SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp
        AS $body$
        DECLARE
            now timestamptz := clock_timestamp();
        BEGIN
            LOCK TABLE %home%.idempotency_key IN ACCESS SHARE MODE;
            -- Into the newest slot, so that it is kept for the whole retention from now on.
            UPDATE %home%.idempotency_key AS k SET
                slot = (SELECT r.generation % 3 FROM %home%.idempotency_ring AS r), state = end_state,
                outcome = end_outcome, expires_at = now + (k.expires_at - k.claimed_at), claimed_at = now,
                lease_until = CASE WHEN end_state = 'in_progress' THEN greatest(k.lease_until, now + lease) END,
                processed_at = CASE WHEN end_state IN ('succeeded', 'failed') THEN now END
            WHERE k.scope = done_scope AND k.operation = done_operation AND k.key = done_key AND k.holder = done_holder
                AND k.state = 'in_progress' AND end_state IN ('in_progress', 'released', 'succeeded', 'failed');
            RETURN QUERY SELECT k.* FROM %home%.idempotency_key AS k
                WHERE k.scope = done_scope AND k.operation = done_operation AND k.key = done_key;
        END
        $body$
    $function$, '%home%', home);

    -- An operator's decision about a key whose lease has expired: 'released' lets the next request run it again, 'failed'
    -- gives it up. True when there was such a key.
    EXECUTE replace($function$
        CREATE FUNCTION %home%.idempotency_decide(
            stuck_scope text, stuck_operation text, stuck_key text, decision text, operator text) RETURNS boolean
        LANGUAGE plpgsql VOLATILE SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp
        AS $body$
        DECLARE
            now timestamptz := clock_timestamp();
        BEGIN
            LOCK TABLE %home%.idempotency_key IN ACCESS SHARE MODE;
            UPDATE %home%.idempotency_key AS k SET
                slot = (SELECT r.generation % 3 FROM %home%.idempotency_ring AS r), state = decision, lease_until = NULL,
                decided_by = operator, processed_at = CASE WHEN decision = 'failed' THEN now END,
                expires_at = now + (k.expires_at - k.claimed_at), claimed_at = now
            WHERE k.scope = stuck_scope AND k.operation = stuck_operation AND k.key = stuck_key
                AND k.state = 'in_progress' AND k.lease_until <= now AND decision IN ('released', 'failed');
            RETURN FOUND;
        END
        $body$
    $function$, '%home%', home);

    -- Makes the retention longer, never shorter: keys that were promised more are there already.
    EXECUTE replace($function$
        CREATE FUNCTION %home%.idempotency_retain(at_least interval) RETURNS void
        LANGUAGE sql VOLATILE SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp
        AS $body$
            UPDATE %home%.idempotency_ring AS r SET retention = at_least WHERE r.retention < at_least;
        $body$
    $function$, '%home%', home);

    -- Empties the oldest slot and lets it take the new keys, when its keys have outlived the retention. Keys that nobody
    -- has completed are carried over. It waits for the transactions that hold keys; the limit makes it give way to the
    -- claims queued behind it. True when it did so.
    EXECUTE replace($function$
        CREATE FUNCTION %home%.idempotency_rotate() RETURNS boolean
        LANGUAGE plpgsql VOLATILE SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp
        SET lock_timeout = '250ms'
        AS $body$
        DECLARE
            ring   %home%.idempotency_ring;
            oldest text;
        BEGIN
            -- One at a time; it looks again after it has waited for another one.
            SELECT r.* INTO ring FROM %home%.idempotency_ring AS r FOR UPDATE;
            IF clock_timestamp() < ring.started_at + ring.retention / 2 THEN
                RETURN false;
            END IF;
            oldest := format('%home%.idempotency_key_%s', (ring.generation + 1) % 3);
            EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', oldest);
            EXECUTE format($carry$
                WITH undecided AS (DELETE FROM %s WHERE state = 'in_progress' RETURNING *)
                INSERT INTO %home%.idempotency_key (slot, scope, operation, key, fingerprint, state, attempt, holder,
                    lease_until, outcome, claimed_at, processed_at, expires_at, decided_by)
                SELECT $1, scope, operation, key, fingerprint, state, attempt, holder, lease_until, outcome, claimed_at,
                    processed_at, expires_at, decided_by FROM undecided$carry$, oldest) USING ring.generation % 3;
            EXECUTE format('TRUNCATE %s', oldest);
            UPDATE %home%.idempotency_ring SET generation = ring.generation + 1, started_at = clock_timestamp();
            RETURN true;
        END
        $body$
    $function$, '%home%', home);
END
$migration$;

REVOKE ALL ON FUNCTION {schema}idempotency_claim(text, text, text, bytea, uuid, interval, boolean, interval, interval),
    {schema}idempotency_finish(text, text, text, bytea, uuid, interval, integer, text, bytea),
    {schema}idempotency_complete(text, text, text, uuid, text, bytea, interval),
    {schema}idempotency_decide(text, text, text, text, text), {schema}idempotency_retain(interval),
    {schema}idempotency_rotate() FROM PUBLIC;
