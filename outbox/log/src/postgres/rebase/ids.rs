//! New ids for rows that have the id of an earlier row or of a parked message.

use sqlx::{Postgres, Transaction};

use super::bases::{moved_back, parted};
use super::{Rebase, Stored, Tried, failed, unless_in_use};
use crate::postgres::mark::PgMark;
use crate::{Cursor, LogError, Progress, stored};

impl Rebase {
    /// Gives new ids to rows that some cursor has not passed and that have the id of an earlier row
    /// or of a parked message. They then follow all others, and an open difference is extended to
    /// them.
    pub(super) async fn renumber_rows(&self, tx: &mut Transaction<'_, Postgres>) -> Result<Tried, LogError> {
        let mut cursors = Vec::new();
        let mut renumbered = 0_i64;
        for Stored { relay, shard, cursor } in self.stored(tx).await? {
            let base = PgMark::read(&cursor.base)?;
            let rows = sqlx::query_scalar(&self.sql.renumber_rows).bind(&base.snapshot).bind(base.floor);
            let rows: Option<i64> = unless_in_use(rows.fetch_one(&mut **tx).await)?;
            let Some(rows) = rows else { return Ok(Tried::InUse) };
            renumbered += rows;
            cursors.push((relay, shard, base, cursor));
        }
        if renumbered == 0 {
            return Ok(Tried::Mended);
        }
        // Since the first row was moved, no other session can take an id.
        let behind: i64 = sqlx::query_scalar(&self.sql.newest).fetch_one(&mut **tx).await.map_err(failed())?;
        let before = behind - renumbered;
        for (relay, shard, base, cursor) in cursors {
            let has_moved = sqlx::query_scalar(&self.sql.has_moved).bind(before).bind(&base.snapshot);
            if !has_moved.fetch_one(&mut **tx).await.map_err(failed())? {
                // Exceptions have still moved with their rows.
                let query = sqlx::query(&self.sql.fence).bind(&relay).bind(shard);
                query.execute(&mut **tx).await.map_err(failed())?;
                continue;
            }
            let base = PgMark { is_rebased: true, ..base };
            let progress = cursor.progress.clone();
            let progress =
                progress.map(|progress| Progress { ceiling: progress.ceiling.max(behind), ..progress });
            let cursor = Cursor { progress, ..moved_back(&cursor, &base) };
            self.replace(tx, &relay, shard, &base.in_flight, &base, &cursor).await?;
        }
        self.part_from_transactions(tx, before).await?;
        tracing::warn!(
            renumbered,
            "rows that were not read yet had the ids of older rows or of parked messages, or follow such a \
             row in its key: they get new ids, after all others"
        );
        Ok(Tried::Mended)
    }

    /// Marks the cursors of relays with broker transactions whose exceptions have got an id above
    /// `above`. The marks of these transactions know exceptions by their old ids, so the relays
    /// stop.
    async fn part_from_transactions(
        &self,
        tx: &mut Transaction<'_, Postgres>,
        above: i64,
    ) -> Result<(), LogError> {
        let relays: Vec<(String, i16, String)> =
            sqlx::query_as(&self.sql.renumbered).bind(above).fetch_all(&mut **tx).await.map_err(failed())?;
        for (relay, shard, cursor) in relays {
            let cursor: Cursor = stored::read(&cursor)?;
            if cursor.transaction.is_some() {
                self.store(tx, &relay, shard, &parted(cursor)).await?;
            }
        }
        Ok(())
    }
}
