//! The tables of sagas in a database. Each method runs one statement, or a few in the caller's
//! transaction, and decides nothing. All databases share this code;
//! [`Store`](crate::dialect::Store) has the parts in which they differ. No method is cancel-safe: a
//! statement may or may not have taken effect.

use std::collections::HashSet;
use std::time::Duration;

use message::Backoff;
use migrations::query::Query;
use migrations::{Identifier, Line, Statement};
use outbox::{Audit, Signature};
use sqlx::pool::PoolConnection;
use sqlx::{SqlSafeStr as _, Transaction};
use time::OffsetDateTime;

use crate::dialect::{Dialect, Replied};
use crate::key::{SagaId, StepKey};
use crate::operator::{Action, DecidedSaga, Decision, Overdue, SagaOfId, SagaQuery};
use crate::options::{LEASE_MAX, PAUSE_MAX};
use crate::record::{
    Commits, DOUBTED, GIVEN, Held, LOST, NewStep, SagaKind, SagaOutline, SagaRecord, State, StepChange,
    StepRecord, StepState, Turn,
};
use crate::reply_token::Secret;
use crate::rows;
use crate::statements::Shared;

type Result<T> = std::result::Result<T, sqlx::Error>;

/// Maximum number of kept replies for steps of a saga that have not begun: replies to requests that
/// were never sent must not fill its mailbox.
const EARLY_MAX: i64 = 100;

/// Maximum sagas of a type and version that one pass reads. Most of them have long pauses, which is
/// correct; reading them takes some milliseconds.
const SLICE: u32 = 5_000;

/// The tables of sagas, in a schema.
pub(crate) struct Tables<DB: Dialect> {
    shared: Shared,
    own: DB::SagaStatements,
    /// The decisions of operators.
    audit: Audit,
}

/// A reply to the request of a step.
pub(crate) struct Reply<'a> {
    pub(crate) key: &'a StepKey,
    /// JSON.
    pub(crate) payload: &'a str,
    /// The token that came with it; none for a reply whose sender the application has verified.
    pub(crate) token: Option<&'a str>,
}

impl Reply<'_> {
    fn is_proven(&self, secret: &Secret) -> bool {
        self.token.is_none_or(|token| secret.accepts(&self.key.step, token))
    }
}

/// The step that an operator skips.
pub(crate) struct Skipped<'a> {
    pub(crate) step: &'a str,
    /// Whether the saga is stuck at it: then the step accepts a result in any state, even before it
    /// has begun.
    pub(crate) is_stuck_here: bool,
}

/// The result for a slice of sagas that are due far in the future.
pub(crate) struct Slice {
    /// Number of sagas that were made due.
    pub(crate) woken: u64,
    /// The time of the last saga of the slice; none if there is no other slice.
    pub(crate) end: Option<OffsetDateTime>,
}

fn of_saga<DB: Dialect>(statement: &Statement, id: &SagaId) -> Query<DB> {
    Query::new(statement).bind(id.saga_type()).bind(id.id())
}

/// Fenced by the claim: the statement changes nothing once another worker owns the saga.
fn of_held<DB: Dialect>(statement: &Statement, held: &Held) -> Query<DB> {
    of_saga(statement, &held.id).bind(held.worker.as_str())
}

impl<DB: Dialect> Tables<DB> {
    pub(crate) fn new(schema: Option<&Identifier>) -> Self {
        let own = DB::saga_statements(schema);
        let audit = Audit::new::<DB>(schema, Line::Saga, "type, id, step");
        Self { shared: DB::shared(&own), own, audit }
    }

