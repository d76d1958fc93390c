//! An effect elsewhere, requested by a direct call.
//!
//! The row `calling` is committed before the call is made. If a worker dies after that, the outcome
//! of the call is unknown: it is made again under the same key, and undone if the saga stops,
//! whether or not it took effect.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::undo::{NoUndo, Undo, UndoElsewhere};
use super::work::{Accepts, CallUndo, CallWork, Code};
use super::{Halt, Parts, Run, Stopped, change};
use crate::dialect::Dialect;
use crate::error::storable;
use crate::key::StepKey;
use crate::record::{NewStep, StepChange, StepKind, StepRecord, StepState, UndoState};
use crate::retry::Retry;
use crate::stop::{Next, StepError, Stop};
use crate::{crash_points, telemetry};

/// Minimum wait before a call is repeated, whatever its error requests.
const DELAY_MIN: Duration = Duration::from_millis(100);

/// A call that is about to be made: `.await` it, after [`undo`](Call::undo) and
/// [`retry`](Call::retry) if it has them.
#[must_use = "a call does nothing until it is awaited"]
pub struct Call<'r, DB: Dialect, T, F, U = NoUndo> {
    parts: &'r mut Parts<DB>,
    name: &'r str,
    work: F,
    undo: U,
    retry: Option<Retry>,
    result: PhantomData<fn() -> T>,
}

impl<DB: Dialect> Run<DB> {
    /// Describes an effect elsewhere. The call gets the key `type/id/step`, the same at every
    /// attempt. The other service must honour it as an idempotency key, because a call whose
    /// outcome is unknown is made again.
    ///
    /// The closures may return any error that `?` converts into a [`StepError`]. An error means
    /// that the outcome is unknown; [`StepError::stop`], or [an error that means the
    /// same](StepError), means that the call had no effect.
    ///
    /// ```no_run
    /// # use saga::StepKey;
    /// # struct Bank;
    /// # impl Bank {
    /// #     async fn charge(&self, _: &StepKey, _: i64) -> Result<String, std::io::Error> { Ok(String::new()) }
    /// #     async fn refund(&self, _: &StepKey) -> Result<(), std::io::Error> { Ok(()) }
    /// # }
    /// # async fn example(saga: &mut saga::Run<sqlx::Postgres>, bank: Bank) -> Result<(), saga::Stop> {
    /// let charge: String = saga
    ///     .call("charge", async |key: &StepKey| bank.charge(key, 2500).await)
    ///     .undo(async |key, _: Option<&String>| bank.refund(key).await)
    ///     .await?;
    /// # drop(charge); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Stop`]: the call was refused or abandoned, or the saga pauses here. Not cancel-safe, like
    /// [`step`](Self::step).
    pub fn call<'r, T, E, F>(
        &'r mut self,
        name: &'r str,
        work: F,
    ) -> Call<'r, DB, T, Code<F, E, impl Accepts<StepError>>>
    where
        F: AsyncFnOnce(&StepKey) -> Result<T, E> + for<'t> CallWork<'t, T, E> + Send,
        E: Into<StepError> + 'static,
    {
        let work = Code::new(work, ());
        Call { parts: &mut self.parts, name, work, undo: NoUndo, retry: None, result: PhantomData }
    }
}

impl<'r, DB: Dialect, T, F> Call<'r, DB, T, F> {
    /// Undoes the call if the saga stops, even if the outcome is unknown; then there is no result.
    /// The undo gets the same key. It is made again if its own outcome is unknown, so the other
    /// service must accept it twice.
    pub fn undo<U, E>(self, undo: U) -> Call<'r, DB, T, F, Undo<Code<U, E, impl Accepts<StepError>>>>
    where
        U: AsyncFnOnce(&StepKey, Option<&T>) -> Result<(), E> + for<'t> CallUndo<'t, T, E> + Send,
        E: Into<StepError> + 'static,
        T: 'static,
    {
        let Self { parts, name, work, retry, result, .. } = self;
        Call { parts, name, work, undo: Undo(Code::new(undo, ())), retry, result }
    }
}

