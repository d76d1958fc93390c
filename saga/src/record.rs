//! The rows of sagas.

use std::fmt;
use std::time::Duration;

use time::OffsetDateTime;

use crate::key::SagaId;
use crate::reply_token::Secret;

message::words! {
    /// The state of a saga.
    #[derive(Hash)]
    pub enum State {
        /// Its steps are being run.
        Running = "running",
        /// Its steps are being undone, in reverse order.
        Undoing = "undoing",
        /// It has finished; its output is stored.
        Finished = "finished",
        /// Every step that had to be undone was undone.
        Undone = "undone",
    }
}

impl State {
    /// Returns whether the saga has ended.
    #[must_use]
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Finished | Self::Undone)
    }
}

message::words! {
    /// The kind of a step.
    #[derive(Hash)]
    pub enum StepKind {
        /// An effect in this database.
        Step = "step",
        /// An effect elsewhere, requested by a direct call.
        Call = "call",
        /// A pause.
        Sleep = "sleep",
        /// An effect elsewhere, requested by a message.
        Request = "request",
    }
}

message::words! {
    /// The state of a step that has begun.
    #[derive(Hash)]
    pub enum StepState {
        /// It succeeded; its result is stored.
        Done = "done",
        /// It did not happen, and never will.
        Refused = "refused",
        /// A call was made, or is about to be made; its outcome is unknown.
        Calling = "calling",
        /// A call was abandoned; its outcome is unknown.
        GaveUp = "gave_up",
        /// A sleep, or a request without its reply.
        Waiting = "waiting",
        /// The reply did not arrive in time; it is unknown whether the request took effect.
        TimedOut = "timed_out",
    }
}

message::words! {
    /// The undo of a step.
    #[derive(Hash)]
    pub enum UndoState {
        /// There is nothing to undo.
        None = "none",
        /// It is to be undone if the saga stops.
        Pending = "pending",
        /// It was undone.
        Done = "done",
        /// An operator skipped it.
        Skipped = "skipped",
    }
}

/// A stored saga.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SagaRecord {
    /// Everything but its contents.
    pub outline: SagaOutline,
    /// Its input: JSON.
    pub input: String,
    /// Its output, once it has finished: JSON.
    pub output: Option<String>,
    /// The number of replies that have arrived.
    pub(crate) replies: i64,
    /// Proves replies to its requests.
    pub(crate) secret: Secret,
}

/// A saga without its contents, for operators, who may not read these.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SagaOutline {
    /// Its name.
    pub id: SagaId,
    /// The version of the code that runs it.
    pub version: u16,
    /// Its state.
    pub state: State,
    /// How many workers have owned it, one after the other.
    pub epoch: i64,
    /// The worker that owns it now, and the number of the worker's claim: `<worker>/<number>`.
    pub worker: Option<String>,
    /// The time of its next run, or the end of its worker's lease. `None` if it does not have to
    /// run.
    pub wake_at: Option<OffsetDateTime>,
    /// Failures since the last step that succeeded.
    pub attempts: u32,
    /// The last failure.
    pub error: Option<String>,
    /// The reason why it is undone.
    pub reason: Option<String>,
    /// The step whose time or reply it waits for; of a stuck saga, the step at which it is stuck.
    pub waits_for: Option<String>,
    /// When that wait began.
    pub waiting_since: Option<OffsetDateTime>,
    /// When it was started.
    pub started_at: OffsetDateTime,
    /// When it got stuck, if it needs an operator.
    pub stuck_at: Option<OffsetDateTime>,
    /// When it finished, or was undone.
    pub ended_at: Option<OffsetDateTime>,
    /// The reason of an operator who wants it cancelled.
    pub(crate) cancel: Option<String>,
}

/// A saga as the operator saw it before a decision: its identity among sagas of the name, its
/// state, when it got stuck, and whether it was cancelled. The text is for forms and links, and is
/// only compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    started_at: OffsetDateTime,
    state: State,
    stuck_at: Option<OffsetDateTime>,
    is_cancelled: bool,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stuck_at = self.stuck_at.map_or(0, OffsetDateTime::unix_timestamp_nanos);
        let started_at = self.started_at.unix_timestamp_nanos();
        write!(f, "{started_at}/{}/{stuck_at}/{}", self.state, u8::from(self.is_cancelled))
    }
}

impl SagaOutline {
    /// Returns the saga as seen here, for [`Sagas::decide`](crate::Sagas::decide).
    #[must_use]
    pub fn seen(&self) -> Seen {
        let &Self { started_at, state, stuck_at, .. } = self;
        Seen { started_at, state, stuck_at, is_cancelled: self.is_cancelled() }
    }

    /// Returns whether an operator has cancelled it while a worker runs it. The worker undoes it
    /// after its current step.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_some()
    }

    /// Returns its state, with details for an operator.
    #[must_use]
    pub fn condition(&self) -> Condition {
        if self.stuck_at.is_some() {
            Condition::Stuck(self.state)
        } else if self.is_cancelled() {
            Condition::ToBeCancelled(self.state)
        } else {
            Condition::Usual(self.state)
        }
    }
}

/// The state of a saga, with details for an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Condition {
    /// It is only in this state.
    Usual(State),
    /// It is stuck: an operator decides.
    Stuck(State),
    /// An operator has cancelled it while a worker runs it.
    ToBeCancelled(State),
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usual(state) => write!(f, "{state}"),
            Self::Stuck(state) => write!(f, "{state}, stuck"),
            Self::ToBeCancelled(state) => write!(f, "{state}, to be cancelled"),
        }
    }
}

