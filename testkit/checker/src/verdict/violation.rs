//! The ways in which promises are broken.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Promise;

/// The kind of a violation, without the message that it concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Violation {
    /// A part of a transaction is committed, but another part is not.
    CommittedInPart,
    /// A message or row was rolled back to a savepoint, but exists.
    UndoneAndPresent,
    /// An outbox row names a business row that does not exist.
    WithoutBusinessRow,
    /// A business row has fewer outbox rows than it must have.
    WithoutMessage,
    /// A business row has more outbox rows than it must have.
    TooManyMessages,
    /// The content of an outbox row differs from the content that its business row requires.
    SaysSomethingElse,
    /// Two outbox rows have the same message id.
    EnqueuedTwice,
    /// The operation was reported to the client as done, but no part of it exists.
    DoneAndAbsent,
    /// The operation was reported to the client as failed, but all of it exists.
    FailedAndPresent,
    /// A message is in the outbox, but neither at the broker nor parked.
    NeverPublished,
    /// A message is at the broker without an id.
    PublishedWithoutId,
    /// A message is at the broker, but not in the outbox.
    PublishedUncommitted,
    /// A message is in an inbox, but not in the outbox.
    RememberedUncommitted,
    /// A message took effect, but is not in the outbox.
    AppliedUncommitted,
    /// A message is among a consumer's dead letters, but not in the outbox.
    DeadLetterUncommitted,
    /// A message is in the outbox, but no transaction wrote it.
    EnqueuedByNobody,
    /// A message is in the outbox, but the transaction of its business row was rolled back.
    EnqueuedByRolledBack,
    /// A row is marked as published, but is neither at the broker nor parked.
    SettledUnpublished,
    /// The cursor has passed a row that is neither at the broker nor parked.
    PassedUnpublished,
    /// A message is parked ahead of the cursor.
    ParkedAhead,
    /// Two copies of one message differ.
    Altered,
    /// The first occurrence of a message came after that of a later message of its key.
    CameLate,
    /// The first effect of a message came after that of a later message of its key.
    AppliedLate,
    /// A message took effect again.
    AppliedAgain,
    /// A message is in the outbox and not parked, but took no effect.
    NeverApplied,
    /// A message is in the inbox, but took no effect.
    RememberedUnapplied,
    /// A message took effect, but is not in the inbox.
    AppliedUnremembered,
    /// A write under a stale epoch was applied.
    StaleWrite,
    /// A lease was granted with an epoch that is not above all earlier epochs.
    EpochReused,
    /// A message is held, but no other message explains why.
    HeldWithoutCause,
    /// Retention removed a message before it was published.
    RemovedUnpublished,
    /// Retention removed a message while it was parked.
    RemovedWhileParked,
    /// A resource is still held although everything is healed.
    Leaked,
    /// The row of a saga's start exists, but the saga does not.
    OrderedNotStarted,
    /// A saga exists without the row of its start.
    StartedByNobody,
    /// A step happened again.
    StepAgain,
    /// An undo happened again.
    UndoneAgain,
    /// An undo happened before its step, or without it.
    UndoneBefore,
    /// A saga has not ended.
    NeverEnded,
    /// A finished saga lacks a step.
    FinishedInPart,
    /// An undone saga has a step left.
    UndoneInPart,
    /// Balances and effects differ, or an undo and its step.
    DoesNotAddUp,
}

