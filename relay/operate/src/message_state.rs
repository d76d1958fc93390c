//! The state of a message in an outbox or an inbox.

use std::fmt;

use inbox::Resolution;
use outbox_log::ExceptionState;
use serde::{Serialize, Serializer};

/// The fate of a message that an operator discarded. A confirmation that comes after the decision
/// is not stored.
pub(crate) const DISCARDED: &str = "it is not sent again; an attempt before the decision may have arrived";

/// The state of a message in an outbox or an inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MessageState {
    /// The relay has not read it yet.
    Waiting,
    /// The relay has published it.
    Published,
    /// The pipeline's filter leaves it to others.
    LeftOut,
    /// Unknown: the cursor belongs to another server's history.
    Unknown,
    /// Parked until it is due.
    Scheduled,
    /// It failed and will be retried, by the relay or by its consumer.
    Retrying,
    /// Parked behind another one.
    Held,
    /// It waits for an operator.
    Dead,
    /// An operator discarded it.
    Discarded,
    /// Its consumer applied it.
    Applied,
    /// An operator redrove it too late for an inbox row.
    AppliedLate,
    /// It was redriven, but had already taken effect.
    Duplicate,
    /// The inbox has not seen it.
    NotSeen,
    /// It is older than the inbox remembers.
    Forgotten,
}

impl MessageState {
    /// Returns the lower-case words.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Published => "published",
            Self::LeftOut => "left out",
            Self::Unknown => "unknown",
            Self::Scheduled => "scheduled",
            Self::Retrying => "retrying",
            Self::Held => "held",
            Self::Dead => "dead",
            Self::Discarded => "discarded",
            Self::Applied => "applied",
            Self::AppliedLate => "applied_late",
            Self::Duplicate => "duplicate",
            Self::NotSeen => "not seen",
            Self::Forgotten => "forgotten",
        }
    }

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

impl fmt::Display for MessageState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for MessageState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
