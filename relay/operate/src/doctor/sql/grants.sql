-- Rights that the roles of least privilege need or must not have (migrations/sql/postgres/roles):
-- those of the current role, and of the services' roles if they exist. A right on some columns
-- counts as the right.
WITH roles (part, role_name) AS (
    SELECT 'relay', current_user::text
    UNION ALL
    SELECT part, role_name
    FROM (VALUES ('producer', {producer}), ('consumer', {consumer}), ('claimant', 'idempotency_claimant'))
        AS standard (part, role_name)
    WHERE to_regrole(role_name) IS NOT NULL
), rules (part, object, privilege, wanted) AS (VALUES
    ('relay', 'outbox_message', 'SELECT', true),
    ('relay', 'outbox_identity', 'SELECT', true),
    ('relay', 'outbox_retention', 'SELECT', true),
    ('relay', 'outbox_toolkit_migration', 'SELECT', true),
    ('relay', 'outbox_message_id_seq', 'SELECT', true),
    ('relay', 'outbox_relay', 'SELECT', true),
    ('relay', 'outbox_relay', 'INSERT', true),
    ('relay', 'outbox_relay', 'UPDATE', true),
    ('relay', 'outbox_exception', 'SELECT', true),
    ('relay', 'outbox_exception', 'INSERT', true),
    ('relay', 'outbox_exception', 'UPDATE', true),
    ('relay', 'outbox_exception', 'DELETE', true),
    ('relay', 'outbox_parked', 'SELECT', true),
    ('relay', 'outbox_parked', 'INSERT', true),
    ('relay', 'outbox_parked', 'UPDATE', true),
    ('relay', 'outbox_parked', 'DELETE', true),
    ('relay', 'outbox_pause', 'SELECT', true),
    ('relay', 'outbox_pause', 'INSERT', true),
    ('relay', 'outbox_pause', 'DELETE', true),
    ('relay', 'outbox_operation', 'SELECT', true),
    ('relay', 'outbox_operation', 'INSERT', true),
    ('relay', 'outbox_audit', 'SELECT', true),
    ('relay', 'outbox_audit', 'INSERT', true),
    ('relay', 'outbox_server_run', 'SELECT', true),
    ('relay', 'outbox_server_run', 'INSERT', true),
    ('relay', 'outbox_server_run', 'UPDATE', true),
    ('relay', 'outbox_rebased', 'SELECT', true),
    ('relay', 'outbox_rebased', 'INSERT', true),
    ('relay', 'outbox_rebased', 'DELETE', true),
    ('relay', 'outbox_rebase_rows()', 'EXECUTE', true),
    ('relay', 'outbox_advance_sequence()', 'EXECUTE', true),
    ('relay', 'outbox_renumber_rows(pg_snapshot, bigint)', 'EXECUTE', true),
    ('relay', 'outbox_segment(integer, interval)', 'EXECUTE', true),
    ('relay', 'outbox_expire_segment(integer, interval)', 'EXECUTE', true),
    ('relay', 'outbox_forget_relay(text, boolean, bigint, timestamptz)', 'EXECUTE', true),
    ('relay', 'outbox_forget_decisions(interval, integer)', 'EXECUTE', true),
    ('relay', 'outbox_message', 'UPDATE', false),
    ('relay', 'outbox_message', 'DELETE', false),
    ('relay', 'outbox_message', 'TRUNCATE', false),
    ('producer', 'outbox_message', 'INSERT', true),
    ('producer', 'outbox_message', 'SELECT', true),
    ('producer', 'outbox_stored(uuid[])', 'EXECUTE', true),
    ('producer', 'outbox_new_message_id()', 'EXECUTE', true),
    ('producer', 'outbox_check_text(text, text, text)', 'EXECUTE', true),
    ('producer', 'outbox_enqueue(text, bytea, text, text, text, jsonb, timestamptz, uuid, text, text)', 'EXECUTE', true),
    ('producer', 'outbox_enqueue_json(text, jsonb, text, text, jsonb, timestamptz, uuid)', 'EXECUTE', true),
    ('producer', 'outbox_message', 'UPDATE', false),
    ('producer', 'outbox_message', 'DELETE', false),
    ('producer', 'outbox_message', 'TRUNCATE', false),
    ('producer', 'outbox_relay', 'UPDATE', false),
    ('consumer', 'inbox_message', 'SELECT', true),
    ('consumer', 'inbox_message', 'INSERT', true),
    ('consumer', 'inbox_message', 'UPDATE', true),
    ('consumer', 'inbox_retention', 'SELECT', true),
    ('consumer', 'inbox_attempt', 'DELETE', true),
    ('consumer', 'inbox_dead_letter', 'INSERT', true),
    ('consumer', 'inbox_minute', 'INSERT', true),
    ('consumer', 'inbox_minute', 'UPDATE', true),
    ('consumer', 'inbox_minute', 'DELETE', true),
    ('consumer', 'inbox_create_days(date, date)', 'EXECUTE', true),
    ('consumer', 'inbox_expire_days(date)', 'EXECUTE', true),
    ('consumer', 'inbox_message', 'DELETE', false),
    ('consumer', 'inbox_message', 'TRUNCATE', false),
    ('claimant', 'idempotency_key', 'SELECT', true),
    ('claimant', 'idempotency_key', 'INSERT', true),
    ('claimant', 'idempotency_key', 'UPDATE', true),
    ('claimant', 'idempotency_key', 'DELETE', true),
    ('claimant', 'idempotency_key', 'TRUNCATE', false)
), parts (part, object) AS (
    -- Whoever has rights on a segment or a day passes the rules of its table.
    SELECT w.part, i.inhrelid
    FROM (VALUES ('relay', '{schema}outbox_message'), ('producer', '{schema}outbox_message'),
        ('consumer', '{schema}inbox_message')) AS w (part, parent)
    JOIN pg_inherits AS i ON i.inhparent = to_regclass(w.parent)
), anchors (part, object) AS (VALUES
    ('relay', 'outbox_message'), ('producer', 'outbox_message'),
    ('consumer', 'inbox_message'), ('claimant', 'idempotency_key')
), asked AS (
    SELECT part, role_name, object, privilege, wanted, CASE
        WHEN object LIKE '%(%' THEN
            has_function_privilege(role_name::name, to_regprocedure('{schema}' || object)::oid, privilege)
        WHEN object LIKE '%\_seq' THEN
            has_sequence_privilege(role_name::name, to_regclass('{schema}' || object)::oid, privilege)
        WHEN privilege IN ('SELECT', 'INSERT', 'UPDATE') THEN
            has_any_column_privilege(role_name::name, to_regclass('{schema}' || object)::oid, privilege)
        ELSE has_table_privilege(role_name::name, to_regclass('{schema}' || object)::oid, privilege)
        END AS granted
    FROM roles JOIN rules USING (part)
    WHERE EXISTS (SELECT FROM anchors
        WHERE anchors.part = roles.part AND to_regclass('{schema}' || anchors.object) IS NOT NULL)
    UNION ALL
    SELECT part, role_name, object::regclass::text, privilege, false,
        has_table_privilege(role_name::name, object, privilege)
    FROM roles JOIN parts USING (part)
    CROSS JOIN (VALUES ('SELECT'), ('INSERT'), ('UPDATE'), ('DELETE'), ('TRUNCATE')) AS harmful (privilege)
    WHERE part = 'producer' OR privilege IN ('UPDATE', 'DELETE', 'TRUNCATE')
)
SELECT part, role_name, object, privilege, wanted FROM asked
WHERE coalesce(granted, false) <> wanted
UNION ALL
SELECT part, role_name, '', '', true FROM roles
WHERE EXISTS (SELECT FROM anchors
    WHERE anchors.part = roles.part AND to_regclass('{schema}' || anchors.object) IS NOT NULL)
