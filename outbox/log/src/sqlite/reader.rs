//! Reads differences and pages. A mark is the last id.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::TryStreamExt;
use futures_util::stream::BoxStream;
use message::Source;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};
use time::OffsetDateTime;

use crate::cursor::{Difference, Mark};
use crate::entry::{EntryId, Lengths, Page, PageLimit, RowLimit};
use crate::error::quoted;
use crate::exception::{Exception, ExceptionState, ExceptionSummary};
use crate::lease::RelayName;
use crate::queue::{DuePage, DuePosition, HeldAsk, HeldPage, HeldQueues, QueueName};
use crate::row::{Names, Row, RowId, wait};
use crate::sqlite::statements::SQL;
use crate::text;
use crate::{LogError, LogReader, Pause};

pub(super) struct SqliteReader {
    pub(super) connection: SqliteConnection,
    pub(super) relay: RelayName,
    pub(super) source: Source,
}

/// Returns the id in a mark.
pub(super) fn id_of(mark: &Mark) -> Result<i64, LogError> {
    mark.as_str().parse().map_err(|_| LogError::Corrupt {
        what: "mark",
        problem: format!("{} is not the id of an entry", quoted(mark.as_str())),
    })
}

/// Takes rows until the limit is reached, at least one. Returns whether the stream had no more.
async fn take(
    mut rows: BoxStream<'_, Result<SqliteRow, sqlx::Error>>,
    limit: PageLimit,
    mut push: impl FnMut(&SqliteRow, Row<'_>) -> Result<(), LogError>,
) -> Result<bool, LogError> {
    let (mut count, mut bytes) = (0, 0);
    while let Some(row) = rows.try_next().await.map_err(LogError::during("read entries"))? {
        let columns = columns(&row)?;
        // Content that is too large was not read and counts as empty.
        bytes += columns.payload.len() + columns.headers.map_or(0, <[u8]>::len);
        bytes += columns.tracestate.map_or(0, <[u8]>::len);
        if count > 0 && (count >= limit.entries_max || bytes > limit.bytes_max) {
            return Ok(false);
        }
        count += 1;
        push(&row, columns)?;
    }
    Ok(true)
}

/// Borrows the columns of a message. Texts are taken as bytes: the log knows which of them must be
/// UTF-8.
pub(super) fn columns(row: &SqliteRow) -> Result<Row<'_>, LogError> {
    let read = || -> Result<Row<'_>, sqlx::Error> {
        let enqueued_at: Option<i64> = row.try_get("enqueued_at")?;
        let time = |micros: i64| OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1_000).ok();
        let length =
            |name| Ok::<_, sqlx::Error>(usize::try_from(row.try_get::<i64, _>(name)?).unwrap_or_default());
        let payload: Option<&[u8]> = row.try_get("payload")?;
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
            payload: payload.unwrap_or_default(),
            lengths: Lengths { payload: length("payload_bytes")?, headers: length("headers_bytes")? },
            enqueued_at: enqueued_at.and_then(time),
            deliver_in: row.try_get("deliver_in")?,
        })
    };
    read().map_err(LogError::during("read an entry"))
}

/// Returns the longest payload and the longest headers that are read, in bytes.
pub(super) fn row_max(limit: &RowLimit) -> (i64, i64) {
    let max = |bytes| i64::try_from(bytes).unwrap_or(i64::MAX);
    (max(limit.payload.message_bytes_max), max(limit.headers_bytes_max()))
}

/// Reads a text that may not be UTF-8, for display to an operator.
pub(super) fn text(row: &SqliteRow, column: &str) -> Result<String, sqlx::Error> {
    row.try_get::<&[u8], _>(column).map(text::shown)
}

/// Like [`text`], for a column that may be null.
pub(super) fn optional_text(row: &SqliteRow, column: &str) -> Result<Option<String>, sqlx::Error> {
    Ok(row.try_get::<Option<&[u8]>, _>(column)?.map(text::shown))
}

/// Returns one more than the limit, which shows whether a row follows.
fn rows_max(limit: PageLimit) -> i64 {
    i64::try_from(limit.entries_max).unwrap_or(i64::MAX - 1).clamp(1, i64::MAX - 1) + 1
}

fn exception(
    row: &SqliteRow,
    columns: Row<'_>,
    source: &Source,
    limit: &RowLimit,
) -> Result<Exception, LogError> {
    let read = |error| LogError::during("read an exception")(error);
    let state: String = row.try_get("state").map_err(read)?;
    let attempts: i64 = row.try_get("attempts").map_err(read)?;
    Ok(Exception {
        entry: columns.into_entry(&mut Names::default(), source, limit),
        state: ExceptionState::stored(&state)?,
        attempts: u32::try_from(attempts).unwrap_or(u32::MAX),
    })
}

