-- Who may do what with the inbox. Run it as the owner of the tables, after `relay migrate up` and
-- again after each upgrade: it revokes what it does not grant. Creating roles takes CREATEROLE.
--
-- The roles cannot log in. Make your services' users members: GRANT {consumer} TO billing_service;
BEGIN READ WRITE;

DO $roles$
DECLARE
    home text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = '{schema}inbox_message'::regclass);
    part regclass;
BEGIN
    IF to_regrole('{migrator}') IS NULL THEN CREATE ROLE {migrator} NOLOGIN; END IF;
    IF to_regrole('{consumer}') IS NULL THEN CREATE ROLE {consumer} NOLOGIN; END IF;
    IF to_regrole('{observer}') IS NULL THEN CREATE ROLE {observer} NOLOGIN; END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA %s TO {consumer}, {observer}', home);
    EXECUTE format('GRANT USAGE, CREATE ON SCHEMA %s TO {migrator}', home);
    -- The lock of the functions that make and drop days.
    PERFORM pg_advisory_xact_lock(7597682998164844593 # '{schema}inbox_message'::regclass::oid::bigint);
    -- Days have rights of their own, for example by the database's default privileges.
    FOR part IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = '{schema}inbox_message'::regclass LOOP
        EXECUTE format('REVOKE ALL ON %s FROM PUBLIC, {consumer}, {observer}', part);
    END LOOP;
END
$roles$;

REVOKE ALL ON {schema}inbox_message, {schema}inbox_day, {schema}inbox_retention, {schema}inbox_attempt,
    {schema}inbox_dead_letter, {schema}inbox_chunk_set, {schema}inbox_chunk, {schema}inbox_audit, {schema}inbox_minute,
    {schema}outbox_toolkit_migration
    FROM PUBLIC, {consumer}, {observer};
REVOKE ALL ON SEQUENCE {schema}inbox_dead_letter_seq_seq FROM PUBLIC, {consumer}, {observer};
REVOKE ALL ON FUNCTION {schema}inbox_create_days(date, date), {schema}inbox_expire_days(date),
    {schema}inbox_purge_audit(timestamptz, integer)
    FROM PUBLIC, {consumer}, {observer};

-- Consumers record what took effect. They cannot remove a record: that would apply a message twice.
-- Only the functions create and forget days. The roles are for all consumers of this schema: give
-- each service a schema and roles of its own (`relay migrate roles --service billing`).
GRANT SELECT, INSERT, UPDATE (result, dead_letter, canonical_fingerprint) ON {schema}inbox_message TO {consumer};
GRANT SELECT, INSERT ON {schema}inbox_retention TO {consumer};
GRANT SELECT ON {schema}inbox_day TO {consumer};
GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}inbox_attempt TO {consumer};
GRANT SELECT, INSERT, UPDATE (deliveries, reason, error, attempts, resolution, resolved_at), DELETE
    ON {schema}inbox_dead_letter TO {consumer};
-- Decisions are added, and closed once. A trigger keeps the way in which a dead letter was closed.
GRANT SELECT, INSERT, UPDATE (outcome, done_at) ON {schema}inbox_audit TO {consumer};
-- The right to change one column is the right to lock a row.
GRANT SELECT, INSERT, UPDATE (bytes), DELETE ON {schema}inbox_chunk_set TO {consumer};
GRANT SELECT, INSERT, DELETE ON {schema}inbox_chunk TO {consumer};
GRANT SELECT, INSERT, UPDATE (applied, duplicates), DELETE ON {schema}inbox_minute TO {consumer};
GRANT SELECT ON {schema}outbox_toolkit_migration TO {consumer};
GRANT EXECUTE ON FUNCTION {schema}inbox_create_days(date, date), {schema}inbox_expire_days(date),
    {schema}inbox_purge_audit(timestamptz, integer) TO {consumer};

-- PUBLIC may execute these, unless default privileges of the database revoke it. They run with the
-- rights of the caller, for consumers that do not have the library.
GRANT EXECUTE ON FUNCTION {schema}inbox_fingerprint(text, text, bytea), {schema}inbox_generated_at(uuid),
    {schema}inbox_admit(text, uuid, text, text, bytea, text, text), {schema}inbox_finish(text, uuid),
    {schema}inbox_count_failure(text, uuid, text, text),
    {schema}inbox_store_dead_letter(text, uuid, text, text, text, bytea, text, text, text, jsonb, text, text, text,
        text, text, text),
    {schema}inbox_begin_redrive(text), {schema}inbox_take_redrive(text, bigint),
    {schema}inbox_fail_redrive(text, bigint, text), {schema}inbox_maintain(date, integer) TO {consumer};

-- Observers see states, ids and names, and no content.
GRANT SELECT (message_id, consumer, scope, fingerprint, source, processed_at, dead_letter)
    ON {schema}inbox_message TO {observer};
GRANT SELECT (id, consumer, scope, subject, fingerprint, message_id, topic, key, kind, source, time, content_type,
    reason, error, attempts, deliveries, origin, dead_at, resolution, resolved_at, seq)
    ON {schema}inbox_dead_letter TO {observer};
GRANT SELECT ON SEQUENCE {schema}inbox_dead_letter_seq_seq TO {observer};
GRANT SELECT (message_id, consumer, scope, fingerprint, chunks, number) ON {schema}inbox_chunk TO {observer};
GRANT SELECT ON {schema}inbox_day, {schema}inbox_retention, {schema}inbox_attempt, {schema}inbox_chunk_set,
    {schema}inbox_audit, {schema}inbox_minute, {schema}outbox_toolkit_migration TO {observer};

COMMIT;
