//! One run of a saga's function: from its beginning to the next pause.
//!
//! The function always runs from its beginning. A step that has its outcome returns it and does
//! nothing. The saga continues at the first step without an outcome. Undoing runs the function the
//! same way, up to the step to undo. An undo can therefore borrow the same values as its step, and
//! has the values of the steps before it.
//!
//! | module | what it holds |
//! |---|---|
//! | `step` | an effect in this database |
//! | `call` | an effect elsewhere, requested by a direct call |
//! | `request` | an effect elsewhere, requested by a message |
//! | `sleep` | a pause |
//! | `rollback` | the rollback of a step or an undo that failed |
//! | `undo` | the forms of an undo |
//! | `work` | what a step does, as a closure |

mod call;
mod request;
mod rollback;
mod sleep;
mod step;
mod undo;
mod work;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use migrations::own_transaction::ENDED;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

pub use call::Call;
pub use request::Request;
pub use sleep::Sleep;
pub use step::Step;
pub use undo::{NoUndo, Undo, UndoElsewhere, UndoInTx, UndoRequest};
pub use work::{Accepts, CallUndo, CallWork, Code, StepUndo, StepWork, TxUndo};

use crate::base::Base;
use crate::dialect::Dialect;
use crate::error::{StoreError, misfit, storable};
use crate::key::{self, NAME_BYTES_MAX, StepKey};
use crate::lease::Lease;
use crate::record::{
    Commits, Held, NewStep, SagaRecord, StepChange, StepKind, StepRecord, StepState, UndoState,
};
use crate::reply_token::Secret;
use crate::stop::{Next, StepError, Stop};

/// A running saga, the first argument of its function. `Run` is for PostgreSQL, `Run<Sqlite>` for
/// SQLite.
#[cfg(feature = "postgres")]
pub struct Run<DB: Dialect = sqlx::Postgres> {
    parts: Parts<DB>,
}

/// A running saga, the first argument of its function. `Run<Sqlite>` is for SQLite.
#[cfg(not(feature = "postgres"))]
pub struct Run<DB: Dialect> {
    parts: Parts<DB>,
}

pub(crate) struct Parts<DB: Dialect> {
    pub(crate) sagas: Arc<Base<DB>>,
    pub(crate) held: Held,
    pub(crate) lease: Lease,
    pub(crate) stopping: CancellationToken,
    /// The number of replies in the mailbox when it was read.
    pub(crate) replies: i64,
    pub(crate) steps: HashMap<String, StepRecord>,
    pub(crate) mailbox: HashMap<String, String>,
    secret: Secret,
    /// The step to undo; `None` while the saga goes forward.
    pub(crate) target: Option<String>,
    seen: HashSet<String>,
    position: u32,
    /// Whether a step is between its beginning and its end.
    is_busy: bool,
    /// The last step that this run reached, unless it succeeded.
    last: Option<String>,
    /// Whether progress was stored.
    pub(crate) has_progressed: bool,
    /// Whether failures are stored that the next progress clears.
    has_failed: bool,
    /// The reason why the run tries nothing more: it only determines where the saga is stuck.
    worn_out: Option<String>,
    pub(crate) halt: Option<Halt>,
}

/// The reason why a run ends here, whatever the function returns.
#[derive(Debug)]
pub(crate) enum Halt {
    /// The saga waits, and its worker has released it.
    Waiting,
    /// A step failed and is retried.
    Failed { error: String, is_counted: bool, delay: Option<Duration> },
    /// Another transaction won.
    Conflict(String),
    /// An operator is needed.
    Stuck(String),
    /// The saga is no longer held, was cancelled, or was changed by a commit whose answer was lost.
    Changed,
    /// The worker stops.
    Stopping,
    /// The step that was to be undone is undone.
    Undone,
    /// Undoing reached a step that has no outcome.
    Unreached(String),
    /// A test ended the worker.
    Vanished,
}

impl Halt {
    /// Creates the halt for a step whose future was dropped: its progress is unknown.
    fn dropped() -> Self {
        let error =
            String::from("a step was dropped before it ended; do not put a step into a timeout or select!");
        Self::Failed { error, is_counted: true, delay: None }
    }
}

type Stopped = Stop;