impl SqliteReader {
    async fn next_due_in(&mut self, place: DuePosition) -> Result<Option<Duration>, LogError> {
        let seconds: Option<f64> = sqlx::query_scalar(&SQL.next_due)
            .bind(self.relay.as_str())
            .bind(place.at_micros)
            .bind(place.id.0)
            .fetch_optional(&mut self.connection)
            .await
            .map_err(LogError::during("find out what is due next"))?;
        Ok(seconds.map(|seconds| wait(seconds).unwrap_or_default()))
    }

    async fn held_page(&mut self, ask: &HeldAsk, limit: PageLimit) -> Result<HeldPage, LogError> {
        let mut page = HeldPage::default();
        let (payload_max, headers_max) = row_max(&limit.row);
        let rows = sqlx::query(&SQL.held)
            .bind(self.relay.as_str())
            .bind(ask.queue.as_str())
            .bind(ask.from.0)
            .bind(rows_max(limit))
            .bind(payload_max)
            .bind(headers_max)
            .fetch(&mut self.connection);
        let source = &self.source;
        page.exhausted = take(rows, limit, |row, columns| {
            page.exceptions.push(exception(row, columns, source, &limit.row)?);
            Ok(())
        })
        .await?;
        Ok(page)
    }
}

#[async_trait]
impl LogReader for SqliteReader {
    async fn next_difference(&mut self, base: &Mark) -> Result<Option<Difference>, LogError> {
        let behind = id_of(base)?;
        let head: i64 = sqlx::query_scalar(&SQL.head)
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

    async fn read_due(&mut self, after: Option<DuePosition>, limit: PageLimit) -> Result<DuePage, LogError> {
        let place = after.unwrap_or(DuePosition { at_micros: 0, id: EntryId(0) });
        let mut page = DuePage { position: after, ..DuePage::default() };
        let (payload_max, headers_max) = row_max(&limit.row);
        let rows = sqlx::query(&SQL.due)
            .bind(self.relay.as_str())
            .bind(place.at_micros)
            .bind(place.id.0)
            .bind(rows_max(limit))
            .bind(payload_max)
            .bind(headers_max)
            .fetch(&mut self.connection);
        let source = &self.source;
        page.exhausted = take(rows, limit, |row, columns| {
            let at_micros = row.try_get("due_at").map_err(LogError::during("read an exception"))?;
            page.position = Some(DuePosition { at_micros, id: EntryId(columns.id) });
            page.exceptions.push(exception(row, columns, source, &limit.row)?);
            Ok(())
        })
        .await?;
        if page.exhausted {
            page.next_in = self.next_due_in(page.position.unwrap_or(place)).await?;
        }
        Ok(page)
    }

    async fn read_held(&mut self, asks: &[HeldAsk], limit: PageLimit) -> Result<Vec<HeldPage>, LogError> {
        let each = (limit.entries_max / asks.len().max(1)).max(1);
        let mut bytes_left = limit.bytes_max;
        let mut pages = Vec::with_capacity(asks.len());
        for ask in asks {
            let is_over = bytes_left == 0 && !pages.is_empty();
            let limit = PageLimit { entries_max: each, bytes_max: bytes_left, row: limit.row };
            let page = if is_over { HeldPage::default() } else { self.held_page(ask, limit).await? };
            let bytes = page.exceptions.iter().map(|exception| exception.entry.bytes()).sum();
            bytes_left = bytes_left.saturating_sub(bytes);
            pages.push(page);
        }
        Ok(pages)
    }

    async fn held_queues(
        &mut self,
        after: Option<&QueueName>,
        queues_max: usize,
    ) -> Result<HeldQueues, LogError> {
        let rows = sqlx::query_as(&SQL.held_queues)
            .bind(self.relay.as_str())
            .bind(after.map_or("", QueueName::as_str))
            .bind(i64::try_from(queues_max).unwrap_or(i64::MAX))
            .fetch_all(&mut self.connection)
            .await
            .map_err(LogError::during("list what is held"))?;
        Ok(HeldQueues::of(rows, queues_max))
    }

    async fn stuck(&mut self, after: EntryId, entries_max: usize) -> Result<Vec<ExceptionSummary>, LogError> {
        let rows: Vec<(i64, Option<String>, String)> = sqlx::query_as(&SQL.stuck)
            .bind(self.relay.as_str())
            .bind(after.0)
            .bind(i64::try_from(entries_max).unwrap_or(i64::MAX))
            .fetch_all(&mut self.connection)
            .await
            .map_err(LogError::during("list exceptions"))?;
        rows.into_iter().map(|(id, key, state)| ExceptionSummary::stored(id, key, &state)).collect()
    }

    async fn pauses(&mut self) -> Result<Vec<Pause>, LogError> {
        super::pause::read(&mut self.connection, &self.relay).await
    }
}
