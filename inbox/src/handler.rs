//! The handler that a user of the runner writes, and its errors.

use std::error::Error;
use std::fmt;

use async_trait::async_trait;
use message::Message;
use sqlx::Transaction;

use crate::dialect::Dialect;
use crate::store_error::Trouble;

/// The effect of a message.
#[async_trait]
pub trait Handler<DB: Dialect>: Send + Sync {
    /// Applies the effect in the transaction that also holds the inbox row; whatever else it does happens once
    /// per attempt. The returned bytes are stored as the message's result and come back with every duplicate.
    ///
    /// It must not commit or roll the transaction back by SQL of its own; the inbox would notice before it commits,
    /// and give no proof.
    ///
    /// It is ended after [`handler_timeout`](crate::ConsumerBuilder::handler_timeout) where it waits (`.await`). Code that blocks
    /// its thread cannot be ended: run it in `tokio::task::spawn_blocking`.
    ///
    /// # Errors
    /// [`HandlerError`] rolls everything back and says what happens next. An `sqlx::Error` converts into one.
    async fn handle(
        &self,
        tx: &mut Transaction<'static, DB>,
        message: &Message,
    ) -> Result<Option<Vec<u8>>, HandlerError>;
}

/// The next step for a message whose handler failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Next {
    /// Counted, and tried again after a backoff; dead-lettered when there were too many attempts.
    Retry,
    /// Dead-lettered at once.
    Reject,
    /// Not counted, and tried again after a backoff: something that the handler needs is away.
    Unavailable,
    /// The database was away, or another transaction won. Tried again after a backoff, and counted only while other messages
    /// succeed: then it is this message that the database cannot do.
    Database,
}

/// Why a handler failed, and what happens next.
#[derive(Debug)]
pub struct HandlerError {
    next: Next,
    /// Whether the runner ended the handler.
    timed_out: bool,
    reason: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl HandlerError {
    /// The message failed, but may succeed later.
    #[must_use]
    pub fn retry(reason: impl Into<String>) -> Self {
        Self { next: Next::Retry, timed_out: false, reason: reason.into(), source: None }
    }

    /// The message can never succeed: dead-letter it at once.
    #[must_use]
    pub fn reject(reason: impl Into<String>) -> Self {
        Self { next: Next::Reject, timed_out: false, reason: reason.into(), source: None }
    }

    /// Something that the handler needs is away; not the message's fault, and no attempt is counted.
    #[must_use]
    pub fn unavailable(reason: impl Into<String>) -> Self {
        Self { next: Next::Unavailable, timed_out: false, reason: reason.into(), source: None }
    }

    /// The handler was ended after this time.
    pub(crate) fn of_timeout(timeout: std::time::Duration) -> Self {
        let reason = format!(
            "the handler did not end within {timeout:?} and was rolled back; make it faster, or raise handler_timeout"
        );
        Self { timed_out: true, ..Self::retry(reason) }
    }

    /// Whether the handler was ended by its timeout.
    pub(crate) fn is_timeout(&self) -> bool {
        self.timed_out
    }

    /// Attaches the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Returns the next step for the message.
    #[must_use]
    pub fn next(&self) -> Next {
        self.next
    }
}

impl From<sqlx::Error> for HandlerError {
    /// Outages and lost conflicts (serialization, deadlock, a statement that took too long) are not the message's fault, unless
    /// they meet only this one: see [`Next::Database`].
    fn from(error: sqlx::Error) -> Self {
        match Trouble::of(&error) {
            Trouble::Outage | Trouble::Conflict => {
                Self { next: Next::Database, ..Self::retry("the database did not do it") }
            }
            Trouble::Statement => Self::retry("the database refused a statement"),
        }
        .with_source(error)
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl Error for HandlerError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}
