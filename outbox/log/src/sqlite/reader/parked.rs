//! Entries that are parked beside the log.

use std::time::Duration;

use message::Source;
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use super::SqliteReader;
use crate::LogError;
use crate::entry::{EntryId, PageLimit, RowLimit};
use crate::exception::{Exception, ExceptionState, StuckPage, StuckRow};
use crate::queue::{DueKind, DuePage, DuePosition, HeldAsk, HeldPage, HeldQueues, QueueName};
use crate::row::{Names, Row, wait};
use crate::sqlite::page::{rows_max, take};
use crate::sqlite::row::row_max;
use crate::sqlite::statements::SQL;

impl SqliteReader {
    pub(super) async fn due(
        &mut self,
        kind: DueKind,
        after: Option<DuePosition>,
        limit: PageLimit,
    ) -> Result<DuePage, LogError> {
        let place = after.unwrap_or(DuePosition { at_micros: 0, id: EntryId(0) });
        let mut page = DuePage { position: after, ..DuePage::default() };
        let (payload_max, headers_max) = row_max(&limit.row);
        let statement = match kind {
            DueKind::Scheduled => &SQL.due,
            DueKind::Retrying => &SQL.retried,
        };
        let rows = sqlx::query(statement)
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
            page.next_in = self.next_due_in(kind, page.position.unwrap_or(place)).await?;
        }
        Ok(page)
    }

    pub(super) async fn first(
        &mut self,
        probes: &[EntryId],
        limit: PageLimit,
    ) -> Result<Vec<Exception>, LogError> {
        let (payload_max, headers_max) = row_max(&limit.row);
        let ids: Vec<String> = probes.iter().map(|id| id.0.to_string()).collect();
        let rows = sqlx::query(&SQL.first)
            .bind(self.relay.as_str())
            .bind(format!("[{}]", ids.join(",")))
            .bind(rows_max(limit))
            .bind(payload_max)
            .bind(headers_max)
            .fetch(&mut self.connection);
        let mut exceptions = Vec::new();
        let source = &self.source;
        take(rows, limit, |row, columns| {
            exceptions.push(exception(row, columns, source, &limit.row)?);
            Ok(())
        })
        .await?;
        Ok(exceptions)
    }

    pub(super) async fn held(
        &mut self,
        asks: &[HeldAsk],
        limit: PageLimit,
    ) -> Result<Vec<HeldPage>, LogError> {
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

    pub(super) async fn queues(
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
            .map_err(LogError::during("list held entries"))?;
        Ok(HeldQueues::of(rows, queues_max))
    }

    pub(super) async fn stuck_entries(
        &mut self,
        after: EntryId,
        walked_max: usize,
        dead_blocks: bool,
    ) -> Result<StuckPage, LogError> {
        let rows: Vec<StuckRow> = sqlx::query_as(&SQL.stuck)
            .bind(self.relay.as_str())
            .bind(after.0)
            .bind(i64::try_from(walked_max).unwrap_or(i64::MAX))
            .bind(dead_blocks)
            .fetch_all(&mut self.connection)
            .await
            .map_err(LogError::during("list exceptions"))?;
        StuckPage::stored(rows)
    }

    async fn next_due_in(&mut self, kind: DueKind, place: DuePosition) -> Result<Option<Duration>, LogError> {
        let statement = match kind {
            DueKind::Scheduled => &SQL.next_due,
            DueKind::Retrying => &SQL.next_retried,
        };
        let seconds: Option<f64> = sqlx::query_scalar(statement)
            .bind(self.relay.as_str())
            .bind(place.at_micros)
            .bind(place.id.0)
            .fetch_optional(&mut self.connection)
            .await
            .map_err(LogError::during("find the next due entry"))?;
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
