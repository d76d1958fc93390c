//! Held messages: dead letters that wait behind another one of their key.

use migrations::query::Query;
use time::OffsetDateTime;

use crate::dead_letters::{Cause, DeadLetter, HeldFirst, HeldKey};
use crate::dialect::Dialect;
use crate::ids::DeadLetterId;
use crate::rows;
use crate::tables::{Tables, stored};

type Result<T> = std::result::Result<T, sqlx::Error>;

impl<DB: Dialect> Tables<DB> {
    /// Returns the first open dead letter that holds the key of dead letter `id` and is before it.
    pub(crate) async fn holder_before(
        &self,
        connection: &mut DB::Connection,
        id: DeadLetterId,
    ) -> Result<Option<DeadLetterId>> {
        let found = Query::<DB>::new(&self.shared.holder_before).bind(id.0).first(connection).await?;
        found.as_ref().map(rows::letter_id).transpose()
    }

    /// Returns the first held message of each of the next keys after `after`, in the order of the
    /// keys.
    pub(crate) async fn held_firsts(
        &self,
        connection: &mut DB::Connection,
        consumer: &str,
        after: Option<&HeldKey>,
        limit: u32,
    ) -> Result<Vec<HeldFirst>> {
        // No topic is empty, so every key comes after three empty texts.
        let text = |text: fn(&HeldKey) -> &str| after.map_or("", text);
        let found = Query::<DB>::new(&self.shared.held_firsts)
            .bind(consumer)
            .bind(text(|key| &key.tenant))
            .bind(text(|key| &key.topic))
            .bind(text(|key| &key.key))
            .bind(limit)
            .rows(connection)
            .await?;
        found.iter().map(rows::held_first).collect()
    }

    /// Returns the keys of dead letters that were closed since a given time, latest first.
    pub(crate) async fn closed_since(
        &self,
        connection: &mut DB::Connection,
        consumer: &str,
        since: OffsetDateTime,
        limit: u32,
    ) -> Result<Vec<HeldKey>> {
        let query = Query::<DB>::new(&self.shared.closed_since).bind(since).bind(limit).bind(consumer);
        query.rows(connection).await?.iter().map(rows::held_key).collect()
    }

    /// Reads and locks a held message. Returns `None` when it is no longer held, or another
    /// transaction has the lock.
    pub(crate) async fn lock_held(
        &self,
        connection: &mut DB::Connection,
        id: DeadLetterId,
    ) -> Result<Option<DeadLetter>> {
        let found = Query::<DB>::new(&self.shared.lock_held).bind(id.0).first(connection).await?;
        found.as_ref().map(rows::letter).transpose()
    }

    /// Turns a held message into an ordinary dead letter. Returns the number of rows changed.
    pub(crate) async fn fail_held(
        &self,
        connection: &mut DB::Connection,
        id: DeadLetterId,
        Cause { reason, error, attempts }: &Cause,
    ) -> Result<u64> {
        let fail = Query::<DB>::new(&self.shared.fail_held).bind(id.0).bind(reason.as_str());
        fail.bind(error).bind(stored(*attempts)).run(connection).await
    }
}
