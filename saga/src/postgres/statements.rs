//! The SQL of sagas on PostgreSQL, rendered once for a schema.

migrations::statements! {
    parts {
        // The saga, as long as the worker owns it by this claim. A renewal that is on its way when
        // the worker releases the saga changes nothing.
        held = "type = $1 AND id = $2 AND worker = $3";
        // Its row, locked. PostgreSQL checks the conditions again if another transaction has
        // changed the row meanwhile.
        owned = "WITH owned AS MATERIALIZED (
            SELECT 1 FROM {schema}saga WHERE {held} AND {condition} FOR NO KEY UPDATE)";
        // The transaction is the one that was begun for the effect and its record.
        own = "current_setting('outbox.transaction', true) = 'own'";
        step_inserted = "
            {owned} INSERT INTO {schema}saga_step
                (type, id, name, position, kind, state, undo, result, error, due_at, ended_at)
            SELECT $1, $2, $4, $5, $6, $7, $8, $9, $10, clock_timestamp() + $11 * interval '1 microsecond',
                CASE WHEN $7 IN ('done', 'refused') THEN clock_timestamp() END FROM owned";
        step_changed = "
            {owned} UPDATE {schema}saga_step SET state = $7, undo = $8, result = coalesce($9, result),
                error = coalesce($10, error), attempts = attempts + $11,
                ended_at = CASE WHEN $12 THEN clock_timestamp() ELSE ended_at END,
                undone_at = CASE WHEN undo <> $8 AND $8 = 'done' THEN clock_timestamp() ELSE undone_at END
            FROM owned WHERE type = $1 AND id = $2 AND name = $4 AND state = $5 AND undo = $6";
        // Every commit of a run waits for the disk, whatever the server's settings are. A run keeps
        // its outcomes in memory: after a crash that reverted one, it would continue without it.
        waits_for_the_disk = migrations::waits_for_the_disk!();
        // A crash can revert the decision to undo while the worker undoes: then the saga runs, and
        // none of its undos may be recorded.
        goes_on = "(state = 'undoing') = ($8 = 'done') AND (NOT $13 OR cancel IS NULL)
            AND ($14::bigint IS NULL OR replies = $14) AND {waits_for_the_disk}";
        lost_again = "(s.worker IS NOT NULL AND s.attempts > 0 AND s.cancel IS NULL)";
        let_go = "worker = NULL, waits_for = NULL, waiting_since = NULL";
        // Columns by name, without a star: after a migration adds a column, PostgreSQL refuses
        // prepared statements that use a star.
        envelope = "type, id, version, state, epoch, worker, wake_at, replies, attempts, error, reason, cancel,
            waits_for, waiting_since, started_at, stuck_at, ended_at";
        columns = "{envelope}, input, output, secret";
        step_columns = "name, position, kind, state, undo, attempts, error, due_at, begun_at, ended_at, undone_at,
            coalesce(due_at <= clock_timestamp(), false) AS is_due,
            (extract(epoch FROM clock_timestamp() - begun_at) * 1000000)::bigint AS age";
        // Filters of a list; a missing filter is null.
        chosen = "($1::text IS NULL OR type = $1) AND ($2::text IS NULL OR state = $2)";
        // Sagas that have ended, the first to end first, in the order of their index.
        ended = "SELECT {envelope} FROM {schema}saga WHERE ended_at IS NOT NULL AND {chosen} \
            ORDER BY ended_at LIMIT $3";
        // Sagas that have not ended, the oldest first, in the order of their index.
        open = "SELECT {envelope} FROM {schema}saga WHERE ended_at IS NULL AND {chosen} \
            ORDER BY started_at, type, id LIMIT $3";
    }

    insert = "INSERT INTO {schema}saga (type, id, version, input, secret) VALUES ($1, $2, $3, $4, $5) \
        ON CONFLICT (type, id) DO NOTHING";
    find = "SELECT {columns} FROM {schema}saga WHERE type = $1 AND id = $2";
    look = "SELECT {envelope} FROM {schema}saga WHERE type = $1 AND id = $2";
    /// The time is the same throughout the statement, so that the index finds due sagas. A saga
    /// whose worker disappeared counts one more failure, because it may have ended the worker. If
    /// it had failed before, it is taken later, at a random time: a saga that ends its workers must
    /// not always be taken together with the same others. Materialized: a join that runs more than
    /// once would take more than the limit. It waits for the disk, because the undo of a call may
    /// come next: a crash must revert neither the claim nor the state that it returns.
    claim = "
        WITH due (place) AS MATERIALIZED (SELECT ctid FROM {schema}saga
            WHERE type = $1 AND version = $2 AND wake_at <= statement_timestamp() AND {waits_for_the_disk}
            ORDER BY wake_at LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED)
        UPDATE {schema}saga AS s SET epoch = s.epoch + 1,
            worker = CASE WHEN {lost_again} THEN NULL ELSE $4 END,
            wake_at = clock_timestamp() + interval '1 microsecond' * CASE WHEN {lost_again}
                THEN random() * least($6::bigint * 2 ^ least(s.attempts, 30), $7::bigint) ELSE $5::bigint END,
            attempts = s.attempts + (s.worker IS NOT NULL)::int,
            error = CASE WHEN {lost_again} THEN $8 ELSE s.error END,
            waits_for = CASE WHEN {lost_again} THEN NULL ELSE s.waits_for END,
            waiting_since = CASE WHEN {lost_again} THEN NULL ELSE s.waiting_since END
        WHERE s.ctid = ANY (ARRAY(SELECT place FROM due)) RETURNING {columns}";
    /// The saga has made progress, so its failures no longer count.
    got_on = "UPDATE {schema}saga SET attempts = 0, error = NULL WHERE {held} \
        AND (attempts > 0 OR error IS NOT NULL)";
    /// Skips a locked saga until the next renewal, so that the others do not wait. A locked saga
    /// cannot be taken. It waits for the disk, because the worker may undo calls until that time.
    renew = "
        WITH mine (place) AS MATERIALIZED (SELECT s.ctid
            FROM unnest($1::text[], $2::text[], $3::text[]) AS e (type, id, worker)
            CROSS JOIN LATERAL (SELECT ctid FROM {schema}saga AS s WHERE s.type = e.type AND s.id = e.id
                AND s.worker = e.worker AND {waits_for_the_disk} LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) AS s)
        UPDATE {schema}saga AS s SET wake_at = clock_timestamp() + $4 * interval '1 microsecond'
        WHERE s.ctid = ANY (ARRAY(SELECT place FROM mine)) RETURNING s.type, s.id, s.worker";
    /// Reads one entry of the index for each type and version. Without the order, the planner reads
    /// all sagas for a kind that has none due, once it believes that many sagas are due.
    due_kinds = "SELECT kind.place FROM unnest($1::text[], $2::integer[]) WITH ORDINALITY AS kind (type, version, place) \
        CROSS JOIN LATERAL (SELECT FROM {schema}saga AS s WHERE s.type = kind.type AND s.version = kind.version \
            AND s.wake_at <= statement_timestamp() ORDER BY s.wake_at LIMIT 1) AS due";
    /// The end of a slice of sagas that are due far in the future, in the order of the index of due
    /// sagas. The last slice has none.
    far_ahead = "SELECT wake_at FROM {schema}saga WHERE type = $1 AND version = $2
            AND wake_at > greatest(statement_timestamp() + $3 * interval '1 microsecond', $4)
        ORDER BY type, version, wake_at OFFSET $5 LIMIT 1";
    /// Sagas whose next turn is too far ahead. Without a worker or an error, a saga that waits for
    /// no step was due at once. With an error, it pauses until its next attempt, or waits for a
    /// step that is due only by the database's clock. A live worker renews its leases long before
    /// the new end.
    wake_stranded = "
        UPDATE {schema}saga AS s SET wake_at = clock_timestamp()
            + CASE WHEN s.worker IS NULL THEN 0 ELSE $3 END * interval '1 microsecond'
        WHERE s.ctid = ANY (ARRAY(SELECT far.place FROM (
            SELECT ctid AS place FROM {schema}saga WHERE type = $1 AND version = $2
                AND wake_at > greatest(statement_timestamp() + $3 * interval '1 microsecond', $4)
                AND wake_at <= coalesce($5, 'infinity') AND (worker IS NOT NULL OR CASE WHEN error IS NULL
                    THEN waits_for IS NULL ELSE waits_for IS NOT NULL
                        OR wake_at > statement_timestamp() + $6 * interval '1 microsecond' END)
            ORDER BY type, version, wake_at FOR NO KEY UPDATE SKIP LOCKED) AS far))";
    steps = "SELECT {step_columns}, result FROM {schema}saga_step WHERE type = $1 AND id = $2 ORDER BY position";
    look_steps = "SELECT {step_columns}, NULL::text AS result FROM {schema}saga_step WHERE type = $1 AND id = $2 \
        ORDER BY position";
    mailbox = "SELECT step, payload FROM {schema}saga_reply WHERE type = $1 AND id = $2";
    /// Commits on its own, before a call: a crash that reverted it would leave a call that is never
    /// undone.
    insert_step(condition = "state = 'running' AND cancel IS NULL AND {waits_for_the_disk}") = "{step_inserted}";
    insert_step_with_effect(condition = "state = 'running' AND cancel IS NULL AND {own} AND {waits_for_the_disk}") = "{step_inserted}";
    change_step(condition = "{goes_on}") = "{step_changed}";
    change_step_with_effect(condition = "{goes_on} AND {own}") = "{step_changed}";
    wait = "
        UPDATE {schema}saga SET worker = NULL, attempts = 0, error = $8, waits_for = $4,
            waiting_since = CASE WHEN waits_for = $4 THEN waiting_since ELSE clock_timestamp() END,
            wake_at = CASE WHEN cancel IS NOT NULL OR replies <> $5 AND (NOT $6 OR EXISTS (
                    SELECT FROM {schema}saga_reply AS r WHERE r.type = $1 AND r.id = $2 AND r.step = $4))
                THEN clock_timestamp()
                WHEN $7::bigint IS NOT NULL THEN clock_timestamp() + $7::bigint * interval '1 microsecond'
                ELSE (SELECT due_at FROM {schema}saga_step WHERE type = $1 AND id = $2 AND name = $4) END
        WHERE {held}";
    postpone = "
        UPDATE {schema}saga SET {let_go}, attempts = $4, error = coalesce($6, error),
            wake_at = clock_timestamp() + CASE WHEN cancel IS NULL THEN $5 ELSE 0 END * interval '1 microsecond'
        WHERE {held}";
    /// Excludes a cancelled saga: its worker reads it again and undoes it. $6 is the step at which
    /// the saga is stuck, or null.
    stick = "
        UPDATE {schema}saga SET worker = NULL, waits_for = $6, waiting_since = NULL, attempts = $4, error = $5,
            wake_at = NULL, stuck_at = clock_timestamp()
        WHERE {held} AND cancel IS NULL";
    /// It waits for the disk, because the undo of a call comes next. A crash that reverted it would
    /// let the saga go forward without the call's effect.
    begin_undo = "
        UPDATE {schema}saga SET state = 'undoing', reason = $4, cancel = NULL, attempts = 0, error = NULL,
            waits_for = NULL, waiting_since = NULL
        WHERE {held} AND state = 'running' AND {waits_for_the_disk}";
    finish = "
        UPDATE {schema}saga SET {let_go}, state = 'finished', output = $4, wake_at = NULL, attempts = 0, error = NULL,
            ended_at = clock_timestamp()
        WHERE {held} AND state = 'running' AND cancel IS NULL";
    /// Ends many sagas and returns those that it ended. Finds them by row position (`ctid`): a join
    /// with the list would read all sagas if the statistics report few of them. A saga whose row
    /// changes at the same time is not ended, and its worker tries again.
    finish_many = "
        WITH mine (place, output) AS MATERIALIZED (SELECT s.ctid, e.output
            FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS e (type, id, worker, output)
            CROSS JOIN LATERAL (SELECT ctid FROM {schema}saga AS s WHERE s.type = e.type AND s.id = e.id
                AND s.worker = e.worker AND s.state = 'running' AND s.cancel IS NULL
                LIMIT 1 FOR NO KEY UPDATE) AS s)
        UPDATE {schema}saga AS s SET {let_go}, state = 'finished', wake_at = NULL, attempts = 0, error = NULL,
            output = (SELECT mine.output FROM mine WHERE mine.place = s.ctid), ended_at = clock_timestamp()
        WHERE s.ctid = ANY (ARRAY(SELECT place FROM mine)) RETURNING s.type, s.id";
    end_undo = "
        UPDATE {schema}saga SET {let_go}, state = 'undone', wake_at = NULL, attempts = 0, error = NULL,
            ended_at = clock_timestamp()
        WHERE {held} AND state = 'undoing'";
    /// Locks the saga's row first, so that a worker that begins to wait at the same time sees the
    /// count. Wakes the saga only if it waits for this step: waking another step would use up its
    /// attempts without a pause. The commit waits for the disk, because the reply's delivery is
    /// acknowledged next, and not repeated.
    announce_reply = "UPDATE {schema}saga SET replies = replies + 1, \
            wake_at = CASE WHEN worker IS NULL AND stuck_at IS NULL AND waits_for = $3 THEN clock_timestamp() \
                ELSE wake_at END \
        WHERE type = $1 AND id = $2 AND state = 'running' AND {waits_for_the_disk} RETURNING secret";
    state = "SELECT state, secret FROM {schema}saga WHERE type = $1 AND id = $2";
    has_reply = "SELECT EXISTS (SELECT FROM {schema}saga_reply WHERE type = $1 AND id = $2 AND step = $3) AS is_kept";
    /// Locks the row: above read committed a step that has timed out since the snapshot is a
    /// conflict, and not one that still waits.
    step_state = "SELECT state FROM {schema}saga_step WHERE type = $1 AND id = $2 AND name = $3 FOR SHARE";
    insert_reply = "INSERT INTO {schema}saga_reply (type, id, step, payload) VALUES ($1, $2, $3, $4) \
        ON CONFLICT (type, id, step) DO NOTHING";
    insert_early_reply = "
        INSERT INTO {schema}saga_reply (type, id, step, payload) SELECT $1, $2, $3, $4
        WHERE (SELECT count(*) FROM {schema}saga_reply AS r WHERE r.type = $1 AND r.id = $2 AND NOT EXISTS (
            SELECT FROM {schema}saga_step AS s WHERE s.type = $1 AND s.id = $2 AND s.name = r.step)) < $5
        ON CONFLICT (type, id, step) DO NOTHING";
    list_open = "{open}";
    list_stuck = "SELECT {envelope} FROM {schema}saga WHERE stuck_at IS NOT NULL AND {chosen} \
        ORDER BY stuck_at, type, id LIMIT $3";
    list_ended = "SELECT * FROM ({ended}) AS s ORDER BY started_at, type, id";
    list_all = "SELECT * FROM (({open}) UNION ALL ({ended})) AS s ORDER BY started_at, type, id LIMIT $3";
    retry = "UPDATE {schema}saga SET stuck_at = NULL, attempts = 0, waits_for = NULL, wake_at = clock_timestamp() \
        WHERE type = $1 AND id = $2 AND stuck_at IS NOT NULL";
    /// If a worker owns the saga, it reads the reason with its next change. It waits for the disk,
    /// because the operator gets the answer that the saga will be undone.
    cancel = "UPDATE {schema}saga SET \
            cancel = CASE WHEN worker IS NULL THEN NULL ELSE $3 END, \
            state = CASE WHEN worker IS NULL THEN 'undoing' ELSE state END, \
            reason = CASE WHEN worker IS NULL THEN $3 ELSE reason END, \
            wake_at = CASE WHEN worker IS NULL OR wake_at > clock_timestamp() + $4 * interval '1 microsecond' \
                THEN clock_timestamp() ELSE wake_at END, \
            attempts = CASE WHEN worker IS NULL THEN 0 ELSE attempts END, \
            waits_for = CASE WHEN worker IS NULL THEN NULL ELSE waits_for END, \
            waiting_since = CASE WHEN worker IS NULL THEN NULL ELSE waiting_since END, \
            stuck_at = NULL \
        WHERE type = $1 AND id = $2 AND state = 'running' AND {waits_for_the_disk}";
    lock_saga = "SELECT {envelope} FROM {schema}saga WHERE type = $1 AND id = $2 FOR NO KEY UPDATE";
    skip_undo = "UPDATE {schema}saga_step SET undo = 'skipped', undone_at = clock_timestamp() \
        WHERE type = $1 AND id = $2 AND name = $3 AND undo = 'pending'";
    skip_step = "UPDATE {schema}saga_step SET state = 'done', result = $4, ended_at = clock_timestamp() \
        WHERE type = $1 AND id = $2 AND name = $3 AND (state IN ('calling', 'waiting') OR $5)";
    /// Gives a result to a step that has not begun. `error` records who gave it, so that a step of
    /// any kind accepts it.
    skip_new_step = "
        INSERT INTO {schema}saga_step (type, id, name, position, kind, state, undo, result, error, ended_at)
        SELECT $1, $2, $3, coalesce(max(position) + 1, 0), 'step', 'done', 'none', $4, $5, clock_timestamp()
        FROM {schema}saga_step WHERE type = $1 AND id = $2 ON CONFLICT DO NOTHING";
    note_decision = "INSERT INTO {schema}saga_audit (actor, note, selection, action, type, id, step) VALUES ($1, $2, $3, $4, $5, $6, $7)";
    /// Jumps from one type and version to the next in the index of due sagas, and reads only the
    /// overdue ones of each, up to `OVERDUE_COUNTED_MAX`.
    overdue = "WITH RECURSIVE kind AS ( \
            (SELECT type, version FROM {schema}saga WHERE wake_at IS NOT NULL ORDER BY type, version LIMIT 1) \
            UNION ALL \
            SELECT following.type, following.version FROM kind, LATERAL (SELECT type, version FROM {schema}saga \
                WHERE wake_at IS NOT NULL AND (type, version) > (kind.type, kind.version) \
                ORDER BY type, version LIMIT 1) AS following) \
        SELECT kind.type, kind.version, late.sagas, \
            (extract(epoch FROM clock_timestamp() - late.first) * 1000000)::bigint AS longest \
        FROM kind CROSS JOIN LATERAL (SELECT count(*) AS sagas, min(wake_at) AS first FROM ( \
            SELECT s.wake_at FROM {schema}saga AS s WHERE s.type = kind.type AND s.version = kind.version \
            AND s.wake_at <= statement_timestamp() - $1 * interval '1 microsecond' \
            ORDER BY s.type, s.version, s.wake_at LIMIT 100000) AS due) AS late \
        WHERE late.sagas > 0";
    /// Skips a saga that another transaction has locked until the next time. Finds rows by position
    /// (`ctid`): a generic plan expects a join to return a tenth of the table, and reads all of it.
    forget = "WITH gone AS (DELETE FROM {schema}saga WHERE ctid = ANY (ARRAY(SELECT ctid FROM {schema}saga \
                WHERE ended_at <= least(statement_timestamp(), $2) - $1 * interval '1 microsecond' \
                ORDER BY ended_at LIMIT $3 FOR UPDATE SKIP LOCKED)) RETURNING type, id), \
        steps AS (DELETE FROM {schema}saga_step WHERE ctid = ANY (ARRAY(SELECT t.ctid FROM gone CROSS JOIN LATERAL \
            (SELECT ctid FROM {schema}saga_step AS t WHERE t.type = gone.type AND t.id = gone.id OFFSET 0) AS t))), \
        mail AS (DELETE FROM {schema}saga_reply WHERE ctid = ANY (ARRAY(SELECT r.ctid FROM gone CROSS JOIN LATERAL \
            (SELECT ctid FROM {schema}saga_reply AS r WHERE r.type = gone.type AND r.id = gone.id OFFSET 0) AS r))) \
        SELECT count(*) AS gone FROM gone";
    /// The sagas of the id $1 that are not erased, one of each type at most. Jumps from one type to
    /// the next in the primary key.
    of_id = "WITH RECURSIVE kind (type) AS (
            (SELECT type FROM {schema}saga ORDER BY type LIMIT 1) UNION ALL
            SELECT n.type FROM kind AS k CROSS JOIN LATERAL (SELECT s.type FROM {schema}saga AS s
                WHERE s.type > k.type ORDER BY s.type LIMIT 1) AS n)
        SELECT s.type, s.id, s.ended_at IS NOT NULL AS has_ended FROM (SELECT type FROM kind LIMIT 1000) AS k
        CROSS JOIN LATERAL (SELECT type, id, ended_at, error FROM {schema}saga AS s
            WHERE s.type = k.type AND s.id = $1 LIMIT 1) AS s
        WHERE s.ended_at IS NULL OR s.error IS DISTINCT FROM 'erased'";
    /// An ended saga has no error, so the error marks an erased one.
    erase_saga = "UPDATE {schema}saga SET input = 'null', output = CASE WHEN output IS NOT NULL THEN 'null' END,
            reason = CASE WHEN reason IS NOT NULL THEN 'erased' END, cancel = NULL, error = 'erased'
        WHERE type = $1 AND id = $2 AND ended_at IS NOT NULL";
    erase_steps = "UPDATE {schema}saga_step SET result = CASE WHEN result IS NOT NULL THEN 'null' END,
            error = CASE WHEN error IS NOT NULL THEN 'erased' END WHERE type = $1 AND id = $2";
    erase_replies = "UPDATE {schema}saga_reply SET payload = 'null' WHERE type = $1 AND id = $2";
}

/// Returns every statement with its name.
#[cfg(feature = "testing")]
#[must_use]
pub fn listed_statements() -> Vec<(&'static str, String)> {
    let statements = Statements::new(None);
    let listed = statements.each().into_iter();
    listed.map(|(name, statement)| (name, statement.as_str().to_owned())).collect()
}
