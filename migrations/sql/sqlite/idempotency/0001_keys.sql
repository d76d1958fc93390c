-- Idempotency keys: which requests were begun, which have an outcome, and what it was.
--
-- Times are whole microseconds since 1970 in UTC; holders are UUIDs in lower-case text.

-- One row for each scope, operation and key. Rows are deleted in batches when they have expired
-- (ADR 23).
CREATE TABLE idempotency_key (
    -- The client, such as the tenant, and what it asked for.
    scope        TEXT    NOT NULL,
    operation    TEXT    NOT NULL,
    key          TEXT    NOT NULL,
    -- Hash of the request. Another request under a known key is refused.
    fingerprint  BLOB    NOT NULL,
    -- An operator gave up a failed key without an outcome.
    state        TEXT    NOT NULL,
    -- Counts the holders of one key; greater than every earlier holder's.
    attempt      INTEGER NOT NULL,
    -- Names one holder; only it may complete.
    holder       TEXT    NOT NULL,
    lease_until  INTEGER,
    outcome      BLOB,
    -- When the holder claimed the key or reported last; expires_at counts from it.
    claimed_at   INTEGER NOT NULL,
    processed_at INTEGER,
    expires_at   INTEGER NOT NULL,
    -- The operator who released or discarded it.
    decided_by   TEXT,
    -- Whether a key whose lease has expired waits for an operator.
    refuses      INTEGER NOT NULL DEFAULT 0,
    -- When maintenance reported that the lease expired.
    reported_at  INTEGER,
    CONSTRAINT idempotency_key_pkey PRIMARY KEY (scope, operation, key),
    CONSTRAINT idempotency_key_scope_has_1_to_255_bytes CHECK (octet_length(scope) BETWEEN 1 AND 255),
    CONSTRAINT idempotency_key_operation_has_1_to_255_bytes CHECK (octet_length(operation) BETWEEN 1 AND 255),
    CONSTRAINT idempotency_key_key_has_1_to_255_bytes CHECK (octet_length(key) BETWEEN 1 AND 255),
    CONSTRAINT idempotency_key_fingerprint_has_32_bytes CHECK (length(fingerprint) = 32),
    CONSTRAINT idempotency_key_attempt_is_positive CHECK (attempt > 0),
    CONSTRAINT idempotency_key_state_is_known CHECK (state IN ('in_progress', 'released', 'succeeded', 'failed')),
    CONSTRAINT idempotency_key_in_progress_has_a_lease CHECK ((state = 'in_progress') = (lease_until IS NOT NULL)),
    CONSTRAINT idempotency_key_succeeded_has_an_outcome CHECK (state <> 'succeeded' OR outcome IS NOT NULL),
    CONSTRAINT idempotency_key_settled_has_a_time
        CHECK ((state IN ('succeeded', 'failed')) = (processed_at IS NOT NULL))
);

-- Serves the batches that forget. It leaves out keys that wait for an operator: they are kept, and
-- each batch would walk them again.
CREATE INDEX idempotency_key_expires_idx ON idempotency_key (expires_at) WHERE NOT refuses OR lease_until IS NULL;
-- Serves the search for expired leases.
CREATE INDEX idempotency_key_lease_idx ON idempotency_key (lease_until) WHERE lease_until IS NOT NULL;
-- Serves the report of expired leases. It leaves out keys that were reported and wait for an
-- operator, which can be many.
CREATE INDEX idempotency_key_unreported_idx ON idempotency_key (lease_until)
    WHERE lease_until IS NOT NULL AND reported_at IS NULL;

-- Who decided what about a stuck key, and why: written with the decision.
CREATE TABLE idempotency_audit (
    seq       INTEGER NOT NULL,
    at        INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    actor     TEXT    NOT NULL,
    note      TEXT    NOT NULL,
    selection TEXT,
    action    TEXT    NOT NULL,
    scope     TEXT    NOT NULL,
    operation TEXT    NOT NULL,
    key       TEXT    NOT NULL,
    CONSTRAINT idempotency_audit_pkey PRIMARY KEY (seq),
    CONSTRAINT idempotency_audit_action_is_known CHECK (action IN ('release', 'discard'))
);

-- Serves the removal of old decisions.
CREATE INDEX idempotency_audit_at_idx ON idempotency_audit (at);
