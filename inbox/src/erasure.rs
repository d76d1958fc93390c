//! Removes what an inbox stores about the messages of a key, for a person's right to be forgotten:
//! results, and the contents of closed dead letters. The ids and fingerprints of messages stay, so
//! no copy takes effect again.

use message::ERASED_CONTENT_TYPE;
use uuid::Uuid;

use crate::dead_letters::{KeyedLetter, LetterSlice, LettersOfKey};
use crate::dialect::Dialect;
use crate::ids::{DeadLetterId, Tenant};
use crate::inbox::Inbox;
use crate::store_error::StoreError;

impl<DB: Dialect> Inbox<DB> {
    /// Returns the next dead letters of a key, open and closed, in the order of their ids. Looks at
    /// [`LETTERS_LOOKED_AT_MAX`](crate::LETTERS_LOOKED_AT_MAX) dead letters, so a slice can be empty
    /// and still have a next one. An erased one has no key any more. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn letters_of_key(
        &self,
        of: &LettersOfKey,
        after: Option<DeadLetterId>,
    ) -> Result<LetterSlice<KeyedLetter>, StoreError> {
        let what = "find the dead letters of a key";
        let finding = async {
            let mut connection = self.acquire(what).await?;
            let found = self.tables().letters_of_key(&mut connection, of, after).await;
            found.map_err(StoreError::during(what))
        };
        self.in_time(what, finding).await
    }

    /// Counts the stored results of messages, of all consumers. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn results_of(&self, ids: &[Uuid], tenant: Option<&Tenant>) -> Result<u64, StoreError> {
        let what = "count results";
        let counting = async {
            let mut connection = self.acquire(what).await?;
            self.tables().results_of(&mut connection, ids, tenant).await.map_err(StoreError::during(what))
        };
        self.in_time(what, counting).await
    }

    /// Removes the stored results of messages, of all consumers, in one statement: give it a few
    /// hundred ids at most. Returns their number. The messages stay in the inbox: a copy is a
    /// duplicate as before, without a result. Not cancel-safe: call it again.
    ///
    /// # Errors
    /// [`StoreError`], also for a role that may not change `result`.
    pub async fn erase_results(&self, ids: &[Uuid], tenant: Option<&Tenant>) -> Result<u64, StoreError> {
        let what = "erase results";
        let erasing = async {
            let mut connection = self.acquire(what).await?;
            self.tables().erase_results(&mut connection, ids, tenant).await.map_err(StoreError::during(what))
        };
        self.in_time(what, erasing).await
    }

    /// Removes what closed dead letters hold: key, headers, trace context, payload and error, with
    /// the errors and filters of the decisions about them. All in one transaction: give it a few
    /// hundred at most. Returns the number of erased dead letters; an open one stays as it is. They
    /// keep their ids and fingerprints, so a copy is recognised as before. On PostgreSQL the role
    /// must own the tables, or have the rights in docs/erasure.md. Not cancel-safe: call it again.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn erase_letters(&self, letters: &[DeadLetterId]) -> Result<u64, StoreError> {
        let what = "erase dead letters";
        let ids: Vec<Uuid> = letters.iter().map(|letter| letter.0).collect();
        let erasing = async {
            let mut tx = self.begin_raw(what).await?;
            let tables = self.tables();
            let erased = tables.erase_letters(&mut tx, &ids, ERASED_CONTENT_TYPE).await;
            let erased = erased.map_err(StoreError::during(what))?;
            tx.commit().await.map_err(StoreError::during(what))?;
            Ok(erased)
        };
        self.in_time(what, erasing).await
    }
}
