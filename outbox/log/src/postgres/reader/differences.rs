//! Differences and their pages.

use std::collections::HashSet;

use message::SizeLimit;

use super::{PgReader, other_history, other_run, rows_max};
use crate::LogError;
use crate::cursor::{Difference, Mark};
use crate::entry::{Entry, EntryId, Page, PageLimit, RowLimit};
use crate::failure::within;
use crate::postgres::facts::YoungRows;
use crate::postgres::fragments::YOUNG_LOOKED_AT;
use crate::postgres::mark::{PgMark, array};
use crate::postgres::page::{Cut, Place, short_max};
use crate::postgres::row;
use crate::row::Names;

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

/// The answer to a poll.
struct Polled {
    position: i64,
    found: bool,
    ended: bool,
    /// Whether the server is still in the run in which the mark was taken.
    same_run: bool,
}

fn set_back(position: i64, floor: i64) -> LogError {
    other_history(format!(
        "the sequence outbox_message_id_seq stands at {position}, behind the relay at {floor}: the sequence was set back"
    ))
}

impl PgReader {
    pub(super) async fn difference_after(&mut self, base: &Mark) -> Result<Option<Difference>, LogError> {
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
            .map_err(LogError::during("check for new entries"))?;
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
        // A snapshot that sees nothing proves nothing about the rows below its floor.
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
                "the row {id} is not between the ids {} and {ceiling} of new rows: outbox_message_id_seq \
                 was set back",
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

    async fn is_empty(&mut self, difference: &Difference) -> Result<bool, LogError> {
        let nothing = SizeLimit { destination: "a look", message_bytes_max: 0 };
        let limit = PageLimit { entries_max: 1, bytes_max: 0, row: RowLimit::of(nothing) };
        let pace = self.pace;
        let page = self.page(difference, EntryId::default(), limit).await?;
        // No content was read, so this predicts nothing about the next page.
        self.pace = pace;
        Ok(page.entries.is_empty())
    }

    /// Reads a page. The rows of transactions that were in flight at the base come first: they have
    /// the smaller ids. Each statement checks the run of the server, so its rows belong to the
    /// difference's history. Each has its own time limit, and none walks more than [`WALKED_IDS`].
    pub(super) async fn page(
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
            let walked = self.walk(&base, &head, from, until, left, is_beside);
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
        match read().await {
            Ok(cut) => Ok(cut),
            Err(error) => Err(self.questions.unread(&mut self.connection, "read entries", error).await),
        }
    }

    /// Reads the rows of a difference above one id and up to another.
    async fn walk(
        &mut self,
        base: &PgMark,
        head: &PgMark,
        above: i64,
        to: i64,
        limit: PageLimit,
        is_beside_others: bool,
    ) -> Result<Cut, LogError> {
        let asked = self.pace.rows(limit);
        let query = sqlx::query(&self.statements.page)
            .bind(rows_max(asked))
            .bind(short_max(limit, asked))
            .bind(above)
            .bind(to)
            .bind(&base.snapshot)
            .bind(&head.snapshot)
            .bind(&self.run);
        let read = async || -> Result<Cut, sqlx::Error> {
            let rows = query.fetch_all(&mut self.connection).await?;
            let mut cut = Cut::of(rows, limit, asked, is_beside_others, &mut self.pace)?;
            cut.complete(Place::Log, limit, &self.statements, &mut self.connection).await?;
            Ok(cut)
        };
        let cut = match read().await {
            Ok(cut) => cut,
            Err(error) => {
                return Err(self.questions.unread(&mut self.connection, "read entries", error).await);
            }
        };
        self.check_run(cut.rows.len()).await?;
        Ok(cut)
    }

    async fn next_id(&mut self, above: i64, ceiling: i64) -> Result<Option<i64>, LogError> {
        let asked = sqlx::query_scalar(&self.statements.next_id)
            .bind(above)
            .bind(ceiling)
            .fetch_optional(&mut self.connection)
            .await;
        let found: Option<i64> = match asked {
            Ok(found) => found,
            Err(error) => {
                return Err(self.questions.unread(&mut self.connection, "find the next entry", error).await);
            }
        };
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
    pub(super) async fn page_without(
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
            let failed = LogError::during("list the parked entries");
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
}
