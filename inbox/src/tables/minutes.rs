//! Counts of consumers, per minute.

use migrations::query::Query;
use time::OffsetDateTime;

use super::Tables;
use crate::activity::{ConsumerCounts, Counts};
use crate::dialect::Dialect;
use crate::rows;

type Result<T> = std::result::Result<T, sqlx::Error>;

impl<DB: Dialect> Tables<DB> {
    /// Adds counts to the current minute of the database's clock.
    pub(crate) async fn add_counts(
        &self,
        connection: &mut DB::Connection,
        consumer: &str,
        counts: Counts,
    ) -> Result<()> {
        let number = |count| i64::try_from(count).unwrap_or(i64::MAX);
        let add = Query::<DB>::new(&self.shared.add_counts).bind(consumer);
        let add = add.bind(number(counts.applied)).bind(number(counts.duplicates));
        add.run(connection).await.map(drop)
    }

    /// Returns the counts of each consumer since a given time, by name, and the last minute since
    /// `back_to` in which it applied something.
    pub(crate) async fn counts(
        &self,
        connection: &mut DB::Connection,
        from: OffsetDateTime,
        back_to: OffsetDateTime,
    ) -> Result<Vec<ConsumerCounts>> {
        let found = Query::<DB>::new(&self.shared.counts).bind(from).bind(back_to).rows(connection).await?;
        found.iter().map(rows::counts).collect()
    }

    /// Deletes minutes before a given time.
    pub(crate) async fn purge_minutes(
        &self,
        connection: &mut DB::Connection,
        before: OffsetDateTime,
    ) -> Result<()> {
        Query::<DB>::new(&self.shared.purge_minutes).bind(before).run(connection).await.map(drop)
    }
}
