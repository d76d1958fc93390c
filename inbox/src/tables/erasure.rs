//! Removes results and the contents of dead letters.

use migrations::query::{Query, Row};
use uuid::Uuid;

use super::Tables;
use super::dead_letters::slice;
use crate::dead_letters::{KeyedLetter, LETTERS_LOOKED_AT_MAX, LetterSlice, LettersOfKey};
use crate::dialect::Dialect;
use crate::ids::{DeadLetterId, Tenant};
use crate::rows;

type Result<T> = std::result::Result<T, sqlx::Error>;

impl<DB: Dialect> Tables<DB> {
    /// Reads the next dead letters of a key.
    pub(crate) async fn letters_of_key(
        &self,
        connection: &mut DB::Connection,
        of: &LettersOfKey,
        after: Option<DeadLetterId>,
    ) -> Result<LetterSlice<KeyedLetter>> {
        let found = Query::<DB>::new(&self.shared.letters_of_key)
            .bind(after.map(|id| id.0))
            .bind(LETTERS_LOOKED_AT_MAX)
            .bind(&of.key)
            .bind(of.topic.as_deref())
            .bind(of.tenant.as_ref().map(Tenant::as_str))
            .rows(connection)
            .await?;
        slice(&found, rows::keyed_letter)
    }

    /// Counts the stored results of messages.
    pub(crate) async fn results_of(
        &self,
        connection: &mut DB::Connection,
        ids: &[Uuid],
        tenant: Option<&Tenant>,
    ) -> Result<u64> {
        let query = Query::<DB>::new(&self.shared.results_of).bind(ids).bind(tenant.map(Tenant::as_str));
        let counted: Row<DB> = query.one(connection).await?;
        counted.get("results")
    }

    /// Removes the stored results of messages. Returns their number.
    pub(crate) async fn erase_results(
        &self,
        connection: &mut DB::Connection,
        ids: &[Uuid],
        tenant: Option<&Tenant>,
    ) -> Result<u64> {
        let query = Query::<DB>::new(&self.shared.erase_results).bind(ids);
        query.bind(tenant.map(Tenant::as_str)).run(connection).await
    }

    /// Removes what closed dead letters and the decisions about them hold. Returns the number of
    /// dead letters.
    pub(crate) async fn erase_letters(
        &self,
        connection: &mut DB::Connection,
        ids: &[Uuid],
        content_type: &str,
    ) -> Result<u64> {
        let erase = Query::<DB>::new(&self.shared.erase_letters).bind(ids).bind(content_type);
        let erased = erase.run(&mut *connection).await?;
        Query::<DB>::new(&self.shared.erase_outcomes).bind(ids).run(connection).await?;
        Ok(erased)
    }
}
