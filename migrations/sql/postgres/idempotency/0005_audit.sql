-- Who decided what about a stuck key, and why: written with the decision.
CREATE TABLE {schema}idempotency_audit (
    seq       bigint      GENERATED ALWAYS AS IDENTITY,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor     text        NOT NULL,
    note      text        NOT NULL,
    action    text        NOT NULL,
    scope     text        NOT NULL,
    operation text        NOT NULL,
    key       text        NOT NULL,
    CONSTRAINT idempotency_audit_pkey PRIMARY KEY (seq),
    CONSTRAINT idempotency_audit_action_is_known CHECK (action IN ('release', 'discard'))
);
