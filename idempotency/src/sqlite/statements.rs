//! The SQL of idempotency keys on SQLite. There are no schemas. Times are microseconds since 1970.

/// The SELECT makes a connection that was opened before a migration load the new schema; an INSERT
/// alone would fail.
pub(super) const HOLD: &str = "SAVEPOINT idempotency_claim; SELECT 1 FROM idempotency_key LIMIT 0";
pub(super) const UNDO: &str = "ROLLBACK TO SAVEPOINT idempotency_claim";

migrations::statements! {
    parts {
        // The clock is that of the machine: a SQLite file has no server. It is constant within one
        // statement.
        now = "CAST(unixepoch('subsec') * 1000000 AS INTEGER)";
        // Columns are named: a star would also read columns that a later migration adds.
        record_columns = "k.fingerprint, k.state, k.attempt, k.holder, k.lease_until, k.outcome, \
            k.processed_at, k.expires_at, k.refuses";
        stuck_columns = "scope, operation, key, attempt, holder, claimed_at, lease_until, refuses";
        // The earliest time until which the key is kept: the clock may have been set back.
        known_until = "coalesce((SELECT expires_at FROM idempotency_key \
            WHERE scope = $1 AND operation = $2 AND key = $3), 0)";
    }

    clock = "SELECT {now} AS now";
    find = "SELECT {record_columns} FROM idempotency_key AS k WHERE k.scope = $1 AND k.operation = $2 \
        AND k.key = $3";
    /// The single writer holds every key.
    look = "SELECT true AS is_held, false AS is_standby, {now} AS read_at, {record_columns} FROM (SELECT 1) \
        LEFT JOIN idempotency_key AS k ON k.scope = $1 AND k.operation = $2 AND k.key = $3";
    /// Claims a key that has no row.
    insert = "INSERT INTO idempotency_key (scope, operation, key, fingerprint, holder, lease_until, \
        claimed_at, expires_at, refuses, attempt, state) \
        VALUES ($1, $2, $3, $4, $5, {now} + $6, {now}, {now} + $7, $8, 1, 'in_progress') \
        ON CONFLICT DO NOTHING RETURNING claimed_at";
    /// Takes over a key that the same transaction has read.
    replace = "INSERT OR REPLACE INTO idempotency_key (scope, operation, key, fingerprint, holder, \
        lease_until, claimed_at, expires_at, refuses, attempt, state) \
        VALUES ($1, $2, $3, $4, $5, {now} + $6, {now}, max({now} + $7, {known_until}), $8, $9, 'in_progress')";
    /// Ends the request of this very transaction, whether or not its row was rolled back with the
    /// effects.
    finish = "INSERT OR REPLACE INTO idempotency_key (scope, operation, key, fingerprint, holder, state, \
        attempt, outcome, claimed_at, processed_at, expires_at, refuses) \
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, {now}, {now}, \
        max({now} + $9, {known_until}), $10)";
    change = "UPDATE idempotency_key SET state = $4, lease_until = $5, outcome = $6, claimed_at = $7, \
        processed_at = $8, expires_at = max(expires_at, $7 + (expires_at - claimed_at)), decided_by = $9, \
        reported_at = NULL WHERE scope = $1 AND operation = $2 AND key = $3";
    /// Also keys whose lease is too long, as on PostgreSQL: longer than LEASE_MAX.
    stuck = "SELECT * FROM (SELECT {stuck_columns} FROM idempotency_key WHERE state = 'in_progress' \
        AND lease_until <= {now} ORDER BY lease_until LIMIT $1) UNION ALL SELECT * FROM ( \
        SELECT {stuck_columns} FROM idempotency_key WHERE state = 'in_progress' \
        AND lease_until > {now} + 86400000000 ORDER BY lease_until LIMIT $1) ORDER BY lease_until LIMIT $1";
    report = "UPDATE idempotency_key SET reported_at = {now} WHERE rowid IN (SELECT rowid \
        FROM idempotency_key INDEXED BY idempotency_key_unreported_idx WHERE state = 'in_progress' AND reported_at IS NULL AND lease_until <= {now} \
        ORDER BY lease_until LIMIT $1) RETURNING {stuck_columns}";
    note = "INSERT INTO idempotency_audit (scope, operation, key, actor, note, selection, action) \
        VALUES ($1, $2, $3, $4, $5, $6, $7)";
    forget = "DELETE FROM idempotency_key WHERE rowid IN (SELECT rowid FROM idempotency_key \
        WHERE expires_at <= min({now}, $2) AND (NOT refuses OR lease_until IS NULL) \
        AND (state <> 'in_progress' OR (NOT refuses AND lease_until <= {now})) ORDER BY expires_at LIMIT $1)";
    /// As on PostgreSQL. In three parts, because SQLite uses only the first column of the index for
    /// a comparison of rows.
    named(walked = "SELECT scope, operation, key, state IN ('succeeded', 'failed') AS is_ended, \
            (scope = $4 OR key = $4) AND ($5 IS NULL OR scope = $5) AND NOT (state = 'failed' \
            AND outcome IS NULL AND fingerprint = zeroblob(32)) AS is_named FROM idempotency_key") =
        "SELECT scope, operation, key, is_named, is_ended, scanned FROM ( \
        SELECT w.*, count(*) OVER () AS scanned, row_number() OVER (ORDER BY scope, operation, key) AS nth \
        FROM (SELECT * FROM (SELECT * FROM ({walked} WHERE scope = $1 AND operation = $2 AND key > $3 \
            ORDER BY key LIMIT $6) \
        UNION ALL SELECT * FROM ({walked} WHERE scope = $1 AND operation > $2 ORDER BY operation, key LIMIT $6) \
        UNION ALL SELECT * FROM ({walked} WHERE scope > $1 ORDER BY scope, operation, key LIMIT $6)) \
        ORDER BY scope, operation, key LIMIT $6) AS w) WHERE is_named OR nth = scanned \
        ORDER BY scope, operation, key";
    erase = "UPDATE idempotency_key SET state = 'failed', outcome = NULL, fingerprint = zeroblob(32), \
        decided_by = $4 WHERE scope = $1 AND operation = $2 AND key = $3 AND state IN ('succeeded', 'failed')";
}
