//! The rows of messages that took effect.

use message::Fingerprint;
use migrations::query::{Query, Row};

use super::{Tables, of_key};
use crate::comparison::{Content, Stored};
use crate::dialect::{Dialect, Inserted, Mark, NewRow};
use crate::ids::{DeadLetterId, Key};
use crate::rows;

type Result<T> = std::result::Result<T, sqlx::Error>;

impl<DB: Dialect> Tables<DB> {
    /// Inserts a row unless its key exists. A new row can be marked: see
    /// [`commit`](crate::dialect::Guards::commit).
    pub(crate) async fn insert(
        &self,
        connection: &mut DB::Connection,
        NewRow { key, content }: NewRow<'_>,
        mark: Mark,
    ) -> Result<Inserted> {
        let insert = of_key(&self.shared.insert, key)
            .bind(&content.fingerprint.as_bytes()[..])
            .bind(mark == Mark::Yes)
            .bind(content.source)
            .bind(content.canonical_bytes());
        self.insert_or_find(connection, key, insert).await
    }

    /// Inserts the row of a message that became a dead letter, unless its key exists.
    pub(crate) async fn insert_dead(
        &self,
        connection: &mut DB::Connection,
        NewRow { key, content }: NewRow<'_>,
        id: DeadLetterId,
    ) -> Result<Inserted> {
        let insert = of_key(&self.shared.insert_dead, key)
            .bind(&content.fingerprint.as_bytes()[..])
            .bind(id.0)
            .bind(content.source)
            .bind(content.canonical_bytes());
        self.insert_or_find(connection, key, insert).await
    }

    /// Runs an insert. Looks up the existing row when the insert returned no row.
    async fn insert_or_find(
        &self,
        connection: &mut DB::Connection,
        key: Key<'_>,
        insert: Query<DB>,
    ) -> Result<Inserted> {
        match insert.first(&mut *connection).await {
            Ok(Some(row)) => rows::inserted(&row),
            Ok(None) => match self.find(connection, key).await? {
                Some(stored) => Ok(Inserted::Exists(stored)),
                None if DB::INSERTS_NOTHING_FORGOTTEN => Ok(Inserted::Forgotten),
                // Only when the row was removed by hand between the two statements.
                None => Err(sqlx::Error::RowNotFound),
            },
            Err(error) if DB::is_of_forgotten_day(&error) => Ok(Inserted::Forgotten),
            Err(error) => Err(error),
        }
    }

    /// Reads a row.
    pub(crate) async fn find(&self, connection: &mut DB::Connection, key: Key<'_>) -> Result<Option<Stored>> {
        let found = of_existing(of_key::<DB>(&self.shared.find, key)).first(connection).await?;
        found.as_ref().map(rows::stored).transpose()
    }

    /// Reads the fingerprint of a row's canonical JSON.
    pub(crate) async fn canonical(
        &self,
        connection: &mut DB::Connection,
        key: Key<'_>,
    ) -> Result<Option<Fingerprint>> {
        let found = of_existing(of_key::<DB>(&self.shared.canonical, key)).first(connection).await?;
        let canonical = |row: &Row<DB>| rows::fingerprint_if_any(row, "canonical_fingerprint");
        found.as_ref().map_or(Ok(None), canonical)
    }

    /// Stores the result of a row. Returns the number of rows changed.
    pub(crate) async fn complete(
        &self,
        connection: &mut DB::Connection,
        key: Key<'_>,
        result: &[u8],
    ) -> Result<u64> {
        of_existing(of_key::<DB>(&self.shared.complete, key).bind(result)).run(connection).await
    }

    /// Turns the row of a dead letter into that of a message which takes effect in this
    /// transaction. Marks it, and stores its canonical JSON if there is one. Returns the number of
    /// rows changed.
    pub(crate) async fn clear_dead(
        &self,
        connection: &mut DB::Connection,
        key: Key<'_>,
        id: DeadLetterId,
        content: Content<'_>,
    ) -> Result<u64> {
        let clear = of_key::<DB>(&self.shared.clear_dead, key).bind(id.0).bind(content.canonical_bytes());
        of_existing(clear).run(connection).await
    }
}

/// Prepares a statement that reads or changes existing rows: see
/// [`KEEPS_PLANS`](crate::dialect::Guards::KEEPS_PLANS).
pub(super) fn of_existing<DB: Dialect>(query: Query<DB>) -> Query<DB> {
    query.persistent(DB::KEEPS_PLANS)
}