/// A saga as it was read for a run.
pub(crate) struct Read<'a> {
    pub(crate) saga: &'a SagaRecord,
    pub(crate) lease: Lease,
    pub(crate) steps: Vec<StepRecord>,
    /// The replies that have arrived, by step.
    pub(crate) mailbox: Vec<(String, String)>,
    /// The step to undo next, if the saga is undone.
    pub(crate) target: Option<String>,
    /// Why the saga becomes stuck at the step that is now at fault.
    pub(crate) worn_out: Option<String>,
}

impl<DB: Dialect> Run<DB> {
    pub(crate) fn new(sagas: Arc<Base<DB>>, stopping: CancellationToken, read: Read<'_>) -> Self {
        let Read { saga, lease, steps, mailbox, target, worn_out } = read;
        let position = steps.iter().map(|step| step.position + 1).max().unwrap_or_default();
        Self {
            parts: Parts {
                sagas,
                held: Held::of(saga),
                lease,
                stopping,
                replies: saga.replies,
                steps: steps.into_iter().map(|step| (step.name.clone(), step)).collect(),
                mailbox: mailbox.into_iter().collect(),
                secret: saga.secret.clone(),
                target,
                seen: HashSet::new(),
                position,
                is_busy: false,
                last: None,
                has_progressed: false,
                has_failed: saga.outline.attempts > 0 || saga.outline.error.is_some(),
                worn_out,
                halt: None,
            },
        }
    }

    /// Returns the id of the saga within its type.
    #[must_use]
    pub fn id(&self) -> &str {
        self.parts.held.id.id()
    }

    /// Returns the key of a step, `type/id/step`, for other services.
    #[must_use]
    pub fn key(&self, step: &str) -> StepKey {
        self.parts.held.id.key(step)
    }

    /// Returns the step at which this run ended, if it ended at one.
    pub(crate) fn ended_at(&self) -> Option<String> {
        self.parts.last.clone()
    }

    pub(crate) fn parts(&self) -> &Parts<DB> {
        &self.parts
    }

    /// Takes the reason why the run ended, unless its function returned or panicked.
    pub(crate) fn take_halt(&mut self, has_panicked: bool) -> Option<Halt> {
        if self.parts.is_busy && self.parts.halt.is_none() && !has_panicked {
            return Some(Halt::dropped());
        }
        self.parts.halt.take()
    }

    /// Returns a call whose outcome is unknown and that this run did not reach.
    pub(crate) fn forgotten_call(&self) -> Option<&str> {
        let parts = &self.parts;
        let mut open = parts.steps.values().filter(|step| step.state == StepState::Calling);
        open.find(|step| !parts.seen.contains(&step.name)).map(|step| step.name.as_str())
    }
}

impl<DB: Dialect> Parts<DB> {
    /// Ends the run here.
    fn halt<T>(&mut self, halt: Halt) -> Result<T, Stopped> {
        self.halt.get_or_insert(halt);
        Err(Stop::paused())
    }

    fn stuck<T>(&mut self, reason: String) -> Result<T, Stopped> {
        self.halt(Halt::Stuck(reason))
    }

    /// Reports that a crash point is reached.
    async fn at(&mut self, place: &'static str) -> Result<(), Stopped> {
        if self.sagas.vanishes_at(&self.held.id, place).await { self.halt(Halt::Vanished) } else { Ok(()) }
    }

    /// Begins a step. Returns its row if it has begun before.
    fn enter(&mut self, kind: StepKind, name: &str) -> Result<Option<StepRecord>, Stopped> {
        if self.halt.is_some() {
            return Err(Stop::paused());
        }
        if self.is_busy {
            return self.halt(Halt::dropped());
        }
        if self.stopping.is_cancelled() {
            return self.halt(Halt::Stopping);
        }
        if let Err(error) = key::check("the name of a step", name, NAME_BYTES_MAX) {
            return self.stuck(error.to_string());
        }
        self.last = Some(name.to_owned());
        if !self.seen.insert(name.to_owned()) {
            // A result for this step would not help, so the saga is not stuck at it.
            self.last = None;
            return self
                .stuck(format!("the step {name} occurs twice in one run; give each step its own name"));
        }
        let row = self.steps.get(name).cloned();
        match &row {
            Some(row) if row.kind != kind && !row.is_given() => {
                let (was, is) = (row.kind, kind);
                self.last = None;
                return self.stuck(format!(
                    "the step {name} began as a {was} and is a {is} now; give it another name"
                ));
            }
            None if self.target.is_some() => return self.halt(Halt::Unreached(name.to_owned())),
            _ => {}
        }
        let is_next = match &self.target {
            Some(target) => target == name,
            // A call may have reached its limits; it checks that itself.
            None => row.as_ref().is_none_or(|row| row.state == StepState::Waiting),
        };
        if let Some(reason) = self.worn_out.take_if(|_| is_next) {
            return self.stuck(reason);
        }
        self.is_busy = true;
        Ok(row)
    }

