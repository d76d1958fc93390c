//! A pause.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use outbox::OutboxTransaction;
use time::OffsetDateTime;

use super::{Halt, Parts, Run, Stopped, change};
use crate::crash_points;
use crate::dialect::Dialect;
use crate::options::SPAN_MAX;
use crate::record::{Commits, NewStep, StepChange, StepKind, StepRecord, StepState, Turn, UndoState};
use crate::stop::Stop;

/// Maximum difference of two correct clocks. A run waits this long in place.
const APART_MAX: Duration = Duration::from_secs(1);
/// Maximum pause before another check of a step that is due only by the database's clock.
const DOUBTED_FOR: Duration = Duration::from_secs(60);

/// Returns the time from `now` to `due_at`; zero if it has passed.
fn left_until(due_at: OffsetDateTime, now: OffsetDateTime) -> Duration {
    Duration::try_from(due_at - now).unwrap_or_default()
}

/// A pause that is about to begin: `.await` it.
#[must_use = "a pause does nothing until it is awaited"]
pub struct Sleep<'r, DB: Dialect> {
    parts: &'r mut Parts<DB>,
    name: &'r str,
    duration: Duration,
}

impl<DB: Dialect> Run<DB> {
    /// Describes a pause that begins with its first run, by the database's clock. No process waits:
    /// the saga runs again when the pause is over, by the clocks of database and worker. Up to a
    /// century ([`SPAN_MAX`]); a longer pause makes the saga stuck.
    ///
    /// # Errors
    /// [`Stop`]: the saga pauses here. Not cancel-safe, like [`step`](Self::step).
    pub fn sleep<'r>(&'r mut self, name: &'r str, duration: Duration) -> Sleep<'r, DB> {
        Sleep { parts: &mut self.parts, name, duration }
    }
}

impl<'r, DB: Dialect> IntoFuture for Sleep<'r, DB> {
    type Output = Result<(), Stop>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'r>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { parts, name, duration } = self;
        Box::pin(async move {
            let row = parts.enter(StepKind::Sleep, name)?;
            let outcome = parts.sleep(name, duration, row).await;
            parts.leave(outcome)
        })
    }
}

impl<DB: Dialect> Parts<DB> {
    async fn sleep(
        &mut self,
        name: &str,
        duration: Duration,
        row: Option<StepRecord>,
    ) -> Result<(), Stopped> {
        match row {
            None => {
                self.check_span(name, Some(duration))?;
                let tx = self.begin(name).await?;
                self.begin_wait(tx, name, StepKind::Sleep, UndoState::None, Some(duration)).await
            }
            Some(row) if row.state != StepState::Waiting || self.target.is_some() => self.replay(&row),
            Some(row) => {
                self.wait_until_due(&row).await?;
                let over = change(&row, StepState::Done, row.undo, Some("null"), None);
                self.change_step(&StepChange { is_forward: true, ..over }).await?;
                self.has_progressed = true;
                Ok(())
            }
        }
    }

    /// Releases the saga, or returns once a step is due. The following steps cannot be reverted, so
    /// the database's clock alone does not decide: it may be days ahead for a minute.
    pub(super) async fn wait_until_due(&mut self, row: &StepRecord) -> Result<(), Stopped> {
        if !row.is_due {
            return self.wait(&row.name, None).await;
        }
        let left = row.due_at.map_or(Duration::ZERO, |due_at| left_until(due_at, self.sagas.clock.now()));
        if left > APART_MAX {
            tracing::info!(saga = %self.held.id, step = row.name, ?left, "a step is due only by the \
                                                                          database's clock");
            return self.wait(&row.name, Some(left.min(DOUBTED_FOR))).await;
        }
        tokio::time::sleep(left).await;
        Ok(())
    }

    /// Refuses a duration that cannot be stored.
    pub(super) fn check_span(&mut self, name: &str, span: Option<Duration>) -> Result<(), Stopped> {
        match span {
            Some(span) if span > SPAN_MAX => {
                let (days, max) = (span.as_secs() / 86_400, SPAN_MAX.as_secs() / 86_400);
                self.stuck(format!(
                    "the step {name} would wait for {days} days; the longest time is {max} days"
                ))
            }
            _ => Ok(()),
        }
    }

    /// Commits a step that waits, and releases the saga in the same commit.
    pub(super) async fn begin_wait(
        &mut self,
        mut tx: OutboxTransaction<DB>,
        name: &str,
        kind: StepKind,
        undo: UndoState,
        due_in: Option<Duration>,
    ) -> Result<(), Stopped> {
        let sagas = Arc::clone(&self.sagas);
        let position = self.next_position();
        let state = StepState::Waiting;
        let step = NewStep { name, position, kind, state, undo, result: None, error: None, due_in };
        let turn = Turn::Wait { step: name, replies: self.replies, is_locked: true, pause: None };
        self.insert_step(&mut tx, &step, Commits::WithEffect).await?;
        match sagas.db.call(sagas.tables.turn(&mut tx, &self.held, &turn)).await {
            Ok(true) => {}
            Ok(false) => return self.halt(Halt::Changed),
            Err(error) => return self.failed_store("store a step that waits", error),
        }
        self.at(crash_points::BEFORE_WAIT).await?;
        self.commit(name, tx).await?;
        self.at(crash_points::AFTER_WAIT).await?;
        self.halt(Halt::Waiting)
    }

    /// Keeps waiting: until the time of the step, or for a pause.
    async fn wait(&mut self, name: &str, pause: Option<Duration>) -> Result<(), Stopped> {
        let sagas = Arc::clone(&self.sagas);
        let turn = Turn::Wait { step: name, replies: self.replies, is_locked: false, pause };
        let waits = async {
            let mut connection = sagas.db.acquire().await?;
            sagas.tables.turn(&mut connection, &self.held, &turn).await
        };
        match sagas.db.call(waits).await {
            Ok(true) => self.halt(Halt::Waiting),
            Ok(false) => self.halt(Halt::Changed),
            Err(error) => self.failed_store("store that a saga waits", error),
        }
    }
}

impl<DB: Dialect> std::fmt::Debug for Sleep<'_, DB> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sleep").field("name", &self.name).field("duration", &self.duration).finish()
    }
}
