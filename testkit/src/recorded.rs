//! A handler whose effects are recorded in its own transaction. A record exists if and only if the
//! effect does.

use std::sync::Arc;

use async_trait::async_trait;
use inbox::{Handler, HandlerError, Tenant};
use message::Message;
use sqlx::{Sqlite, Transaction};

/// The table of records, in the order of commits, because SQLite has one writer at a time.
pub(crate) const TABLE: &str = "CREATE TABLE testkit_effect (seq INTEGER PRIMARY KEY AUTOINCREMENT, \
    consumer TEXT NOT NULL, scope TEXT NOT NULL, message_id TEXT NOT NULL, key TEXT, payload BLOB NOT NULL)";

pub(crate) type TenantOf = Arc<dyn Fn(&Message) -> Tenant + Send + Sync>;

/// The user's handler, with a record of each effect.
#[derive(Clone)]
pub(crate) struct Recorded {
    pub(crate) consumer: Arc<str>,
    pub(crate) handler: Arc<dyn Handler<Sqlite>>,
    pub(crate) tenant_of: TenantOf,
}

#[async_trait]
impl Handler<Sqlite> for Recorded {
    async fn handle(
        &self,
        tx: &mut Transaction<'static, Sqlite>,
        message: &Message,
    ) -> Result<Option<Vec<u8>>, HandlerError> {
        let result = self.handler.handle(tx, message).await?;
        sqlx::query(
            "INSERT INTO testkit_effect (consumer, scope, message_id, key, payload) VALUES ($1, $2, $3, $4, $5)",
        )
        .bind(&*self.consumer)
        .bind((self.tenant_of)(message).as_str().to_owned())
        .bind(message.id.to_string())
        .bind(message.key.as_ref().map(|key| key.as_str().to_owned()))
        .bind(message.payload.to_vec())
        .execute(&mut **tx)
        .await?;
        Ok(result)
    }
}
