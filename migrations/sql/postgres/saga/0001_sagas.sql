-- Sagas: operations of several steps, each of which commits with its effect (ADR 25).

-- One row per saga. A worker that owns it has its epoch; every change that a worker makes is fenced by it.
CREATE TABLE {schema}saga (
    type          text        NOT NULL,
    id            text        NOT NULL,
    -- of the code that started it; only workers that have this version run it
    version       integer     NOT NULL,
    -- running, undoing; finished, undone
    state         text        NOT NULL DEFAULT 'running',
    -- JSON
    input         text        NOT NULL,
    output        text,
    -- counts the workers that have owned it; fences all but the last
    epoch         bigint      NOT NULL DEFAULT 0,
    -- names its owner; null while nobody owns it
    worker        text,
    -- its next turn; the end of the lease while somebody owns it; null when it needs no turn: ended, stuck, or waiting
    -- without a time
    wake_at       timestamptz DEFAULT clock_timestamp(),
    -- counts the replies that came, so that none comes unnoticed between a look and a wait
    replies       bigint      NOT NULL DEFAULT 0,
    -- failures since the last step that succeeded
    attempts      integer     NOT NULL DEFAULT 0,
    error         text,
    -- why it is, or was, undone
    reason        text,
    -- the operator's reason to cancel it, until its worker has seen it
    cancel        text,
    -- the step whose time or reply it waits for
    waits_for     text,
    waiting_since timestamptz,
    started_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    stuck_at      timestamptz,
    ended_at      timestamptz,
    CONSTRAINT saga_pkey PRIMARY KEY (type, id),
    CONSTRAINT saga_state_is_known CHECK (state IN ('running', 'undoing', 'finished', 'undone')),
    CONSTRAINT saga_ended_at_a_time CHECK ((state IN ('finished', 'undone')) = (ended_at IS NOT NULL)),
    CONSTRAINT saga_ended_needs_no_turn CHECK (ended_at IS NULL OR (wake_at IS NULL AND stuck_at IS NULL)),
    CONSTRAINT saga_stuck_needs_no_turn CHECK (stuck_at IS NULL OR wake_at IS NULL),
    CONSTRAINT saga_finished_has_an_output CHECK (state <> 'finished' OR output IS NOT NULL)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- Serves the claims: what is due, by type and version.
CREATE INDEX saga_due_idx ON {schema}saga (type, version, wake_at) WHERE wake_at IS NOT NULL;
-- Serves the list of what an operator has to look at.
CREATE INDEX saga_stuck_idx ON {schema}saga (stuck_at) WHERE stuck_at IS NOT NULL;
-- Serves retention.
CREATE INDEX saga_ended_idx ON {schema}saga (ended_at) WHERE ended_at IS NOT NULL;

-- One row per step that has begun, found by its name.
CREATE TABLE {schema}saga_step (
    type      text        NOT NULL,
    id        text        NOT NULL,
    name      text        NOT NULL,
    -- the order in which they began; undoing goes backwards
    position  integer     NOT NULL,
    kind      text        NOT NULL,
    -- done; refused; calling, gave_up (outcome unknown); waiting, timed_out
    state     text        NOT NULL,
    -- none, pending, done, skipped
    undo      text        NOT NULL,
    -- JSON
    result    text,
    -- calls that were made
    attempts  integer     NOT NULL DEFAULT 1,
    error     text,
    -- of a sleep its end, of a request the end of its patience
    due_at    timestamptz,
    begun_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at  timestamptz,
    undone_at timestamptz,
    CONSTRAINT saga_step_pkey PRIMARY KEY (type, id, name),
    CONSTRAINT saga_step_kind_is_known CHECK (kind IN ('step', 'call', 'sleep', 'request')),
    CONSTRAINT saga_step_state_is_known CHECK (state IN ('done', 'refused', 'calling', 'gave_up', 'waiting', 'timed_out')),
    CONSTRAINT saga_step_undo_is_known CHECK (undo IN ('none', 'pending', 'done', 'skipped')),
    CONSTRAINT saga_step_done_has_a_result CHECK (state <> 'done' OR result IS NOT NULL)
);

-- The mailbox: replies to requests, one for each, whether or not the saga waits for it yet.
CREATE TABLE {schema}saga_reply (
    type        text        NOT NULL,
    id          text        NOT NULL,
    step        text        NOT NULL,
    payload     text        NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT saga_reply_pkey PRIMARY KEY (type, id, step)
);

-- What operators decided.
CREATE TABLE {schema}saga_audit (
    seq    bigint      GENERATED ALWAYS AS IDENTITY,
    at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor  text        NOT NULL,
    note   text        NOT NULL,
    action text        NOT NULL,
    type   text        NOT NULL,
    id     text        NOT NULL,
    step   text,
    CONSTRAINT saga_audit_pkey PRIMARY KEY (seq),
    CONSTRAINT saga_audit_action_is_known CHECK (action IN ('retry', 'cancel', 'skip'))
);
