-- Who may do what with idempotency keys. Run it as the owner of the tables, after `relay migrate up` and
-- again after each upgrade: it revokes what it does not grant. Creating roles takes CREATEROLE.
--
-- The roles cannot log in. Make your services' users members: GRANT {claimant} TO checkout_service;
-- Services that must not touch each other's keys have a schema each, and a role each.
BEGIN READ WRITE;

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

REVOKE ALL ON {schema}idempotency_key, {schema}idempotency_audit, {schema}outbox_toolkit_migration
    FROM PUBLIC, {claimant}, {observer};
REVOKE ALL ON FUNCTION {schema}idempotency_purge_audit(timestamptz, integer) FROM PUBLIC, {claimant}, {observer};

-- Services claim, complete and forget keys. The triggers of the table keep a stored outcome as it is
-- until it has expired. A decision about a stuck key writes decided_by and the audit: that is left
-- to the owner, and to the roles that you grant it to.
GRANT SELECT, DELETE ON {schema}idempotency_key TO {claimant};
GRANT INSERT (scope, operation, key, fingerprint, state, attempt, holder, lease_until, outcome, claimed_at,
    processed_at, expires_at, refuses) ON {schema}idempotency_key TO {claimant};
GRANT UPDATE (fingerprint, state, attempt, holder, lease_until, outcome, claimed_at, processed_at,
    expires_at, refuses, reported_at) ON {schema}idempotency_key TO {claimant};
GRANT SELECT ON {schema}outbox_toolkit_migration TO {claimant};
GRANT EXECUTE ON FUNCTION {schema}idempotency_purge_audit(timestamptz, integer) TO {claimant};

-- Observers see keys and states, and no outcome.
GRANT SELECT (scope, operation, key, fingerprint, state, attempt, holder, lease_until, claimed_at,
    processed_at, expires_at, decided_by, refuses, reported_at) ON {schema}idempotency_key TO {observer};
GRANT SELECT ON {schema}idempotency_audit, {schema}outbox_toolkit_migration TO {observer};

COMMIT;
