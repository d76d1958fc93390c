//! A handler whose effects are recorded in its own transaction. A record exists if and only if the
//! effect does.

use std::sync::Arc;

use async_trait::async_trait;
use inbox::{Handler, HandlerError, Received, Tenant, Tx};
use message::{EventType, Message};
use sqlx::Sqlite;

/// The table of records, in the order of commits, because SQLite has one writer at a time.
pub(crate) const TABLE: &str = "CREATE TABLE testkit_effect (seq INTEGER PRIMARY KEY AUTOINCREMENT, \
    consumer TEXT NOT NULL, scope TEXT NOT NULL, message_id TEXT NOT NULL, key TEXT, payload BLOB NOT NULL)";

/// The handler of the consumer under test, with a record of each effect. It stands in front of
/// everything that the consumer calls, so the calls are those of production.
pub(crate) struct Recorded {
    pub(crate) consumer: Arc<str>,
    pub(crate) handler: Arc<dyn Handler<Sqlite>>,
}

impl Recorded {
    async fn record(
        &self,
        tx: &mut Tx<Sqlite>,
        tenant: &Tenant,
        message: &Message,
    ) -> Result<(), HandlerError> {
        sqlx::query(
            "INSERT INTO testkit_effect (consumer, scope, message_id, key, payload) VALUES ($1, $2, $3, $4, $5)",
        )
        .bind(&*self.consumer)
        .bind(tenant.as_str().to_owned())
        .bind(message.id.to_string())
        .bind(message.key.as_ref().map(|key| key.as_str().to_owned()))
        .bind(message.payload.to_vec())
        .execute(&mut **tx)
        .await?;
        Ok(())
    }
}

#[async_trait]
impl Handler<Sqlite> for Recorded {
    async fn handle(&self, tx: &mut Tx<Sqlite>, message: &Message) -> Result<Option<Vec<u8>>, HandlerError> {
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
        tx: &mut Tx<Sqlite>,
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
        tx: &mut Tx<Sqlite>,
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
