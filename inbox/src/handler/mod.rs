//! The handler that users of the runner write: a type, or functions.

mod error;
mod function;
mod received;
mod sealed;

use async_trait::async_trait;
use message::{EventType, Message};

use crate::dialect::Dialect;
pub(crate) use error::RETRY_AFTER_MAX;
pub use error::{HandlerError, Next};
pub use function::{BatchFunction, EventFunction, IntoResult, MessageFunction, Tx};
pub(crate) use function::{BatchRoute, EventRoute, Handled, MessageRoute, Route};
pub use received::Received;
pub(crate) use sealed::SealedHandler;

/// The effect of a message.
#[async_trait]
pub trait Handler<DB: Dialect>: Send + Sync {
    /// Applies the effect in the transaction that also holds the inbox row. Side effects outside
    /// that transaction happen once per attempt. Messages that it enqueues with
    /// [`tx.enqueue(..)`](outbox::OutboxTransaction::enqueue) leave if and only if the transaction
    /// commits. The returned bytes are stored as the message's result and returned with every
    /// duplicate.
    ///
    /// A failed enqueue fails the handler even if the handler swallows the error, as if it
    /// had returned the error: `From<EnqueueError>` of [`HandlerError`] documents the
    /// consequence.
    ///
    /// The handler must not commit or roll back the transaction by SQL of its own. The inbox
    /// notices that before it commits, and gives no proof. But a `COMMIT` has then stored the inbox
    /// row: redelivered, the message is a duplicate whose remaining work is never done, and in a
    /// batch so are the messages that were not handled yet.
    ///
    /// After [`handler_timeout`](crate::ConsumerBuilder::handler_timeout) the handler is cancelled
    /// at an `.await`. Code that blocks its thread cannot be cancelled: run it in
    /// `tokio::task::spawn_blocking`.
    ///
    /// # Errors
    /// [`HandlerError`] rolls everything back and determines what happens next. An `sqlx::Error`
    /// converts into one.
    async fn handle(&self, tx: &mut Tx<DB>, message: &Message) -> Result<Option<Vec<u8>>, HandlerError>;

    /// Returns whether the handler has an effect for messages of this kind; by default, for all
    /// kinds. It does not redrive dead letters of other kinds: they wait for a process that knows
    /// the kind.
    fn knows(&self, _kind: &EventType) -> bool {
        true
    }

    /// Returns whether messages of this kind can take an effect with it; by default, all can. A
    /// message that cannot does not wait behind a dead letter of its key.
    fn has_effect(&self, _kind: &EventType) -> bool {
        true
    }

    /// Returns whether it applies the effects of many messages of this kind in one call of
    /// [`handle_many`](Self::handle_many), when a consumer gathers
    /// [batches](crate::ConsumerBuilder::batch); by default, no.
    fn takes_many(&self, _kind: &EventType) -> bool {
        false
    }

    /// Applies the effects of many messages of one kind, in their order; none of them has a result
    /// of its own. `received` has the facts of each delivery. By default it calls
    /// [`handle_delivery`](Self::handle_delivery) for each message in turn.
    ///
    /// # Errors
    /// [`HandlerError`] rolls back all of them. They are tried again in smaller batches, until the
    /// failing message is alone.
    async fn handle_many(
        &self,
        tx: &mut Tx<DB>,
        messages: &[&Message],
        received: &[Received],
    ) -> Result<(), HandlerError> {
        for (message, received) in messages.iter().zip(received) {
            self.handle_delivery(tx, message, received).await?;
        }
        Ok(())
    }

    /// Does the same as [`handle`](Self::handle), with the facts of the delivery: attempt, tenant,
    /// times. The consumer calls this method; by default it calls `handle`.
    ///
    /// # Errors
    /// As [`handle`](Self::handle).
    async fn handle_delivery(
        &self,
        tx: &mut Tx<DB>,
        message: &Message,
        _received: &Received,
    ) -> Result<Option<Vec<u8>>, HandlerError> {
        self.handle(tx, message).await
    }
}

/// Fails a handler that has swallowed the error of an enqueue: its effect must not commit without
/// its message.
pub(crate) fn refuse_swallowed<DB: Dialect>(tx: &Tx<DB>) -> Result<(), HandlerError> {
    tx.failed_call().map_or(Ok(()), |error| Err(error.into()))
}