impl<DB: Dialect, T, F, U> Call<'_, DB, T, F, U> {
    /// Abandons the call at these limits. Without them, the saga is stuck after the workers' limit
    /// of attempts.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = Some(retry);
        self
    }
}

impl<'r, DB, T, F, E, M, U> IntoFuture for Call<'r, DB, T, Code<F, E, M>, U>
where
    DB: Dialect,
    T: Serialize + DeserializeOwned + Send + Sync + 'static,
    F: for<'t> CallWork<'t, T, E> + Send + 'r,
    E: Into<StepError> + 'static,
    M: Accepts<E>,
    U: UndoElsewhere<T> + 'r,
{
    type Output = Result<T, Stop>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'r>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { parts, name, work, undo, retry, .. } = self;
        let work = work.into_closure();
        Box::pin(async move {
            let row = parts.enter(StepKind::Call, name)?;
            let outcome = match row {
                Some(row) if parts.is_target(name) => Err(parts.undo_call(&row, undo).await),
                Some(row) if row.state == StepState::Calling && parts.target.is_none() => {
                    parts.call_again(row, work, retry).await
                }
                Some(row) => parts.replay(&row),
                None => parts.call_first(name, work, U::STATE, retry).await,
            };
            parts.leave(outcome)
        })
    }
}

impl<DB: Dialect> Parts<DB> {
    async fn call_first<T, E, F>(
        &mut self,
        name: &str,
        work: F,
        undo: UndoState,
        retry: Option<Retry>,
    ) -> Result<T, Stopped>
    where
        T: Serialize + DeserializeOwned + Send,
        E: Into<StepError>,
        F: for<'t> CallWork<'t, T, E>,
    {
        let position = self.next_position();
        self.begin_step(&NewStep {
            name,
            position,
            kind: StepKind::Call,
            state: StepState::Calling,
            undo,
            result: None,
            error: None,
            due_in: None,
        })
        .await?;
        self.make_call(Calling { name, undo, attempts: 1, age: Duration::ZERO }, work, retry).await
    }

    /// Repeats a call whose outcome is unknown, unless its limits are reached.
    async fn call_again<T, E, F>(
        &mut self,
        row: StepRecord,
        work: F,
        retry: Option<Retry>,
    ) -> Result<T, Stopped>
    where
        T: Serialize + DeserializeOwned + Send,
        E: Into<StepError>,
        F: for<'t> CallWork<'t, T, E>,
    {
        // This decision is final, so the database's clock alone does not decide.
        let here = Duration::try_from(self.sagas.clock.now() - row.begun_at).unwrap_or_default();
        let age = row.age.min(here);
        let calling = Calling { name: &row.name, undo: row.undo, attempts: row.attempts, age };
        if retry.is_some_and(|retry| retry.is_used_up(row.attempts, age)) {
            let last = row.error.as_deref().unwrap_or("its worker disappeared before the answer arrived");
            return self.give_up(&calling, last).await;
        }
        if let Some(reason) = self.worn_out.take() {
            return self.stuck(reason);
        }
        // Also checked before the attempt is counted: no call is made after the lease has ended.
        self.check_lease()?;
        let again = change(&row, row.state, row.undo, None, None);
        self.change_step(&StepChange { is_attempt: true, is_forward: true, ..again }).await?;
        self.make_call(Calling { attempts: row.attempts + 1, ..calling }, work, retry).await
    }

