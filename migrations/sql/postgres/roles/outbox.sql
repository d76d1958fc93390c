-- Who may do what with the outbox. Run it as the owner of the tables, after `relay migrate up` and
-- again after each upgrade: it revokes what it does not grant. Creating roles takes CREATEROLE.
--
-- The roles cannot log in. Make your services' users members: GRANT {producer} TO checkout_service;
BEGIN READ WRITE;

DO $roles$
DECLARE
    home text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = '{schema}outbox_message'::regclass);
    part regclass;
BEGIN
    IF to_regrole('{migrator}') IS NULL THEN CREATE ROLE {migrator} NOLOGIN; END IF;
    IF to_regrole('{producer}') IS NULL THEN CREATE ROLE {producer} NOLOGIN; END IF;
    IF to_regrole('{relay}') IS NULL THEN CREATE ROLE {relay} NOLOGIN; END IF;
    IF to_regrole('{observer}') IS NULL THEN CREATE ROLE {observer} NOLOGIN; END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA %s TO {producer}, {relay}, {observer}', home);
    EXECUTE format('GRANT USAGE, CREATE ON SCHEMA %s TO {migrator}', home);
    -- The lock of the function that empties segments.
    PERFORM pg_advisory_xact_lock(8031439170474173555 # '{schema}outbox_message'::regclass::oid::bigint);
    -- Segments have rights of their own, for example by the database's default privileges.
    FOR part IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = '{schema}outbox_message'::regclass LOOP
        EXECUTE format('REVOKE ALL ON %s FROM PUBLIC, {producer}, {relay}, {observer}', part);
    END LOOP;
END
$roles$;

REVOKE ALL ON {schema}outbox_message, {schema}outbox_node, {schema}outbox_relay, {schema}outbox_exception,
    {schema}outbox_parked, {schema}outbox_rebased, {schema}outbox_pause, {schema}outbox_audit,
    {schema}outbox_operation, {schema}outbox_identity, {schema}outbox_server_run, {schema}outbox_retention,
    {schema}outbox_toolkit_migration
    FROM PUBLIC, {producer}, {relay}, {observer};
REVOKE ALL ON SEQUENCE {schema}outbox_message_id_seq, {schema}outbox_audit_seq_seq, {schema}outbox_operation_seq_seq
    FROM PUBLIC, {producer}, {relay}, {observer};
REVOKE ALL ON FUNCTION {schema}outbox_stored(uuid[]), {schema}outbox_rebase_rows(), {schema}outbox_advance_sequence(),
    {schema}outbox_renumber_rows(pg_snapshot, bigint), {schema}outbox_check_transaction(),
    {schema}outbox_segment(integer, interval), {schema}outbox_expire_segment(integer, interval),
    {schema}outbox_forget_relay(text, boolean, bigint, timestamptz), {schema}outbox_forget_decisions(interval, integer),
    {schema}outbox_take_node(text, interval),
    {schema}outbox_renew_node(integer, bigint, text, interval), {schema}outbox_release_node(integer, bigint, text)
    FROM PUBLIC, {producer}, {relay}, {observer};

-- Producers append. They choose neither place nor transaction nor time of a row, and read no
-- content: ids show what became of an unknown commit, and fingerprints distinguish a duplicate from
-- an id that is used again.
GRANT INSERT (message_id, topic, key, kind, content_type, headers, traceparent, tracestate, payload, deliver_at),
    SELECT (xid, id, message_id) ON {schema}outbox_message TO {producer};
GRANT EXECUTE ON FUNCTION {schema}outbox_stored(uuid[]) TO {producer};

-- PUBLIC may execute these, unless default privileges of the database revoke it. The trigger of an
-- adopted table calls them with the rights of the producer.
GRANT EXECUTE ON FUNCTION {schema}outbox_new_message_id(), {schema}outbox_check_text(text, text, text),
    {schema}outbox_enqueue(text, bytea, text, text, text, jsonb, timestamptz, uuid, text, text),
    {schema}outbox_enqueue_json(text, jsonb, text, text, jsonb, timestamptz, uuid) TO {producer};

-- Producers that make ids lease the number of their node through functions that only ever move its
-- epoch forwards.
GRANT EXECUTE ON FUNCTION {schema}outbox_take_node(text, interval), {schema}outbox_renew_node(integer, bigint, text, interval),
    {schema}outbox_release_node(integer, bigint, text) TO {producer};

-- Relays, and operators who decide about dead messages, read the log and write only beside it.
-- Decisions are added to the audit, and never changed.
GRANT SELECT ON {schema}outbox_message, {schema}outbox_identity, {schema}outbox_retention,
    {schema}outbox_toolkit_migration TO {relay};
GRANT SELECT ON SEQUENCE {schema}outbox_message_id_seq TO {relay};
GRANT SELECT, INSERT, UPDATE ON {schema}outbox_relay TO {relay};
GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}outbox_exception, {schema}outbox_parked TO {relay};
GRANT SELECT, INSERT ON {schema}outbox_audit, {schema}outbox_operation TO {relay};
GRANT SELECT, INSERT, DELETE ON {schema}outbox_pause TO {relay};
GRANT SELECT, INSERT, UPDATE ON {schema}outbox_server_run TO {relay};
GRANT SELECT, INSERT, DELETE ON {schema}outbox_rebased TO {relay};
GRANT EXECUTE ON FUNCTION {schema}outbox_rebase_rows(), {schema}outbox_advance_sequence(),
    {schema}outbox_renumber_rows(pg_snapshot, bigint), {schema}outbox_timeline() TO {relay};

-- Relays empty segments, forget relays that have ended, and remove old decisions through functions
-- that check the conditions: alone they can remove no message, no cursor, and no decision of the
-- last 30 days.
GRANT EXECUTE ON FUNCTION {schema}outbox_segment(integer, interval), {schema}outbox_expire_segment(integer, interval),
    {schema}outbox_forget_relay(text, boolean, bigint, timestamptz), {schema}outbox_forget_decisions(interval, integer) TO {relay};

-- The server shows the age of another role's transaction only to members of pg_read_all_stats. They
-- also see the text of every statement on the server, so the decision is yours, and the grant takes
-- a superuser. Without it `relay status` says that the age is hidden, and the alert on rows held
-- back counts from the relay's first look at the transaction.
-- GRANT pg_read_all_stats TO {relay};

-- Observers see states, ids and names, and no content.
GRANT SELECT (xid, id, message_id, topic, key, kind, content_type, deliver_at, enqueued_at)
    ON {schema}outbox_message TO {observer};
GRANT SELECT (relay, shard, id, message_id, topic, key, state, attempts, due_at, fault, error, created_at, updated_at,
    earlier_errors) ON {schema}outbox_exception TO {observer};
GRANT SELECT (seq, at, actor, relay, id, message_id, action, note, digest_before, digest_after, selection, fault, error,
    decision) ON {schema}outbox_audit TO {observer};
GRANT SELECT ON {schema}outbox_node, {schema}outbox_relay, {schema}outbox_rebased, {schema}outbox_pause,
    {schema}outbox_operation, {schema}outbox_identity, {schema}outbox_server_run,
    {schema}outbox_retention, {schema}outbox_toolkit_migration TO {observer};
GRANT EXECUTE ON FUNCTION {schema}outbox_segment(integer, interval), {schema}outbox_timeline() TO {observer};
GRANT SELECT ON SEQUENCE {schema}outbox_message_id_seq TO {observer};

COMMIT;
