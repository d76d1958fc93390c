//! Looks up what an inbox knows about messages.

use message::MessageId;
use uuid::Uuid;

use crate::comparison::Duplicate;
use crate::dialect::Dialect;
use crate::ids::{ConsumerName, Tenant, key};
use crate::inbox::Inbox;
use crate::known::Known;
use crate::store_error::StoreError;

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

    /// Returns those of these messages that a consumer, or any, has applied for some tenant, or has
    /// or had among its dead letters, in one statement: give it a few hundred ids at most. One that
    /// is being retried is not among them. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`], also when the database did not answer within the call timeout.
    pub async fn settled(
        &self,
        ids: &[Uuid],
        consumer: Option<&ConsumerName>,
    ) -> Result<Vec<Uuid>, StoreError> {
        let what = "look up messages";
        let looking = async {
            let mut connection = self.acquire(what).await?;
            self.tables().settled(&mut connection, ids, consumer).await.map_err(StoreError::during(what))
        };
        self.in_time(what, looking).await
    }

    /// Returns what a duplicate of a message would get, without a duplicate: when the message took
    /// effect and the result of its handler, or the dead letter that it became. Returns `None`
    /// before that, and once the message is forgotten. Cancel-safe.
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
