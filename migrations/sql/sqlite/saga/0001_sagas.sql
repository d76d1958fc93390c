-- Sagas: operations of several steps, each of which commits with its effect (ADR 25).
--
-- Times are whole microseconds since 1970 in UTC; input, output, results and replies are JSON.

-- One row per saga. A worker that owns it has its epoch; every change that a worker makes is fenced by it. wake_at is its next
-- turn, and the end of the lease while somebody owns it; null when it needs no turn: ended, stuck, or waiting without a time.
-- replies counts those that came, so that none comes unnoticed between a look and a wait. attempts counts failures since the
-- last step that succeeded. cancel is the operator's reason, until its worker has seen it.
CREATE TABLE saga (
    type          TEXT    NOT NULL,
    id            TEXT    NOT NULL,
    version       INTEGER NOT NULL,
    state         TEXT    NOT NULL DEFAULT 'running',
    input         TEXT    NOT NULL,
    output        TEXT,
    epoch         INTEGER NOT NULL DEFAULT 0,
    worker        TEXT,
    wake_at       INTEGER DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    replies       INTEGER NOT NULL DEFAULT 0,
    attempts      INTEGER NOT NULL DEFAULT 0,
    error         TEXT,
    reason        TEXT,
    cancel        TEXT,
    waits_for     TEXT,
    waiting_since INTEGER,
    started_at    INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    stuck_at      INTEGER,
    ended_at      INTEGER,
    CONSTRAINT saga_pkey PRIMARY KEY (type, id),
    CONSTRAINT saga_state_is_known CHECK (state IN ('running', 'undoing', 'finished', 'undone')),
    CONSTRAINT saga_ended_at_a_time CHECK ((state IN ('finished', 'undone')) = (ended_at IS NOT NULL)),
    CONSTRAINT saga_ended_needs_no_turn CHECK (ended_at IS NULL OR (wake_at IS NULL AND stuck_at IS NULL)),
    CONSTRAINT saga_stuck_needs_no_turn CHECK (stuck_at IS NULL OR wake_at IS NULL),
    CONSTRAINT saga_finished_has_an_output CHECK (state <> 'finished' OR output IS NOT NULL)
);

-- Serves the claims: what is due, by type and version.
CREATE INDEX saga_due_idx ON saga (type, version, wake_at) WHERE wake_at IS NOT NULL;
-- Serves the list of what an operator has to look at.
CREATE INDEX saga_stuck_idx ON saga (stuck_at) WHERE stuck_at IS NOT NULL;
-- Serves retention.
CREATE INDEX saga_ended_idx ON saga (ended_at) WHERE ended_at IS NOT NULL;

-- One row per step that has begun, found by its name. position is the order in which they began; undoing goes backwards.
CREATE TABLE saga_step (
    type      TEXT    NOT NULL,
    id        TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    position  INTEGER NOT NULL,
    kind      TEXT    NOT NULL,
    state     TEXT    NOT NULL,
    undo      TEXT    NOT NULL,
    result    TEXT,
    attempts  INTEGER NOT NULL DEFAULT 1,
    error     TEXT,
    due_at    INTEGER,
    begun_at  INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    ended_at  INTEGER,
    undone_at INTEGER,
    CONSTRAINT saga_step_pkey PRIMARY KEY (type, id, name),
    CONSTRAINT saga_step_kind_is_known CHECK (kind IN ('step', 'call', 'sleep', 'request')),
    CONSTRAINT saga_step_state_is_known CHECK (state IN ('done', 'refused', 'calling', 'gave_up', 'waiting', 'timed_out')),
    CONSTRAINT saga_step_undo_is_known CHECK (undo IN ('none', 'pending', 'done', 'skipped')),
    CONSTRAINT saga_step_done_has_a_result CHECK (state <> 'done' OR result IS NOT NULL)
) WITHOUT ROWID;

-- The mailbox: replies to requests, one for each, whether or not the saga waits for it yet.
CREATE TABLE saga_reply (
    type        TEXT    NOT NULL,
    id          TEXT    NOT NULL,
    step        TEXT    NOT NULL,
    payload     TEXT    NOT NULL,
    received_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    CONSTRAINT saga_reply_pkey PRIMARY KEY (type, id, step)
) WITHOUT ROWID;

-- What operators decided.
CREATE TABLE saga_audit (
    seq    INTEGER PRIMARY KEY AUTOINCREMENT,
    at     INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    actor  TEXT    NOT NULL,
    note   TEXT    NOT NULL,
    action TEXT    NOT NULL,
    type   TEXT    NOT NULL,
    id     TEXT    NOT NULL,
    step   TEXT,
    CONSTRAINT saga_audit_action_is_known CHECK (action IN ('retry', 'cancel', 'skip'))
);
