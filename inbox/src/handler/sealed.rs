//! Decrypts messages before their handler gets them.

use std::sync::Arc;

use async_trait::async_trait;
use message::{EventType, Message, Opened, Sealing, SealingError, open_message};

use super::Handler;
use super::error::HandlerError;
use super::function::{Handled, Tx};
use super::received::Received;
use crate::dialect::Dialect;
use crate::ids::{ConsumerName, Tenant};
use crate::telemetry::Meter;

/// A handler of messages whose payloads may be encrypted. One whose key was deleted has no effect:
/// the inbox remembers it like any other message, so it is neither retried nor dead-lettered.
pub(crate) struct SealedHandler<DB: Dialect> {
    handler: Arc<dyn Handler<DB>>,
    sealing: Arc<dyn Sealing>,
    consumer: ConsumerName,
    meter: Meter,
}

impl<DB: Dialect> SealedHandler<DB> {
    pub(crate) fn new(
        handler: Arc<dyn Handler<DB>>,
        sealing: Arc<dyn Sealing>,
        consumer: ConsumerName,
    ) -> Self {
        let meter = Meter::new(&consumer);
        Self { handler, sealing, consumer, meter }
    }

    /// Decrypts a message; `None` if it has no effect any more.
    async fn open(&self, message: &Message) -> Result<Option<Message>, HandlerError> {
        match open_message(self.sealing.as_ref(), message).await.map_err(unopened)? {
            Opened::Plain => Ok(Some(message.clone())),
            Opened::Message(opened) => Ok(Some(*opened)),
            _ => {
                self.meter.erased();
                tracing::info!(
                    consumer = %self.consumer, message_id = %message.id,
                    "skipped an erased message: the key of its subject was deleted"
                );
                Ok(None)
            }
        }
    }
}

/// The first part of the error of a message that could not be decrypted.
const UNOPENED: &str = "the message was not decrypted";

fn unopened(error: SealingError) -> HandlerError {
    match error {
        SealingError::Unavailable(_) => HandlerError::unavailable(UNOPENED).with_source(error),
        error => HandlerError::reject(UNOPENED).with_source(error),
    }
}

#[async_trait]
impl<DB: Dialect> Handler<DB> for SealedHandler<DB> {
    async fn handle(&self, tx: &mut Tx<DB>, message: &Message) -> Handled {
        let received = Received::first(self.consumer.clone(), Tenant::none(), message);
        self.handle_delivery(tx, message, &received).await
    }

    fn knows(&self, kind: &EventType) -> bool {
        self.handler.knows(kind)
    }

    fn has_effect(&self, kind: &EventType) -> bool {
        self.handler.has_effect(kind)
    }

    fn takes_many(&self, kind: &EventType) -> bool {
        self.handler.takes_many(kind)
    }

    async fn handle_many(
        &self,
        tx: &mut Tx<DB>,
        messages: &[&Message],
        received: &[Received],
    ) -> Result<(), HandlerError> {
        let mut opened = Vec::with_capacity(messages.len());
        let mut facts = Vec::with_capacity(messages.len());
        for (message, received) in messages.iter().zip(received) {
            if let Some(message) = self.open(message).await? {
                opened.push(message);
                facts.push(received.clone());
            }
        }
        if opened.is_empty() {
            return Ok(());
        }
        let opened: Vec<&Message> = opened.iter().collect();
        self.handler.handle_many(tx, &opened, &facts).await
    }

    async fn handle_delivery(&self, tx: &mut Tx<DB>, message: &Message, received: &Received) -> Handled {
        match self.open(message).await? {
            Some(message) => self.handler.handle_delivery(tx, &message, received).await,
            None => Ok(None),
        }
    }
}
