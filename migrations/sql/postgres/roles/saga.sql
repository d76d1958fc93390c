-- Who may do what with sagas. Run it as the owner of the tables, after `relay migrate up` and
-- again after each upgrade: it revokes what it does not grant. Creating roles takes CREATEROLE.
--
-- The roles cannot log in. Make your services' users members: GRANT {worker} TO checkout_service;
-- Its steps enqueue messages and its replies come through an inbox, so it needs their roles as well.
BEGIN READ WRITE;

DO $roles$
DECLARE
    home text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = '{schema}saga'::regclass);
BEGIN
    IF to_regrole('{migrator}') IS NULL THEN CREATE ROLE {migrator} NOLOGIN; END IF;
    IF to_regrole('{worker}') IS NULL THEN CREATE ROLE {worker} NOLOGIN; END IF;
    IF to_regrole('{observer}') IS NULL THEN CREATE ROLE {observer} NOLOGIN; END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA %s TO {worker}, {observer}', home);
    EXECUTE format('GRANT USAGE, CREATE ON SCHEMA %s TO {migrator}', home);
END
$roles$;

REVOKE ALL ON {schema}saga, {schema}saga_step, {schema}saga_reply, {schema}saga_audit,
    {schema}outbox_toolkit_migration
    FROM PUBLIC, {worker}, {observer};
REVOKE ALL ON FUNCTION {schema}saga_purge_audit(timestamptz, integer) FROM PUBLIC, {worker}, {observer};

-- Services start sagas, run them and forget those that have ended. Input and version stay as they
-- were at the start; so do order and kind of a step. A decision about a stuck saga writes
-- saga_audit: that is left to the owner, and to the roles that you grant it to.
GRANT SELECT, INSERT, DELETE ON {schema}saga, {schema}saga_step, {schema}saga_reply TO {worker};
GRANT UPDATE (state, output, epoch, worker, wake_at, replies, attempts, error, reason, cancel, waits_for, waiting_since,
    stuck_at, ended_at) ON {schema}saga TO {worker};
GRANT UPDATE (state, undo, result, attempts, error, ended_at, undone_at) ON {schema}saga_step TO {worker};
GRANT SELECT ON {schema}outbox_toolkit_migration TO {worker};
GRANT EXECUTE ON FUNCTION {schema}saga_purge_audit(timestamptz, integer) TO {worker};

-- Observers see names, states and times, and no input, result or reply.
GRANT SELECT (type, id, version, state, epoch, worker, wake_at, replies, attempts, error, reason, cancel, waits_for,
    waiting_since, started_at, stuck_at, ended_at) ON {schema}saga TO {observer};
GRANT SELECT (type, id, name, position, kind, state, undo, attempts, error, due_at, begun_at, ended_at, undone_at)
    ON {schema}saga_step TO {observer};
GRANT SELECT (type, id, step, received_at) ON {schema}saga_reply TO {observer};
GRANT SELECT ON {schema}saga_audit, {schema}outbox_toolkit_migration TO {observer};

COMMIT;
