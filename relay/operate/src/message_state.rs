//! The state of a message in an outbox or an inbox.

use inbox::Resolution;
use outbox_log::ExceptionState;
use serde::{Serialize, Serializer};

/// The fate of a message that an operator discarded. A confirmation that comes after the decision
/// is not stored.
pub(crate) const DISCARDED: &str = "it is not sent again; an attempt before the decision may have arrived";

message::words! {
    /// The state of a message in an outbox or an inbox.
    #[derive(Hash)]
    pub enum MessageState {
        /// The relay has not read it yet.
        Waiting = "waiting",
        /// The relay has published it.
        Published = "published",
        /// The pipeline's filter leaves it to others.
        LeftOut = "left out",
        /// Unknown: the cursor belongs to another server's history.
        Unknown = "unknown",
        /// Parked until it is due.
        Scheduled = "scheduled",
        /// It failed and will be retried, by the relay or by its consumer.
        Retrying = "retrying",
        /// Parked behind another one.
        Held = "held",
        /// It waits for an operator.
        Dead = "dead",
        /// An operator discarded it.
        Discarded = "discarded",
        /// Its consumer applied it.
        Applied = "applied",
        /// An operator redrove it too late for an inbox row.
        AppliedLate = "applied_late",
        /// It was redriven, but had already taken effect.
        Duplicate = "duplicate",
        /// The inbox has not seen it.
        NotSeen = "not seen",
        /// It is older than the inbox remembers.
        Forgotten = "forgotten",
    }
}

impl MessageState {
    /// Returns the state in which a relay parked it; `None` if it is not parked.
    pub(crate) fn parked(self) -> Option<ExceptionState> {
        match self {
            Self::Scheduled => Some(ExceptionState::Scheduled),
            Self::Retrying => Some(ExceptionState::Retrying),
            Self::Held => Some(ExceptionState::Held),
            Self::Dead => Some(ExceptionState::Dead),
            Self::Discarded => Some(ExceptionState::Discarded),
            Self::Waiting
            | Self::Published
            | Self::LeftOut
            | Self::Unknown
            | Self::Applied
            | Self::AppliedLate
            | Self::Duplicate
            | Self::NotSeen
            | Self::Forgotten => None,
        }
    }

    /// Returns the state of a dead letter, by how it was closed.
    pub(crate) fn of_letter(resolution: Option<Resolution>) -> Self {
        match resolution {
            None => Self::Dead,
            Some(Resolution::Applied) => Self::Applied,
            Some(Resolution::AppliedLate) => Self::AppliedLate,
            Some(Resolution::Duplicate) => Self::Duplicate,
            Some(Resolution::Discarded) => Self::Discarded,
            // A way of a newer inbox.
            Some(_) => Self::Unknown,
        }
    }
}

impl From<ExceptionState> for MessageState {
    fn from(state: ExceptionState) -> Self {
        match state {
            ExceptionState::Scheduled => Self::Scheduled,
            ExceptionState::Retrying => Self::Retrying,
            ExceptionState::Held => Self::Held,
            ExceptionState::Dead => Self::Dead,
            ExceptionState::Discarded => Self::Discarded,
        }
    }
}

impl Serialize for MessageState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
