//! The SQL of sagas on PostgreSQL, rendered once for a schema.

use migrations::{Identifier, Statement, Template};

macro_rules! statements {
    ($($(#[$doc:meta])* $name:ident = $sql:expr;)*) => {
        /// The rendered SQL.
        #[derive(Debug)]
        pub struct Statements {
            $($(#[$doc])* pub(super) $name: Statement,)*
        }

        impl Statements {
            pub(super) fn new(schema: Option<&Identifier>) -> Self {
                Self {
                    $($name: Template::new($sql).schema(schema).render(),)*
                }
            }
        }
    };
}

/// The saga's row, locked, if the worker still owns it; more conditions may follow. A row that
/// another transaction has changed meanwhile is looked at again before it counts.
macro_rules! owned {
    ($condition:literal) => {
        concat!(
            "WITH owned AS MATERIALIZED (SELECT 1 FROM {schema}saga WHERE type = $1 AND id = $2 AND epoch = $3 ",
            $condition,
            " FOR NO KEY UPDATE) "
        )
    };
}

/// A turn of the saga, if the worker still owns it.
macro_rules! turn {
    ($changes:literal) => {
        concat!("UPDATE {schema}saga SET ", $changes, " WHERE type = $1 AND id = $2 AND epoch = $3")
    };
}

statements! {
    insert = "INSERT INTO {schema}saga (type, id, version, input) VALUES ($1, $2, $3, $4) \
        ON CONFLICT (type, id) DO NOTHING";
    find = "SELECT * FROM {schema}saga WHERE type = $1 AND id = $2";
    /// A time that is the same all through the statement, so that the index finds what is due.
    claim = "UPDATE {schema}saga AS s SET epoch = s.epoch + 1, worker = $4, \
            wake_at = clock_timestamp() + $5 * interval '1 microsecond' \
        FROM (SELECT type, id FROM {schema}saga \
            WHERE type = $1 AND version = $2 AND wake_at <= statement_timestamp() \
            ORDER BY wake_at LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED) AS due \
        WHERE s.type = due.type AND s.id = due.id RETURNING s.*";
    renew = turn!("wake_at = clock_timestamp() + $4 * interval '1 microsecond'");
    steps = "SELECT *, coalesce(due_at <= clock_timestamp(), false) AS is_due, \
            (extract(epoch FROM clock_timestamp() - begun_at) * 1000000)::bigint AS age \
        FROM {schema}saga_step WHERE type = $1 AND id = $2 ORDER BY position";
    mailbox = "SELECT step, payload FROM {schema}saga_reply WHERE type = $1 AND id = $2";
    insert_step = concat!(
        owned!("AND cancel IS NULL"),
        "INSERT INTO {schema}saga_step (type, id, name, position, kind, state, undo, result, error, due_at, ended_at) \
         SELECT $1, $2, $4, $5, $6, $7, $8, $9, $10, clock_timestamp() + $11 * interval '1 microsecond', \
            CASE WHEN $7 IN ('done', 'refused') THEN clock_timestamp() END FROM owned",
    );
    change_step = concat!(
        owned!("AND (NOT $13 OR cancel IS NULL) AND ($14::bigint IS NULL OR replies = $14)"),
        "UPDATE {schema}saga_step SET state = $7, undo = $8, result = coalesce($9, result), \
            error = coalesce($10, error), attempts = attempts + $11, \
            ended_at = CASE WHEN $12 THEN clock_timestamp() ELSE ended_at END, \
            undone_at = CASE WHEN undo <> $8 AND $8 = 'done' THEN clock_timestamp() ELSE undone_at END \
         FROM owned WHERE type = $1 AND id = $2 AND name = $4 AND state = $5 AND undo = $6",
    );
    wait = turn!(
        "worker = NULL, attempts = 0, error = NULL, waits_for = $4, \
         waiting_since = CASE WHEN waits_for = $4 THEN waiting_since ELSE clock_timestamp() END, \
         wake_at = CASE WHEN replies <> $5 OR cancel IS NOT NULL THEN clock_timestamp() \
            ELSE (SELECT due_at FROM {schema}saga_step WHERE type = $1 AND id = $2 AND name = $4) END"
    );
    postpone = turn!(
        "worker = NULL, attempts = $4, error = coalesce($6, error), waits_for = NULL, waiting_since = NULL, \
         wake_at = clock_timestamp() + $5 * interval '1 microsecond'"
    );
    stick = turn!(
        "worker = NULL, attempts = $4, error = $5, waits_for = NULL, waiting_since = NULL, wake_at = NULL, \
         stuck_at = clock_timestamp()"
    );
    begin_undo = turn!(
        "state = 'undoing', reason = $4, cancel = NULL, attempts = 0, error = NULL, waits_for = NULL, \
         waiting_since = NULL"
    );
    finish = concat!(
        turn!(
            "state = 'finished', output = $4, worker = NULL, wake_at = NULL, attempts = 0, error = NULL, \
             waits_for = NULL, waiting_since = NULL, ended_at = clock_timestamp()"
        ),
        " AND cancel IS NULL",
    );
    end_undo = turn!(
        "state = 'undone', worker = NULL, wake_at = NULL, attempts = 0, error = NULL, waits_for = NULL, \
         waiting_since = NULL, ended_at = clock_timestamp()"
    );
    /// Locks the saga's row first: a worker that goes to wait at this moment sees the count.
    announce_reply = "UPDATE {schema}saga SET replies = replies + 1, \
            wake_at = CASE WHEN worker IS NULL AND stuck_at IS NULL THEN clock_timestamp() ELSE wake_at END \
        WHERE type = $1 AND id = $2 AND state = 'running'";
    exists = "SELECT EXISTS (SELECT FROM {schema}saga WHERE type = $1 AND id = $2)";
    has_reply = "SELECT EXISTS (SELECT FROM {schema}saga_reply WHERE type = $1 AND id = $2 AND step = $3)";
    step_state = "SELECT state FROM {schema}saga_step WHERE type = $1 AND id = $2 AND name = $3";
    insert_reply = "INSERT INTO {schema}saga_reply (type, id, step, payload) VALUES ($1, $2, $3, $4) \
        ON CONFLICT (type, id, step) DO NOTHING";
    list = "SELECT * FROM {schema}saga \
        WHERE ($1::text IS NULL OR type = $1) AND ($2::text IS NULL OR state = $2) \
            AND (NOT $3 OR stuck_at IS NOT NULL) AND ($4 OR ended_at IS NULL) \
        ORDER BY started_at, type, id LIMIT $5";
    retry = "UPDATE {schema}saga SET stuck_at = NULL, attempts = 0, wake_at = clock_timestamp() \
        WHERE type = $1 AND id = $2 AND stuck_at IS NOT NULL";
    /// A worker that owns the saga finds the reason with its next change.
    cancel = "UPDATE {schema}saga SET \
            cancel = CASE WHEN worker IS NULL THEN NULL ELSE $3 END, \
            state = CASE WHEN worker IS NULL THEN 'undoing' ELSE state END, \
            reason = CASE WHEN worker IS NULL THEN $3 ELSE reason END, \
            wake_at = CASE WHEN worker IS NULL THEN clock_timestamp() ELSE wake_at END, \
            attempts = CASE WHEN worker IS NULL THEN 0 ELSE attempts END, \
            waits_for = CASE WHEN worker IS NULL THEN NULL ELSE waits_for END, \
            waiting_since = CASE WHEN worker IS NULL THEN NULL ELSE waiting_since END, \
            stuck_at = NULL \
        WHERE type = $1 AND id = $2 AND state = 'running'";
    lock_stuck = "SELECT * FROM {schema}saga WHERE type = $1 AND id = $2 AND stuck_at IS NOT NULL \
        FOR NO KEY UPDATE";
    skip_undo = "UPDATE {schema}saga_step SET undo = 'skipped', undone_at = clock_timestamp() \
        WHERE type = $1 AND id = $2 AND name = $3 AND undo = 'pending'";
    skip_step = "UPDATE {schema}saga_step SET state = 'done', result = $4, ended_at = clock_timestamp() \
        WHERE type = $1 AND id = $2 AND name = $3 AND state <> 'done'";
    skip_new_step = "INSERT INTO {schema}saga_step (type, id, name, position, kind, state, undo, result, ended_at) \
        SELECT $1, $2, $3, coalesce(max(position) + 1, 0), 'step', 'done', 'none', $4, clock_timestamp() \
        FROM {schema}saga_step WHERE type = $1 AND id = $2 ON CONFLICT DO NOTHING";
    note_decision = "INSERT INTO {schema}saga_audit (actor, note, action, type, id, step) VALUES ($1, $2, $3, $4, $5, $6)";
    decisions = "SELECT * FROM {schema}saga_audit ORDER BY seq DESC LIMIT $1";
    overdue = "SELECT type, version, count(*) AS sagas, \
            (extract(epoch FROM clock_timestamp() - min(wake_at)) * 1000000)::bigint AS longest \
        FROM {schema}saga WHERE wake_at <= statement_timestamp() - $1 * interval '1 microsecond' GROUP BY type, version";
    /// A saga that another transaction looks at is left for the next time.
    forget = "WITH gone AS (DELETE FROM {schema}saga AS s USING (SELECT type, id FROM {schema}saga \
                WHERE ended_at <= statement_timestamp() - $1 * interval '1 microsecond' \
                ORDER BY ended_at LIMIT $2 FOR UPDATE SKIP LOCKED) AS old \
            WHERE s.type = old.type AND s.id = old.id RETURNING s.type, s.id), \
        steps AS (DELETE FROM {schema}saga_step AS t USING gone WHERE t.type = gone.type AND t.id = gone.id), \
        mail AS (DELETE FROM {schema}saga_reply AS r USING gone WHERE r.type = gone.type AND r.id = gone.id) \
        SELECT count(*) FROM gone";
}