    fn leave<T>(&mut self, outcome: Result<T, Stopped>) -> Result<T, Stopped> {
        self.is_busy = false;
        // The run does not end at a step that has its outcome, whatever the code does with it.
        if outcome.is_ok() || self.halt.is_none() {
            self.last = None;
        }
        outcome
    }

    fn is_target(&self, name: &str) -> bool {
        self.target.as_deref() == Some(name)
    }

    fn next_position(&mut self) -> u32 {
        self.position += 1;
        self.position - 1
    }

    /// Decodes the stored value of a step.
    fn decode<T: DeserializeOwned>(&mut self, name: &str, json: Option<&str>) -> Result<T, Stopped> {
        match serde_json::from_str(json.unwrap_or("null")) {
            Ok(value) => Ok(value),
            Err(error) => {
                let problem = misfit::<T>(&error);
                self.stuck(format!(
                    "the stored result of the step {name} no longer fits: {problem}; nothing is lost: run code that \
                     reads it, then retry the saga"
                ))
            }
        }
    }

    /// Encodes a value for storage, and reads it back: this run continues with the same value as
    /// every later run.
    fn encode<T: Serialize + DeserializeOwned>(
        &mut self,
        name: &str,
        value: &T,
    ) -> Result<(String, T), Stopped> {
        let json = match serde_json::to_string(value) {
            Ok(json) => json,
            Err(error) => {
                return self
                    .stuck(format!("the result of the step {name} cannot be written as JSON: {error}"));
            }
        };
        match serde_json::from_str(&json) {
            Ok(read) => Ok((json, read)),
            Err(error) => {
                let problem = misfit::<T>(&error);
                self.stuck(format!(
                    "the result of the step {name} cannot be read back from its stored form: {problem}"
                ))
            }
        }
    }

    /// Returns the stored outcome of a step that did not succeed.
    fn settled<T>(&mut self, row: &StepRecord) -> Result<T, Stopped> {
        let reason = row.error.clone().unwrap_or_else(|| format!("the step {} did not succeed", row.name));
        Err(match row.state {
            StepState::TimedOut => Stop::timeout(reason),
            _ => Stop::because(reason),
        })
    }

    /// Ends the run after a failure of the database.
    fn failed_store<T>(&mut self, what: &'static str, error: sqlx::Error) -> Result<T, Stopped> {
        let is_violation = error.as_database_error().is_some_and(|error| error.is_unique_violation());
        if is_violation {
            // It was stored before, by a commit whose answer was lost.
            return self.halt(Halt::Changed);
        }
        let error = StoreError::during(what)(error);
        let is_counted = !error.is_transient();
        let error = crate::error::chain(&error);
        self.halt(Halt::Failed { error, is_counted, delay: None })
    }

    /// Ends the run after a failure of a step that is retried.
    fn failed_step<T>(&mut self, name: &str, error: &StepError) -> Result<T, Stopped> {
        let text = storable(&format!("{name}: {error}"));
        match error.next {
            Next::Again => self.halt(Halt::Conflict(text)),
            Next::Outage => self.halt(Halt::Failed { error: text, is_counted: false, delay: None }),
            Next::Retry | Next::Stop => {
                self.halt(Halt::Failed { error: text, is_counted: true, delay: error.delay })
            }
        }
    }

    /// Stores a step that begins, outside of a transaction.
    async fn begin_step(&mut self, step: &NewStep<'_>) -> Result<(), Stopped> {
        let sagas = Arc::clone(&self.sagas);
        match sagas.db.acquire().await {
            Ok(mut connection) => self.insert_step(&mut connection, step, Commits::Alone).await?,
            Err(error) => return self.failed_store("store a step", error),
        }
        self.has_progressed = true;
        Ok(())
    }

