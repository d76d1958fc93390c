-- Who decided what about a stuck key, and why: written with the decision.
CREATE TABLE idempotency_audit (
    seq       INTEGER NOT NULL,
    at        INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    actor     TEXT    NOT NULL,
    note      TEXT    NOT NULL,
    action    TEXT    NOT NULL,
    scope     TEXT    NOT NULL,
    operation TEXT    NOT NULL,
    key       TEXT    NOT NULL,
    CONSTRAINT idempotency_audit_pkey PRIMARY KEY (seq),
    CONSTRAINT idempotency_audit_action_is_known CHECK (action IN ('release', 'discard'))
);
