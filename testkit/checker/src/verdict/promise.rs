//! The promises.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A promise that a history can keep or break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Promise {
    /// Business rows and outbox rows of one transaction: both or neither.
    Atomic,
    /// Clients got true answers: a successful operation exists, a failed operation does not.
    HonestOutcomes,
    /// At the end every outbox row is at the broker or parked.
    NoLoss,
    /// No place has a message that was not committed.
    NoPhantom,
    /// Every row that the relay marked as published is at the broker.
    SettledIsStored,
    /// Every row that the cursor has passed is at the broker or parked, and no other row is parked.
    CursorIsTrue,
    /// Every copy of a message is the same.
    Unaltered,
    /// First occurrences of one key come in causal order.
    CausalOrder,
    /// No message takes effect twice for one consumer and scope.
    AtMostOnce,
    /// At the end every message has taken effect.
    ExactlyOnce,
    /// An inbox row exists if and only if its effect does.
    InboxIffEffect,
    /// A holder that has lost its lease no longer changes anything.
    Fencing,
    /// A message that cannot be published delays only its own key.
    Containment,
    /// Retention removes no undecided message.
    Retention,
    /// At the end no transaction, lease or unanswered message is left.
    NoLeak,
    /// A saga exists if and only if the transaction that started it has committed.
    SagaStarts,
    /// No step of a saga happens twice.
    SagaSteps,
    /// An undo happens at most once, and only after its step.
    SagaUndos,
    /// At the end every saga is finished or undone, as a whole.
    SagaEnds,
    /// The balances of services equal the amounts that the steps took and the undos gave back.
    SagaMoney,
}

impl Promise {
    /// All promises, in the order in which they are reported.
    pub const ALL: [Self; 20] = [
        Self::Atomic,
        Self::HonestOutcomes,
        Self::NoLoss,
        Self::NoPhantom,
        Self::SettledIsStored,
        Self::CursorIsTrue,
        Self::Unaltered,
        Self::CausalOrder,
        Self::AtMostOnce,
        Self::ExactlyOnce,
        Self::InboxIffEffect,
        Self::Fencing,
        Self::Containment,
        Self::Retention,
        Self::NoLeak,
        Self::SagaStarts,
        Self::SagaSteps,
        Self::SagaUndos,
        Self::SagaEnds,
        Self::SagaMoney,
    ];

    /// Returns the promise in one line, for people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Atomic => "business rows and messages commit together",
            Self::HonestOutcomes => "what a client is told is true",
            Self::NoLoss => "every message is published or parked",
            Self::NoPhantom => "only committed messages exist anywhere",
            Self::SettledIsStored => "what is marked as published is at the broker",
            Self::CursorIsTrue => "nothing unpublished is below the cursor",
            Self::Unaltered => "every copy of a message is the same",
            Self::CausalOrder => "messages of a key come in causal order",
            Self::AtMostOnce => "no message takes effect twice",
            Self::ExactlyOnce => "every message takes effect",
            Self::InboxIffEffect => "inbox rows and effects commit together",
            Self::Fencing => "an expired lease permits no change",
            Self::Containment => "a poison message delays only its own key",
            Self::Retention => "retention removes only decided messages",
            Self::NoLeak => "nothing stays held",
            Self::SagaStarts => "a saga starts with its transaction",
            Self::SagaSteps => "no step of a saga happens twice",
            Self::SagaUndos => "an undo happens once, after its step",
            Self::SagaEnds => "a saga is finished or undone as a whole",
            Self::SagaMoney => "what sagas took and returned adds up",
        }
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.title())
    }
}
