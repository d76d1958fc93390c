//! Reads new lines about sessions.

use std::collections::BTreeMap;
use std::time::Duration;

use outbox::Signature;
use outbox_log::RelayName;
use outbox_log::admin::Operation;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::book::{Book, MATTERS};
use super::line::{LOGIN, LOGOUT, REVOKE};
use crate::error::{OperateError, OperateErrorKind};
use crate::places::{OutboxPlace, Places};
use crate::turns::in_turns;

/// The actions that end sessions, and the one that begins them. Each is read separately: programs
/// write other operations, and log in, far more often than anyone ends a session.
const ACTIONS: [&str; 3] = [REVOKE, LOGOUT, LOGIN];
/// Maximum lines of one query.
const SLICE: u32 = 1_000;
/// Maximum lines of one action in one look at an outbox. With more than that in the lifetime of a
/// session, the earliest are not read.
pub(super) const LINES_MAX: usize = 20_000;
/// A line that is this much older than the latest one has no earlier line that is still being
/// written: a call to a database ends sooner.
const SETTLED: Duration = Duration::from_secs(120);
/// How often everything is read again, whatever was read before: a restored database has other
/// lines under the same numbers.
const WHOLE_EVERY: Duration = Duration::from_secs(600);

/// Follows the ends of sessions in outboxes.
#[derive(Debug, Default)]
pub struct Follower {
    has_logins: bool,
    without: Option<Signature>,
    book: Book,
    places: BTreeMap<RelayName, Position>,
}

/// The position up to which an outbox was read.
#[derive(Debug, Clone)]
struct Position {
    /// Lines of an action up to this number were read, and no earlier one can appear.
    settled: BTreeMap<&'static str, i64>,
    /// When all of them were read.
    whole_at: Instant,
}

impl Position {
    fn settled(&self, action: &str) -> i64 {
        self.settled.get(action).copied().unwrap_or(0)
    }
}

impl Follower {
    /// Creates a follower that has read nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Also reads logins, which the list of sessions needs (default no).
    #[must_use]
    pub fn logins(mut self, has_logins: bool) -> Self {
        self.has_logins = has_logins;
        self
    }

    /// Leaves out the latest revocation with this signature in each outbox, which was just written
    /// (default none): what is known is then what had ended before it.
    #[must_use]
    pub(super) fn without(mut self, own: Signature) -> Self {
        self.without = Some(own);
        self
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

    /// Reads what is new in the outboxes, for at most this long. Returns those that do not answer:
    /// what was known of them stays. Cancel-safe: what was read by then is known.
    pub async fn look(&mut self, places: &Places, limit: Duration) -> Vec<Unread> {
        let now = Instant::now();
        let until = now + limit;
        let has_logins = self.has_logins;
        let read = |place: &OutboxPlace| {
            let known = self.places.get(&place.pipeline).cloned();
            let known = known.filter(|known| now.duration_since(known.whole_at) < WHOLE_EVERY);
            let known = known.unwrap_or_else(|| Position { settled: BTreeMap::new(), whole_at: now });
            let place = place.clone();
            async move {
                let actions = ACTIONS.into_iter().filter(|action| has_logins || *action != LOGIN);
                // Its turn may come only when others have taken all of the time.
                let is_asked = Instant::now() < until;
                let lines = if is_asked {
                    tokio::time::timeout_at(until, lines_of(&place, actions, &known)).await.ok()
                } else {
                    None
                };
                let lines = lines.unwrap_or_else(|| Err(late(limit)));
                Read { pipeline: place.pipeline, known, is_asked, lines }
            }
        };
        let looked = in_turns(places.outboxes.iter().map(read).collect()).await;
        let mut unread = Vec::new();
        for Read { pipeline, mut known, is_asked, lines } in looked {
            match lines {
                Ok(lines) => {
                    for Lines { action, found, is_cut } in lines {
                        let own = self.without.as_ref().filter(|_| action == REVOKE);
                        let own = own.and_then(|own| found.iter().position(|line| line.signature == *own));
                        let others = (0..).zip(&found).filter(|(place, _)| Some(*place) != own);
                        others.for_each(|(_, line)| self.book.take(line));
                        known.settled.insert(action, settled(&found, known.settled(action)));
                        if is_cut {
                            let error = cut(action).about(&pipeline);
                            unread.push(Unread { error, pipeline: pipeline.clone(), is_cut, is_asked });
                        }
                    }
                    self.places.insert(pipeline, known);
                }
                Err(error) => {
                    unread.push(Unread { error: error.about(&pipeline), pipeline, is_cut: false, is_asked });
                }
            }
        }
        self.book.forget(OffsetDateTime::now_utc() - MATTERS);
        unread
    }
}

/// The lines of one outbox.
struct Read {
    pipeline: RelayName,
    known: Position,
    is_asked: bool,
    lines: Result<Vec<Lines>, OperateError>,
}

/// An outbox whose lines could not be read, or not all of them.
#[derive(Debug, Clone)]
pub struct Unread {
    /// The pipeline.
    pub pipeline: RelayName,
    /// The reason.
    pub error: OperateError,
    /// Whether the latest lines were read, and only earlier ones are missing.
    pub is_cut: bool,
    /// Whether it was asked at all: others may have taken the time.
    pub is_asked: bool,
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

/// Lines of one action of an outbox, the latest first.
struct Lines {
    action: &'static str,
    found: Vec<Operation>,
    /// Whether earlier ones were left out.
    is_cut: bool,
}

/// Reads the new lines of each of these actions.
async fn lines_of(
    place: &OutboxPlace,
    actions: impl Iterator<Item = &'static str>,
    known: &Position,
) -> Result<Vec<Lines>, OperateError> {
    let mut read = Vec::new();
    for action in actions {
        read.push(lines(place, action, known.settled(action)).await?);
    }
    Ok(read)
}

/// Reads the lines of an action above a number.
async fn lines(place: &OutboxPlace, action: &'static str, mut above: i64) -> Result<Lines, OperateError> {
    let mut found = Vec::new();
    let since = OffsetDateTime::now_utc() - MATTERS;
    let mut before = i64::MAX;
    loop {
        let slice = place.log.operations_of(&place.pipeline, action, before, SLICE).await?;
        if let (i64::MAX, Some(latest)) = (before, slice.first())
            && latest.number < above
        {
            // The database was restored: its numbers begin again.
            above = 0;
        }
        let is_last = slice.len() < SLICE as usize || slice.iter().any(|line| line.number <= above);
        before = slice.last().map_or(0, |line| line.number);
        let count = found.len();
        found.extend(slice.into_iter().filter(|line| line.number > above && line.at >= since));
        // One old line is no end: the database's clock may have been far behind for a while.
        let is_end = is_last || found.len() == count;
        if is_end || found.len() >= LINES_MAX {
            return Ok(Lines { action, found, is_cut: !is_end });
        }
    }
}

fn cut(action: &str) -> OperateError {
    let text = format!(
        "its audit has more than {LINES_MAX} operations {action:?} of the last hours: earlier ones are not known"
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