/// A step of a saga that has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepRecord {
    /// Its name.
    pub name: String,
    /// Its position in the order in which the steps began.
    pub position: u32,
    /// Its kind.
    pub kind: StepKind,
    /// Its state.
    pub state: StepState,
    /// Its undo.
    pub undo: UndoState,
    /// Its result: JSON. `None` if it has none, or was [looked at](crate::Sagas::look) without it.
    pub result: Option<String>,
    /// How often a call was made; 0 for a step that an operator gave a result before it began.
    pub attempts: u32,
    /// Its last failure.
    pub error: Option<String>,
    /// The end of a sleep, or of the time that a request may wait.
    pub due_at: Option<OffsetDateTime>,
    /// When it began.
    pub begun_at: OffsetDateTime,
    /// When its outcome was stored.
    pub ended_at: Option<OffsetDateTime>,
    /// When it was undone.
    pub undone_at: Option<OffsetDateTime>,
    /// Whether `due_at` has come, by the database's clock.
    pub(crate) is_due: bool,
    /// The time since it began, by the database's clock.
    pub(crate) age: Duration,
}

/// The error of a step that had not begun when an operator gave it a result. Its kind is unknown.
pub(crate) const GIVEN: &str = "given by an operator";

/// The error of a saga whose worker had disappeared when its lease ended, after an earlier failure.
pub(crate) const LOST: &str =
    "its worker ended without a message, or could not reach the database for as long as its lease";

/// The error of a saga whose step is due only by the database's clock.
pub(crate) const DOUBTED: &str = "by the database's clock this step is due, but not by its worker's clock; \
    it continues when both agree";

impl StepRecord {
    /// Returns whether it has no outcome yet.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, StepState::Calling | StepState::Waiting)
    }

    /// Returns whether an operator gave it its result before it had begun.
    pub(crate) fn is_given(&self) -> bool {
        self.state == StepState::Done && self.error.as_deref() == Some(GIVEN)
    }
}

/// A type of sagas, and a version of its code.
#[doc(hidden)]
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SagaKind {
    pub(crate) saga_type: String,
    pub(crate) version: u16,
}

/// A saga that a worker owns, with the name of the claim that fences its changes. Every claim has
/// its own name. Its epoch may repeat: a crash or a promotion that reverts a claim gives the next
/// one the same number.
#[doc(hidden)]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Held {
    pub(crate) id: SagaId,
    pub(crate) worker: String,
}

impl Held {
    /// Returns a saga held by the claim that it was read with. Without a worker no claim holds it,
    /// and the empty name matches no row.
    pub(crate) fn of(saga: &SagaRecord) -> Self {
        Self { id: saga.outline.id.clone(), worker: saga.outline.worker.clone().unwrap_or_default() }
    }

    /// Returns whether the saga still belongs to this claim.
    pub(crate) fn owns(&self, saga: &SagaRecord) -> bool {
        saga.outline.worker.as_deref() == Some(self.worker.as_str())
    }
}

/// How a change of a step commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Commits {
    /// In its own transaction.
    Alone,
    /// With the rows of its effect, and only if the transaction is still the one that was begun for
    /// both.
    WithEffect,
}

/// A step that begins.
#[derive(Debug)]
pub(crate) struct NewStep<'a> {
    pub(crate) name: &'a str,
    pub(crate) position: u32,
    pub(crate) kind: StepKind,
    pub(crate) state: StepState,
    pub(crate) undo: UndoState,
    pub(crate) result: Option<&'a str>,
    pub(crate) error: Option<&'a str>,
    pub(crate) due_in: Option<Duration>,
}

/// A change of a step that has begun. It happens only if the step is as expected.
#[derive(Debug)]
pub(crate) struct StepChange<'a> {
    pub(crate) name: &'a str,
    pub(crate) from: (StepState, UndoState),
    pub(crate) to: (StepState, UndoState),
    pub(crate) result: Option<&'a str>,
    pub(crate) error: Option<&'a str>,
    /// Whether one more call is made.
    pub(crate) is_attempt: bool,
    /// Whether the saga must not be cancelled.
    pub(crate) is_forward: bool,
    /// The number of replies that were read. If there are more by now, the change does not happen.
    pub(crate) replies: Option<i64>,
}

/// A change of a saga's state by the worker that owns it.
#[derive(Debug)]
pub(crate) enum Turn<'a> {
    /// The saga waits for a step. It runs next at once if more than `replies` have arrived, or if
    /// it was cancelled. In a transaction that has already locked the saga, only a reply to this
    /// step counts, because it is visible there. With a `pause`, it runs next after that time: so
    /// far the step is due only by the database's clock.
    Wait { step: &'a str, replies: i64, is_locked: bool, pause: Option<Duration> },
    /// It failed, and is retried after a pause; at once if it was cancelled.
    Postpone { attempts: u32, delay: Duration, error: Option<&'a str> },
    /// It needs an operator and is not cancelled. `step` is the step at which it is stuck, if any.
    Stick { attempts: u32, error: &'a str, step: Option<&'a str> },
    /// Its steps are now undone. Its worker keeps it.
    BeginUndo { reason: &'a str },
    /// It has finished and is not cancelled.
    Finish { output: &'a str },
    /// Everything is undone.
    EndUndo,
}
