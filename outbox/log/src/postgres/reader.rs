//! Reads differences and pages. The proof is in `postgres/mod.rs`.

use std::collections::HashSet;
use std::time::Duration;

use async_trait::async_trait;
use message::{SizeLimit, Source};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row as _};
use time::OffsetDateTime;

use crate::cursor::{Difference, Mark};
use crate::entry::{Entry, EntryId, Page, PageLimit, RowLimit};
use crate::exception::{Exception, ExceptionState, ExceptionSummary};
use crate::failure::within;
use crate::lease::RelayName;
use crate::postgres::facts::{self, YoungRows};
use crate::postgres::mark::{PgMark, array};
use crate::postgres::page::{Cut, Pace, Place, short_max};
use crate::postgres::row::{self, Column};
use crate::postgres::statements::{Statements, YOUNG_LOOKED_AT};
use crate::queue::{DuePage, DuePosition, HeldAsk, HeldPage, HeldQueues, QueueName};
use crate::row::{Names, wait};
use crate::{LogError, LogReader, Pause};

/// How far the sequence may have moved since a mark's floor before the mark is stale. A poll walks
/// at most this many ids (about 30 buffers) that it already knows or that are not committed. Rows
/// above them are found by pages, which walk in steps.
const STALE_AFTER_IDS: i64 = 1_000;

/// Maximum ids that one statement walks in search of a page: one second, if each id has a row that
/// is left out and is read from a disk. After a sequence was set back, a difference may hold few
/// rows among many millions.
const WALKED_IDS: i64 = 1_000_000;

/// How often a mark is taken again when many commits fall between its two halves.
const MARK_ATTEMPTS: usize = 4;

pub(super) struct PgReader {
    connection: PgConnection,
    relay: RelayName,
    source: Source,
    statements: Statements,
    questions: facts::Statements,
    call_timeout: Duration,
    /// The run of the server in which this reader was opened. It reads nothing of another run.
    run: Option<String>,
    /// A requested base, and a later mark with no row between the two.
    advanced: Option<(Mark, PgMark)>,
    pace: Pace,
    /// The pace of exceptions.
    parked_pace: Pace,
}

/// The answer to a poll.
struct Polled {
    position: i64,
    found: bool,
    ended: bool,
    /// Whether the server is still in the run in which the mark was taken.
    same_run: bool,
}

/// Makes the error for an answer from another history than the mark's. It ends the term, and the
/// cursor is compared again.
fn other_history(why: String) -> LogError {
    LogError::Unavailable { reason: why, source: None }
}

fn other_run() -> LogError {
    other_history(String::from("the cursor was granted by another server, or by this one before it crashed"))
}

fn set_back(position: i64, floor: i64) -> LogError {
    other_history(format!(
        "the sequence outbox_message_id_seq stands at {position}, and the relay at {floor}: it was set back"
    ))
}

impl PgReader {
    pub(super) async fn open(
        mut connection: PgConnection,
        relay: RelayName,
        source: Source,
        (statements, questions): (Statements, facts::Statements),
        call_timeout: Duration,
    ) -> Result<Self, LogError> {
        let run = run(&mut connection, &statements).await?;
        Ok(Self {
            connection,
            relay,
            source,
            statements,
            questions,
            call_timeout,
            run,
            advanced: None,
            pace: Pace::default(),
            parked_pace: Pace::default(),
        })
    }

    /// Fails when a mark was taken in another run of the server than the reader's.
    fn check_mark(&mut self, mark: &PgMark) -> Result<(), LogError> {
        let Some(history) = &mark.history else { return Ok(()) };
        match self.run.get_or_insert_with(|| history.run.clone()) == &history.run {
            true => Ok(()),
            false => Err(other_run()),
        }
    }

    /// Fails when a statement found nothing because the server is in another run. No run returns,
    /// so if the run is still the same now, it was also the same when the statement ran.
    async fn check_run(&mut self, found: usize) -> Result<(), LogError> {
        if found > 0 || self.run.is_none() || run(&mut self.connection, &self.statements).await? == self.run {
            return Ok(());
        }
        Err(other_run())
    }

