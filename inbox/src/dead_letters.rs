//! Reads dead letters.

use crate::dead_letter::{DeadLetter, DeadLetterId, DeadLetterQuery};
use crate::dialect::Dialect;
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
