-- One table of keys, whose rows are deleted in batches when they have expired (ADR 23).
--
-- Times are whole microseconds since 1970 in UTC; holders are UUIDs in lower-case text. attempt counts the holders of one key;
-- holder names one, and only it may complete. claimed_at is when it was heard of last; expires_at counts from it. decided_by
-- is the operator who released or discarded it; refuses tells whether a key whose lease has expired waits for one;
-- reported_at is when maintenance has told that it did.
CREATE TABLE idempotency_keys (
    scope        TEXT    NOT NULL,
    operation    TEXT    NOT NULL,
    key          TEXT    NOT NULL,
    fingerprint  BLOB    NOT NULL,
    state        TEXT    NOT NULL,
    attempt      INTEGER NOT NULL,
    holder       TEXT    NOT NULL,
    lease_until  INTEGER,
    outcome      BLOB,
    claimed_at   INTEGER NOT NULL,
    processed_at INTEGER,
    expires_at   INTEGER NOT NULL,
    decided_by   TEXT,
    refuses      INTEGER NOT NULL DEFAULT 0,
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
    CONSTRAINT idempotency_key_settled_has_a_time CHECK ((state IN ('succeeded', 'failed')) = (processed_at IS NOT NULL))
);

INSERT INTO idempotency_keys (scope, operation, key, fingerprint, state, attempt, holder, lease_until, outcome, claimed_at,
    processed_at, expires_at, decided_by)
SELECT scope, operation, key, fingerprint, state, attempt, holder, lease_until, outcome, claimed_at, processed_at, expires_at,
    decided_by
FROM idempotency_key;

DROP VIEW idempotency_key;
DROP TABLE idempotency_key_0;
DROP TABLE idempotency_key_1;
DROP TABLE idempotency_key_2;
DROP TABLE idempotency_ring;
ALTER TABLE idempotency_keys RENAME TO idempotency_key;

-- Serves the batches that forget.
CREATE INDEX idempotency_key_expires_idx ON idempotency_key (expires_at);
-- Serves the search for expired leases.
CREATE INDEX idempotency_key_lease_idx ON idempotency_key (lease_until) WHERE lease_until IS NOT NULL;
