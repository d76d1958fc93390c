//! A handler whose effects are recorded in its own transaction. A record exists if and only if the
//! effect does.

use std::sync::Arc;

use async_trait::async_trait;
use inbox::{Handler, HandlerError, Received, Tenant, Tx};
use message::{EventType, Message};
use migrations::Template;
use migrations::query::Query;

use crate::database::Database;

/// Adds a record. Records of one key are in the order of commits: a consumer handles the next
/// message of a key after the commit of the one before.
const RECORD: &str =
    "INSERT INTO testkit_effect (consumer, scope, message_id, key, payload) VALUES ($1, $2, $3, $4, $5)";

/// The handler of the consumer under test, with a record of each effect. It wraps the complete
/// handler, so the calls are those of production.
pub(crate) struct Recorded<DB: Database> {
    pub(crate) consumer: Arc<str>,
    pub(crate) handler: Arc<dyn Handler<DB>>,
}

impl<DB: Database> Recorded<DB> {
    async fn record(&self, tx: &mut Tx<DB>, tenant: &Tenant, message: &Message) -> Result<(), HandlerError> {
        Query::<DB>::new(&Template::new(RECORD).render())
            .bind(&*self.consumer)
            .bind(tenant.as_str())
            .bind(&message.id.to_string())
            .bind(message.key.as_ref().map(|key| key.as_str()))
            .bind(&message.payload[..])
            .run(&mut **tx)
            .await?;
        Ok(())
    }
}

#[async_trait]
impl<DB: Database> Handler<DB> for Recorded<DB> {
    async fn handle(&self, tx: &mut Tx<DB>, message: &Message) -> Result<Option<Vec<u8>>, HandlerError> {
        let result = self.handler.handle(tx, message).await?;
        self.record(tx, &Tenant::none(), message).await?;
        Ok(result)
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
        self.handler.handle_many(tx, messages, received).await?;
        for (message, received) in messages.iter().zip(received) {
            self.record(tx, &received.tenant, message).await?;
        }
        Ok(())
    }

    async fn handle_delivery(
        &self,
        tx: &mut Tx<DB>,
        message: &Message,
        received: &Received,
    ) -> Result<Option<Vec<u8>>, HandlerError> {
        let result = self.handler.handle_delivery(tx, message, received).await?;
        if self.handler.has_effect(&message.kind) {
            self.record(tx, &received.tenant, message).await?;
        }
        Ok(result)
    }
}
