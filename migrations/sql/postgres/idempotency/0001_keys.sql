-- Idempotency keys: which requests were begun, which have an outcome, and what it was.
--
-- `relay migrate roles` grants each role what it needs. The function that removes decisions runs
-- with the owner's rights. It names its table with the schema and has a search_path of its own, so
-- that nobody can put another table in between. The schema may come from the search_path of whoever
-- migrates. So the body says %home%, and the last statement of this file replaces it with the name.
-- Until then the server must not check the body.
SET LOCAL check_function_bodies = off;

-- One row for each scope, operation and key (ADR 23). They are COLLATE "C", compared by their
-- bytes: the order of other collations changes with the operating system or with ICU, and an index
-- in another order finds no duplicate, so stored keys would be granted again.
--
-- No CHECK, because the server parses each anew in every statement that inserts (ADR 19). Only the
-- statements of this toolkit write these columns, and its tests search for rows that make no sense.
--
-- No index contains the state or the outcome. So a transaction that stores the outcome in its own
-- new row touches no index, as long as the page has room for the second version: hence the fill
-- factor. A vacuum keeps the empty pages at the end, because giving them back locks the table.
CREATE TABLE {schema}idempotency_key (
    -- The client, such as the tenant, and what it asked for.
    scope        text COLLATE "C" NOT NULL,
    operation    text COLLATE "C" NOT NULL,
    key          text COLLATE "C" NOT NULL,
    -- Hash of the request. Another request under a known key is refused.
    fingerprint  bytea       NOT NULL,
    -- in_progress, released, succeeded or failed. An operator gave up a failed one without an
    -- outcome.
    state        text        NOT NULL,
    -- Counts the holders of one key; greater than every earlier holder's.
    attempt      integer     NOT NULL,
    -- Names one holder; only it may complete.
    holder       uuid        NOT NULL,
    -- Of a key on a lease. Null while a transaction holds the key, which others do not see.
    lease_until  timestamptz,
    outcome      bytea,
    -- When the holder claimed the key or reported last; expires_at counts from it.
    claimed_at   timestamptz NOT NULL,
    processed_at timestamptz,
    expires_at   timestamptz NOT NULL,
    -- The operator who released or discarded it.
    decided_by   text,
    -- Whether a key whose lease has expired waits for an operator.
    refuses      boolean     NOT NULL DEFAULT false,
    -- When maintenance reported that the lease expired.
    reported_at  timestamptz,
    CONSTRAINT idempotency_key_pkey PRIMARY KEY (scope, operation, key)
) WITH (
    fillfactor = 80, vacuum_truncate = false, toast.vacuum_truncate = false,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    toast.autovacuum_vacuum_scale_factor = 0.02, toast.autovacuum_vacuum_threshold = 5000
);

-- Serves the batches that forget. It leaves out keys on a lease that wait for an operator: they are
-- kept, and each batch would walk them again. Of a key that a transaction holds, both columns stay,
-- so storing its outcome touches no index.
CREATE INDEX idempotency_key_expires_idx ON {schema}idempotency_key (expires_at)
    WHERE NOT refuses OR lease_until IS NULL;
-- Serves the search for expired leases. Keys that are claimed and completed in one transaction
-- never enter it.
CREATE INDEX idempotency_key_lease_idx ON {schema}idempotency_key (lease_until) WHERE lease_until IS NOT NULL;
-- Serves the report of expired leases. It leaves out keys that were reported and wait for an
-- operator, which can be many.
CREATE INDEX idempotency_key_unreported_idx ON {schema}idempotency_key (lease_until)
    WHERE lease_until IS NOT NULL AND reported_at IS NULL;

-- Refuses changes that would run a request twice, whatever a service is granted. The owner of the
-- table is not bound. The function is called only for what it refuses; what services do in their
-- course costs a comparison.
CREATE FUNCTION {schema}idempotency_keep_outcome() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pg_has_role((SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'USAGE') THEN
        RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
    END IF;
    RAISE EXCEPTION 'key % of % is % and expires at %: it is kept as it is',
        OLD.key, OLD.operation, OLD.state, OLD.expires_at
        USING ERRCODE = 'insufficient_privilege';
END
$$;

-- A stored outcome stays as it is until it has expired, and no key expires earlier than was said.
CREATE TRIGGER idempotency_key_keep_outcome BEFORE UPDATE ON {schema}idempotency_key
    FOR EACH ROW WHEN (OLD.expires_at > clock_timestamp()
        AND (OLD.state IN ('succeeded', 'failed') OR NEW.expires_at < OLD.expires_at))
    EXECUTE FUNCTION {schema}idempotency_keep_outcome();

-- A key stays until it has expired. One in progress also stays while its lease lasts, or while it
-- waits for an operator.
CREATE TRIGGER idempotency_key_keep_record BEFORE DELETE ON {schema}idempotency_key
    FOR EACH ROW WHEN (OLD.expires_at > clock_timestamp()
        OR (OLD.state = 'in_progress'
            AND (OLD.refuses OR coalesce(OLD.lease_until, OLD.claimed_at) > clock_timestamp())))
    EXECUTE FUNCTION {schema}idempotency_keep_outcome();

-- Who decided what about a stuck key, and why: written with the decision.
CREATE TABLE {schema}idempotency_audit (
    seq       bigint      GENERATED ALWAYS AS IDENTITY,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor     text        NOT NULL,
    note      text        NOT NULL,
    selection text,
    action    text        NOT NULL,
    scope     text        NOT NULL,
    operation text        NOT NULL,
    key       text        NOT NULL,
    CONSTRAINT idempotency_audit_pkey PRIMARY KEY (seq),
    CONSTRAINT idempotency_audit_action_is_known CHECK (action IN ('release', 'discard'))
);

-- Serves the removal of old decisions.
CREATE INDEX idempotency_audit_at_idx ON {schema}idempotency_audit (at);

{audit_purge}


{home}
