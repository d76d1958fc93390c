//! Removes stored answers, for a person's right to be forgotten. The keys stay until they expire,
//! so no request runs again.

use crate::handle::IdempotencyKeys;
use crate::id::KeyId;
use crate::record::{KeysOfName, NamedSlice};
use crate::store::KeyStore;
use outbox::StoreError;

impl<DB: KeyStore> IdempotencyKeys<DB> {
    /// Returns the next keys with a name, in the order of tenant, operation and key. Looks at
    /// [`KEYS_LOOKED_AT_MAX`](crate::KEYS_LOOKED_AT_MAX) keys, so a slice can be empty and still have
    /// a next one. Leaves out erased ones. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn named(&self, of: &KeysOfName, after: Option<&KeyId>) -> Result<NamedSlice, StoreError> {
        let named = self.tables().named(self.pool(), of, after);
        self.db().call(named).await.map_err(StoreError::during("find idempotency keys"))
    }

    /// Removes the answer of a key that has ended, and the fingerprint of its request. From then
    /// on, every request with the key is answered like one with a discarded key, whatever it asks
    /// for. None runs. Returns false if the key has no answer (any longer). On PostgreSQL the role
    /// must own the table: a trigger keeps answers from others. Not cancel-safe: call it again.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn erase(&self, id: &KeyId, actor: &str) -> Result<bool, StoreError> {
        let erasing = self.tables().erase(self.pool(), id, actor);
        self.db().call(erasing).await.map_err(StoreError::during("erase an idempotency key"))
    }
}
