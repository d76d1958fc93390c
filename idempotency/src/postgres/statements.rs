//! The SQL of idempotency keys on PostgreSQL, rendered once for a schema: plain statements on one
//! table with a primary key (ADR 23).

/// Begins a transaction that tries to lock one key, in one message. Later statements read what
/// every earlier owner of the lock has committed.
///
/// BEGIN comes last. A statement that fails before it ends the message's own transaction, so no
/// failed transaction returns to the pool with its connection. Earlier statements that succeeded
/// belong to the new transaction (PostgreSQL, "Multiple Statements in a Simple Query"). The
/// savepoint comes after the lock, so rolling back to it keeps the key. The server ends a
/// transaction whose service hangs. The commit waits for the disk whatever the server's settings
/// are: its outcome is reported, and a lease precedes an effect elsewhere. The lock belongs to the
/// key in this table, by whatever `search_path` the session finds it. The only values are our own
/// numbers and the name of the schema.
pub(super) const BEGIN: &str = concat!(
    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; \
    SELECT set_config('idle_in_transaction_session_timeout', '{idle_ms}', true), set_config('idempotency.holder', \
        CASE WHEN pg_try_advisory_xact_lock('{lock}'::bigint # \
                coalesce(to_regclass('{schema}idempotency_key')::oid::bigint, 0)) \
            THEN {holder} ELSE '' END, true), ",
    migrations::waits_for_the_disk!(),
    "; BEGIN; SAVEPOINT idempotency_claim"
);
/// Begins the transaction that finds stuck keys. It forces the planner to use their indexes and the
/// order of these.
pub(super) const BY_INDEXES: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL enable_seqscan = off; \
    SET LOCAL enable_bitmapscan = off";
pub(super) const UNDO: &str = "ROLLBACK TO SAVEPOINT idempotency_claim";

