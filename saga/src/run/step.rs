//! An effect in this database.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;

use outbox::{CommitError, OutboxTransaction};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::SemaphorePermit;
use tokio::time::Instant;

use super::rollback::roll_back;
use super::undo::{NoUndo, Undo, UndoInTx};
use super::work::{Accepts, Code, StepUndo, StepWork};
use super::{Halt, Parts, Run, Stopped};
use crate::base::Base;
use crate::dialect::Dialect;
use crate::record::{Commits, NewStep, StepKind, StepRecord, StepState, UndoState};
use crate::stop::{Next, StepError, Stop};
use crate::{crash_points, telemetry};

/// A step that is about to run: `.await` it, after [`undo`](Step::undo) if it has one.
#[must_use = "a step does nothing until it is awaited"]
pub struct Step<'r, DB: Dialect, T, F, U = NoUndo> {
    parts: &'r mut Parts<DB>,
    name: &'r str,
    work: F,
    undo: U,
    result: PhantomData<fn() -> T>,
}

impl<DB: Dialect> Run<DB> {
    /// Describes an effect in this database: rows and messages of one transaction. They commit
    /// once, together with the result and the saga's progress. Every later run returns the result.
    ///
    /// The closures may return any error that `?` converts into a [`StepError`].
    ///
    /// ```no_run
    /// # struct Order { item: i64 }
    /// # async fn example(saga: &mut saga::Run<sqlx::Postgres>, order: Order) -> Result<(), saga::Stop> {
    /// let hold: i64 = saga
    ///     .step("reserve", async |tx| {
    ///         let reserve = "INSERT INTO hold (item) VALUES ($1) RETURNING id";
    ///         Ok(sqlx::query_scalar(reserve).bind(order.item).fetch_one(&mut **tx).await?)
    ///     })
    ///     .undo(async |tx, hold: &i64| {
    ///         sqlx::query("DELETE FROM hold WHERE id = $1").bind(*hold).execute(&mut **tx).await?;
    ///         Ok(())
    ///     })
    ///     .await?;
    /// # let _ = hold; Ok(()) }
    /// ```
    ///
    /// The closure may run several times, but commits once. Effects outside of the database belong
    /// in a [`call`](Self::call). Names are 1 to 64 bytes and occur once in a run.
    ///
    /// # Errors
    /// [`Stop`]: it was refused ([`StepError::stop`]), or the saga pauses here. Not cancel-safe: a
    /// step that is dropped makes the run fail, and the saga is run again.
    pub fn step<'r, T, E, F>(
        &'r mut self,
        name: &'r str,
        work: F,
    ) -> Step<'r, DB, T, Code<F, E, impl Accepts<StepError>>>
    where
        F: AsyncFnOnce(&mut OutboxTransaction<DB>) -> Result<T, E> + for<'t> StepWork<'t, DB, T, E> + Send,
        E: Into<StepError> + 'static,
    {
        let work = Code::new(work, ());
        Step { parts: &mut self.parts, name, work, undo: NoUndo, result: PhantomData }
    }
}

impl<'r, DB: Dialect, T, F> Step<'r, DB, T, F> {
    /// Undoes the step if the saga stops: once, in one transaction with its record. It must not
    /// fail for business reasons: an undo that cannot be done makes the saga stuck.
    pub fn undo<U, E>(self, undo: U) -> Step<'r, DB, T, F, Undo<Code<U, E, impl Accepts<StepError>>>>
    where
        U: AsyncFnOnce(&mut OutboxTransaction<DB>, &T) -> Result<(), E>
            + for<'t> StepUndo<'t, DB, T, E>
            + Send,
        E: Into<StepError> + 'static,
        T: 'static,
    {
        let Self { parts, name, work, result, .. } = self;
        Step { parts, name, work, undo: Undo(Code::new(undo, ())), result }
    }
}

impl<'r, DB, T, F, E, M, U> IntoFuture for Step<'r, DB, T, Code<F, E, M>, U>
where
    DB: Dialect,
    T: Serialize + DeserializeOwned + Send + Sync + 'static,
    F: for<'t> StepWork<'t, DB, T, E> + Send + 'r,
    E: Into<StepError> + 'static,
    M: Accepts<E>,
    U: UndoInTx<DB, T> + 'r,
{
    type Output = Result<T, Stop>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'r>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { parts, name, work, undo, .. } = self;
        let work = work.into_closure();
        Box::pin(async move {
            let row = parts.enter(StepKind::Step, name)?;
            let outcome = match row {
                Some(row) if parts.is_target(name) => Err(parts.undo_in_tx(&row, undo).await),
                Some(row) => parts.replay(&row),
                None => parts.perform(name, work, U::STATE).await,
            };
            parts.leave(outcome)
        })
    }
}

