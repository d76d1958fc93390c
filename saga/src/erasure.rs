//! Removes what ended sagas hold, for a person's right to be forgotten. Their names stay until they
//! are forgotten, so none is started again.

use crate::dialect::Dialect;
use crate::error::StoreError;
use crate::key::SagaId;
use crate::operator::SagaOfId;
use crate::sagas::Sagas;

impl<DB: Dialect> Sagas<DB> {
    /// Returns the sagas with an id, one of each type at most. Leaves out erased ones. Reads one
    /// entry of the primary key for each type, up to 1,000 types. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn of_id(&self, id: &str) -> Result<Vec<SagaOfId>, StoreError> {
        let what = "find the sagas of an id";
        let mut connection = self.acquire().await?;
        self.call(what, self.0.tables.of_id(&mut connection, id)).await
    }

    /// Removes what an ended saga holds: input, output and reason, and the results, replies and
    /// errors of its steps. All in one transaction. Returns false if it has not ended, or is gone.
    /// On PostgreSQL the role must own the tables, or have the rights in docs/erasure.md. Not
    /// cancel-safe: call it again.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn erase(&self, id: &SagaId) -> Result<bool, StoreError> {
        let what = "erase a saga";
        let tx = self.begin(what, DB::begin_saga).await?;
        self.call(what, self.0.tables.erase(tx, id)).await
    }
}
