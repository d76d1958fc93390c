//! Reads new lines about sessions.

use std::collections::BTreeMap;
use std::time::Duration;

use outbox_log::RelayName;
use outbox_log::admin::Operation;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::book::{Book, MATTERS};
use crate::error::{OperateError, OperateErrorKind};
use crate::places::{OutboxPlace, Places};
use crate::turns::in_turns;

/// Lines of one query.
const SLICE: u32 = 200;
/// Maximum lines of one look at an outbox. With more operations than that in the lifetime of a
/// session, the earliest are not read.
const LINES_MAX: usize = 20_000;
/// A line that is this much older than the latest one has no earlier line that is still being
/// written: a call to a database ends sooner.
const SETTLED: Duration = Duration::from_secs(120);
/// How often everything is read again, whatever was read before: a restored database has other
/// lines under the same numbers.
const WHOLE_EVERY: Duration = Duration::from_secs(600);

/// Follows the lines about sessions in outboxes.
#[derive(Debug, Default)]
pub struct Follower {
    book: Book,
    places: BTreeMap<RelayName, Position>,
}

/// The position up to which an outbox was read.
#[derive(Debug, Clone, Copy)]
struct Position {
    /// Lines up to this number were read, and no earlier one can appear.
    settled: i64,
    /// When all of them were read.
    whole_at: Instant,
}

impl Follower {
    /// Creates one that has read nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns what is known.
    #[must_use]
    pub fn book(&self) -> &Book {
        &self.book
    }

    /// Returns what is known, to add what this process does itself.
    pub fn book_mut(&mut self) -> &mut Book {
        &mut self.book
    }

    /// Reads what is new in the outboxes, each for at most this long. Returns those that do not
    /// answer: what was known of them stays. Cancel-safe: what was read by then is known.
    pub async fn look(&mut self, places: &Places, limit: Duration) -> Vec<Unread> {
        let now = Instant::now();
        let read = |place: &OutboxPlace| {
            let known = self.places.get(&place.pipeline).copied();
            let known = known.filter(|known| now.duration_since(known.whole_at) < WHOLE_EVERY);
            let place = place.clone();
            async move {
                let from = known.map_or(0, |known| known.settled);
                let read = tokio::time::timeout(limit, lines(&place, from)).await;
                Read { pipeline: place.pipeline, known, lines: read.unwrap_or_else(|_| Err(late(limit))) }
            }
        };
        let looked = in_turns(places.outboxes.iter().map(read).collect()).await;
        let mut unread = Vec::new();
        for Read { pipeline, known, lines } in looked {
            match lines {
                Ok(Lines { found, is_cut }) => {
                    found.iter().for_each(|line| self.book.take(line));
                    let settled = settled(&found, known.map_or(0, |known| known.settled));
                    let whole_at = known.map_or(now, |known| known.whole_at);
                    self.places.insert(pipeline.clone(), Position { settled, whole_at });
                    if is_cut {
                        unread.push(Unread { error: cut().about(&pipeline), pipeline });
                    }
                }
                Err(error) => unread.push(Unread { error: error.about(&pipeline), pipeline }),
            }
        }
        self.book.forget(OffsetDateTime::now_utc() - MATTERS);
        unread
    }
}

/// The lines of one outbox.
struct Read {
    pipeline: RelayName,
    known: Option<Position>,
    lines: Result<Lines, OperateError>,
}

/// An outbox whose lines could not be read.
#[derive(Debug, Clone)]
pub struct Unread {
    /// The pipeline.
    pub pipeline: RelayName,
    /// The reason.
    pub error: OperateError,
}

fn late(limit: Duration) -> OperateError {
    let text = format!("its database did not answer within {} s", limit.as_secs());
    OperateError::new(OperateErrorKind::Unavailable, text)
}

/// Returns the number up to which lines were read for good.
fn settled(lines: &[Operation], before: i64) -> i64 {
    let Some(latest) = lines.first() else { return before };
    let is_settled = |line: &&Operation| line.at + SETTLED <= latest.at;
    lines.iter().find(is_settled).map_or(before, |line| line.number.max(before))
}

/// Lines of an outbox, the latest first.
struct Lines {
    found: Vec<Operation>,
    /// Whether earlier ones were left out.
    is_cut: bool,
}

/// Reads the lines above a number.
async fn lines(place: &OutboxPlace, above: i64) -> Result<Lines, OperateError> {
    let (mut found, mut above) = (Vec::new(), above);
    let since = OffsetDateTime::now_utc() - MATTERS;
    let mut before = i64::MAX;
    loop {
        let slice = place.log.operations_before(&place.pipeline, before, SLICE).await?;
        if let (i64::MAX, Some(latest)) = (before, slice.first())
            && latest.number < above
        {
            // The database was restored: its numbers begin again.
            above = 0;
        }
        let is_last = slice.len() < SLICE as usize;
        let count = found.len();
        found.extend(slice.into_iter().take_while(|line| line.number > above && line.at >= since));
        let is_end = is_last || found.len() - count < SLICE as usize;
        if is_end || found.len() >= LINES_MAX {
            return Ok(Lines { found, is_cut: !is_end });
        }
        before = found.last().map_or(0, |line| line.number);
    }
}

fn cut() -> OperateError {
    let text = format!(
        "its audit has more than {LINES_MAX} operations of the last hours: earlier ends of sessions are not known"
    );
    OperateError::new(OperateErrorKind::Unavailable, text)
}

#[cfg(test)]
mod tests {
    use outbox::Signature;

    use super::*;

    #[test]
    fn a_line_is_read_again_until_no_earlier_one_can_appear() {
        let line = |number: i64, second: i64| Operation {
            number,
            at: OffsetDateTime::from_unix_timestamp(second).unwrap(),
            signature: Signature::new("ann", "why"),
            action: String::from("pause"),
            subject: (),
        };
        assert_eq!(settled(&[], 7), 7);
        assert_eq!(settled(&[line(9, 1_000)], 7), 7);
        assert_eq!(settled(&[line(9, 1_000), line(8, 881)], 7), 7);
        assert_eq!(settled(&[line(12, 1_000), line(11, 990), line(10, 880), line(9, 800)], 7), 10);
    }
}
