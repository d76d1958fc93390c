//! The failures of messages.

use std::time::Duration;

use migrations::query::Query;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Tables, of_key};
use crate::attempts::{Attempt, Failed, NotedFailure};
use crate::dialect::Dialect;
use crate::ids::Key;
use crate::rows;

type Result<T> = std::result::Result<T, sqlx::Error>;

impl<DB: Dialect> Tables<DB> {
    /// Records a failure; counts it if it has a pause.
    pub(crate) async fn count_attempt(
        &self,
        connection: &mut DB::Connection,
        key: Key<'_>,
        failed: Failed<'_>,
    ) -> Result<NotedFailure> {
        let noted = of_key::<DB>(&self.shared.count_attempt, key)
            .bind(failed.error)
            .bind(i32::from(failed.pause.is_some()))
            .bind(failed.is_returned)
            .one(connection)
            .await?;
        rows::noted_failure(&noted)
    }

    /// Records when the next attempt is due, as a delay from now.
    pub(crate) async fn postpone(
        &self,
        connection: &mut DB::Connection,
        key: Key<'_>,
        delay: Duration,
    ) -> Result<()> {
        of_key::<DB>(&self.shared.postpone, key).bind(delay).run(connection).await.map(drop)
    }

    /// Reads the failures of a message.
    pub(crate) async fn attempt(
        &self,
        connection: &mut DB::Connection,
        key: Key<'_>,
    ) -> Result<Option<Attempt>> {
        let found = of_key::<DB>(&self.shared.attempt, key).first(connection).await?;
        found.as_ref().map(rows::attempt).transpose()
    }

    /// Counts the end of the process `owner` that had a message in hand, and records that `process`
    /// has it now. Does nothing when another process did so before.
    pub(crate) async fn take_over(
        &self,
        connection: &mut DB::Connection,
        key: Key<'_>,
        owner: Uuid,
        process: Uuid,
    ) -> Result<()> {
        of_key::<DB>(&self.shared.take_over, key).bind(owner).bind(process).run(connection).await.map(drop)
    }

    /// Deletes failures that began before a given time, and those of messages that took effect; at
    /// most `limit`. Returns the number removed.
    pub(crate) async fn purge_attempts(
        &self,
        connection: &mut DB::Connection,
        before: OffsetDateTime,
        limit: u32,
    ) -> Result<u64> {
        Query::<DB>::new(&self.shared.purge_attempts).bind(before).bind(limit).run(connection).await
    }
}
