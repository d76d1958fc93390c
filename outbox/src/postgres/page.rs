//! One page: how many rows to ask for, which payloads come with them, and where it is cut.
//!
//! The server bounds the rows and leaves payloads out that are large; where the page ends is
//! decided here, by the lengths of all of them. The payloads that were left out and belong to the
//! page follow in a second statement.

use std::collections::HashMap;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row as _};
use uuid::Uuid;

use crate::log::entry::PageLimit;
use crate::postgres::row::Column;
use crate::postgres::statements::Statements;

/// How many rows the next page is asked for: as many as fit, going by the page before.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The mean length of a payload.
    mean_bytes: usize,
}

impl Pace {
    /// Rows to ask for, at least one; a quarter more than should fit, so that a page is full
    /// although lengths differ.
    pub(super) fn rows(&self, limit: PageLimit) -> usize {
        let fit = limit.bytes_max / self.mean_bytes.max(1);
        fit.saturating_add(fit / 4).saturating_add(1).min(limit.entries_max).max(1)
    }

    /// Rows have come, and their payloads are so long in all.
    pub(super) fn note(&mut self, rows: usize, bytes: usize) {
        if let Some(mean) = bytes.checked_div(rows) {
            self.mean_bytes = mean;
        }
    }
}

/// The bytes up to which a payload comes with its row: all together at most twice a page.
pub(super) fn inline_max(limit: PageLimit, rows: usize) -> i32 {
    i32::try_from(limit.bytes_max.saturating_mul(2) / rows.max(1)).unwrap_or(i32::MAX)
}

/// The rows of a page.
pub(super) struct Cut {
    pub(super) rows: Vec<PgRow>,
    /// Whether nothing follows.
    pub(super) exhausted: bool,
    /// Payloads that have not come with their rows, by message id.
    payloads: HashMap<Uuid, Vec<u8>>,
}

impl Cut {
    /// Keeps the rows that fit; the first one always, unless it stands `beside_others`. `asked` is
    /// one less than what the statement was limited to, so that it is seen where two rows of one id
    /// would be parted: the next page begins behind the id of the last row.
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
            bytes += usize::try_from(row.try_get::<i32, _>(Column::BYTES)?).unwrap_or_default();
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
        Ok(Self { rows, exhausted: fit == found && found <= asked, payloads: HashMap::new() })
    }

    /// Brings the payloads that have not come with their rows. One that is gone meanwhile stays
    /// out.
    pub(super) async fn complete(
        &mut self,
        statements: &Statements,
        connection: &mut PgConnection,
    ) -> Result<(), sqlx::Error> {
        let (mut ids, mut message_ids) = (Vec::new(), Vec::new());
        for row in &self.rows {
            if row.try_get::<Option<&[u8]>, _>(Column::PAYLOAD)?.is_none() {
                ids.push(row.try_get::<i64, _>(Column::ID)?);
                message_ids.push(row.try_get::<Uuid, _>(Column::MESSAGE_ID)?);
            }
        }
        if !ids.is_empty() {
            let query = sqlx::query_as(&statements.payloads).bind(ids).bind(message_ids);
            self.payloads = query.fetch_all(connection).await?.into_iter().collect();
        }
        Ok(())
    }

    /// The payload of a row that came without it.
    pub(super) fn payload(&self, row: &PgRow) -> Option<&[u8]> {
        let message_id: Uuid = row.try_get(Column::MESSAGE_ID).ok()?;
        self.payloads.get(&message_id).map(Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: PageLimit = PageLimit { entries_max: 1_000, bytes_max: 2 << 20 };

    #[test]
    fn as_many_rows_are_asked_for_as_fit_going_by_the_page_before() {
        let mut pace = Pace::default();
        assert_eq!(pace.rows(LIMIT), 1_000, "nothing is known yet");
        pace.note(1_001, 1_001 * 256);
        assert_eq!(pace.rows(LIMIT), 1_000);
        pace.note(1_001, 1_001 * 16_384);
        assert_eq!(pace.rows(LIMIT), 161);
        // All of them come with their rows then.
        assert!(inline_max(LIMIT, pace.rows(LIMIT)) > 16_384);
        pace.note(0, 0);
        assert_eq!(pace.rows(LIMIT), 161, "an empty page tells nothing");
    }

    #[test]
    fn there_is_always_a_row_to_ask_for() {
        let nothing = PageLimit { entries_max: 0, bytes_max: 0 };
        assert_eq!((Pace::default().rows(nothing), inline_max(nothing, 0)), (1, 0));
        assert_eq!(inline_max(PageLimit { entries_max: 1, bytes_max: usize::MAX }, 1), i32::MAX);
    }
}