impl Violation {
    /// Returns the promise that this violation breaks.
    #[must_use]
    pub const fn promise(self) -> Promise {
        match self {
            Self::CommittedInPart
            | Self::UndoneAndPresent
            | Self::WithoutBusinessRow
            | Self::WithoutMessage
            | Self::TooManyMessages
            | Self::SaysSomethingElse
            | Self::EnqueuedTwice => Promise::Atomic,
            Self::DoneAndAbsent | Self::FailedAndPresent => Promise::HonestOutcomes,
            Self::NeverPublished => Promise::NoLoss,
            Self::PublishedWithoutId
            | Self::PublishedUncommitted
            | Self::RememberedUncommitted
            | Self::AppliedUncommitted
            | Self::DeadLetterUncommitted
            | Self::EnqueuedByNobody
            | Self::EnqueuedByRolledBack => Promise::NoPhantom,
            Self::SettledUnpublished => Promise::SettledIsStored,
            Self::PassedUnpublished | Self::ParkedAhead => Promise::CursorIsTrue,
            Self::Altered => Promise::Unaltered,
            Self::CameLate | Self::AppliedLate => Promise::CausalOrder,
            Self::AppliedAgain => Promise::AtMostOnce,
            Self::NeverApplied => Promise::ExactlyOnce,
            Self::RememberedUnapplied | Self::AppliedUnremembered => Promise::InboxIffEffect,
            Self::StaleWrite | Self::EpochReused => Promise::Fencing,
            Self::HeldWithoutCause => Promise::Containment,
            Self::RemovedUnpublished | Self::RemovedWhileParked => Promise::Retention,
            Self::Leaked => Promise::NoLeak,
            Self::OrderedNotStarted | Self::StartedByNobody => Promise::SagaStarts,
            Self::StepAgain => Promise::SagaSteps,
            Self::UndoneAgain | Self::UndoneBefore => Promise::SagaUndos,
            Self::NeverEnded | Self::FinishedInPart | Self::UndoneInPart => Promise::SagaEnds,
            Self::DoesNotAddUp => Promise::SagaMoney,
        }
    }

    /// Returns the violation in words, to be read after the name of its subject.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::CommittedInPart => "is committed only in part",
            Self::UndoneAndPresent => "was rolled back to a savepoint but exists",
            Self::WithoutBusinessRow => "is in the outbox without its committed business row",
            Self::WithoutMessage => "is committed but has too few messages in the outbox",
            Self::TooManyMessages => "has too many messages in the outbox",
            Self::SaysSomethingElse => "differs from its business row",
            Self::EnqueuedTwice => "is in the outbox more than once",
            Self::DoneAndAbsent => "was reported as done but left nothing",
            Self::FailedAndPresent => "was reported as failed but is committed",
            Self::NeverPublished => "is in the outbox but was never published",
            Self::PublishedWithoutId => "was published without a message id",
            Self::PublishedUncommitted => "was published but is not in the outbox",
            Self::RememberedUncommitted => "is in the inbox but not in the outbox",
            Self::AppliedUncommitted => "took effect but is not in the outbox",
            Self::DeadLetterUncommitted => "is a dead letter but not in the outbox",
            Self::EnqueuedByNobody => "is in the outbox, but no transaction wrote it",
            Self::EnqueuedByRolledBack => "was rolled back but is in the outbox",
            Self::SettledUnpublished => "is marked as published but is not at the broker",
            Self::PassedUnpublished => "is below the cursor, but neither at the broker nor parked",
            Self::ParkedAhead => "is parked ahead of the cursor",
            Self::Altered => "is not the same in every place",
            Self::CameLate => "arrived after a later message of its key",
            Self::AppliedLate => "took effect after a later message of its key",
            Self::AppliedAgain => "took effect again",
            Self::NeverApplied => "is in the outbox but took no effect",
            Self::RememberedUnapplied => "is in the inbox but took no effect",
            Self::AppliedUnremembered => "took effect but is not in the inbox",
            Self::StaleWrite => "was changed under an expired epoch",
            Self::EpochReused => "was granted with an epoch that is not new",
            Self::HeldWithoutCause => "is held, although nothing blocks its key or topic",
            Self::RemovedUnpublished => "was removed before it was published",
            Self::RemovedWhileParked => "was removed while it was parked",
            Self::Leaked => "is still held",
            Self::OrderedNotStarted => "should have started with a committed transaction, but does not exist",
            Self::StartedByNobody => "exists, but no transaction started it",
            Self::StepAgain => "repeated a step",
            Self::UndoneAgain => "repeated the undo of a step",
            Self::UndoneBefore => "undid a step that had not happened",
            Self::NeverEnded => "is neither finished nor undone",
            Self::FinishedInPart => "is finished but lacks a step",
            Self::UndoneInPart => "is undone but has a step left",
            Self::DoesNotAddUp => "does not add up",
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}
