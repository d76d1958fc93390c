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
        let head: i64 = sqlx::query_scalar(&SQL.head)
            .fetch_one(&mut self.connection)
            .await
            .map_err(LogError::during("check for new entries"))?;
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
