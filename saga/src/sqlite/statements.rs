//! The SQL of sagas on SQLite.

pub(super) const INSERT: &str = "INSERT INTO saga (type, id, version, input) VALUES ($1, $2, $3, $4) ON CONFLICT (type, \
    id) DO NOTHING";
pub(super) const FIND: &str = "SELECT * FROM saga WHERE type = $1 AND id = $2";
pub(super) const CLAIM: &str = "UPDATE saga SET epoch = epoch + 1, worker = $4, wake_at = CAST(unixepoch('subsec') * \
    1000000 AS INTEGER) + $5 WHERE rowid IN (SELECT rowid FROM saga WHERE type = $1 AND \
    version = $2 AND wake_at <= CAST(unixepoch('subsec') * 1000000 AS INTEGER) ORDER BY \
    wake_at LIMIT $3) RETURNING *";
pub(super) const RENEW: &str = "UPDATE saga SET wake_at = CAST(unixepoch('subsec') * 1000000 AS INTEGER) + $4 WHERE type \
    = $1 AND id = $2 AND epoch = $3";
pub(super) const STEPS: &str = "SELECT *, coalesce(due_at <= CAST(unixepoch('subsec') * 1000000 AS INTEGER), 0) AS \
    is_due, CAST(unixepoch('subsec') * 1000000 AS INTEGER) - begun_at AS age FROM saga_step \
    WHERE type = $1 AND id = $2 ORDER BY position";
pub(super) const MAILBOX: &str = "SELECT step, payload FROM saga_reply WHERE type = $1 AND id = $2";
pub(super) const INSERT_STEP: &str = "INSERT INTO saga_step (type, id, name, position, kind, state, undo, result, error, \
    due_at, ended_at) SELECT $1, $2, $4, $5, $6, $7, $8, $9, $10, CAST(unixepoch('subsec') * \
    1000000 AS INTEGER) + $11, CASE WHEN $7 IN ('done', 'refused') THEN \
    CAST(unixepoch('subsec') * 1000000 AS INTEGER) END WHERE EXISTS (SELECT 1 FROM saga \
    WHERE type = $1 AND id = $2 AND epoch = $3 AND cancel IS NULL)";
pub(super) const CHANGE_STEP: &str = "UPDATE saga_step SET state = $7, undo = $8, result = coalesce($9, result), error = \
    coalesce($10, error), attempts = attempts + $11, ended_at = CASE WHEN $12 THEN \
    CAST(unixepoch('subsec') * 1000000 AS INTEGER) ELSE ended_at END, undone_at = CASE WHEN \
    undo <> $8 AND $8 = 'done' THEN CAST(unixepoch('subsec') * 1000000 AS INTEGER) ELSE \
    undone_at END WHERE type = $1 AND id = $2 AND name = $4 AND state = $5 AND undo = $6 AND \
    EXISTS (SELECT 1 FROM saga WHERE type = $1 AND id = $2 AND epoch = $3 AND (NOT $13 OR \
    cancel IS NULL) AND ($14 IS NULL OR replies = $14))";
pub(super) const WAIT: &str = "UPDATE saga SET worker = NULL, attempts = 0, error = NULL, waits_for = $4, waiting_since \
    = CASE WHEN waits_for = $4 THEN waiting_since ELSE CAST(unixepoch('subsec') * 1000000 AS \
    INTEGER) END, wake_at = CASE WHEN replies <> $5 OR cancel IS NOT NULL THEN \
    CAST(unixepoch('subsec') * 1000000 AS INTEGER) ELSE (SELECT due_at FROM saga_step WHERE \
    saga_step.type = $1 AND saga_step.id = $2 AND name = $4) END WHERE type = $1 AND id = $2 \
    AND epoch = $3";
pub(super) const POSTPONE: &str = "UPDATE saga SET worker = NULL, attempts = $4, error = coalesce($6, error), waits_for = \
    NULL, waiting_since = NULL, wake_at = CAST(unixepoch('subsec') * 1000000 AS INTEGER) + \
    $5 WHERE type = $1 AND id = $2 AND epoch = $3";
pub(super) const STICK: &str = "UPDATE saga SET worker = NULL, attempts = $4, error = $5, waits_for = NULL, \
    waiting_since = NULL, wake_at = NULL, stuck_at = CAST(unixepoch('subsec') * 1000000 AS \
    INTEGER) WHERE type = $1 AND id = $2 AND epoch = $3";
pub(super) const BEGIN_UNDO: &str = "UPDATE saga SET state = 'undoing', reason = $4, cancel = NULL, attempts = 0, error = \
    NULL, waits_for = NULL, waiting_since = NULL WHERE type = $1 AND id = $2 AND epoch = $3";
pub(super) const FINISH: &str = "UPDATE saga SET state = 'finished', output = $4, worker = NULL, wake_at = NULL, attempts \
    = 0, error = NULL, waits_for = NULL, waiting_since = NULL, ended_at = \
    CAST(unixepoch('subsec') * 1000000 AS INTEGER) WHERE type = $1 AND id = $2 AND epoch = \
    $3 AND cancel IS NULL";
