//! Retries of a transaction that lost a conflict.

use std::time::Duration;

use message::Backoff;

/// How [`Outbox::transaction`](crate::Outbox::transaction) retries after a serialization failure, a
/// deadlock or a busy database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryPolicy {
    /// Maximum attempts, the first one included. At least one is made. Default: 8.
    pub attempts_max: u32,
    /// The wait before the next attempt. Default: 10 ms, doubled up to 1 s.
    pub backoff: Backoff,
    /// How long to look up an unknown commit. Default: 30 s. [`Duration::MAX`]: until it is known.
    pub resolve_timeout: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            attempts_max: 8,
            backoff: Backoff { first: Duration::from_millis(10), max: Duration::from_secs(1) },
            resolve_timeout: Duration::from_secs(30),
        }
    }
}

impl RetryPolicy {
    message::setters! {
        /// Sets the maximum attempts, the first one included.
        attempts_max: u32,
        /// Sets the wait before the next attempt.
        backoff: Backoff,
        /// Sets how long to look up an unknown commit.
        resolve_timeout: Duration,
    }
}
