-- Who may do what with idempotency keys. Run it as the owner of the tables (creating roles takes CREATEROLE), after
-- `relay migrate up` and again after each upgrade: it takes away what it does not grant.
--
-- The roles cannot log in. Make your services' users members: GRANT {claimant} TO checkout_service;
BEGIN;

DO $roles$
DECLARE
    home text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = '{schema}idempotency_key'::regclass);
BEGIN
    IF to_regrole('{migrator}') IS NULL THEN CREATE ROLE {migrator} NOLOGIN; END IF;
    IF to_regrole('{claimant}') IS NULL THEN CREATE ROLE {claimant} NOLOGIN; END IF;
    IF to_regrole('{observer}') IS NULL THEN CREATE ROLE {observer} NOLOGIN; END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA %s TO {claimant}, {observer}', home);
    EXECUTE format('GRANT USAGE, CREATE ON SCHEMA %s TO {migrator}', home);
END
$roles$;

REVOKE ALL ON {schema}idempotency_key, {schema}idempotency_key_0, {schema}idempotency_key_1, {schema}idempotency_key_2,
    {schema}idempotency_ring FROM PUBLIC, {claimant}, {observer};
REVOKE ALL ON FUNCTION {schema}idempotency_claim(text, text, text, bytea, uuid, interval, boolean, interval, interval),
    {schema}idempotency_finish(text, text, text, bytea, uuid, interval, integer, text, bytea),
    {schema}idempotency_complete(text, text, text, uuid, text, bytea, interval),
    {schema}idempotency_decide(text, text, text, text, text), {schema}idempotency_retain(interval),
    {schema}idempotency_rotate(), {schema}idempotency_slot_of_new(text, text, text) FROM PUBLIC, {claimant}, {observer};

-- Services store the outcome of a new key, and do everything else through the functions: they cannot take a record back or
-- change a stored outcome, which would run a request twice. Deciding about stuck keys is the owner's, or whose it is granted
-- to.
GRANT SELECT ON {schema}idempotency_key, {schema}idempotency_ring, {schema}outbox_toolkit_migration TO {claimant};
GRANT EXECUTE ON FUNCTION {schema}idempotency_claim(text, text, text, bytea, uuid, interval, boolean, interval, interval),
    {schema}idempotency_finish(text, text, text, bytea, uuid, interval, integer, text, bytea),
    {schema}idempotency_complete(text, text, text, uuid, text, bytea, interval), {schema}idempotency_retain(interval),
    {schema}idempotency_rotate(), {schema}idempotency_slot_of_new(text, text, text) TO {claimant};
GRANT INSERT (slot, scope, operation, key, fingerprint, state, attempt, holder, outcome, claimed_at, processed_at, expires_at)
    ON {schema}idempotency_key_0, {schema}idempotency_key_1, {schema}idempotency_key_2 TO {claimant};

-- Observers see keys and states, and no outcome.
GRANT SELECT (scope, operation, key, fingerprint, state, attempt, holder, lease_until, claimed_at, processed_at, expires_at,
    decided_by) ON {schema}idempotency_key TO {observer};
GRANT SELECT ON {schema}idempotency_ring, {schema}outbox_toolkit_migration TO {observer};

COMMIT;
