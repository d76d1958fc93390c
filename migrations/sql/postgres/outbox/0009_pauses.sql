-- Operators pause a pipeline, one of its topics, or an ordering key; a running relay looks here twice a second. What they
-- do besides decisions about dead entries is kept.
CREATE TABLE {schema}outbox_pause (
    relay     text        NOT NULL,
    kind      text        NOT NULL,
    -- of the topic or key; empty for the whole pipeline
    name      text        NOT NULL,
    actor     text        NOT NULL,
    reason    text        NOT NULL,
    paused_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT outbox_pause_pkey PRIMARY KEY (relay, kind, name),
    CONSTRAINT outbox_pause_kind_is_known CHECK (kind IN ('pipeline', 'topic', 'key')),
    CONSTRAINT outbox_pause_names_a_topic_or_key CHECK ((kind = 'pipeline') = (name = '')),
    CONSTRAINT outbox_pause_has_a_reason CHECK (reason <> '')
);
COMMENT ON TABLE {schema}outbox_pause IS 'what a relay does not publish until an operator resumes it, and why';
COMMENT ON INDEX {schema}outbox_pause_pkey IS 'finds what a relay has to leave';

CREATE TABLE {schema}outbox_operation (
    seq       bigint      GENERATED ALWAYS AS IDENTITY,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor     text        NOT NULL,
    relay     text        NOT NULL,
    action    text        NOT NULL,
    selection text        NOT NULL,
    note      text        NOT NULL,
    CONSTRAINT outbox_operation_pkey PRIMARY KEY (seq)
);
COMMENT ON TABLE {schema}outbox_operation IS
    'who paused or resumed what, and why; decisions about dead entries are in outbox_audit';
COMMENT ON INDEX {schema}outbox_operation_pkey IS 'lists operations in their order';
