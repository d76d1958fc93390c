//! Lookups of messages.

use std::time::Duration;

use migrations::query::Query;
use uuid::Uuid;

use super::Tables;
use super::guard::of_existing;
use crate::activity::{ActivityRow, ActivityRows};
use crate::dialect::Dialect;
use crate::ids::ConsumerName;
use crate::known::Known;
use crate::rows;

type Result<T> = std::result::Result<T, sqlx::Error>;

impl<DB: Dialect> Tables<DB> {
    /// Returns everything that is known about a message, for all consumers.
    pub(crate) async fn known(&self, connection: &mut DB::Connection, id: Uuid) -> Result<Vec<Known>> {
        let applied = of_existing(Query::<DB>::new(&self.shared.known_rows).bind(id));
        let applied = applied.rows(&mut *connection).await?;
        let failing = Query::<DB>::new(&self.shared.known_attempts).bind(id).rows(connection).await?;
        applied.iter().map(rows::known).chain(failing.iter().map(rows::known_attempt)).collect()
    }

    /// Returns those of these messages that are applied, or have a dead letter.
    pub(crate) async fn settled(
        &self,
        connection: &mut DB::Connection,
        ids: &[Uuid],
        consumer: Option<&ConsumerName>,
    ) -> Result<Vec<Uuid>> {
        let query = Query::<DB>::new(&self.shared.settled).bind(ids).bind(consumer.map(ConsumerName::as_str));
        query.rows(connection).await?.iter().map(|row| row.get("message_id")).collect()
    }

    /// Counts what consumers did with messages whose ids are not below `from`, and what waits.
    /// Counts at most `rows_max` rows of each kind. `limit` is that of one statement.
    pub(crate) async fn activity(
        &self,
        connection: &mut DB::Connection,
        from: Uuid,
        rows_max: u32,
        limit: Duration,
    ) -> Result<ActivityRows> {
        let applied = Query::new(&self.shared.activity_applied).bind(from).bind(rows_max);
        // The newest rows come from the indexes of the days, in their order. A day that is empty
        // costs nothing to scan, and such a scan would make the planner sort all other days.
        let applied = DB::read_within(connection, applied, limit).await?;
        let failing = Query::new(&self.shared.activity_attempts).bind(rows_max);
        let letters = Query::<DB>::new(&self.shared.activity_letters).bind(rows_max);
        Ok(ActivityRows {
            applied: applied.iter().map(rows::activity).collect::<Result<_>>()?,
            failing: active::<DB>(connection, failing).await?,
            letters: letters.rows(connection).await?.iter().map(rows::letters).collect::<Result<_>>()?,
        })
    }
}

async fn active<DB: Dialect>(connection: &mut DB::Connection, query: Query<DB>) -> Result<Vec<ActivityRow>> {
    query.rows(connection).await?.iter().map(rows::activity).collect()
}
