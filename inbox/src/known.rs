//! Everything that an inbox knows of one message, over all consumers.

use message::MessageId;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::attempts::Attempt;
use crate::dead_letter::DeadLetterId;
use crate::dialect::Dialect;
use crate::guard::{Duplicate, key};
use crate::inbox::Inbox;
use crate::name::{ConsumerName, Tenant};
use crate::store_error::StoreError;

/// The state of a message at one consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// The consumer.
    pub consumer: String,
    /// The scope; empty for none.
    pub scope: String,
    /// How far it has come.
    pub state: KnownState,
}

/// How far a message has come at a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KnownState {
    /// It took effect.
    Applied {
        /// When, by the database's clock.
        at: OffsetDateTime,
        /// The size of the stored result; `None` when there is none.
        result_bytes: Option<u64>,
    },
    /// It is, or was, among the dead letters, and took no effect.
    Dead(DeadLetterId),
    /// Its handler failed, and it is tried again.
    Retrying(Attempt),
}

impl<DB: Dialect> Inbox<DB> {
    /// Returns what is known of a message, in the order of consumers and scopes. Dead letters of
    /// messages that the guard refused are not among it. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn known(&self, id: Uuid) -> Result<Vec<Known>, StoreError> {
        let mut connection = self.acquire("look a message up").await?;
        DB::known(&mut connection, self.statements(), id)
            .await
            .map_err(StoreError::during("look a message up"))
    }

    /// Returns what a duplicate of a message would be told, without one: when it took effect and
    /// the result that its handler returned, or the dead letter that it ended as. `None` while it
    /// has done neither, and once it is forgotten. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn outcome(
        &self,
        consumer: &ConsumerName,
        tenant: &Tenant,
        id: MessageId,
    ) -> Result<Option<Duplicate>, StoreError> {
        let what = "look the outcome of a message up";
        let mut connection = self.acquire(what).await?;
        let stored = DB::find(&mut connection, self.statements(), key(consumer, tenant, id))
            .await
            .map_err(StoreError::during(what))?;
        Ok(stored.map(Duplicate::from))
    }
}
