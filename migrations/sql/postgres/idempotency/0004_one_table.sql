-- One table of keys with a primary key, and rows that are deleted in batches when they have expired (ADR 23).

-- Whoever held a key through the functions ends first: this takes the tables for itself. A version of the toolkit from
-- before does not run with what follows.
LOCK TABLE {schema}idempotency_key, {schema}idempotency_ring IN ACCESS EXCLUSIVE MODE;
ALTER TABLE {schema}idempotency_key RENAME TO idempotency_slots;
ALTER TABLE {schema}idempotency_slots RENAME CONSTRAINT idempotency_key_pkey TO idempotency_slots_pkey;
DROP INDEX {schema}idempotency_key_in_progress_idx;

-- One row per scope, operation and key. No CHECK, because the server parses each anew in every statement that inserts
-- (ADR 19): only the statements of this toolkit write these columns, and its tests look for rows that make no sense.
--
-- No index names the state or the outcome, so a transaction that stores the outcome in its own new row touches no index, as
-- long as the page has room for the second version: hence the fill factor. A vacuum keeps the empty pages at the end, because
-- giving them back takes the table for itself.
CREATE TABLE {schema}idempotency_key (
    scope        text        NOT NULL,
    operation    text        NOT NULL,
    key          text        NOT NULL,
    fingerprint  bytea       NOT NULL,
    -- in_progress, released, succeeded or failed; failed without an outcome was given up by an operator
    state        text        NOT NULL,
    -- counts the holders of one key; greater than every earlier holder's
    attempt      integer     NOT NULL,
    -- names one holder; only it may complete
    holder       uuid        NOT NULL,
    -- of a key on lease; null while a transaction holds it, which nobody else sees
    lease_until  timestamptz,
    outcome      bytea,
    -- when the holder claimed it or was heard of last; what expires_at counts from
    claimed_at   timestamptz NOT NULL,
    processed_at timestamptz,
    expires_at   timestamptz NOT NULL,
    -- the operator who released or discarded it
    decided_by   text,
    -- whether a key whose lease has expired waits for an operator
    refuses      boolean     NOT NULL DEFAULT false,
    -- when maintenance has told that the lease expired
    reported_at  timestamptz,
    CONSTRAINT idempotency_key_pkey PRIMARY KEY (scope, operation, key)
) WITH (
    fillfactor = 80, vacuum_truncate = false, toast.vacuum_truncate = false,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    toast.autovacuum_vacuum_scale_factor = 0.02, toast.autovacuum_vacuum_threshold = 5000
);

INSERT INTO {schema}idempotency_key (scope, operation, key, fingerprint, state, attempt, holder, lease_until, outcome, claimed_at,
    processed_at, expires_at, decided_by)
SELECT scope, operation, key, fingerprint, state, attempt, holder, lease_until, outcome, claimed_at, processed_at, expires_at,
    decided_by
FROM {schema}idempotency_slots;

-- Serves the batches that forget.
CREATE INDEX idempotency_key_expires_idx ON {schema}idempotency_key (expires_at);
-- Serves the search for expired leases. Keys that are claimed and completed in one transaction never enter it.
CREATE INDEX idempotency_key_lease_idx ON {schema}idempotency_key (lease_until) WHERE lease_until IS NOT NULL;

-- A stored outcome stays as it is until it has expired, no key expires earlier than was said, and a key in progress stays
-- there, whatever a service is granted: anything else would run its request twice. The owner of the table is not bound. The
-- function is called only for what it refuses; what services do in their course costs a comparison.
CREATE FUNCTION {schema}idempotency_keep_outcome() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pg_has_role((SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'USAGE') THEN
        RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
    END IF;
    RAISE EXCEPTION 'key % of % is % and expires at %: it is kept as it is', OLD.key, OLD.operation, OLD.state, OLD.expires_at
        USING ERRCODE = 'insufficient_privilege';
END
$$;
CREATE TRIGGER idempotency_key_keep_outcome BEFORE UPDATE ON {schema}idempotency_key
    FOR EACH ROW WHEN (OLD.expires_at > clock_timestamp()
        AND (OLD.state IN ('succeeded', 'failed') OR NEW.expires_at < OLD.expires_at))
    EXECUTE FUNCTION {schema}idempotency_keep_outcome();
CREATE TRIGGER idempotency_key_keep_record BEFORE DELETE ON {schema}idempotency_key
    FOR EACH ROW WHEN (OLD.state = 'in_progress' OR OLD.expires_at > clock_timestamp())
    EXECUTE FUNCTION {schema}idempotency_keep_outcome();

DO $migration$
DECLARE
    home text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = '{schema}idempotency_key'::regclass);
    allowed record;
BEGIN
    -- Whoever may store an outcome through a function may do it this way, without a second look at the roles.
    FOR allowed IN
        SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS grantee
        FROM pg_proc AS p CROSS JOIN LATERAL aclexplode(p.proacl) AS a
        WHERE p.pronamespace = home::regnamespace AND p.proname = 'idempotency_finish' AND a.grantee <> p.proowner
    LOOP
        EXECUTE format('GRANT SELECT, INSERT, DELETE ON %s.idempotency_key TO %s', home, allowed.grantee);
        EXECUTE format('GRANT UPDATE (fingerprint, state, attempt, holder, lease_until, outcome, claimed_at, processed_at, '
            'expires_at, refuses, reported_at) ON %s.idempotency_key TO %s', home, allowed.grantee);
    END LOOP;
END
$migration$;

DROP FUNCTION {schema}idempotency_claim(text, text, text, bytea, uuid, interval, boolean, interval, interval),
    {schema}idempotency_finish(text, text, text, bytea, uuid, interval, integer, text, bytea),
    {schema}idempotency_complete(text, text, text, uuid, text, bytea, interval),
    {schema}idempotency_decide(text, text, text, text, text), {schema}idempotency_retain(interval),
    {schema}idempotency_rotate(), {schema}idempotency_slot_of_new(text, text, text);
DROP TABLE {schema}idempotency_slots, {schema}idempotency_ring;
