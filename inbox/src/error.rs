//! Errors of the inbox: one type for each operation.

use message::{Fault, Fingerprint, Message, MessageId, OutOfBounds};
use migrations::MigrateError;
pub use outbox::{CommitError, UnknownCommit};

use crate::day::Day;
use crate::dead_letters::Reason;
use crate::handler::HandlerError;
use crate::ids::DeadLetterId;
use crate::refusal::Refusal;
use crate::store_error::{StoreError, is_of_lock};

/// Why an inbox could not be opened or maintained.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// An option is out of bounds.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// `days_ahead` is zero or more than the database creates.
    #[error("days_ahead is {days}; choose 1 to {}", crate::day::DAYS_AHEAD_MAX)]
    DaysAhead {
        /// The value given.
        days: u32,
    },
    /// The database's clock is ahead of this process's clock. Only days that are old enough by both
    /// clocks were forgotten.
    #[error(
        "the database's clock shows {database}, but this process's clock shows {process}: the inbox deletes \
         only days that have expired by both clocks; correct the wrong one"
    )]
    ClocksDiffer {
        /// The database's time.
        database: time::OffsetDateTime,
        /// The process's time, which ignores forward jumps for a day.
        process: time::OffsetDateTime,
    },
    /// `chunked_bytes_max` is larger than any message that can be split into chunks.
    #[error("chunked_bytes_max is {bytes_max}; the maximum is {}", message::CHUNKED_BYTES_MAX)]
    ChunksTooLarge {
        /// The value given.
        bytes_max: usize,
    },
    /// The tables are missing or do not match this build.
    #[error(transparent)]
    Schema(#[from] MigrateError),
    /// Days that must be stored have no partition, and this role could not create them.
    #[error(
        "the inbox has no partition for {first} to {last}, and this role could not create it; run the \
         maintenance with a role that may create it, at least every {} days, or grant this role EXECUTE on \
         inbox_create_days and inbox_expire_days (`relay migrate roles` prints all grants)",
        crate::day::DAYS_AHEAD_DEFAULT
    )]
    DaysMissing {
        /// The first missing day.
        first: Day,
        /// The last missing day.
        last: Day,
        /// The database's error.
        #[source]
        source: StoreError,
    },
    /// A day that was created is no longer a partition. If created again, it would not know what
    /// took effect on it.
    #[error(
        "the day {day} of the inbox is gone: its partition was dropped, detached or moved to another schema, and its \
         messages could take effect again; attach it again, or run SELECT inbox_expire_days('{}'), which refuses its \
         messages and all earlier ones (docs/operations/histories.md has more ways)",
        .day.next()
    )]
    DayLost {
        /// The first lost day.
        day: Day,
        /// The database's error.
        #[source]
        source: StoreError,
    },
    /// The database refused or was unavailable.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl OpenError {
    /// Returns the party at fault.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::OutOfBounds(_)
            | Self::DaysAhead { .. }
            | Self::ClocksDiffer { .. }
            | Self::ChunksTooLarge { .. } => Fault::Operator,
            Self::Schema(MigrateError::Database { .. }) => Fault::Broker,
            Self::Schema(_) => Fault::Operator,
            Self::DaysMissing { source, .. } | Self::DayLost { source, .. } | Self::Store(source) => {
                source.fault()
            }
        }
    }
}

/// Why a message was not admitted. Roll the transaction back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdmitError {
    /// The message is refused, before any effect: dead-letter it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// All chunks of the message have arrived, but together they differ from what each of them
    /// promised. Dead-letter the whole with
    /// [`Inbox::dead_letter_whole`](crate::Inbox::dead_letter_whole), which forgets the chunks.
    #[error(
        "all chunks of message {} have arrived, but together they have the fingerprint {found} instead of \
         {promised}: one is damaged or belongs to another message; publish the message again from its outbox",
        .whole.id
    )]
    Damaged {
        /// The message made of all chunks, with the envelope of the last one.
        whole: Box<Message>,
        /// The fingerprint that every chunk promised.
        promised: Fingerprint,
        /// The fingerprint of the assembled chunks.
        found: Fingerprint,
    },
    /// The day of the message expired while it was being admitted. Admit it again in a new
    /// transaction, which refuses it if it is too old by now.
    #[error(
        "another process expired the day {day} of message {id}; admit the message again in a new transaction"
    )]
    Expired {
        /// The message.
        id: MessageId,
        /// Its day.
        day: Day,
    },
    /// The day of the message has no partition, and none could be created.
    #[error(transparent)]
    Day(#[from] OpenError),
    /// The database refused or was unavailable.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl AdmitError {
    /// Returns the party at fault: the message ([`Refused`](Self::Refused)), the infrastructure
    /// ([`Fault::Broker`]: try again), or the operator.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Refused(refusal) => refusal.fault(),
            Self::Damaged { .. } => Fault::Message,
            Self::Expired { .. } => Fault::Broker,
            Self::Day(error) => error.fault(),
            Self::Store(error) => error.fault(),
        }
    }
}

