-- Idempotency keys: which requests were begun, which have an outcome, and what it was.
--
-- Times are whole microseconds since 1970 in UTC; holders are UUIDs in lower-case text. Three tables of one shape take turns:
-- new keys go into one of them, and the oldest is emptied whole when its keys have outlived the retention: SQLite frees its
-- pages without looking at the rows. That a key is in one table only is the work of the one writer there is.

-- One row per scope, operation and key. attempt counts the holders of one key; holder names one, and only it may complete.
-- claimed_at is when it was heard of last; expires_at counts from it. decided_by is the operator who released or discarded it.
CREATE TABLE idempotency_key_0 (
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

-- Serves the list of what is stuck, and the rotation, which carries undecided keys over.
CREATE INDEX idempotency_key_0_in_progress_idx ON idempotency_key_0 (lease_until) WHERE state = 'in_progress';

CREATE TABLE idempotency_key_1 (
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
CREATE INDEX idempotency_key_1_in_progress_idx ON idempotency_key_1 (lease_until) WHERE state = 'in_progress';

CREATE TABLE idempotency_key_2 (
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
CREATE INDEX idempotency_key_2_in_progress_idx ON idempotency_key_2 (lease_until) WHERE state = 'in_progress';

-- All of them, with the slot that each row is in.
CREATE VIEW idempotency_key AS
    SELECT 0 AS slot, * FROM idempotency_key_0
    UNION ALL SELECT 1, * FROM idempotency_key_1
    UNION ALL SELECT 2, * FROM idempotency_key_2;

-- Which slot takes new keys: generation modulo 3. A slot is emptied half a retention after it was the newest but one, so
-- that it holds no key that is younger than the retention. The retention, in microseconds, only ever grows.
CREATE TABLE idempotency_ring (
    only_row   INTEGER NOT NULL DEFAULT 1,
    generation INTEGER NOT NULL DEFAULT 0,
    started_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    retention  INTEGER NOT NULL DEFAULT 86400000000,
    CONSTRAINT idempotency_ring_pkey PRIMARY KEY (only_row),
    CONSTRAINT idempotency_ring_has_one_row CHECK (only_row = 1),
    CONSTRAINT idempotency_ring_retention_is_positive CHECK (retention > 0)
);
INSERT INTO idempotency_ring DEFAULT VALUES;
