//! Everything that an inbox knows about one message, for all consumers.

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
    /// The tenant; empty for none.
    pub tenant: String,
    /// Its state.
    pub state: KnownState,
}

/// State of a message at a consumer.
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
    /// Its handler failed, and it will be retried.
    Retrying(Attempt),
}

impl<DB: Dialect> Inbox<DB> {
    /// Returns what is known about a message, ordered by consumer and tenant. Excludes dead letters
    /// of messages that the guard refused. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`], also when the database did not answer within the call timeout.
    pub async fn known(&self, id: Uuid) -> Result<Vec<Known>, StoreError> {
        let what = "look up a message";
        let looking = async {
            let mut connection = self.acquire(what).await?;
            self.tables().known(&mut connection, id).await.map_err(StoreError::during(what))
        };
        self.in_time(what, looking).await
    }

    /// Returns the answer that a duplicate of a message would get, without a duplicate: when the
    /// message took effect and the result of its handler, or the dead letter that it became.
    /// Returns `None` before that, and once the message is forgotten. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`], also when the database did not answer within the call timeout.
    pub async fn outcome(
        &self,
        consumer: &ConsumerName,
        tenant: &Tenant,
        id: MessageId,
    ) -> Result<Option<Duplicate>, StoreError> {
        let what = "look up the outcome of a message";
        let looking = async {
            let mut connection = self.acquire(what).await?;
            let found = self.tables().find(&mut connection, key(consumer, tenant, id)).await;
            found.map_err(StoreError::during(what))
        };
        Ok(self.in_time(what, looking).await?.map(Duplicate::from))
    }
}
