//! Entries that are parked beside the log.

use migrations::Statement;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Postgres, Row as _};
use time::OffsetDateTime;

use super::{PgReader, rows_max};
use crate::LogError;
use crate::admin::entry::at_micros;
use crate::entry::{EntryId, PageLimit};
use crate::exception::{Exception, ExceptionState, StuckPage, StuckRow};
use crate::postgres::page::{Cut, Place, short_max};
use crate::postgres::row::{self, Column};
use crate::queue::{DueKind, DuePage, DuePosition, HeldAsk, HeldPage, HeldQueues, QueueName};
use crate::row::{Names, wait};

type ParkedQuery = Query<'static, Postgres, PgArguments>;

impl PgReader {
    pub(super) async fn due(
        &mut self,
        kind: DueKind,
        after: Option<DuePosition>,
        limit: PageLimit,
    ) -> Result<DuePage, LogError> {
        let place = after.unwrap_or(DuePosition { at_micros: 0, id: EntryId(0) });
        let asked = self.parked_pace.rows(limit);
        let statement = match kind {
            DueKind::Scheduled => &self.statements.due,
            DueKind::Retrying => &self.statements.retried,
        };
        let query = self.of_relay(statement, asked, short_max(limit, asked));
        let query = query.bind(at_micros(place.at_micros)).bind(place.id.0).bind(self.run.clone());
        let cut = self.cut(query, limit, asked, "read what is due").await?;
        let mut page = DuePage { position: after, exhausted: cut.exhausted, ..DuePage::default() };
        for row in &cut.rows {
            let exception = self.exception(row, &cut, limit)?;
            let at: OffsetDateTime =
                row.try_get(Column::PLACE).map_err(LogError::during("read due entries"))?;
            let at_micros = i64::try_from(at.unix_timestamp_nanos() / 1_000).unwrap_or(i64::MAX);
            page.position = Some(DuePosition { at_micros, id: exception.entry.id });
            page.exceptions.push(exception);
        }
        if page.exhausted {
            let place = page.position.unwrap_or(place);
            let statement = match kind {
                DueKind::Scheduled => &self.statements.next_due,
                DueKind::Retrying => &self.statements.next_retried,
            };
            let seconds: Option<f64> = sqlx::query_scalar(statement)
                .bind(self.relay.as_str())
                .bind(at_micros(place.at_micros))
                .bind(place.id.0)
                .fetch_optional(&mut self.connection)
                .await
                .map_err(LogError::during("find the next due entry"))?;
            page.next_in = seconds.map(|seconds| wait(seconds).unwrap_or_default());
        }
        Ok(page)
    }

    pub(super) async fn first(
        &mut self,
        probes: &[EntryId],
        limit: PageLimit,
    ) -> Result<Vec<Exception>, LogError> {
        let asked = self.parked_pace.rows(limit);
        let query = self.of_relay(&self.statements.first, asked, short_max(limit, asked));
        let query = query.bind(probes.iter().map(|id| id.0).collect::<Vec<_>>()).bind(self.run.clone());
        let cut = self.cut(query, limit, asked, "read what is retried before the rest").await?;
        cut.rows.iter().map(|row| self.exception(row, &cut, limit)).collect()
    }

