//! Remedies for a failed enqueue.

use message::Fault;

/// A remedy for a failed enqueue, by its cause: what the work around it should do
/// ([`EnqueueError::remedy`]).
///
/// [`EnqueueError::remedy`]: crate::EnqueueError::remedy
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// Run the work again, after a pause: the database was unavailable, another transaction won, or
    /// no id could be made.
    RunAgain,
    /// Abandon the work: the message is invalid, too large, or reuses an id, which no retry
    /// changes.
    GiveUp,
    /// Repair the setup: the tables or the outbox are missing, for every message.
    Repair,
    /// Correct the code or the data: the database refused, or the transaction had ended. Another
    /// run may succeed.
    Correct,
}

impl Remedy {
    /// Returns the party at fault.
    pub(crate) fn fault(self) -> Fault {
        match self {
            Self::RunAgain => Fault::Broker,
            Self::GiveUp => Fault::Message,
            Self::Repair | Self::Correct => Fault::Operator,
        }
    }
}