/// Why [`Inbox::confirm`](crate::Inbox::confirm) gave no proof.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfirmError {
    /// No committed row shows (yet) that the message has taken effect.
    #[error("message {id} has no committed inbox row: its transaction was rolled back or has not ended")]
    NotCommitted {
        /// The message.
        id: MessageId,
    },
    /// The committed row belongs to a different payload.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The database refused or was unavailable.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a dead letter was not redriven or discarded. It stays open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedriveError {
    /// There is no such dead letter.
    #[error("there is no dead letter {id}")]
    NotFound {
        /// The requested id.
        id: DeadLetterId,
    },
    /// The dead letter belongs to another consumer.
    #[error("dead letter {id} belongs to consumer {owner}, not to {asked}; requeue it for {owner}")]
    OtherConsumer {
        /// The dead letter.
        id: DeadLetterId,
        /// The consumer of the dead letter.
        owner: String,
        /// The consumer whose handler was to run.
        asked: String,
    },
    /// The handler has no effect for messages of this kind. The dead letter stays unchanged.
    #[error(
        "dead letter {id} has the kind {kind}, for which this program has no handler; use a version with a \
         handler for it"
    )]
    UnknownKind {
        /// The dead letter.
        id: DeadLetterId,
        /// The kind.
        kind: message::EventType,
    },
    /// An earlier dead letter of its key is open and goes first. A held message is redriven
    /// automatically after that.
    #[error(
        "dead letter {id} is held behind dead letter {behind} of the same key; requeue or discard that one \
         first"
    )]
    Held {
        /// The dead letter.
        id: DeadLetterId,
        /// The first open dead letter of its key.
        behind: DeadLetterId,
    },
    /// A redrive of the dead letter, or a handler of its message, is running, and its transaction
    /// locks it. Nothing was decided.
    #[error(
        "dead letter {id} is being requeued, or its message is being handled: try again when that has ended"
    )]
    InHand {
        /// The dead letter.
        id: DeadLetterId,
    },
    /// It has changed since an operator chose it, so the filter may no longer match.
    #[error(
        "dead letter {id} has changed since it was chosen: its reason is {reason} now, after delivery \
         number {deliveries}"
    )]
    Changed {
        /// The dead letter.
        id: DeadLetterId,
        /// Its present reason.
        reason: Reason,
        /// Number of deliveries that ended in it.
        deliveries: u32,
    },
    /// Another dead letter has stopped every copy of this message. It decides whether the message
    /// takes effect; once it has, this one can be closed.
    #[error(
        "dead letter {id} is a copy of dead letter {other}, which stopped the message; requeue that one if \
         it is open; otherwise discard this one"
    )]
    StoppedBy {
        /// The dead letter.
        id: DeadLetterId,
        /// The dead letter that stopped the message.
        other: DeadLetterId,
    },
    /// The stored dead letter is not a message, because the delivery was malformed.
    #[error(
        "dead letter {id} cannot be requeued: {problem}; discard it, and have the producer send a correct \
         message"
    )]
    NotAMessage {
        /// The dead letter.
        id: DeadLetterId,
        /// The defect, as the error message shows it.
        problem: String,
    },
    /// The audit cannot store the actor or the note: it is empty, too long, or contains a NUL
    /// character.
    #[error(transparent)]
    Signature(#[from] message::InvalidText),
    /// The message is still refused. A message that is too old is applied if the options accept
    /// late ones.
    #[error(transparent)]
    Refused(Refusal),
    /// The handler failed again.
    #[error("the handler failed again")]
    Handler(#[source] HandlerError),
    /// The message could not be admitted.
    #[error(transparent)]
    Admit(AdmitError),
    /// The effect was not committed, or it is unknown whether it was.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The database refused or was unavailable.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl RedriveError {
    /// Returns whether another transaction held a lock for longer than this one waits.
    pub(crate) fn is_of_lock(&self) -> bool {
        match self {
            Self::Store(error) | Self::Admit(AdmitError::Store(error)) => is_of_lock(error),
            _ => false,
        }
    }

    /// Replaces the error of a lock that another transaction held for too long.
    pub(crate) fn of_decision(self, id: DeadLetterId) -> Self {
        if self.is_of_lock() { Self::InHand { id } } else { self }
    }
}

impl From<AdmitError> for RedriveError {
    fn from(error: AdmitError) -> Self {
        match error {
            AdmitError::Refused(refusal) => Self::Refused(refusal),
            error => Self::Admit(error),
        }
    }
}
