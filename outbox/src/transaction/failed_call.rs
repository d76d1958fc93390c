//! The first failed call of a transaction, which prevents its commit.

use crate::enqueue_error::EnqueueError;
use crate::remedy::Remedy;
use crate::transaction::commit::CommitError;

/// A failed call, as every later call and the commit report it.
#[doc(hidden)]
#[derive(Debug, Clone)]
pub struct FailedCall {
    /// The text of its error.
    pub first: String,
    /// The remedy for its error.
    pub remedy: Remedy,
    /// Whether the same transaction may succeed on another run.
    pub retryable: bool,
}

impl FailedCall {
    pub(super) fn of(error: &EnqueueError) -> Self {
        Self { first: error.to_string(), remedy: error.remedy(), retryable: error.is_retryable() }
    }

    /// Returns the error of every later call.
    pub(super) fn refusal(&self) -> EnqueueError {
        let Self { first, remedy, retryable } = self.clone();
        EnqueueError::Poisoned { first, remedy, retryable }
    }
}

impl From<FailedCall> for CommitError {
    fn from(FailedCall { first, remedy, retryable }: FailedCall) -> Self {
        Self::Poisoned { first, remedy, retryable }
    }
}