    /// Changes a step, outside of a transaction.
    async fn change_step(&mut self, change: &StepChange<'_>) -> Result<(), Stopped> {
        let sagas = Arc::clone(&self.sagas);
        match sagas.db.acquire().await {
            Ok(mut connection) => self.change_step_in(&mut connection, change, Commits::Alone).await?,
            Err(error) => return self.failed_store("store the outcome of a step", error),
        }
        self.has_progressed |= change.from != change.to;
        Ok(())
    }

    /// Stores a step.
    async fn insert_step(
        &mut self,
        connection: &mut DB::Connection,
        step: &NewStep<'_>,
        commits: Commits,
    ) -> Result<(), Stopped> {
        let sagas = Arc::clone(&self.sagas);
        self.check_open(step.name, &mut *connection, commits).await?;
        let inserted = async {
            self.get_on(&mut *connection).await?;
            sagas.tables.insert_step(&mut *connection, &self.held, step, commits).await
        };
        match sagas.db.call(inserted).await {
            Ok(true) => Ok(()),
            Ok(false) => self.changed(step.name, connection, commits).await,
            Err(error) => self.failed_store("store a step", error),
        }
    }

    /// Changes a step.
    async fn change_step_in(
        &mut self,
        connection: &mut DB::Connection,
        change: &StepChange<'_>,
        commits: Commits,
    ) -> Result<(), Stopped> {
        let sagas = Arc::clone(&self.sagas);
        self.check_open(change.name, &mut *connection, commits).await?;
        let changed = async {
            if change.from != change.to {
                self.get_on(&mut *connection).await?;
            }
            sagas.tables.change_step(&mut *connection, &self.held, change, commits).await
        };
        match sagas.db.call(changed).await {
            Ok(true) => Ok(()),
            Ok(false) => self.changed(change.name, connection, commits).await,
            Err(error) => self.failed_store("store the outcome of a step", error),
        }
    }

    /// Fails a step whose transaction has ended: its record would be stored without its effect.
    async fn check_open(
        &mut self,
        name: &str,
        connection: &mut DB::Connection,
        commits: Commits,
    ) -> Result<(), Stopped> {
        if commits == Commits::Alone {
            return Ok(());
        }
        match DB::is_open(connection).await {
            Ok(true) => Ok(()),
            Ok(false) => self.failed_step(name, &StepError::retry(ENDED)),
            Err(error) => self.failed_store("check a step's transaction", error),
        }
    }

    /// Ends the run after a change that found the saga in another state, or its transaction ended.
    async fn changed(
        &mut self,
        name: &str,
        connection: &mut DB::Connection,
        commits: Commits,
    ) -> Result<(), Stopped> {
        let is_own = match commits {
            Commits::Alone => Ok(true),
            Commits::WithEffect => {
                let sagas = Arc::clone(&self.sagas);
                sagas.db.call(DB::is_marked(connection)).await
            }
        };
        match is_own {
            Ok(true) => self.halt(Halt::Changed),
            Ok(false) => self.failed_step(name, &StepError::retry(ENDED)),
            Err(error) => self.failed_store("check a step's transaction", error),
        }
    }

    /// Clears the failures so far, including for the next worker of the saga. Takes one more
    /// statement if there were any.
    async fn get_on(&mut self, connection: &mut DB::Connection) -> Result<(), sqlx::Error> {
        self.worn_out = None;
        if std::mem::take(&mut self.has_failed) {
            self.sagas.tables.got_on(connection, &self.held).await?;
        }
        Ok(())
    }

    /// Checks that the lease is valid before a call to another service. After the lease, another
    /// worker may have decided otherwise.
    fn check_lease(&mut self) -> Result<(), Stopped> {
        if self.lease.is_valid() { Ok(()) } else { self.halt(Halt::Changed) }
    }
}

/// Returns a change of a step that counts no attempt and depends on neither a cancellation nor
/// replies.
fn change<'a>(
    row: &'a StepRecord,
    state: StepState,
    undo: UndoState,
    result: Option<&'a str>,
    error: Option<&'a str>,
) -> StepChange<'a> {
    let from = (row.state, row.undo);
    StepChange {
        name: &row.name,
        from,
        to: (state, undo),
        result,
        error,
        is_attempt: false,
        is_forward: false,
        replies: None,
    }
}

impl<DB: Dialect> fmt::Debug for Run<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("held", &self.parts.held).finish_non_exhaustive()
    }
}
