//! The SQL of idempotency keys on SQLite. Times are microseconds since 1970. There are no schemas,
//! so nothing has to be rendered.

/// The SELECT makes a connection that is older than a migration load the new schema; an INSERT
/// alone would fail.
pub(super) const HOLD: &str = "SAVEPOINT idempotency_claim; SELECT 1 FROM idempotency_key LIMIT 0";
pub(super) const UNDO: &str = "ROLLBACK TO SAVEPOINT idempotency_claim";
pub(super) const NOW: &str = "SELECT CAST(unixepoch('subsec') * 1000000 AS INTEGER)";
pub(super) const FIND: &str =
    "SELECT * FROM idempotency_key WHERE scope = $1 AND operation = $2 AND key = $3";
/// Claims a key that has no row.
pub(super) const INSERT: &str = "INSERT INTO idempotency_key (scope, operation, key, fingerprint, holder, lease_until, claimed_at, \
        expires_at, refuses, attempt, state) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 1, 'in_progress') ON CONFLICT DO NOTHING";
/// Takes over a key that the same transaction has read.
pub(super) const REPLACE: &str = "INSERT OR REPLACE INTO idempotency_key (scope, operation, key, fingerprint, holder, lease_until, \
        claimed_at, expires_at, refuses, attempt, state) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, 'in_progress')";
/// Ends the request of this very transaction, whether or not its row was rolled back with the
/// effects.
pub(super) const FINISH: &str = "INSERT OR REPLACE INTO idempotency_key (scope, operation, key, fingerprint, holder, state, attempt, \
        outcome, claimed_at, processed_at, expires_at, refuses) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9, $10, $11)";
pub(super) const CHANGE: &str = "UPDATE idempotency_key SET state = $4, lease_until = $5, outcome = $6, claimed_at = $7, \
        processed_at = $8, expires_at = $7 + (expires_at - claimed_at), decided_by = $9, reported_at = NULL \
    WHERE scope = $1 AND operation = $2 AND key = $3";
/// Also keys whose lease is too long, as on PostgreSQL.
pub(super) const STUCK: &str = "SELECT * FROM idempotency_key WHERE state = 'in_progress' \
        AND (lease_until <= CAST(unixepoch('subsec') * 1000000 AS INTEGER) \
            OR lease_until > CAST(unixepoch('subsec') * 1000000 AS INTEGER) + $2) ORDER BY lease_until LIMIT $1";
pub(super) const REPORT: &str = "UPDATE idempotency_key SET reported_at = CAST(unixepoch('subsec') * 1000000 AS INTEGER) \
    WHERE rowid IN (SELECT rowid FROM idempotency_key WHERE state = 'in_progress' AND reported_at IS NULL \
        AND lease_until <= CAST(unixepoch('subsec') * 1000000 AS INTEGER) ORDER BY lease_until LIMIT $1) RETURNING *";
pub(super) const NOTE: &str = "INSERT INTO idempotency_audit (scope, operation, key, actor, note, action) VALUES ($1, $2, $3, $4, $5, $6)";
pub(super) const DECISIONS: &str = "SELECT actor, note, action, scope, operation, key, at FROM idempotency_audit \
    ORDER BY seq DESC LIMIT $1";
pub(super) const FORGET_DECISIONS: &str = "DELETE FROM idempotency_audit WHERE seq IN ( \
    SELECT seq FROM idempotency_audit WHERE at < $1 ORDER BY seq LIMIT $2)";
pub(super) const FORGET: &str = "DELETE FROM idempotency_key WHERE rowid IN (SELECT rowid FROM idempotency_key \
        WHERE expires_at <= min(CAST(unixepoch('subsec') * 1000000 AS INTEGER), $2) AND (state <> 'in_progress' \
            OR (NOT refuses AND lease_until <= CAST(unixepoch('subsec') * 1000000 AS INTEGER))) \
        ORDER BY expires_at LIMIT $1)";
