//! The outcome of one attempt at a message.

use std::error::Error;
use std::time::Duration;

use message::{Committed, Message};

use super::dead_letter::NewDeadLetter;
use super::failure::FailureKind;

/// An error of any type.
pub(super) type BoxedError = Box<dyn Error + Send + Sync>;

/// The outcome of one attempt.
pub(super) enum Step {
    /// Its effect is committed, now or earlier.
    Settle(Done),
    /// It must be dead-lettered.
    DeadLetter(NewDeadLetter),
    /// It failed.
    Failed(FailedAttempt),
    /// No transaction could begin, so the message did not cause it: the database is unavailable.
    Away(BoxedError),
    /// It waits this long: another process handles it, or it failed there and its backoff is not
    /// over.
    Later(Duration),
    /// It was not begun, because the session is over or the consumer is stopping.
    GivenUp,
}

/// The end of a delivery that can be settled.
#[derive(Debug)]
pub(super) struct Done {
    /// The proof of the commit.
    pub(super) proof: Committed,
    /// Whether it was handled now: it is neither a duplicate nor a chunk that is only kept.
    pub(super) is_handled: bool,
}

/// An attempt that failed.
#[derive(Debug)]
pub(super) struct FailedAttempt {
    /// The party at fault.
    pub(super) kind: FailureKind,
    /// The wait that the handler asked for.
    pub(super) delay: Option<Duration>,
    pub(super) error: BoxedError,
    /// The whole message, if the delivery is the chunk that completed it.
    pub(super) whole: Option<Box<Message>>,
}

impl Done {
    pub(super) fn now(proof: Committed) -> Self {
        Self { proof, is_handled: true }
    }
}

impl FailedAttempt {
    pub(super) fn new(kind: FailureKind, error: impl Into<BoxedError>) -> Self {
        Self { kind, delay: None, error: error.into(), whole: None }
    }

    /// Sets the wait that the handler asked for.
    pub(super) fn after(self, delay: Option<Duration>) -> Self {
        Self { delay, ..self }
    }
}

impl Step {
    pub(super) fn failed(kind: FailureKind, error: impl Into<BoxedError>) -> Self {
        Self::Failed(FailedAttempt::new(kind, error))
    }

    pub(super) fn away(error: impl Into<BoxedError>) -> Self {
        Self::Away(error.into())
    }

    /// Marks a failure to keep a chunk, as distinct from a failure of the whole message.
    pub(super) fn of_chunk(self) -> Self {
        match self {
            Self::Failed(failed) => {
                Self::Failed(FailedAttempt { kind: FailureKind::Chunk, delay: None, ..failed })
            }
            step => step,
        }
    }

    /// Adds the whole message, for an attempt at the chunk that completed it.
    pub(super) fn of_whole(self, whole: Message) -> Self {
        match self {
            Self::DeadLetter(dead) => Self::DeadLetter(dead.of_whole(Box::new(whole))),
            Self::Failed(failed) => Self::Failed(FailedAttempt { whole: Some(Box::new(whole)), ..failed }),
            step => step,
        }
    }

    /// Marks the end of a delivery whose handler did not run.
    pub(super) fn without_handler(self) -> Self {
        match self {
            Self::Settle(done) => Self::Settle(Done { is_handled: false, ..done }),
            step => step,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reason::Reason;

    #[test]
    fn no_failure_to_keep_a_chunk_counts_while_other_messages_succeed() {
        for kind in [FailureKind::Own, FailureKind::Database] {
            let step = Step::failed(kind, "the disk is full").of_chunk();
            let Step::Failed(FailedAttempt { kind, delay, error, whole: None }) = step else {
                panic!("still a failure")
            };
            assert!(!kind.is_counted(true) && !kind.is_counted(false) && delay.is_none());
            assert_eq!(error.to_string(), "the disk is full");
        }
        let refused = Step::DeadLetter(NewDeadLetter::new(Reason::TooOld, String::from("old"), 0));
        assert!(matches!(refused.of_chunk(), Step::DeadLetter(_)), "a refusal stays one");
    }
}
