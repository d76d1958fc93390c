//! The SQL of sagas on SQLite. Times are microseconds since 1970.

migrations::statements! {
    parts {
        // The clock is that of the machine: a SQLite file has no server.
        now = "CAST(unixepoch('subsec') * 1000000 AS INTEGER)";
        lost_again = "(worker IS NOT NULL AND attempts > 0 AND cancel IS NULL)";
        let_go = "worker = NULL, waits_for = NULL, waiting_since = NULL";
        envelope = "type, id, version, state, epoch, worker, wake_at, replies, attempts, error, reason, cancel,
            waits_for, waiting_since, started_at, stuck_at, ended_at";
        columns = "{envelope}, input, output, secret";
        step_columns = "name, position, kind, state, undo, attempts, error, due_at, begun_at, ended_at, undone_at,
            coalesce(due_at <= {now}, 0) AS is_due, {now} - begun_at AS age";
        // The saga, as long as the worker owns it by this claim. A renewal that is on its way when
        // the worker releases the saga changes nothing.
        held = "type = $1 AND id = $2 AND worker = $3";
        // Filters of a list; a missing filter is null.
        listed = "SELECT {envelope} FROM saga WHERE {which} AND ($1 IS NULL OR type = $1) AND ($2 IS NULL OR state = $2)
            ORDER BY {order}, type, id LIMIT $3";
        step_inserted = "
            INSERT INTO saga_step (type, id, name, position, kind, state, undo, result, error, due_at, ended_at)
            SELECT $1, $2, $4, $5, $6, $7, $8, $9, $10, {now} + $11,
                CASE WHEN $7 IN ('done', 'refused') THEN {now} END
            WHERE EXISTS (SELECT 1 FROM saga WHERE {held} AND state = 'running' AND cancel IS NULL)";
        step_changed = "
            UPDATE saga_step SET state = $7, undo = $8, result = coalesce($9, result),
                error = coalesce($10, error), attempts = attempts + $11,
                ended_at = CASE WHEN $12 THEN {now} ELSE ended_at END,
                undone_at = CASE WHEN undo <> $8 AND $8 = 'done' THEN {now} ELSE undone_at END
            WHERE type = $1 AND id = $2 AND name = $4 AND state = $5 AND undo = $6
                AND EXISTS (SELECT 1 FROM saga
                    WHERE {held} AND (state = 'undoing') = ($8 = 'done') AND (NOT $13 OR cancel IS NULL)
                        AND ($14 IS NULL OR replies = $14))";
    }

    insert = "
        INSERT INTO saga (type, id, version, input, secret) VALUES ($1, $2, $3, $4, $5)
            ON CONFLICT (type, id) DO NOTHING";
    find = "SELECT {columns} FROM saga WHERE type = $1 AND id = $2";
    look = "SELECT {envelope} FROM saga WHERE type = $1 AND id = $2";
    /// A saga whose worker died has failed once more: the saga may have ended it. After an earlier
    /// failure it is not claimed now but later, at a random time. So a saga that ends its workers
    /// is not always claimed with the same others.
    claim = "
        UPDATE saga SET epoch = epoch + 1, worker = CASE WHEN {lost_again} THEN NULL ELSE $4 END,
            wake_at = {now} + CASE WHEN {lost_again}
                THEN CAST(min($6 * (1 << min(attempts, 30)), $7) * (abs(random() % 1000000) / 1e6) AS INTEGER)
                ELSE $5 END,
            attempts = attempts + (worker IS NOT NULL), error = CASE WHEN {lost_again} THEN $8 ELSE error END,
            waits_for = CASE WHEN {lost_again} THEN NULL ELSE waits_for END,
            waiting_since = CASE WHEN {lost_again} THEN NULL ELSE waiting_since END
            WHERE rowid IN (SELECT rowid FROM saga WHERE type = $1 AND version = $2 AND wake_at <= {now}
            ORDER BY wake_at LIMIT $3) RETURNING {columns}";
    /// Clears the failures of a saga that has made progress.
    got_on = "UPDATE saga SET attempts = 0, error = NULL WHERE {held}
        AND (attempts > 0 OR error IS NOT NULL)";
    renew = "UPDATE saga SET wake_at = {now} + $4 WHERE {held}";
    steps = "SELECT {step_columns}, result FROM saga_step WHERE type = $1 AND id = $2 ORDER BY position";
    far_ahead = "SELECT wake_at FROM saga WHERE type = $1 AND version = $2
            AND wake_at > max({now} + $3, coalesce($4, 0))
        ORDER BY wake_at LIMIT 1 OFFSET $5";
    wake_stranded = "
        UPDATE saga SET wake_at = {now} + CASE WHEN worker IS NULL THEN 0 ELSE $3 END
        WHERE type = $1 AND version = $2 AND wake_at > max({now} + $3, coalesce($4, 0))
            AND wake_at <= coalesce($5, 9223372036854775807) AND (worker IS NOT NULL OR CASE WHEN error IS NULL
                THEN waits_for IS NULL ELSE waits_for IS NOT NULL OR wake_at > {now} + $6 END)";
    look_steps = "SELECT {step_columns}, NULL AS result FROM saga_step WHERE type = $1 AND id = $2 ORDER BY position";
    mailbox = "SELECT step, payload FROM saga_reply WHERE type = $1 AND id = $2";
    insert_step = "{step_inserted}";
    insert_step_with_effect = "{step_inserted}";
    change_step = "{step_changed}";
    change_step_with_effect = "{step_changed}";
    wait = "
        UPDATE saga SET worker = NULL, attempts = 0, error = $8, waits_for = $4,
            waiting_since = CASE WHEN waits_for = $4 THEN waiting_since ELSE {now} END,
            wake_at = CASE WHEN cancel IS NOT NULL OR replies <> $5 AND (NOT $6 OR EXISTS (
                    SELECT 1 FROM saga_reply AS r WHERE r.type = $1 AND r.id = $2 AND r.step = $4))
                THEN {now}
                WHEN $7 IS NOT NULL THEN {now} + $7
                ELSE (SELECT due_at FROM saga_step
                    WHERE saga_step.type = $1 AND saga_step.id = $2 AND name = $4) END
        WHERE {held}";
    postpone = "
        UPDATE saga SET {let_go}, attempts = $4, error = coalesce($6, error),
            wake_at = {now} + CASE WHEN cancel IS NULL THEN $5 ELSE 0 END
        WHERE {held}";
    /// Excludes a cancelled saga: its worker reads it again and undoes it. $6 is the step at which
    /// it is stuck, or null.
    stick = "
        UPDATE saga SET worker = NULL, waits_for = $6, waiting_since = NULL, attempts = $4, error = $5,
            wake_at = NULL, stuck_at = {now}
        WHERE {held} AND cancel IS NULL";
    begin_undo = "
        UPDATE saga SET state = 'undoing', reason = $4, cancel = NULL, attempts = 0, error = NULL,
            waits_for = NULL, waiting_since = NULL
        WHERE {held} AND state = 'running'";
    finish = "
        UPDATE saga SET {let_go}, state = 'finished', output = $4, wake_at = NULL, attempts = 0, error = NULL,
            ended_at = {now}
        WHERE {held} AND state = 'running' AND cancel IS NULL";
    end_undo = "
        UPDATE saga SET {let_go}, state = 'undone', wake_at = NULL, attempts = 0, error = NULL, ended_at = {now}
        WHERE {held} AND state = 'undoing'";
    announce_reply = "
        UPDATE saga
            SET replies = replies + 1, wake_at = CASE WHEN worker IS NULL AND stuck_at IS NULL AND
            waits_for = $3 THEN {now} ELSE wake_at END
            WHERE type = $1 AND id = $2 AND state = 'running' RETURNING secret";
    state = "SELECT state, secret FROM saga WHERE type = $1 AND id = $2";
    has_reply = "SELECT EXISTS (SELECT 1 FROM saga_reply WHERE type = $1 AND id = $2 AND step = $3) AS is_kept";
    step_state = "SELECT state FROM saga_step WHERE type = $1 AND id = $2 AND name = $3";
    insert_reply = "
        INSERT INTO saga_reply (type, id, step, payload) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING";
    insert_early_reply = "
        INSERT INTO saga_reply (type, id, step, payload) SELECT $1, $2, $3, $4
            WHERE (SELECT count(*) FROM saga_reply AS r WHERE r.type = $1 AND r.id = $2 AND NOT EXISTS (
            SELECT 1 FROM saga_step AS s WHERE s.type = $1 AND s.id = $2 AND s.name = r.step)) < $5
            ON CONFLICT DO NOTHING";
    list_open(which = "ended_at IS NULL", order = "started_at") = "{listed}";
    list_stuck(which = "stuck_at IS NOT NULL", order = "stuck_at") = "{listed}";
    list_ended(which = "ended_at IS NOT NULL", order = "started_at") = "{listed}";
    list_all(which = "true", order = "started_at") = "{listed}";
    retry = "
        UPDATE saga SET stuck_at = NULL, attempts = 0, waits_for = NULL, wake_at = {now}
            WHERE type = $1 AND id = $2 AND stuck_at IS NOT NULL";
    cancel = "
        UPDATE saga
            SET cancel = CASE WHEN worker IS NULL THEN NULL ELSE $3 END, state = CASE WHEN worker IS NULL
            THEN 'undoing' ELSE state END, reason = CASE WHEN worker IS NULL THEN $3 ELSE reason END,
            wake_at = CASE WHEN worker IS NULL OR wake_at > {now} + $4 THEN {now} ELSE wake_at END,
            attempts = CASE WHEN worker IS
            NULL THEN 0 ELSE attempts END, waits_for = CASE WHEN worker IS NULL THEN NULL ELSE waits_for
            END, waiting_since = CASE WHEN worker IS NULL THEN NULL ELSE waiting_since END, stuck_at = NULL
            WHERE type = $1 AND id = $2 AND state = 'running'";
    lock_saga = "SELECT {envelope} FROM saga WHERE type = $1 AND id = $2";
    skip_undo = "
        UPDATE saga_step SET undo = 'skipped', undone_at = {now}
            WHERE type = $1 AND id = $2 AND name = $3 AND undo = 'pending'";
    skip_step = "
        UPDATE saga_step SET state = 'done', result = $4, ended_at = {now}
            WHERE type = $1 AND id = $2 AND name = $3 AND (state IN ('calling', 'waiting') OR $5)";
    /// Gives a result to a step that has not begun. `error` records who gave it, so that a step of
    /// any kind accepts it.
    skip_new_step = "
        INSERT INTO saga_step (type, id, name, position, kind, state, undo, result, error, ended_at)
        SELECT $1, $2, $3, coalesce(max(position) + 1, 0), 'step', 'done', 'none', $4, $5, {now}
        FROM saga_step WHERE type = $1 AND id = $2 ON CONFLICT DO NOTHING";
    note_decision = "
        INSERT INTO saga_audit (actor, note, selection, action, type, id, step) VALUES ($1, $2, $3, $4, $5, $6, $7)";
    overdue = "
        WITH RECURSIVE kind (type, version) AS (
            SELECT * FROM (SELECT type, version FROM saga WHERE wake_at IS NOT NULL ORDER BY type, version LIMIT 1)
            UNION ALL
            SELECT s.type, s.version FROM kind JOIN saga AS s ON s.rowid = coalesce(
                (SELECT rowid FROM saga WHERE wake_at IS NOT NULL AND type = kind.type AND version > kind.version
                    ORDER BY version LIMIT 1),
                (SELECT rowid FROM saga WHERE wake_at IS NOT NULL AND type > kind.type
                    ORDER BY type, version LIMIT 1)))
        SELECT type, version, sagas, {now} - first AS longest FROM (
            SELECT kind.type, kind.version,
                (SELECT count(*) FROM (SELECT 1 FROM saga AS s WHERE s.type = kind.type AND s.version = kind.version
                    AND s.wake_at <= {now} - $1 LIMIT 100000)) AS sagas,
                (SELECT min(wake_at) FROM saga AS s WHERE s.type = kind.type AND s.version = kind.version
                    AND s.wake_at <= {now} - $1) AS first
            FROM kind) WHERE sagas > 0";
    find_due = "SELECT 1 FROM saga WHERE type = $1 AND version = $2 AND wake_at <= {now} LIMIT 1";
    old = "SELECT type, id FROM saga WHERE ended_at <= min({now}, $3) - $1 ORDER BY ended_at LIMIT $2";
    forget = "DELETE FROM saga WHERE type = $1 AND id = $2";
    forget_steps = "DELETE FROM saga_step WHERE type = $1 AND id = $2";
    forget_replies = "DELETE FROM saga_reply WHERE type = $1 AND id = $2";
    /// As on PostgreSQL.
    of_id = "WITH RECURSIVE kind (type) AS (
            SELECT (SELECT type FROM saga ORDER BY type LIMIT 1) UNION ALL
            SELECT (SELECT type FROM saga WHERE type > k.type ORDER BY type LIMIT 1)
            FROM kind AS k WHERE k.type IS NOT NULL LIMIT 1000)
        SELECT s.type, s.id, s.ended_at IS NOT NULL AS has_ended
        FROM kind AS k CROSS JOIN saga AS s ON s.type = k.type AND s.id = $1
        WHERE s.ended_at IS NULL OR s.error IS NOT 'erased'";
    /// An ended saga has no error, so the error marks an erased one.
    erase_saga = "UPDATE saga SET input = 'null', output = CASE WHEN output IS NOT NULL THEN 'null' END,
            reason = CASE WHEN reason IS NOT NULL THEN 'erased' END, cancel = NULL, error = 'erased'
        WHERE type = $1 AND id = $2 AND ended_at IS NOT NULL";
    erase_steps = "UPDATE saga_step SET result = CASE WHEN result IS NOT NULL THEN 'null' END,
            error = CASE WHEN error IS NOT NULL THEN 'erased' END WHERE type = $1 AND id = $2";
    erase_replies = "UPDATE saga_reply SET payload = 'null' WHERE type = $1 AND id = $2";
}