    pub(super) async fn held(
        &mut self,
        asks: &[HeldAsk],
        limit: PageLimit,
    ) -> Result<Vec<HeldPage>, LogError> {
        let each = (self.parked_pace.rows(limit) / asks.len().max(1)).max(1);
        let asked = each.saturating_mul(asks.len());
        let limit = PageLimit { entries_max: asked, ..limit };
        let query = self
            .of_relay(&self.statements.held, each, short_max(limit, asked))
            .bind(asks.iter().map(|ask| ask.queue.as_str().to_owned()).collect::<Vec<_>>())
            .bind(asks.iter().map(|ask| ask.from.0).collect::<Vec<_>>())
            .bind(self.run.clone());
        let cut = self.cut(query, limit, asked, "read held entries").await?;
        let mut pages = vec![HeldPage::default(); asks.len()];
        let mut last = 0;
        for row in &cut.rows {
            let place: i64 = row.try_get(Column::PLACE).map_err(LogError::during("read a held entry"))?;
            last = usize::try_from(place).unwrap_or_default().saturating_sub(1);
            if let Some(page) = pages.get_mut(last) {
                page.exceptions.push(self.exception(row, &cut, limit)?);
            }
        }
        for (place, page) in pages.iter_mut().enumerate() {
            // Nothing is known after the position of the cut.
            page.exhausted = page.exceptions.len() < each && !(cut.is_cut && place >= last);
        }
        Ok(pages)
    }

    pub(super) async fn queues(
        &mut self,
        after: Option<&QueueName>,
        queues_max: usize,
    ) -> Result<HeldQueues, LogError> {
        let rows: Vec<(String, i64, String)> = sqlx::query_as(&self.statements.held_queues)
            .bind(self.relay.as_str())
            .bind(after.map_or("", QueueName::as_str))
            .bind(rows_max(queues_max))
            .bind(&self.run)
            .fetch_all(&mut self.connection)
            .await
            .map_err(LogError::during("list held entries"))?;
        self.check_run(rows.len()).await?;
        Ok(HeldQueues::of(rows, queues_max))
    }

    pub(super) async fn stuck_entries(
        &mut self,
        after: EntryId,
        walked_max: usize,
        dead_blocks: bool,
    ) -> Result<StuckPage, LogError> {
        let rows: Vec<StuckRow> = sqlx::query_as(&self.statements.stuck)
            .bind(self.relay.as_str())
            .bind(after.0)
            .bind(i64::try_from(walked_max).unwrap_or(i64::MAX))
            .bind(&self.run)
            .bind(dead_blocks)
            .fetch_all(&mut self.connection)
            .await
            .map_err(LogError::during("list exceptions"))?;
        self.check_run(rows.len()).await?;
        StuckPage::stored(rows)
    }

    /// Begins a query for parked entries: `$1` rows, `$2` maximum bytes of content that is read
    /// with its row, `$3` relay.
    fn of_relay(&self, statement: &Statement, rows: usize, short_max: i64) -> ParkedQuery {
        sqlx::query(statement).bind(rows_max(rows)).bind(short_max).bind(self.relay.to_string())
    }

    /// Reads parked entries, as many as fit, with their contents. `what` names the operation.
    async fn cut(
        &mut self,
        query: ParkedQuery,
        limit: PageLimit,
        asked: usize,
        what: &'static str,
    ) -> Result<Cut, LogError> {
        let read = async || -> Result<Cut, sqlx::Error> {
            let rows = query.fetch_all(&mut self.connection).await?;
            let mut cut = Cut::of(rows, limit, asked, false, &mut self.parked_pace)?;
            let place = Place::Parked(&self.relay);
            cut.complete(place, limit, &self.statements, &mut self.connection).await?;
            Ok(cut)
        };
        let cut = match read().await {
            Ok(cut) => cut,
            Err(error) => return Err(self.questions.unread(&mut self.connection, what, error).await),
        };
        self.check_run(cut.rows.len()).await?;
        Ok(cut)
    }

    fn exception(&self, row: &PgRow, cut: &Cut, limit: PageLimit) -> Result<Exception, LogError> {
        let state: String = row.try_get(Column::STATE).map_err(LogError::during("read an exception"))?;
        let attempts: i32 = row.try_get(Column::ATTEMPTS).map_err(LogError::during("read an exception"))?;
        let columns = row::read(row, cut.content(row))?;
        Ok(Exception {
            entry: columns.into_entry(&mut Names::default(), &self.source, &limit.row),
            state: ExceptionState::stored(&state)?,
            attempts: u32::try_from(attempts).unwrap_or_default(),
        })
    }
}
