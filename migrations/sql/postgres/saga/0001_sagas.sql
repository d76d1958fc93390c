-- Sagas: operations of several steps, each of which commits with its effect (ADR 25).
--
-- Text that is part of a key is COLLATE "C", compared by its bytes. The order of other collations
-- changes with the operating system or with ICU, and an index in another order finds no duplicate:
-- a saga would be started twice.
--
-- `relay migrate roles` grants each role what it needs. The function that removes decisions runs
-- with the owner's rights. It names its table with the schema and has a search_path of its own, so
-- that nobody can put another table in between. The schema may come from the search_path of whoever
-- migrates. So the body says %home%, and the last statement of this file replaces it with the name.
-- Until then the server must not check the body.
SET LOCAL check_function_bodies = off;

-- One row for each saga. A worker that owns it has the name of its claim, which fences every change
-- that the worker makes.
CREATE TABLE {schema}saga (
    type          text COLLATE "C" NOT NULL,
    id            text COLLATE "C" NOT NULL,
    -- Of the code that started it; only workers that have this version run it.
    version       integer     NOT NULL,
    -- running, undoing; finished, undone
    state         text        NOT NULL DEFAULT 'running',
    -- JSON
    input         text        NOT NULL,
    output        text,
    -- Counts the claims. A claim that a crash or a promotion takes back leaves its number to the next.
    epoch         bigint      NOT NULL DEFAULT 0,
    -- Its owner and the number of the owner's claim, a name that never returns; null without an owner.
    worker        text,
    -- Its next turn; the end of the lease while it has an owner. Null when it needs no turn: ended,
    -- stuck, or waiting without a time.
    wake_at       timestamptz DEFAULT clock_timestamp(),
    -- Counts the replies that arrived, so that none goes unnoticed between a look and a wait.
    replies       bigint      NOT NULL DEFAULT 0,
    -- Failures since the last step that succeeded, and the last one.
    attempts      integer     NOT NULL DEFAULT 0,
    error         text,
    -- Why it is being undone, or was.
    reason        text,
    -- The operator's reason to cancel it, until its worker has seen it.
    cancel        text,
    -- The step whose time or reply it waits for.
    waits_for     text,
    waiting_since timestamptz,
    started_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    stuck_at      timestamptz,
    ended_at      timestamptz,
    -- Makes the tokens by which replies prove that their senders got the request.
    secret        bytea       NOT NULL DEFAULT uuid_send(gen_random_uuid()),
    CONSTRAINT saga_pkey PRIMARY KEY (type, id),
    CONSTRAINT saga_state_is_known CHECK (state IN ('running', 'undoing', 'finished', 'undone')),
    CONSTRAINT saga_ended_at_a_time CHECK ((state IN ('finished', 'undone')) = (ended_at IS NOT NULL)),
    CONSTRAINT saga_ended_needs_no_turn CHECK (ended_at IS NULL OR (wake_at IS NULL AND stuck_at IS NULL)),
    CONSTRAINT saga_stuck_needs_no_turn CHECK (stuck_at IS NULL OR wake_at IS NULL),
    CONSTRAINT saga_finished_has_an_output CHECK (state <> 'finished' OR output IS NOT NULL)
-- Every turn updates the row: room for heap-only updates, and an early vacuum.
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- Serves the claims: what is due, by type and version.
CREATE INDEX saga_due_idx ON {schema}saga (type, version, wake_at) WHERE wake_at IS NOT NULL;
-- Serves the list of what an operator has to look at.
CREATE INDEX saga_stuck_idx ON {schema}saga (stuck_at) WHERE stuck_at IS NOT NULL;
-- Serves the list of sagas that have not ended, oldest first.
CREATE INDEX saga_open_idx ON {schema}saga (started_at, type, id) WHERE ended_at IS NULL;
-- Serves retention.
CREATE INDEX saga_ended_idx ON {schema}saga (ended_at) WHERE ended_at IS NOT NULL;

-- One row for each step that has begun, found by its name.
CREATE TABLE {schema}saga_step (
    type      text COLLATE "C" NOT NULL,
    id        text COLLATE "C" NOT NULL,
    name      text COLLATE "C" NOT NULL,
    -- The order in which the steps began; undoing goes backwards.
    position  integer     NOT NULL,
    kind      text        NOT NULL,
    -- done; refused; calling, gave_up (outcome unknown); waiting, timed_out
    state     text        NOT NULL,
    -- none, pending, done, skipped
    undo      text        NOT NULL,
    -- JSON
    result    text,
    -- Calls that were made.
    attempts  integer     NOT NULL DEFAULT 1,
    error     text,
    -- The end of a sleep, or of the patience of a request.
    due_at    timestamptz,
    begun_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at  timestamptz,
    undone_at timestamptz,
    CONSTRAINT saga_step_pkey PRIMARY KEY (type, id, name),
    CONSTRAINT saga_step_kind_is_known CHECK (kind IN ('step', 'call', 'sleep', 'request')),
    CONSTRAINT saga_step_state_is_known
        CHECK (state IN ('done', 'refused', 'calling', 'gave_up', 'waiting', 'timed_out')),
    CONSTRAINT saga_step_undo_is_known CHECK (undo IN ('none', 'pending', 'done', 'skipped')),
    CONSTRAINT saga_step_done_has_a_result CHECK (state <> 'done' OR result IS NOT NULL)
);

-- The mailbox: one reply for each request, whether or not the saga waits for it yet.
CREATE TABLE {schema}saga_reply (
    type        text COLLATE "C" NOT NULL,
    id          text COLLATE "C" NOT NULL,
    step        text COLLATE "C" NOT NULL,
    -- JSON
    payload     text        NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT saga_reply_pkey PRIMARY KEY (type, id, step)
);

-- Who decided what about a saga, and why.
CREATE TABLE {schema}saga_audit (
    seq       bigint      GENERATED ALWAYS AS IDENTITY,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor     text        NOT NULL,
    note      text        NOT NULL,
    selection text,
    action    text        NOT NULL,
    type      text        NOT NULL,
    id        text        NOT NULL,
    step      text,
    CONSTRAINT saga_audit_pkey PRIMARY KEY (seq),
    CONSTRAINT saga_audit_action_is_known CHECK (action IN ('retry', 'cancel', 'skip'))
);

-- Serves the removal of old decisions.
CREATE INDEX saga_audit_at_idx ON {schema}saga_audit (at);

{audit_purge}


{home}