    async fn poll(&mut self, base: &PgMark) -> Result<Polled, LogError> {
        self.check_mark(base)?;
        let (position, found, ended, same_run) = sqlx::query_as(&self.statements.poll)
            .bind(base.floor)
            .bind(&base.snapshot)
            .bind(array(&base.in_flight))
            .bind(&self.run)
            .bind(STALE_AFTER_IDS)
            .fetch_one(&mut self.connection)
            .await
            .map_err(LogError::during("look for new entries"))?;
        let polled = Polled { position, found, ended, same_run };
        if !polled.same_run {
            return Err(other_run());
        }
        // The position may be ahead of the last id that was given out, but never behind it.
        if polled.position < base.floor {
            return Err(set_back(polled.position, base.floor));
        }
        Ok(polled)
    }

    /// Takes a mark now, for the difference from `base`. Returns it with the largest id that is
    /// visible in it.
    async fn take_mark(&mut self, base: &PgMark) -> Result<(PgMark, i64), LogError> {
        // A snapshot that sees nothing says nothing about the rows below its floor.
        let xmax = (!base.sees_nothing()).then(|| base.xmax.to_string());
        let mut attempt = 1;
        let (floor, snapshot, ceiling, astray) = loop {
            let halves = within(self.call_timeout, self.halves(&xmax, base.floor)).await?;
            let (floor, _, ceiling, astray) = &halves;
            if astray.is_some() || ceiling - floor <= STALE_AFTER_IDS || attempt == MARK_ATTEMPTS {
                break halves;
            }
            attempt += 1;
        };
        // Only for the mark that is kept: checking a backlog of days takes time.
        let astray = match astray {
            None if ceiling - base.floor >= YOUNG_LOOKED_AT => {
                let rows = YoungRows::of(base);
                self.questions.look_at_all(&mut self.connection, rows, self.call_timeout).await?
            }
            astray => astray,
        };
        match astray {
            None => Ok((PgMark::new(floor, snapshot)?, ceiling)),
            Some(id) => Err(other_history(format!(
                "the row {id} does not lie between the ids {} and {ceiling} of new rows: outbox_message_id_seq was set \
                 back",
                base.floor
            ))),
        }
    }

    /// Takes both halves of a mark. Returns its floor and its snapshot, the largest id that is
    /// visible in it, and a row, if one was met, that shows that the sequence was set back.
    async fn halves(
        &mut self,
        xmax: &Option<String>,
        base_floor: i64,
    ) -> Result<(i64, String, i64, Option<i64>), LogError> {
        let (floor, _): (i64, String) = sqlx::query_as(&self.statements.mark_floor)
            .fetch_one(&mut self.connection)
            .await
            .map_err(LogError::during("read its position"))?;
        let (snapshot, ceiling, astray) = sqlx::query_as(&self.statements.mark_snapshot)
            .bind(xmax)
            .bind(base_floor)
            .bind(YOUNG_LOOKED_AT)
            .fetch_one(&mut self.connection)
            .await
            .map_err(LogError::during("take a snapshot"))?;
        Ok((floor, snapshot, ceiling, astray))
    }

    async fn difference_after(&mut self, base: &Mark) -> Result<Option<Difference>, LogError> {
        let mark = match self.advanced.take() {
            Some((known, mark)) if known == *base => mark,
            _ => PgMark::read(base)?,
        };
        // Each call has its own time limit: only one of them depends on how much there is to check.
        let limit = self.call_timeout;
        let polled = within(limit, self.poll(&mark)).await?;
        if !polled.found && !polled.ended && polled.position - mark.floor <= STALE_AFTER_IDS {
            self.advanced = Some((base.clone(), mark));
            return Ok(None);
        }
        let (head, ceiling) = self.take_mark(&mark).await?;
        if head.floor < mark.floor {
            return Err(set_back(head.floor, mark.floor));
        }
        let head = PgMark { history: mark.history.clone(), ..head };
        let difference = Difference { base: mark.write(), head: head.write(), ceiling };
        if polled.found || !self.is_empty(&difference).await? {
            return Ok(Some(difference));
        }
        self.advanced = Some((base.clone(), head));
        Ok(None)
    }

    async fn is_empty(&mut self, difference: &Difference) -> Result<bool, LogError> {
        let nothing = SizeLimit { destination: "a look", message_bytes_max: 0 };
        let limit = PageLimit { entries_max: 1, bytes_max: 0, row: RowLimit::of(nothing) };
        let pace = self.pace;
        let page = self.page(difference, EntryId::default(), limit).await?;
        // No content was read, so this says nothing about the next page.
        self.pace = pace;
        Ok(page.entries.is_empty())
    }