    /// Begins the transaction of [`list`](Self::list) and [`overdue`](Self::overdue).
    pub(crate) async fn begin_by_index(connection: PoolConnection<DB>) -> Result<Transaction<'static, DB>> {
        Transaction::begin(connection, Some(DB::BEGIN_BY_INDEX.into_sql_str())).await
    }

    /// Begins the transaction of [`wake_stranded`](Self::wake_stranded).
    pub(crate) async fn begin_change_by_index(
        mut connection: PoolConnection<DB>,
    ) -> Result<Transaction<'static, DB>> {
        DB::wait_for_the_disk(&mut connection).await?;
        Transaction::begin(connection, Some(DB::BEGIN_CHANGE_BY_INDEX.into_sql_str())).await
    }

    /// Inserts a saga unless its name is taken. Returns whether it was inserted.
    pub(crate) async fn insert(
        &self,
        connection: &mut DB::Connection,
        id: &SagaId,
        version: u16,
        input: &str,
    ) -> Result<bool> {
        let secret = Secret::random();
        let query = of_saga::<DB>(&self.shared.insert, id).bind(version).bind(input);
        query.bind(secret.as_bytes()).changes_one(connection).await
    }

    /// Reads a saga.
    pub(crate) async fn find(
        &self,
        connection: &mut DB::Connection,
        id: &SagaId,
    ) -> Result<Option<SagaRecord>> {
        of_saga::<DB>(&self.shared.find, id).first(connection).await?.as_ref().map(rows::saga).transpose()
    }

    /// Reads a saga and its steps without their contents.
    pub(crate) async fn look(
        &self,
        connection: &mut DB::Connection,
        id: &SagaId,
    ) -> Result<Option<(SagaOutline, Vec<StepRecord>)>> {
        let Some(row) = of_saga::<DB>(&self.shared.look, id).first(&mut *connection).await? else {
            return Ok(None);
        };
        let steps = of_saga::<DB>(&self.shared.look_steps, id).rows(connection).await?;
        let steps: Result<Vec<StepRecord>> = steps.iter().map(rows::step).collect();
        Ok(Some((rows::outline(&row)?, steps?)))
    }

    /// Leases due sagas of a type and version, the longest waiting ones first.
    pub(crate) async fn claim(
        &self,
        connection: &mut DB::Connection,
        kind: &SagaKind,
        limit: u32,
        worker: &str,
        lease: Duration,
        pause: Backoff,
    ) -> Result<Vec<SagaRecord>> {
        let SagaKind { saga_type, version } = kind;
        let query = Query::<DB>::new(&self.shared.claim).bind(saga_type).bind(*version).bind(limit);
        let query = query.bind(worker).bind(lease).bind(pause.first).bind(pause.max).bind(LOST);
        query.rows(connection).await?.iter().map(rows::saga).collect()
    }

    /// Extends the leases of sagas to this duration from now. Returns the held ones that were not
    /// locked at the time.
    pub(crate) async fn renew(
        &self,
        connection: &mut DB::Connection,
        held: &[Held],
        lease: Duration,
    ) -> Result<HashSet<Held>> {
        DB::renew_sagas(connection, &self.own, held, lease).await
    }

    /// Returns for each type whether one of its sagas is due.
    pub(crate) async fn due_kinds(
        &self,
        connection: &mut DB::Connection,
        kinds: &[SagaKind],
    ) -> Result<Vec<bool>> {
        DB::due_kinds(connection, &self.own, kinds).await
    }

    /// Makes sagas of a type and version due that wait for no step, and whose next run is further
    /// ahead than [`LEASE_MAX`], or than [`PAUSE_MAX`] after a failure. Sagas that a worker holds
    /// become due after [`LEASE_MAX`]. Reads at most [`SLICE`] sagas, beginning after a given time.
    pub(crate) async fn wake_stranded(
        &self,
        mut tx: Transaction<'static, DB>,
        kind: &SagaKind,
        after: Option<OffsetDateTime>,
    ) -> Result<Slice> {
        let of_kind = |statement: &Statement| {
            Query::<DB>::new(statement).bind(&kind.saga_type).bind(kind.version).bind(LEASE_MAX).bind(after)
        };
        let last = of_kind(&self.shared.far_ahead).bind(SLICE).first(&mut tx).await?;
        let end: Option<OffsetDateTime> = last.map(|row| row.get("wake_at")).transpose()?;
        let woken = of_kind(&self.shared.wake_stranded).bind(end).bind(PAUSE_MAX).run(&mut tx).await?;
        tx.commit().await?;
        Ok(Slice { woken, end })
    }

    /// Resets the failures of a saga, if it is held.
    pub(crate) async fn got_on(&self, connection: &mut DB::Connection, held: &Held) -> Result<()> {
        of_held::<DB>(&self.shared.got_on, held).run(connection).await.map(drop)
    }

    /// Reads the steps of a saga, in the order in which they began.
    pub(crate) async fn steps(
        &self,
        connection: &mut DB::Connection,
        id: &SagaId,
    ) -> Result<Vec<StepRecord>> {
        of_saga::<DB>(&self.shared.steps, id).rows(connection).await?.iter().map(rows::step).collect()
    }

    /// Reads the mailbox of a saga: steps and payloads.
    pub(crate) async fn mailbox(
        &self,
        connection: &mut DB::Connection,
        id: &SagaId,
    ) -> Result<Vec<(String, String)>> {
        let found = of_saga::<DB>(&self.shared.mailbox, id).rows(connection).await?;
        found.iter().map(|row| Ok((row.get("step")?, row.get("payload")?))).collect()
    }

    /// Inserts a step, if the saga is held and not cancelled. Returns whether it was inserted. A
    /// step that exists already is a violation of a key.
    pub(crate) async fn insert_step(
        &self,
        connection: &mut DB::Connection,
        held: &Held,
        step: &NewStep<'_>,
        commits: Commits,
    ) -> Result<bool> {
        let statement = match commits {
            Commits::Alone => &self.shared.insert_step,
            Commits::WithEffect if !DB::may_commit_effect(&mut *connection).await? => return Ok(false),
            Commits::WithEffect => &self.shared.insert_step_with_effect,
        };
        of_held::<DB>(statement, held)
            .bind(step.name)
            .bind(step.position)
            .bind(step.kind.as_str())
            .bind(step.state.as_str())
            .bind(step.undo.as_str())
            .bind(step.result)
            .bind(step.error)
            .bind(step.due_in)
            .changes_one(connection)
            .await
    }

    /// Changes a step, if the saga is held and the step is as expected. Returns whether it was
    /// changed.
    pub(crate) async fn change_step(
        &self,
        connection: &mut DB::Connection,
        held: &Held,
        change: &StepChange<'_>,
        commits: Commits,
    ) -> Result<bool> {
        let statement = match commits {
            Commits::Alone => &self.shared.change_step,
            Commits::WithEffect if !DB::may_commit_effect(&mut *connection).await? => return Ok(false),
            Commits::WithEffect => &self.shared.change_step_with_effect,
        };
        of_held::<DB>(statement, held)
            .bind(change.name)
            .bind(change.from.0.as_str())
            .bind(change.from.1.as_str())
            .bind(change.to.0.as_str())
            .bind(change.to.1.as_str())
            .bind(change.result)
            .bind(change.error)
            .bind(i32::from(change.is_attempt))
            .bind(change.from.0 != change.to.0)
            .bind(change.is_forward)
            .bind(change.replies)
            .changes_one(connection)
            .await
    }

    /// Stores the next turn of a saga, if it is held. Returns whether it was.
    pub(crate) async fn turn(
        &self,
        connection: &mut DB::Connection,
        held: &Held,
        turn: &Turn<'_>,
    ) -> Result<bool> {
        let sql = &self.shared;
        let query = match *turn {
            Turn::Wait { step, replies, is_locked, pause } => {
                let waiting = of_held::<DB>(&sql.wait, held).bind(step).bind(replies).bind(is_locked);
                waiting.bind(pause).bind(pause.map(|_| DOUBTED))
            }
            Turn::Postpone { attempts, delay, error } => {
                of_held(&sql.postpone, held).bind(attempts).bind(delay).bind(error)
            }
            Turn::Stick { attempts, error, step } => {
                of_held(&sql.stick, held).bind(attempts).bind(error).bind(step)
            }
            Turn::BeginUndo { reason } => of_held(&sql.begin_undo, held).bind(reason),
            Turn::Finish { output } => of_held(&sql.finish, held).bind(output),
            Turn::EndUndo => of_held(&sql.end_undo, held),
        };
        query.changes_one(connection).await
    }

    /// Ends finished sagas, each if it is held and not cancelled. Returns for each whether it was
    /// ended. After an error either all or none of the ends are stored.
    pub(crate) async fn finish_all(
        &self,
        connection: &mut DB::Connection,
        endings: &[(&Held, &str)],
    ) -> Result<Vec<bool>> {
        DB::finish_sagas(connection, &self.own, endings).await
    }

    /// Puts a reply into the mailbox and wakes the saga. Returns `None` if the reply does not come
    /// from the receiver of the request; then the transaction must be rolled back.
    pub(crate) async fn put_reply(
        &self,
        connection: &mut DB::Connection,
        reply: &Reply<'_>,
    ) -> Result<Option<Replied>> {
        let (id, step) = (&reply.key.saga, reply.key.step.as_str());
        let announced = of_saga::<DB>(&self.shared.announce_reply, id).bind(step);
        if let Some(running) = announced.first(&mut *connection).await? {
            let is_proven = reply.is_proven(&rows::secret(&running)?);
            return if is_proven { self.keep_reply(connection, reply).await.map(Some) } else { Ok(None) };
        }
        let Some(saga) = of_saga::<DB>(&self.shared.state, id).first(&mut *connection).await? else {
            return Ok(Some(Replied::Nobody));
        };
        if !reply.is_proven(&rows::secret(&saga)?) {
            return Ok(None);
        }
        let state: String = saga.get("state")?;
        if state == State::Finished.as_str() {
            return self.unawaited(connection, id, step).await.map(Some);
        }
        // A second reply may answer the message that revoked the request.
        Ok(Some(Replied::Late))
    }

    /// Keeps a reply to a running saga.
    async fn keep_reply(&self, connection: &mut DB::Connection, reply: &Reply<'_>) -> Result<Replied> {
        let (sql, payload) = (&self.shared, reply.payload);
        let (id, step) = (&reply.key.saga, reply.key.step.as_str());
        let found = of_saga::<DB>(&sql.step_state, id).bind(step).first(&mut *connection).await?;
        let state: Option<String> = found.map(|row| row.get("state")).transpose()?;
        let kept = match state.as_deref() {
            Some(state) if state != StepState::Waiting.as_str() => {
                return self.unawaited(connection, id, step).await;
            }
            Some(_) => of_saga::<DB>(&sql.insert_reply, id).bind(step).bind(payload),
            None => of_saga(&sql.insert_early_reply, id).bind(step).bind(payload).bind(EARLY_MAX),
        };
        if kept.changes_one(&mut *connection).await? {
            return Ok(Replied::Kept);
        }
        self.unawaited(connection, id, step).await
    }

    /// Returns the outcome of a reply that no step waits for: a duplicate, if one was kept before.
    async fn unawaited(&self, connection: &mut DB::Connection, id: &SagaId, step: &str) -> Result<Replied> {
        let found = of_saga::<DB>(&self.shared.has_reply, id).bind(step).first(connection).await?;
        let is_kept: Option<bool> = found.map(|row| row.get("is_kept")).transpose()?;
        Ok(if is_kept == Some(true) { Replied::Duplicate } else { Replied::Late })
    }

    /// Reads sagas, the oldest first, without their contents.
    pub(crate) async fn list(
        &self,
        mut tx: Transaction<'static, DB>,
        query: &SagaQuery,
    ) -> Result<Vec<SagaOutline>> {
        let Some(statement) = self.list_statement(query) else { return Ok(Vec::new()) };
        let listed = Query::<DB>::new(statement)
            .bind(query.saga_type.as_deref())
            .bind(query.state.map(State::as_str))
            .bind(query.limit.get());
        let found = listed.rows(&mut tx).await?;
        tx.rollback().await?;
        found.iter().map(rows::outline).collect()
    }

    /// Returns the statement for a query, unless its result is empty by definition. The state
    /// determines whether its sagas have ended, so the others do not have to be read.
    fn list_statement(&self, query: &SagaQuery) -> Option<&Statement> {
        let sql = &self.shared;
        let has_ended = query.state.map(State::has_ended);
        if query.is_stuck {
            return Some(&sql.list_stuck);
        }
        match (has_ended, query.with_ended) {
            (Some(true), false) => None,
            (Some(true), true) => Some(&sql.list_ended),
            (None, true) => Some(&sql.list_all),
            (Some(false), _) | (None, false) => Some(&sql.list_open),
        }
    }

    /// Lets a stuck saga continue. Returns whether it was stuck.
    pub(crate) async fn retry(&self, connection: &mut DB::Connection, id: &SagaId) -> Result<bool> {
        of_saga::<DB>(&self.shared.retry, id).changes_one(connection).await
    }

    /// Cancels a running saga: it is undone at once if no worker owns it, otherwise by its worker.
    /// A lease that ends later than the longest one could ends now. Returns whether it was running.
    pub(crate) async fn cancel(
        &self,
        connection: &mut DB::Connection,
        id: &SagaId,
        reason: &str,
    ) -> Result<bool> {
        let cancelled = of_saga::<DB>(&self.shared.cancel, id).bind(reason).bind(LEASE_MAX);
        cancelled.changes_one(connection).await
    }

    /// Locks a saga until the transaction ends, and reads it without its contents.
    pub(crate) async fn lock(
        &self,
        connection: &mut DB::Connection,
        id: &SagaId,
    ) -> Result<Option<SagaOutline>> {
        let found = of_saga::<DB>(&self.shared.lock_saga, id).first(connection).await?;
        found.as_ref().map(rows::outline).transpose()
    }

    /// Skips the pending undo of a step. Returns whether it was pending.
    pub(crate) async fn skip_undo(
        &self,
        connection: &mut DB::Connection,
        id: &SagaId,
        step: &str,
    ) -> Result<bool> {
        of_saga::<DB>(&self.shared.skip_undo, id).bind(step).changes_one(connection).await
    }

    /// Gives a step a result. Returns whether the step accepted it, as one does that has begun and
    /// has no outcome.
    pub(crate) async fn skip_step(
        &self,
        connection: &mut DB::Connection,
        id: &SagaId,
        Skipped { step, is_stuck_here }: Skipped<'_>,
        result: &str,
    ) -> Result<bool> {
        let begun = of_saga::<DB>(&self.shared.skip_step, id).bind(step).bind(result).bind(is_stuck_here);
        let has_begun = begun.changes_one(&mut *connection).await?;
        if has_begun || !is_stuck_here {
            return Ok(has_begun);
        }
        let new = of_saga::<DB>(&self.shared.skip_new_step, id).bind(step).bind(result).bind(GIVEN);
        new.changes_one(connection).await
    }

    /// Records a decision.
    pub(crate) async fn note(
        &self,
        connection: &mut DB::Connection,
        signature: &Signature,
        action: Action,
        about: &DecidedSaga,
    ) -> Result<()> {
        let query = signature.bind(Query::<DB>::new(&self.shared.note_decision)).bind(action.as_str());
        let query = query.bind(about.id.saga_type()).bind(about.id.id()).bind(about.step.as_deref());
        query.run(connection).await.map(drop)
    }

    /// Reads the decisions with numbers below `before`, the latest first.
    pub(crate) async fn decisions(
        &self,
        connection: &mut DB::Connection,
        before: i64,
        limit: u32,
    ) -> Result<Vec<Decision>> {
        self.audit.before::<DB>(connection, before, limit).await?.iter().map(rows::decision).collect()
    }

    /// Counts sagas that are overdue by more than this, by type and version.
    pub(crate) async fn overdue(
        &self,
        mut tx: Transaction<'static, DB>,
        by: Duration,
    ) -> Result<Vec<Overdue>> {
        let found = Query::<DB>::new(&self.shared.overdue).bind(by).rows(&mut tx).await?;
        tx.rollback().await?;
        found.iter().map(rows::overdue).collect()
    }

    /// Deletes sagas that ended longer ago than the retention, by the database's clock and by the
    /// reading of another clock, with steps and replies, at most
    /// [`BATCH`](crate::retention::BATCH). Returns their number.
    pub(crate) async fn forget(
        &self,
        connection: &mut DB::Connection,
        retention: Duration,
        until: OffsetDateTime,
    ) -> Result<u64> {
        DB::forget_sagas(connection, &self.own, retention, until).await
    }

    /// Returns the sagas of an id that are not erased.
    pub(crate) async fn of_id(&self, connection: &mut DB::Connection, id: &str) -> Result<Vec<SagaOfId>> {
        let found = Query::<DB>::new(&self.shared.of_id).bind(id).rows(connection).await?;
        found.iter().map(rows::of_id).collect()
    }

    /// Removes what an ended saga holds, and commits. Returns whether it had ended.
    pub(crate) async fn erase(&self, mut tx: Transaction<'static, DB>, id: &SagaId) -> Result<bool> {
        let has_ended = of_saga::<DB>(&self.shared.erase_saga, id).changes_one(&mut tx).await?;
        if has_ended {
            for statement in [&self.shared.erase_steps, &self.shared.erase_replies] {
                of_saga::<DB>(statement, id).run(&mut tx).await?;
            }
        }
        tx.commit().await.map(|()| has_ended)
    }

    /// Deletes decisions older than a given time, at most `limit`. Returns their number.
    pub(crate) async fn forget_decisions(
        &self,
        connection: &mut DB::Connection,
        before: OffsetDateTime,
        limit: u32,
    ) -> Result<u64> {
        self.audit.purge::<DB>(connection, before, limit).await
    }
}