migrations::statements! {
    parts {
        // The columns of a record. A key in progress has no lease only if a handler committed by
        // itself.
        record_columns = "k.fingerprint, k.state, k.attempt, k.holder,
            CASE WHEN k.state = 'in_progress' THEN coalesce(k.lease_until, k.claimed_at) END AS lease_until,
            k.outcome, k.processed_at, k.expires_at, k.refuses";
        stuck_columns = "k.scope, k.operation, k.key, k.attempt, k.holder, k.claimed_at,
            coalesce(k.lease_until, k.claimed_at) AS lease_until, k.refuses";
        // Keys in progress whose lease has expired, found by the index on it. A key without a lease
        // is found after its retention, by the index on that: finding it earlier would need a scan
        // of every row.
        has_expired = "k.state = 'in_progress' AND k.lease_until <= statement_timestamp()";
        has_no_lease = "k.state = 'in_progress' AND k.lease_until IS NULL
            AND k.expires_at <= statement_timestamp()";
        // A lease that ends further ahead than the longest one, LEASE_MAX: the server's clock was
        // ahead when it was given. A live holder's next renewal corrects it.
        is_too_long = "k.lease_until > statement_timestamp() + interval '24 hours'";
        waits_for_the_disk = migrations::waits_for_the_disk!();
    }

    /// Claims a key that has no row. The primary key decides, by its index and not by a snapshot,
    /// so the plan does not matter.
    insert = "
        INSERT INTO {schema}idempotency_key (scope, operation, key, fingerprint, holder, state, attempt,
            lease_until, claimed_at, expires_at, refuses)
        SELECT $1, $2, $3, $4, $5, 'in_progress', 1, statement_timestamp() + $6 * interval '1 microsecond',
            statement_timestamp(), statement_timestamp() + $7 * interval '1 microsecond', $8
            WHERE current_setting('idempotency.holder', true) = $5::text ON CONFLICT DO NOTHING
            RETURNING claimed_at";
    look = "
        SELECT current_setting('idempotency.holder', true) = $4::text AS is_held, pg_is_in_recovery() AS
            is_standby, clock_timestamp() AS read_at, {record_columns}
        FROM (SELECT) AS one LEFT JOIN {schema}idempotency_key AS k ON k.scope = $1 AND k.operation = $2
            AND k.key = $3";
    find = "
        SELECT {record_columns} FROM {schema}idempotency_key AS k WHERE k.scope = $1 AND k.operation = $2
            AND k.key = $3";
    /// Takes over a key whose row is unchanged since it was read, or no longer exists.
    replace = "
        INSERT INTO {schema}idempotency_key AS k (scope, operation, key, fingerprint, holder, state,
            attempt, lease_until, claimed_at, expires_at, refuses)
        SELECT $1, $2, $3, $4, $5, 'in_progress', $9, statement_timestamp() + $6 * interval '1 microsecond',
            statement_timestamp(), statement_timestamp() + $7 * interval '1 microsecond', $8
        WHERE current_setting('idempotency.holder', true) = $5::text ON CONFLICT (scope, operation, key)
            DO UPDATE
        SET fingerprint = EXCLUDED.fingerprint, holder = EXCLUDED.holder, state = EXCLUDED.state, attempt
            = EXCLUDED.attempt, lease_until = EXCLUDED.lease_until, outcome = NULL, claimed_at =
            EXCLUDED.claimed_at, processed_at = NULL, expires_at = greatest(k.expires_at,
            EXCLUDED.expires_at), refuses = EXCLUDED.refuses, reported_at = NULL
            WHERE k.holder = $10 AND k.state = $11 AND CASE
            WHEN k.state = 'in_progress' THEN coalesce(k.lease_until, k.claimed_at) END IS NOT DISTINCT
            FROM $12";
    /// Stores the outcome in the transaction that holds the key. It uses the holder's own row. If
    /// that was rolled back with the effects, it inserts a new row or updates the row that it had
    /// taken over. `expires_at` of the holder's own row stays, so no index changes.
    finish = "
        INSERT INTO {schema}idempotency_key AS k (scope, operation, key, fingerprint, holder, state,
            attempt, outcome, claimed_at, processed_at, expires_at, refuses)
            SELECT $1, $2, $3, $4, $5, $6, $7, $8, statement_timestamp(), statement_timestamp(),
            statement_timestamp() + $9 * interval '1 microsecond', $10
        WHERE current_setting('idempotency.holder', true) = $5::text ON CONFLICT (scope, operation, key)
            DO UPDATE
        SET fingerprint = EXCLUDED.fingerprint, holder = EXCLUDED.holder, state = EXCLUDED.state, attempt
            = EXCLUDED.attempt, lease_until = NULL, outcome = EXCLUDED.outcome, claimed_at =
        EXCLUDED.claimed_at, processed_at = EXCLUDED.processed_at, refuses = EXCLUDED.refuses, reported_at
            = NULL, expires_at = CASE
        WHEN k.holder = EXCLUDED.holder THEN k.expires_at ELSE greatest(k.expires_at, EXCLUDED.expires_at)
            END WHERE (k.holder = EXCLUDED.holder
            AND k.state = 'in_progress') OR (k.attempt = EXCLUDED.attempt - 1
            AND (k.state IN ('in_progress', 'released') OR k.expires_at <= statement_timestamp()))";
    /// The outcome waits for the disk, because the client gets it next. A renewal does not: without
    /// it, the lease only ends earlier.
    change = "
        UPDATE {schema}idempotency_key AS k
            SET state = $5, outcome = $6, reported_at = NULL, expires_at = greatest(k.expires_at,
            statement_timestamp() + (k.expires_at - k.claimed_at)), claimed_at = statement_timestamp(),
            lease_until = CASE
            WHEN $5 = 'in_progress' THEN statement_timestamp() + $7 * interval '1 microsecond'
            END, processed_at = CASE WHEN $5 IN ('succeeded', 'failed') THEN statement_timestamp() END
            WHERE k.scope = $1 AND k.operation = $2 AND k.key = $3 AND k.holder = $4
            AND k.state = 'in_progress' AND ($5 = 'in_progress' OR {waits_for_the_disk})
            RETURNING {record_columns}";
    lapse = "
        UPDATE {schema}idempotency_key AS k SET lease_until = least(k.lease_until, statement_timestamp())
            WHERE k.scope = $1 AND k.operation = $2 AND k.key = $3 AND k.holder = $4
            AND k.state = 'in_progress' AND {waits_for_the_disk} RETURNING {record_columns}";
    decide = "
        WITH decided AS (UPDATE {schema}idempotency_key AS k
            SET state = $4, lease_until = NULL, decided_by = $5, processed_at = CASE
            WHEN $4 = 'failed' THEN statement_timestamp()
        END, expires_at = greatest(k.expires_at, statement_timestamp() + (k.expires_at - k.claimed_at)),
            claimed_at = statement_timestamp()
            WHERE k.scope = $1 AND k.operation = $2 AND k.key = $3 AND k.state = 'in_progress'
            AND (coalesce(k.lease_until, k.claimed_at) <= statement_timestamp() OR {is_too_long})
            AND ($9::uuid IS NULL OR k.holder = $9)
            RETURNING k.scope, k.operation, k.key)
        INSERT INTO {schema}idempotency_audit (actor, note, selection, action, scope, operation, key)
            SELECT $5, $6, $7, $8, scope, operation, key FROM decided";
    /// Each part is read in the order of an index and ends at the limit, however many keys wait.
    stuck = "
        SELECT * FROM (
            (SELECT {stuck_columns} FROM {schema}idempotency_key AS k WHERE {has_expired}
                ORDER BY k.lease_until LIMIT $1)
            UNION ALL
            (SELECT {stuck_columns} FROM {schema}idempotency_key AS k WHERE {has_no_lease}
                ORDER BY k.expires_at LIMIT $1)
            UNION ALL
            (SELECT {stuck_columns} FROM {schema}idempotency_key AS k
                WHERE k.state = 'in_progress' AND {is_too_long} ORDER BY k.lease_until LIMIT $1)) AS stuck
        ORDER BY lease_until LIMIT $1";
    /// The expired leases come from the index of those that were not reported: keys that wait for
    /// an operator can be many.
    report = "
        UPDATE {schema}idempotency_key AS k SET reported_at = statement_timestamp()
            WHERE k.ctid = ANY (ARRAY(SELECT k.ctid FROM {schema}idempotency_key AS k
                WHERE {has_expired} AND k.reported_at IS NULL
                ORDER BY k.lease_until LIMIT $1 FOR UPDATE SKIP LOCKED)
            || ARRAY(SELECT k.ctid FROM {schema}idempotency_key AS k
                WHERE {has_no_lease} AND k.reported_at IS NULL
                ORDER BY k.expires_at LIMIT $1 FOR UPDATE SKIP LOCKED)) RETURNING {stuck_columns}";
    /// Deletes keys in progress only if the next request may take them over anyway. The second
    /// condition is that of the index, in the same words; a settled key has no lease.
    forget = "
        DELETE FROM {schema}idempotency_key AS k WHERE k.ctid = ANY (ARRAY(SELECT f.ctid
            FROM {schema}idempotency_key AS f WHERE f.expires_at <= least(statement_timestamp(), $2)
            AND (NOT f.refuses OR f.lease_until IS NULL) AND (f.state <> 'in_progress'
                OR (NOT f.refuses AND coalesce(f.lease_until, f.claimed_at) <= statement_timestamp()))
            ORDER BY f.expires_at LIMIT $1 FOR UPDATE SKIP LOCKED))";
    /// The next keys with a name, and the last one of the walk: after $1 to $3, of the name $4 and
    /// the tenant $5, or null; $6 keys to look at.
    named(none = "decode(repeat('00', 32), 'hex')") = "
        SELECT scope, operation, key, is_named, is_ended, scanned FROM (
            SELECT w.*, count(*) OVER () AS scanned,
                row_number() OVER (ORDER BY w.scope, w.operation, w.key) AS nth
            FROM (SELECT scope, operation, key, state IN ('succeeded', 'failed') AS is_ended,
                    (scope = $4 OR key = $4) AND ($5::text IS NULL OR scope = $5)
                        AND NOT (state = 'failed' AND outcome IS NULL AND fingerprint = {none}) AS is_named
                FROM {schema}idempotency_key WHERE (scope, operation, key) > ($1, $2, $3)
                ORDER BY scope, operation, key LIMIT $6::bigint) AS w) AS walk
        WHERE is_named OR nth = scanned ORDER BY scope, operation, key";
    /// $4 the operator.
    erase(none = "decode(repeat('00', 32), 'hex')") = "
        UPDATE {schema}idempotency_key SET state = 'failed', outcome = NULL, fingerprint = {none}, decided_by = $4
        WHERE scope = $1 AND operation = $2 AND key = $3 AND state IN ('succeeded', 'failed')";
}

/// Returns every statement with its name.
#[cfg(feature = "testing")]
#[must_use]
pub fn listed_statements() -> Vec<(&'static str, String)> {
    let statements = Statements::new(None);
    let listed = statements.each().into_iter();
    listed.map(|(name, statement)| (name, statement.as_str().to_owned())).collect()
}
