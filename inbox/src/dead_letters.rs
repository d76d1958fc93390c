//! Reads dead letters.

use uuid::Uuid;

use crate::dead_letter::{DeadLetter, DeadLetterQuery};
use crate::dialect::Dialect;
use crate::ids::{ConsumerName, DeadLetterId};
use crate::inbox::Inbox;
use crate::store_error::StoreError;

impl<DB: Dialect> Inbox<DB> {
    /// Returns dead letters that match a query, oldest first. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`], also when the database did not answer within the call timeout.
    pub async fn dead_letters(&self, query: &DeadLetterQuery) -> Result<Vec<DeadLetter>, StoreError> {
        let what = "list the dead letters";
        let listing = async {
            let mut connection = self.acquire(what).await?;
            self.tables().dead_letters(&mut connection, query).await.map_err(StoreError::during(what))
        };
        self.in_time(what, listing).await
    }

    /// Returns up to 1,000 dead letters of a message, or of a delivery by its
    /// [`Delivery::subject`](message::Delivery::subject), as a list without payloads has them: the
    /// open ones first, and the newest first of open and closed ones. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`], also when the database did not answer within the call timeout.
    pub async fn dead_letters_of(
        &self,
        subject: Uuid,
        consumer: Option<&ConsumerName>,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        let what = "list the dead letters of a message";
        let listing = async {
            let mut connection = self.acquire(what).await?;
            let found = self.tables().dead_letters_of(&mut connection, subject, consumer).await;
            found.map_err(StoreError::during(what))
        };
        self.in_time(what, listing).await
    }

    /// Returns one dead letter; `None` when there is none with this id. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`], also when the database did not answer within the call timeout.
    pub async fn dead_letter_by_id(&self, id: DeadLetterId) -> Result<Option<DeadLetter>, StoreError> {
        let what = "read a dead letter";
        let reading = async {
            let mut connection = self.acquire(what).await?;
            self.tables().dead_letter(&mut connection, id, false).await.map_err(StoreError::during(what))
        };
        self.in_time(what, reading).await
    }
}
