//! Differences and pages. A mark is the last id.

use async_trait::async_trait;
use futures_util::TryStreamExt;
use futures_util::stream::BoxStream;
use message::Source;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};
use time::OffsetDateTime;

use crate::log::cursor::{Difference, Mark};
use crate::log::entry::{EntryId, Page, PageLimit};
use crate::log::error::quoted;
use crate::log::exception::{Exception, UnknownState};
use crate::log::lease::RelayName;
use crate::log::row::{Names, Row, RowId};
use crate::log::{LogError, LogReader};
use crate::sqlite::statements::{DUE, HEAD, HELD, PAGE};

pub(super) struct SqliteReader {
    pub(super) connection: SqliteConnection,
    pub(super) relay: RelayName,
    pub(super) source: Source,
}

/// The id that a mark is.
pub(super) fn id_of(mark: &Mark) -> Result<i64, LogError> {
    mark.as_str().parse().map_err(|_| LogError::Corrupt {
        what: "mark",
        problem: format!("{} is not the id of an entry", quoted(mark.as_str())),
    })
}

/// Takes rows until the limit is reached, at least one; `exhausted` when the stream had no more.
async fn take(
    mut rows: BoxStream<'_, Result<SqliteRow, sqlx::Error>>,
    limit: PageLimit,
    mut push: impl FnMut(&SqliteRow, Row<'_>) -> Result<(), LogError>,
) -> Result<bool, LogError> {
    let (mut count, mut bytes) = (0, 0);
    while let Some(row) = rows.try_next().await.map_err(LogError::during("read entries"))? {
        let columns = columns(&row)?;
        bytes += columns.payload.len();
        if count > 0 && (count >= limit.entries_max || bytes > limit.bytes_max) {
            return Ok(false);
        }
        count += 1;
        push(&row, columns)?;
    }
    Ok(true)
}

fn columns(row: &SqliteRow) -> Result<Row<'_>, LogError> {
    let read = || -> Result<Row<'_>, sqlx::Error> {
        let enqueued_at: Option<i64> = row.try_get("enqueued_at")?;
        let time = |micros: i64| OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1_000).ok();
        Ok(Row {
            id: row.try_get("id")?,
            message_id: RowId::Text(row.try_get("message_id")?),
            topic: row.try_get("topic")?,
            key: row.try_get("key")?,
            kind: row.try_get("kind")?,
            content_type: row.try_get("content_type")?,
            headers: row.try_get("headers")?,
            traceparent: row.try_get("traceparent")?,
            tracestate: row.try_get("tracestate")?,
            payload: row.try_get("payload")?,
            enqueued_at: enqueued_at.and_then(time),
            deliver_in: row.try_get("deliver_in")?,
        })
    };
    read().map_err(LogError::during("read an entry"))
}

/// One more than the limit tells whether something follows.
fn rows_max(limit: PageLimit) -> i64 {
    i64::try_from(limit.entries_max).unwrap_or(i64::MAX - 1).clamp(1, i64::MAX - 1) + 1
}

impl SqliteReader {
    async fn exceptions(
        &mut self,
        statement: &'static str,
        after: EntryId,
        limit: PageLimit,
    ) -> Result<Vec<Exception>, LogError> {
        let mut exceptions = Vec::new();
        let rows = sqlx::query(statement)
            .bind(self.relay.as_str())
            .bind(after.0)
            .bind(rows_max(limit))
            .fetch(&mut self.connection);
        let source = &self.source;
        take(rows, limit, |row, columns| {
            let read = |error| LogError::during("read an exception")(error);
            let state: String = row.try_get("state").map_err(read)?;
            let attempts: i64 = row.try_get("attempts").map_err(read)?;
            exceptions.push(Exception {
                entry: columns.into_entry(&mut Names::default(), source),
                state: state.parse().map_err(|error: UnknownState| LogError::Corrupt {
                    what: "exception",
                    problem: error.to_string(),
                })?,
                attempts: u32::try_from(attempts).unwrap_or(u32::MAX),
            });
            Ok(())
        })
        .await?;
        Ok(exceptions)
    }
}

#[async_trait]
impl LogReader for SqliteReader {
    async fn next_difference(&mut self, base: &Mark) -> Result<Option<Difference>, LogError> {
        let behind = id_of(base)?;
        let head: i64 = sqlx::query_scalar(HEAD)
            .fetch_one(&mut self.connection)
            .await
            .map_err(LogError::during("look for new entries"))?;
        Ok((head > behind).then(|| Difference {
            base: base.clone(),
            head: Mark::new(head.to_string()),
            ceiling: head,
        }))
    }

    async fn read_page(
        &mut self,
        difference: &Difference,
        after: EntryId,
        limit: PageLimit,
    ) -> Result<Page, LogError> {
        let mut entries = Vec::new();
        let rows = sqlx::query(PAGE)
            .bind(after.0.max(id_of(&difference.base)?))
            .bind(difference.ceiling)
            .bind(rows_max(limit))
            .fetch(&mut self.connection);
        let (source, mut names) = (&self.source, Names::default());
        let exhausted = take(rows, limit, |_, columns| {
            entries.push(columns.into_entry(&mut names, source));
            Ok(())
        })
        .await?;
        Ok(Page { entries, exhausted })
    }

    async fn read_due(&mut self, after: EntryId, limit: PageLimit) -> Result<Vec<Exception>, LogError> {
        self.exceptions(DUE, after, limit).await
    }

    async fn read_held(&mut self, after: EntryId, limit: PageLimit) -> Result<Vec<Exception>, LogError> {
        self.exceptions(HELD, after, limit).await
    }
}