pub(super) const END_UNDO: &str = "UPDATE saga SET state = 'undone', worker = NULL, wake_at = NULL, attempts = 0, error = \
    NULL, waits_for = NULL, waiting_since = NULL, ended_at = CAST(unixepoch('subsec') * \
    1000000 AS INTEGER) WHERE type = $1 AND id = $2 AND epoch = $3";
pub(super) const ANNOUNCE_REPLY: &str = "UPDATE saga SET replies = replies + 1, wake_at = CASE WHEN worker IS NULL AND stuck_at \
    IS NULL THEN CAST(unixepoch('subsec') * 1000000 AS INTEGER) ELSE wake_at END WHERE type \
    = $1 AND id = $2 AND state = 'running'";
pub(super) const EXISTS: &str = "SELECT EXISTS (SELECT 1 FROM saga WHERE type = $1 AND id = $2)";
pub(super) const HAS_REPLY: &str =
    "SELECT EXISTS (SELECT 1 FROM saga_reply WHERE type = $1 AND id = $2 AND step = $3)";
pub(super) const STEP_STATE: &str = "SELECT state FROM saga_step WHERE type = $1 AND id = $2 AND name = $3";
pub(super) const INSERT_REPLY: &str = "INSERT INTO saga_reply (type, id, step, payload) VALUES ($1, $2, $3, $4) ON CONFLICT DO \
    NOTHING";
pub(super) const LIST: &str = "SELECT * FROM saga WHERE ($1 IS NULL OR type = $1) AND ($2 IS NULL OR state = $2) AND \
    (NOT $3 OR stuck_at IS NOT NULL) AND ($4 OR ended_at IS NULL) ORDER BY started_at, type, \
    id LIMIT $5";
pub(super) const RETRY: &str = "UPDATE saga SET stuck_at = NULL, attempts = 0, wake_at = CAST(unixepoch('subsec') * \
    1000000 AS INTEGER) WHERE type = $1 AND id = $2 AND stuck_at IS NOT NULL";
pub(super) const CANCEL: &str = "UPDATE saga SET cancel = CASE WHEN worker IS NULL THEN NULL ELSE $3 END, state = CASE \
    WHEN worker IS NULL THEN 'undoing' ELSE state END, reason = CASE WHEN worker IS NULL \
    THEN $3 ELSE reason END, wake_at = CASE WHEN worker IS NULL THEN \
    CAST(unixepoch('subsec') * 1000000 AS INTEGER) ELSE wake_at END, attempts = CASE WHEN \
    worker IS NULL THEN 0 ELSE attempts END, waits_for = CASE WHEN worker IS NULL THEN NULL \
    ELSE waits_for END, waiting_since = CASE WHEN worker IS NULL THEN NULL ELSE \
    waiting_since END, stuck_at = NULL WHERE type = $1 AND id = $2 AND state = 'running'";
pub(super) const LOCK_STUCK: &str = "SELECT * FROM saga WHERE type = $1 AND id = $2 AND stuck_at IS NOT NULL";
pub(super) const SKIP_UNDO: &str = "UPDATE saga_step SET undo = 'skipped', undone_at = CAST(unixepoch('subsec') * 1000000 AS \
    INTEGER) WHERE type = $1 AND id = $2 AND name = $3 AND undo = 'pending'";
pub(super) const SKIP_STEP: &str = "UPDATE saga_step SET state = 'done', result = $4, ended_at = CAST(unixepoch('subsec') * \
    1000000 AS INTEGER) WHERE type = $1 AND id = $2 AND name = $3 AND state <> 'done'";
pub(super) const SKIP_NEW_STEP: &str = "INSERT INTO saga_step (type, id, name, position, kind, state, undo, result, ended_at) \
    SELECT $1, $2, $3, coalesce(max(position) + 1, 0), 'step', 'done', 'none', $4, \
    CAST(unixepoch('subsec') * 1000000 AS INTEGER) FROM saga_step WHERE type = $1 AND id = \
    $2 ON CONFLICT DO NOTHING";
pub(super) const NOTE_DECISION: &str = "INSERT INTO saga_audit (actor, note, action, type, id, step) VALUES ($1, $2, $3, $4, $5, \
    $6)";
pub(super) const DECISIONS: &str = "SELECT * FROM saga_audit ORDER BY seq DESC LIMIT $1";
pub(super) const OVERDUE: &str = "SELECT type, version, count(*) AS sagas, CAST(unixepoch('subsec') * 1000000 AS INTEGER) \
    - min(wake_at) AS longest FROM saga WHERE wake_at <= CAST(unixepoch('subsec') * 1000000 \
    AS INTEGER) - $1 GROUP BY type, version";
pub(super) const OLD: &str = "SELECT type, id FROM saga WHERE ended_at <= CAST(unixepoch('subsec') * 1000000 AS \
    INTEGER) - $1 ORDER BY ended_at LIMIT $2";
pub(super) const FORGET: &str = "DELETE FROM saga WHERE type = $1 AND id = $2";
pub(super) const FORGET_STEPS: &str = "DELETE FROM saga_step WHERE type = $1 AND id = $2";
pub(super) const FORGET_REPLIES: &str = "DELETE FROM saga_reply WHERE type = $1 AND id = $2";