    /// Reads a page. The rows of transactions that were in flight at the base come first: they have
    /// the smaller ids. Each statement checks the run of the server, so its rows belong to the
    /// difference's history. Each has its own time limit, and none walks more than [`WALKED_IDS`].
    async fn page(
        &mut self,
        difference: &Difference,
        after: EntryId,
        limit: PageLimit,
    ) -> Result<Page, LogError> {
        let (base, head) = (PgMark::read(&difference.base)?, PgMark::read(&difference.head)?);
        self.check_mark(&base)?;
        let ended = base.settled_by(&head);
        let mut first = Page { entries: Vec::new(), exhausted: true };
        if after.0 < base.floor && !ended.is_empty() {
            let cut = within(self.call_timeout, self.stragglers(&base, &ended, after, limit)).await?;
            self.add(&mut first, &cut, limit)?;
        }
        if !first.exhausted {
            return Ok(first);
        }
        let used = first.entries.iter().map(|entry| entry.bytes()).sum::<usize>();
        let left = PageLimit {
            entries_max: limit.entries_max.saturating_sub(first.entries.len()),
            bytes_max: limit.bytes_max.saturating_sub(used),
            row: limit.row,
        };
        let mut from = after.0.max(base.floor);
        let call_timeout = self.call_timeout;
        loop {
            let until = from.saturating_add(WALKED_IDS).min(difference.ceiling);
            let is_beside = !first.entries.is_empty();
            let walked = self.walk(&base, &head, (from, until), left, is_beside);
            let cut = within(call_timeout, walked).await?;
            let is_last = until >= difference.ceiling;
            if is_last || is_beside || !cut.rows.is_empty() || !cut.exhausted {
                self.add(&mut first, &cut, limit)?;
                first.exhausted &= is_last;
                return Ok(first);
            }
            // The ids of a sequence may skip ahead.
            let next = within(call_timeout, self.next_id(until, difference.ceiling)).await?;
            let Some(next) = next else { return Ok(first) };
            from = next - 1;
        }
    }

    async fn stragglers(
        &mut self,
        base: &PgMark,
        ended: &[u64],
        after: EntryId,
        limit: PageLimit,
    ) -> Result<Cut, LogError> {
        let asked = self.pace.rows(limit);
        let query = sqlx::query(&self.statements.stragglers)
            .bind(rows_max(asked))
            .bind(short_max(limit, asked))
            .bind(after.0)
            .bind(base.floor)
            .bind(array(ended))
            .bind(&self.run);
        let read = async || -> Result<Cut, sqlx::Error> {
            let rows = query.fetch_all(&mut self.connection).await?;
            let mut cut = Cut::of(rows, limit, asked, false, &mut self.pace)?;
            cut.complete(Place::Log, limit, &self.statements, &mut self.connection).await?;
            Ok(cut)
        };
        read().await.map_err(LogError::during("read entries"))
    }

    /// Reads the rows of a difference above one id and up to another.
    async fn walk(
        &mut self,
        base: &PgMark,
        head: &PgMark,
        (from, until): (i64, i64),
        limit: PageLimit,
        is_beside_others: bool,
    ) -> Result<Cut, LogError> {
        let asked = self.pace.rows(limit);
        let query = sqlx::query(&self.statements.page)
            .bind(rows_max(asked))
            .bind(short_max(limit, asked))
            .bind(from)
            .bind(until)
            .bind(&base.snapshot)
            .bind(&head.snapshot)
            .bind(&self.run);
        let read = async || -> Result<Cut, sqlx::Error> {
            let rows = query.fetch_all(&mut self.connection).await?;
            let mut cut = Cut::of(rows, limit, asked, is_beside_others, &mut self.pace)?;
            cut.complete(Place::Log, limit, &self.statements, &mut self.connection).await?;
            Ok(cut)
        };
        let cut = read().await.map_err(LogError::during("read entries"))?;
        self.check_run(cut.rows.len()).await?;
        Ok(cut)
    }