impl<DB: Dialect> Parts<DB> {
    /// Returns the stored outcome of a step.
    pub(super) fn replay<T: DeserializeOwned>(&mut self, row: &StepRecord) -> Result<T, Stopped> {
        match row.state {
            StepState::Done => self.decode(&row.name, row.result.as_deref()),
            StepState::Calling | StepState::Waiting => self.halt(Halt::Unreached(row.name.clone())),
            StepState::Refused | StepState::GaveUp | StepState::TimedOut => self.settled(row),
        }
    }

    async fn perform<T, E, F>(&mut self, name: &str, work: F, undo: UndoState) -> Result<T, Stopped>
    where
        T: Serialize + DeserializeOwned + Send,
        E: Into<StepError>,
        F: for<'t> StepWork<'t, DB, T, E>,
    {
        let sagas = Arc::clone(&self.sagas);
        let _turn = self.turn(&sagas).await?;
        let began = Instant::now();
        let mut tx = self.begin(name).await?;
        let work = work.run(&mut tx);
        let worked = self.while_held(async { work.await.map_err(Into::into) }).await;
        let value = match worked {
            Ok(value) => value,
            Err(error) => {
                // If this fails, the transaction is rolled back anyway, at the latest when the
                // connection is returned.
                let _ = sagas.db.any(roll_back(tx, &error)).await;
                return self.refused(name, StepKind::Step, &error).await;
            }
        };
        let (json, value) = self.encode(name, &value)?;
        let position = self.next_position();
        let done = NewStep {
            name,
            position,
            kind: StepKind::Step,
            state: StepState::Done,
            undo,
            result: Some(&json),
            error: None,
            due_in: None,
        };
        self.insert_step(&mut tx, &done, Commits::WithEffect).await?;
        self.at(crash_points::BEFORE_STEP_COMMIT).await?;
        self.commit(name, tx).await?;
        self.at(crash_points::AFTER_STEP_COMMIT).await?;
        self.has_progressed = true;
        telemetry::step(self.held.id.saga_type(), StepKind::Step, began.elapsed());
        Ok(value)
    }

    /// Stores that a step will never happen, or schedules its retry.
    async fn refused<T>(&mut self, name: &str, kind: StepKind, error: &StepError) -> Result<T, Stopped> {
        if error.next != Next::Stop {
            return self.failed_step(name, error);
        }
        let text = crate::error::storable(&error.to_string());
        let position = self.next_position();
        self.begin_step(&NewStep {
            name,
            position,
            kind,
            state: StepState::Refused,
            undo: UndoState::None,
            result: None,
            error: Some(&text),
            due_in: None,
        })
        .await?;
        Err(Stop::because(text))
    }

    /// Commits right after the statement that is fenced by the claim. If the answer is lost,
    /// reading the saga again shows the outcome.
    pub(super) async fn commit(&mut self, name: &str, tx: OutboxTransaction<DB>) -> Result<(), Stopped> {
        let sagas = Arc::clone(&self.sagas);
        match sagas.db.any(tx.commit_alive()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(CommitError::Unknown { .. })) | Err(_) => self.halt(Halt::Changed),
            Ok(Err(error)) => self.failed_step(name, &error.into()),
        }
    }

    /// Begins the transaction of a step.
    pub(super) async fn begin(&mut self, name: &str) -> Result<OutboxTransaction<DB>, Stopped> {
        let sagas = Arc::clone(&self.sagas);
        match sagas.outbox.begin_in_time(&sagas.db).await {
            Ok(tx) => Ok(tx),
            Err(error) => self.failed_step(name, &error.into()),
        }
    }

    /// Waits until the code of a step may use a connection; some connections always stay free.
    pub(super) async fn turn<'s>(
        &mut self,
        sagas: &'s Base<DB>,
    ) -> Result<Option<SemaphorePermit<'s>>, Stopped> {
        let stopping = self.stopping.clone();
        match stopping.run_until_cancelled(sagas.turns.acquire()).await {
            // The semaphore is never closed.
            Some(turn) => Ok(turn.ok()),
            None => self.halt(Halt::Stopping),
        }
    }

    /// Runs the code of a step in its transaction. Abandons it when the lease has been over, or a
    /// renewal unanswered, for as long as a call may take: an unreachable database answers no
    /// statement and reports nothing. Another worker may have the saga by then. If a long step
    /// itself prevents the renewal of its lease, it is never abandoned, because a missing renewal
    /// does not show that the database is unreachable.
    pub(super) async fn while_held<T>(
        &self,
        work: impl Future<Output = Result<T, StepError>>,
    ) -> Result<T, StepError> {
        if !self.sagas.renews_beside_steps() {
            return work.await;
        }
        let limit = self.sagas.db.limit();
        tokio::select! {
            biased;
            worked = work => worked,
            () = self.lease.given_up(Instant::now(), limit) => Err(StepError::outage(format!(
                "it was abandoned: for {limit:?}, the saga's lease had expired or the database did not answer"
            ))),
        }
    }
}

impl<DB: Dialect, T, F, U> std::fmt::Debug for Step<'_, DB, T, F, U> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Step").field("name", &self.name).finish_non_exhaustive()
    }
}
