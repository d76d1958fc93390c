-- Sagas: operations of several steps, each of which commits with its effect (ADR 25).
--
-- Times are whole microseconds since 1970 in UTC. Input, output, results and replies are JSON.

-- One row for each saga. A worker that owns it has the name of its claim, which fences every change
-- that the worker makes.
CREATE TABLE saga (
    type          TEXT    NOT NULL,
    id            TEXT    NOT NULL,
    -- Of the code that started it; only workers that have this version run it.
    version       INTEGER NOT NULL,
    -- running, undoing; finished, undone
    state         TEXT    NOT NULL DEFAULT 'running',
    input         TEXT    NOT NULL,
    output        TEXT,
    -- Counts the claims. A claim that a crash or a promotion takes back leaves its number to the next.
    epoch         INTEGER NOT NULL DEFAULT 0,
    -- Its owner and the number of the owner's claim, a name that never returns; null without an owner.
    worker        TEXT,
    -- Its next turn; the end of the lease while it has an owner. Null when it needs no turn: ended,
    -- stuck, or waiting without a time.
    wake_at       INTEGER DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    -- Counts the replies that arrived, so that none goes unnoticed between a look and a wait.
    replies       INTEGER NOT NULL DEFAULT 0,
    -- Failures since the last step that succeeded, and the last one.
    attempts      INTEGER NOT NULL DEFAULT 0,
    error         TEXT,
    -- Why it is being undone, or was.
    reason        TEXT,
    -- The operator's reason to cancel it, until its worker has seen it.
    cancel        TEXT,
    -- The step whose time or reply it waits for.
    waits_for     TEXT,
    waiting_since INTEGER,
    started_at    INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    stuck_at      INTEGER,
    ended_at      INTEGER,
    -- Makes the tokens by which replies prove that their senders got the request.
    secret        BLOB    NOT NULL DEFAULT (randomblob(16)),
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
-- Serves the list of sagas, oldest first.
CREATE INDEX saga_open_idx ON saga (started_at, type, id);
-- Serves retention.
CREATE INDEX saga_ended_idx ON saga (ended_at) WHERE ended_at IS NOT NULL;

-- One row for each step that has begun, found by its name.
CREATE TABLE saga_step (
    type      TEXT    NOT NULL,
    id        TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    -- The order in which the steps began; undoing goes backwards.
    position  INTEGER NOT NULL,
    kind      TEXT    NOT NULL,
    -- done; refused; calling, gave_up (outcome unknown); waiting, timed_out
    state     TEXT    NOT NULL,
    -- none, pending, done, skipped
    undo      TEXT    NOT NULL,
    result    TEXT,
    -- Calls that were made.
    attempts  INTEGER NOT NULL DEFAULT 1,
    error     TEXT,
    -- The end of a sleep, or of the patience of a request.
    due_at    INTEGER,
    begun_at  INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    ended_at  INTEGER,
    undone_at INTEGER,
    CONSTRAINT saga_step_pkey PRIMARY KEY (type, id, name),
    CONSTRAINT saga_step_kind_is_known CHECK (kind IN ('step', 'call', 'sleep', 'request')),
    CONSTRAINT saga_step_state_is_known
        CHECK (state IN ('done', 'refused', 'calling', 'gave_up', 'waiting', 'timed_out')),
    CONSTRAINT saga_step_undo_is_known CHECK (undo IN ('none', 'pending', 'done', 'skipped')),
    CONSTRAINT saga_step_done_has_a_result CHECK (state <> 'done' OR result IS NOT NULL)
) WITHOUT ROWID;

-- The mailbox: one reply for each request, whether or not the saga waits for it yet.
CREATE TABLE saga_reply (
    type        TEXT    NOT NULL,
    id          TEXT    NOT NULL,
    step        TEXT    NOT NULL,
    payload     TEXT    NOT NULL,
    received_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    CONSTRAINT saga_reply_pkey PRIMARY KEY (type, id, step)
) WITHOUT ROWID;

-- Who decided what about a saga, and why.
CREATE TABLE saga_audit (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    at        INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    actor     TEXT    NOT NULL,
    note      TEXT    NOT NULL,
    selection TEXT,
    action    TEXT    NOT NULL,
    type      TEXT    NOT NULL,
    id        TEXT    NOT NULL,
    step      TEXT,
    CONSTRAINT saga_audit_action_is_known CHECK (action IN ('retry', 'cancel', 'skip'))
);

-- Serves the removal of old decisions.
CREATE INDEX saga_audit_at_idx ON saga_audit (at);