    async fn next_id(&mut self, above: i64, ceiling: i64) -> Result<Option<i64>, LogError> {
        let found: Option<i64> = sqlx::query_scalar(&self.statements.next_id)
            .bind(above)
            .bind(ceiling)
            .fetch_optional(&mut self.connection)
            .await
            .map_err(LogError::during("look for the next entry"))?;
        self.check_run(usize::from(found.is_some())).await?;
        Ok(found)
    }

    /// Adds rows of the log to a page.
    fn add(&self, page: &mut Page, cut: &Cut, limit: PageLimit) -> Result<(), LogError> {
        let mut names = Names::default();
        page.entries.reserve(cut.rows.len());
        for row in &cut.rows {
            let columns = row::read(row, cut.content(row))?;
            page.entries.push(columns.into_entry(&mut names, &self.source, &limit.row));
        }
        page.exhausted = cut.exhausted;
        Ok(())
    }

    /// Like `page`, without entries that were parked when the base was rebased.
    async fn page_without(
        &mut self,
        difference: &Difference,
        mut after: EntryId,
        limit: PageLimit,
    ) -> Result<Page, LogError> {
        loop {
            let mut page = self.page(difference, after, limit).await?;
            let Some(last) = page.entries.last().map(|entry| entry.id) else { return Ok(page) };
            let message_ids: Vec<String> = page.entries.iter().map(Entry::message_id).collect();
            let asked = sqlx::query_scalar(&self.statements.left_out)
                .bind(self.relay.as_str())
                .bind(message_ids)
                .fetch_all(&mut self.connection);
            let failed = LogError::during("find out what was parked");
            let left_out: Vec<String> =
                within(self.call_timeout, async { asked.await.map_err(failed) }).await?;
            let left_out: HashSet<String> = left_out.into_iter().collect();
            if !left_out.is_empty() {
                page.entries.retain(|entry| !left_out.contains(&entry.message_id()));
            }
            if page.exhausted || !page.entries.is_empty() {
                return Ok(page);
            }
            after = last;
        }
    }

    async fn due(&mut self, after: Option<DuePosition>, limit: PageLimit) -> Result<DuePage, LogError> {
        let place = after.unwrap_or(DuePosition { at_micros: 0, id: EntryId(0) });
        let asked = self.parked_pace.rows(limit);
        let query = sqlx::query(&self.statements.due)
            .bind(rows_max(asked))
            .bind(short_max(limit, asked))
            .bind(self.relay.as_str())
            .bind(at_micros(place.at_micros))
            .bind(place.id.0)
            .bind(&self.run);
        let read = async || -> Result<Cut, sqlx::Error> {
            let rows = query.fetch_all(&mut self.connection).await?;
            let mut cut = Cut::of(rows, limit, asked, false, &mut self.parked_pace)?;
            let place = Place::Parked(&self.relay);
            cut.complete(place, limit, &self.statements, &mut self.connection).await?;
            Ok(cut)
        };
        let cut = read().await.map_err(LogError::during("read what is due"))?;
        self.check_run(cut.rows.len()).await?;
        let mut page = DuePage { position: after, exhausted: cut.exhausted, ..DuePage::default() };
        for row in &cut.rows {
            let exception = self.exception(row, &cut, limit)?;
            let at: OffsetDateTime =
                row.try_get(Column::PLACE).map_err(LogError::during("read what is due"))?;
            let at_micros = i64::try_from(at.unix_timestamp_nanos() / 1_000).unwrap_or(i64::MAX);
            page.position = Some(DuePosition { at_micros, id: exception.entry.id });
            page.exceptions.push(exception);
        }
        if page.exhausted {
            let place = page.position.unwrap_or(place);
            let seconds: Option<f64> = sqlx::query_scalar(&self.statements.next_due)
                .bind(self.relay.as_str())
                .bind(at_micros(place.at_micros))
                .bind(place.id.0)
                .fetch_optional(&mut self.connection)
                .await
                .map_err(LogError::during("find out what is due next"))?;
            page.next_in = seconds.map(|seconds| wait(seconds).unwrap_or_default());
        }
        Ok(page)
    }

