//! Differences and their pages.

use super::SqliteReader;
use crate::LogError;
use crate::cursor::{Difference, Mark};
use crate::entry::{EntryId, Page, PageLimit};
use crate::row::Names;
use crate::sqlite::mark::id_of;
use crate::sqlite::page::{rows_max, take};
use crate::sqlite::row::row_max;
use crate::sqlite::statements::SQL;

impl SqliteReader {
    pub(super) async fn difference_after(&mut self, base: &Mark) -> Result<Option<Difference>, LogError> {
        let behind = id_of(base)?;
        let (head, position): (i64, i64) = sqlx::query_as(&SQL.head)
            .fetch_one(&mut self.connection)
            .await
            .map_err(LogError::during("check for new entries"))?;
        // Entries with ids up to the mark would be taken for those that have left. The next term
        // begins at the cursor that the file has now, or is refused with what to run.
        if position < behind {
            return Err(LogError::Unavailable {
                reason: format!(
                    "the relay has read up to the entry {behind}, and the file has only given out ids up to \
                     {position}: an older backup was restored into it, or sqlite_sequence was set back"
                ),
                source: None,
            });
        }
        Ok((head > behind).then(|| Difference {
            base: base.clone(),
            head: Mark::new(head.to_string()),
            ceiling: head,
        }))
    }

    pub(super) async fn page(
        &mut self,
        difference: &Difference,
        after: EntryId,
        limit: PageLimit,
    ) -> Result<Page, LogError> {
        let mut entries = Vec::new();
        let (payload_max, headers_max) = row_max(&limit.row);
        let rows = sqlx::query(&SQL.page)
            .bind(after.0.max(id_of(&difference.base)?))
            .bind(difference.ceiling)
            .bind(rows_max(limit))
            .bind(payload_max)
            .bind(headers_max)
            .fetch(&mut self.connection);
        let (source, mut names) = (&self.source, Names::default());
        let exhausted = take(rows, limit, |_, columns| {
            entries.push(columns.into_entry(&mut names, source, &limit.row));
            Ok(())
        })
        .await?;
        Ok(Page { entries, exhausted })
    }
}
