//! One page: how many rows to request, which contents are read with them, and where it ends.
//!
//! The server limits the number of rows and leaves out large contents. The end of the page is
//! decided here, by the lengths of all contents. A second statement reads the contents that were
//! left out and belong to the page. Contents larger than the relay accepts are never read, only
//! their lengths.

use std::collections::HashMap;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row as _};
use uuid::Uuid;

use crate::entry::PageLimit;
use crate::lease::RelayName;
use crate::postgres::row::{self, Column};
use crate::postgres::statements::Statements;

/// The number of rows to request for the next page: as many as fit by the previous page's sizes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pace {
    /// The mean length of the contents, in bytes.
    mean_bytes: usize,
}

impl Pace {
    /// Returns the rows to request, at least one. A quarter more than should fit, so that a page is
    /// full although lengths differ.
    pub(super) fn rows(&self, limit: PageLimit) -> usize {
        let fit = limit.bytes_max / self.mean_bytes.max(1);
        fit.saturating_add(fit / 4).saturating_add(1).min(limit.entries_max).max(1)
    }

    /// Records the number of rows in a page and the total length of their contents.
    pub(super) fn note(&mut self, rows: usize, bytes: usize) {
        if let Some(mean) = bytes.checked_div(rows) {
            self.mean_bytes = mean;
        }
    }
}

/// Returns the maximum bytes of content that is read with its row. The contents of all rows
/// together take at most twice a page, and none is larger than the relay accepts.
pub(super) fn short_max(limit: PageLimit, rows: usize) -> i64 {
    let each = limit.bytes_max.saturating_mul(2) / rows.max(1);
    i64::try_from(each.min(limit.row.payload.message_bytes_max)).unwrap_or(i64::MAX)
}

/// The place where the contents of rows are stored.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place<'a> {
    /// In the log.
    Log,
    /// In the copies of a relay.
    Parked(&'a RelayName),
}

/// The rows of a page.
pub(super) struct Cut {
    pub(super) rows: Vec<PgRow>,
    /// Whether no row follows.
    pub(super) exhausted: bool,
    /// Whether rows that were read are left out.
    pub(super) is_cut: bool,
    /// Contents that were not read with their rows, by message id.
    contents: HashMap<Uuid, PgRow>,
}

impl Cut {
    /// Keeps the rows that fit; always the first one, unless it stands `beside_others`. `asked` is
    /// one less than the statement's limit. The extra row shows whether two rows with the same id
    /// would be separated: the next page begins after the id of the last row.
    pub(super) fn of(
        mut rows: Vec<PgRow>,
        limit: PageLimit,
        asked: usize,
        beside_others: bool,
        pace: &mut Pace,
    ) -> Result<Self, sqlx::Error> {
        let found = rows.len();
        let (mut fit, mut bytes, mut is_over) = (0, 0_usize, false);
        for row in &rows {
            let lengths = row::lengths(row)?;
            // A row that is too large to be read counts as well: when it is parked, the server
            // copies it, and one checkpoint must not copy hundreds of them.
            bytes = bytes.saturating_add(lengths.payload).saturating_add(lengths.headers);
            let is_full = fit >= limit.entries_max.min(asked) || bytes > limit.bytes_max;
            is_over |= is_full && (fit > 0 || beside_others);
            fit += usize::from(!is_over);
        }
        let id = |place: usize| rows.get(place).map(|row| row.try_get::<i64, _>(Column::ID)).transpose();
        while fit > 0 && fit < found && id(fit)? == id(fit - 1)? {
            fit += 1;
        }
        pace.note(found, bytes);
        rows.truncate(fit);
        let is_cut = fit < found;
        Ok(Self { rows, exhausted: !is_cut && found <= asked, is_cut, contents: HashMap::new() })
    }

    /// Reads the contents that were not read with their rows. Content that has been deleted
    /// meanwhile stays missing.
    pub(super) async fn complete(
        &mut self,
        place: Place<'_>,
        limit: PageLimit,
        statements: &Statements,
        connection: &mut PgConnection,
    ) -> Result<(), sqlx::Error> {
        let (mut ids, mut message_ids) = (Vec::new(), Vec::new());
        for row in &self.rows {
            let has_come = row.try_get::<Option<&[u8]>, _>(Column::PAYLOAD)?.is_some();
            if !has_come && limit.row.refusal(row::lengths(row)?).is_none() {
                ids.push(row.try_get::<i64, _>(Column::ID)?);
                message_ids.push(row.try_get::<Uuid, _>(Column::MESSAGE_ID)?);
            }
        }
        if ids.is_empty() {
            return Ok(());
        }
        let query = match place {
            Place::Log => sqlx::query(&statements.contents).bind(ids).bind(message_ids),
            Place::Parked(relay) => {
                sqlx::query(&statements.copies).bind(ids).bind(message_ids).bind(relay.as_str())
            }
        };
        for row in query.fetch_all(connection).await? {
            self.contents.insert(row.try_get(0)?, row);
        }
        Ok(())
    }

    /// Returns the content, payload and headers, of a row that was read without it.
    pub(super) fn content(&self, row: &PgRow) -> Option<row::Content<'_>> {
        let message_id: Uuid = row.try_get(Column::MESSAGE_ID).ok()?;
        let content = self.contents.get(&message_id)?;
        Some(row::Content { payload: content.try_get(1).ok()?, headers: content.try_get_unchecked(2).ok()? })
    }
}

#[cfg(test)]
mod tests {
    use message::SizeLimit;

    use super::*;
    use crate::RowLimit;

    const LIMIT: PageLimit =
        PageLimit { entries_max: 1_000, bytes_max: 2 << 20, row: RowLimit::of(SizeLimit::SQS) };

    #[test]
    fn as_many_rows_are_asked_for_as_fit_going_by_the_page_before() {
        let mut pace = Pace::default();
        assert_eq!(pace.rows(LIMIT), 1_000, "nothing is known yet");
        pace.note(1_001, 1_001 * 256);
        assert_eq!(pace.rows(LIMIT), 1_000);
        pace.note(1_001, 1_001 * 16_384);
        assert_eq!(pace.rows(LIMIT), 161);
        // All of them are then read with their rows.
        assert!(short_max(LIMIT, pace.rows(LIMIT)) > 16_384);
        pace.note(0, 0);
        assert_eq!(pace.rows(LIMIT), 161, "an empty page tells nothing");
    }

    #[test]
    fn there_is_always_a_row_to_ask_for() {
        let nothing = PageLimit { entries_max: 0, bytes_max: 0, ..LIMIT };
        assert_eq!((Pace::default().rows(nothing), short_max(nothing, 0)), (1, 0));
    }

    #[test]
    fn nothing_that_is_too_large_comes_with_its_row() {
        assert_eq!(short_max(LIMIT, 1), SizeLimit::SQS.message_bytes_max as i64);
        let huge = PageLimit { bytes_max: usize::MAX, ..LIMIT };
        assert_eq!(short_max(huge, 1_000), SizeLimit::SQS.message_bytes_max as i64);
    }
}