    async fn make_call<T, E, F>(
        &mut self,
        calling: Calling<'_>,
        work: F,
        retry: Option<Retry>,
    ) -> Result<T, Stopped>
    where
        T: Serialize + DeserializeOwned + Send,
        E: Into<StepError>,
        F: for<'t> CallWork<'t, T, E>,
    {
        self.at(crash_points::BEFORE_CALL).await?;
        self.check_lease()?;
        let began = Instant::now();
        let key = self.held.id.key(calling.name);
        let called = work.run(&key).await.map_err(Into::<StepError>::into);
        self.at(crash_points::AFTER_CALL).await?;
        match called {
            Ok(value) => {
                let (json, value) = self.encode(calling.name, &value)?;
                self.change_step(&calling.to(StepState::Done, calling.undo, Some(&json), None)).await?;
                self.at(crash_points::AFTER_CALL_STORED).await?;
                self.has_progressed = true;
                telemetry::step(self.held.id.saga_type(), StepKind::Call, began.elapsed());
                Ok(value)
            }
            // A refusal in a source proves nothing about the earlier effects of the call.
            Err(error) if error.next == Next::Stop && error.is_direct => {
                self.call_refused(&calling, &error).await
            }
            Err(error) => {
                let calling = Calling { age: calling.age + began.elapsed(), ..calling };
                self.call_failed(&calling, &error, retry).await
            }
        }
    }

    /// Stores that the call was refused: this attempt had no effect. An earlier attempt may have
    /// had an effect, and is then undone.
    async fn call_refused<T>(&mut self, calling: &Calling<'_>, error: &StepError) -> Result<T, Stopped> {
        let text = storable(&error.to_string());
        let undo = if calling.attempts == 1 { UndoState::None } else { calling.undo };
        self.change_step(&calling.to(StepState::Refused, undo, None, Some(&text))).await?;
        Err(Stop::because(text))
    }

    async fn call_failed<T>(
        &mut self,
        calling: &Calling<'_>,
        error: &StepError,
        retry: Option<Retry>,
    ) -> Result<T, Stopped> {
        let text = storable(&error.to_string());
        let Some(retry) = retry else {
            self.change_step(&calling.to(StepState::Calling, calling.undo, None, Some(&text))).await?;
            let error = StepError::retry(text).after(error.delay);
            return self.failed_step(calling.name, &error);
        };
        if retry.is_used_up(calling.attempts, calling.age) {
            return self.give_up(calling, &text).await;
        }
        self.change_step(&calling.to(StepState::Calling, calling.undo, None, Some(&text))).await?;
        let backoff = || self.sagas.options.backoff.delay(calling.attempts, rand::random());
        let delay = error.delay.map_or_else(backoff, |delay| delay.max(DELAY_MIN));
        let error = storable(&format!("{}: {text}", calling.name));
        self.halt(Halt::Failed { error, is_counted: false, delay: Some(delay) })
    }

    async fn give_up<T>(&mut self, calling: &Calling<'_>, last: &str) -> Result<T, Stopped> {
        let Calling { name, attempts, .. } = calling;
        let text = storable(&format!("the call {name} was abandoned after {attempts} attempts: {last}"));
        self.change_step(&calling.to(StepState::GaveUp, calling.undo, None, Some(&text))).await?;
        Err(Stop::because(text))
    }
}

/// A call under way.
#[derive(Debug, Clone, Copy)]
struct Calling<'a> {
    name: &'a str,
    undo: UndoState,
    /// The number of attempts, including this one.
    attempts: u32,
    /// Time since the first attempt began, by the clock that shows the shorter time.
    age: Duration,
}

impl<'a> Calling<'a> {
    /// Returns the change to its next state, which is stored even if the saga was cancelled
    /// meanwhile.
    fn to(
        &self,
        state: StepState,
        undo: UndoState,
        result: Option<&'a str>,
        error: Option<&'a str>,
    ) -> StepChange<'a> {
        StepChange {
            name: self.name,
            from: (StepState::Calling, self.undo),
            to: (state, undo),
            result,
            error,
            is_attempt: false,
            is_forward: false,
            replies: None,
        }
    }
}

impl<DB: Dialect, T, F, U> std::fmt::Debug for Call<'_, DB, T, F, U> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("name", &self.name).finish_non_exhaustive()
    }
}
