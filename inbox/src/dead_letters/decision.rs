//! Decisions about dead letters: who decided what, why, and the outcome.
//!
//! A discard is carried out at once. A redrive needs the handler, which runs in the service. So the
//! decision is a request, which a consumer of this name carries out within seconds.

use outbox::AuditLine;
pub use outbox::Signature;
use time::OffsetDateTime;
use uuid::Uuid;

use super::reason::{Reason, Resolution};
use super::record::DeadLetter;
use crate::error::RedriveError;
use crate::ids::DeadLetterId;

message::words! {
    /// The choice of an operator about a dead letter.
    #[non_exhaustive]
    pub enum Action {
        /// Run the handler once more.
        Redrive = "redrive",
        /// Discard the message.
        Discard = "discard",
    }
}

/// A decision about a dead letter, as the audit stores it.
pub type Decision = AuditLine<Action, DecidedLetter>;

/// The dead letter of a decision, and what became of the decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecidedLetter {
    /// The dead letter that it is about.
    pub dead_letter: DeadLetterId,
    /// The consumer of the dead letter.
    pub consumer: String,
    /// Whether a redrive may apply a message that is older than the inbox remembers.
    pub accept_late: bool,
    /// How the dead letter was closed, or why it was not; `None` while a request is open.
    pub outcome: Option<String>,
    /// When the outcome was noted.
    pub done_at: Option<OffsetDateTime>,
    /// The id of a decision about many dead letters; `None` when this one was decided about by
    /// itself.
    pub decision: Option<Uuid>,
}

/// The outcome of a request to redrive a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Requested {
    /// The request is stored; its consumer will carry it out.
    Now,
    /// A request is already open: the same one, one that accepts late messages, or one that is
    /// being carried out. To accept late messages, ask again when that one has ended.
    Already,
    /// The dead letter is closed; no request was stored.
    Closed(Redriven),
}

/// The outcome of a request that another one has replaced.
pub(crate) const REPLACED: &str = "replaced by a request that accepts late messages";

impl DecidedLetter {
    /// Returns whether this was a request that another one replaced before a consumer carried it
    /// out. It neither succeeded nor failed: the other one is carried out.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        self.outcome.as_deref() == Some(REPLACED)
    }

    /// Describes a dead letter about which a decision is to be stored, without an outcome.
    pub(crate) fn of(letter: &DeadLetter) -> Self {
        Self {
            dead_letter: letter.id,
            consumer: letter.consumer.clone(),
            accept_late: false,
            outcome: None,
            done_at: None,
            decision: None,
        }
    }
}

/// The outcome of redriving or discarding a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Redriven {
    /// It was open and is closed now.
    Now(Resolution),
    /// Another process carried out the request at the same time; nothing was done.
    Elsewhere,
    /// It was already closed; nothing was done.
    Before {
        /// How it was closed.
        resolution: Resolution,
        /// When it was closed.
        at: OffsetDateTime,
    },
}

/// A decision about many dead letters.
#[derive(Debug, Clone)]
pub struct ManyDecided {
    /// Who decides, and why.
    pub signature: Signature,
    /// The id of the decision. Sent twice, a confirmation is one decision: a letter is requested
    /// again only under another id.
    pub id: Uuid,
}

/// A dead letter as it was when an operator chose it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenLetter {
    /// Its id.
    pub id: DeadLetterId,
    /// Why it was dead-lettered: a held message that fails later gets another reason and error.
    pub reason: Reason,
    /// Number of deliveries that ended in it: each can bring another reason and error.
    pub deliveries: u32,
}

impl SeenLetter {
    /// Refuses a dead letter that has changed since: it may no longer match the filter.
    pub(super) fn check(self, letter: &DeadLetter) -> Result<(), RedriveError> {
        if letter.reason == self.reason && letter.deliveries == self.deliveries {
            return Ok(());
        }
        Err(RedriveError::Changed { id: self.id, reason: letter.reason, deliveries: letter.deliveries })
    }
}

/// The result of one decision about many dead letters, as the audit has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetterDecision {
    /// Who decided, and why.
    pub signature: Signature,
    /// The choice.
    pub action: Action,
    /// Number of letters decided about.
    pub count: u64,
    /// When the first of them was decided about.
    pub first: OffsetDateTime,
    /// When the last of them was decided about.
    pub last: OffsetDateTime,
    /// Number of letters for which the consumer has not carried out the request yet.
    pub waiting: u64,
    /// Number of letters that are still open after their request was carried out.
    pub failed: u64,
    /// Number of letters whose request another one replaced before it was carried out.
    pub replaced: u64,
    /// Number of letters that were closed, by the way in which they were.
    pub closed: Vec<ClosedCount>,
}

/// A number of dead letters that were closed in one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClosedCount {
    /// The way.
    pub resolution: Resolution,
    /// The number.
    pub count: u64,
}