    async fn held(&mut self, asks: &[HeldAsk], limit: PageLimit) -> Result<Vec<HeldPage>, LogError> {
        let each = (self.parked_pace.rows(limit) / asks.len().max(1)).max(1);
        let asked = each.saturating_mul(asks.len());
        let limit = PageLimit { entries_max: asked, ..limit };
        let query = sqlx::query(&self.statements.held)
            .bind(rows_max(each))
            .bind(short_max(limit, asked))
            .bind(self.relay.as_str())
            .bind(asks.iter().map(|ask| ask.queue.as_str()).collect::<Vec<_>>())
            .bind(asks.iter().map(|ask| ask.from.0).collect::<Vec<_>>())
            .bind(&self.run);
        let read = async || -> Result<Cut, sqlx::Error> {
            let rows = query.fetch_all(&mut self.connection).await?;
            let mut cut = Cut::of(rows, limit, asked, false, &mut self.parked_pace)?;
            let place = Place::Parked(&self.relay);
            cut.complete(place, limit, &self.statements, &mut self.connection).await?;
            Ok(cut)
        };
        let cut = read().await.map_err(LogError::during("read held entries"))?;
        self.check_run(cut.rows.len()).await?;
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

    async fn queues(&mut self, after: Option<&QueueName>, queues_max: usize) -> Result<HeldQueues, LogError> {
        let rows: Vec<(String, i64, String)> = sqlx::query_as(&self.statements.held_queues)
            .bind(self.relay.as_str())
            .bind(after.map_or("", QueueName::as_str))
            .bind(rows_max(queues_max))
            .bind(&self.run)
            .fetch_all(&mut self.connection)
            .await
            .map_err(LogError::during("list what is held"))?;
        self.check_run(rows.len()).await?;
        Ok(HeldQueues::of(rows, queues_max))
    }

    async fn stuck_entries(
        &mut self,
        after: EntryId,
        entries_max: usize,
    ) -> Result<Vec<ExceptionSummary>, LogError> {
        let rows: Vec<(i64, Option<String>, String)> = sqlx::query_as(&self.statements.stuck)
            .bind(self.relay.as_str())
            .bind(after.0)
            .bind(i64::try_from(entries_max).unwrap_or(i64::MAX))
            .bind(&self.run)
            .fetch_all(&mut self.connection)
            .await
            .map_err(LogError::during("list exceptions"))?;
        self.check_run(rows.len()).await?;
        rows.into_iter().map(|(id, key, state)| ExceptionSummary::stored(id, key, &state)).collect()
    }
}

/// Returns the server's current run, if one has begun.
async fn run(connection: &mut PgConnection, statements: &Statements) -> Result<Option<String>, LogError> {
    sqlx::query_scalar(&statements.run)
        .fetch_optional(connection)
        .await
        .map_err(LogError::during("find out which run of the server this is"))
}

/// Converts a due time for the database.
fn at_micros(micros: i64) -> OffsetDateTime {
    crate::admin::entry::at_micros(micros)
}

fn rows_max(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX - 1).clamp(1, i64::MAX - 1)
}

#[async_trait]
impl LogReader for PgReader {
    async fn next_difference(&mut self, base: &Mark) -> Result<Option<Difference>, LogError> {
        self.difference_after(base).await
    }

    async fn read_page(
        &mut self,
        difference: &Difference,
        after: EntryId,
        limit: PageLimit,
    ) -> Result<Page, LogError> {
        match PgMark::read(&difference.base)?.is_rebased {
            true => self.page_without(difference, after, limit).await,
            false => self.page(difference, after, limit).await,
        }
    }

    async fn read_due(&mut self, after: Option<DuePosition>, limit: PageLimit) -> Result<DuePage, LogError> {
        within(self.call_timeout, self.due(after, limit)).await
    }

    async fn read_held(&mut self, asks: &[HeldAsk], limit: PageLimit) -> Result<Vec<HeldPage>, LogError> {
        within(self.call_timeout, self.held(asks, limit)).await
    }

    async fn held_queues(
        &mut self,
        after: Option<&QueueName>,
        queues_max: usize,
    ) -> Result<HeldQueues, LogError> {
        within(self.call_timeout, self.queues(after, queues_max)).await
    }

    async fn stuck(&mut self, after: EntryId, entries_max: usize) -> Result<Vec<ExceptionSummary>, LogError> {
        within(self.call_timeout, self.stuck_entries(after, entries_max)).await
    }

    async fn pauses(&mut self) -> Result<Vec<Pause>, LogError> {
        let asked = super::pause::read(&mut self.connection, &self.statements.pauses, &self.relay);
        within(self.call_timeout, asked).await
    }
}
