//! How the relays are doing.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::log::{BrokerTrouble, Cursor, EntryId, ExceptionState};

/// One relay: who runs it, how far it is, what it has put aside.
#[derive(Debug, Clone, PartialEq)]
pub struct RelayStatus {
    /// Its name.
    pub relay: String,
    /// The fencing token of the present or last holder.
    pub epoch: i64,
    /// Who holds the lease; `None` when it was given back.
    pub holder: Option<Holder>,
    /// How many processes wait for the lease now; `None` where the database does not know its
    /// sessions (SQLite). One that has just taken it may still be among them.
    pub standbys: Option<u64>,
    /// How long ago it made its last checkpoint.
    pub checkpoint_age: Duration,
    /// Where it stands.
    pub cursor: Cursor,
    /// The error that keeps its messages from the broker, or did at its end.
    pub broker_trouble: Option<BrokerTrouble>,
    /// In which server's history that means something; `None` where nothing is stored about it
    /// (SQLite; a relay that has not led yet).
    pub history: Option<CursorHistory>,
    /// The entries that it has not settled yet.
    pub backlog: Backlog,
    /// How many entries are parked, by state; counted up to [`COUNTED_MAX`] in all.
    pub exceptions: BTreeMap<&'static str, u64>,
    /// The same by state and cause.
    pub parked: Vec<ParkedCount>,
}

/// So many parked entries of a relay are counted, those with the smallest ids: the count stays
/// cheap however many there are.
pub const COUNTED_MAX: u32 = 1_000_000;

/// Parked entries of one state and one cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedCount {
    /// The state.
    pub state: ExceptionState,
    /// Whose fault it was: `broker`, `message` or `operator`; `none` for those that only wait.
    pub cause: &'static str,
    /// How many.
    pub count: u64,
    /// How long the first of them has been there: dead or discarded, or parked at all.
    pub longest: Duration,
}

/// The history of a server in which a cursor was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CursorHistory {
    /// The cluster's own identifier.
    pub system_identifier: String,
    /// Of the write-ahead log: a promotion begins a new one. 0 where the server does not tell it.
    pub timeline: i64,
    /// Whether the server that answers is the one, on the same timeline. Otherwise the next grant
    /// of the lease compares.
    pub is_present: bool,
}

/// Who holds a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The name it gave itself.
    pub name: String,
    /// How long the lease still lasts; `None` when it has expired and nobody has taken it over.
    pub expires_in: Option<Duration>,
}

/// The entries that a relay has not settled yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backlog {
    /// At most so many entries: the ids between the cursor and the end of the log. Rolled back
    /// transactions leave gaps, so there may be fewer; counting them would cost as much as reading
    /// them.
    pub entries_max: u64,
    /// The oldest committed entry that is not settled, and its age; `None` when the relay has
    /// caught up.
    pub oldest: Option<(EntryId, Duration)>,
    /// Entries that the cursor has passed and that still wait to leave: held, retrying, and
    /// scheduled ones that are due.
    pub parked: u64,
    /// The oldest of those, and its age: since it was enqueued, or since it was due.
    pub oldest_parked: Option<(EntryId, Duration)>,
}

impl Backlog {
    /// Returns at most how many entries wait to leave, those that are parked included.
    #[must_use]
    pub fn waiting_max(&self) -> u64 {
        self.entries_max.saturating_add(self.parked)
    }

    /// Returns the entry that waits the longest, parked or not, and its age.
    #[must_use]
    pub fn oldest_waiting(&self) -> Option<(EntryId, Duration)> {
        self.oldest.into_iter().chain(self.oldest_parked).max_by_key(|(_, age)| *age)
    }
}

/// An open transaction that has written to the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocker {
    /// The server process.
    pub pid: i32,
    /// The transaction's id, which the next transaction of this process does not have.
    pub transaction: String,
    /// The name that the client gives itself.
    pub application_name: String,
    /// `active`, `idle in transaction`, …; `None` where the server hides it, as the age.
    pub state: Option<String>,
    /// How long the transaction has been open; `None` where the server hides it: sessions of other
    /// roles are shown to members of `pg_read_all_stats` only.
    pub age: Option<Duration>,
}

/// A group of parked entries as the database counts them: state, cause, whether they are due, how
/// many, the smallest id, the longest time since one was due, the longest time that one is there.
pub(crate) type CountedRow = (String, Option<String>, bool, i64, i64, Option<f64>, Option<f64>);

/// The parked entries of a relay, summed up.
#[derive(Debug, Default)]
pub(crate) struct ParkedSummary {
    /// By state; a state without entries counts zero.
    pub(crate) exceptions: BTreeMap<&'static str, u64>,
    pub(crate) parked: Vec<ParkedCount>,
    /// Those that wait to leave.
    pub(crate) waiting: u64,
    /// The oldest held or retrying one.
    pub(crate) oldest: Option<EntryId>,
    /// The scheduled one that has been due for the longest time.
    pub(crate) overdue: Option<(EntryId, Duration)>,
}

impl ParkedSummary {
    /// Sums the groups up. States that this build does not know are left out.
    pub(crate) fn of(rows: Vec<CountedRow>) -> Self {
        use ExceptionState::{Dead, Discarded, Held, Retrying, Scheduled};
        let exceptions = [Scheduled, Retrying, Held, Dead, Discarded].map(|state| (state.as_str(), 0)).into();
        let mut summary = Self { exceptions, ..Self::default() };
        for (state, fault, is_due, count, id, since_due, longest) in rows {
            let Ok(state) = state.parse::<ExceptionState>() else { continue };
            let (count, id) = (u64::try_from(count).unwrap_or_default(), EntryId(id));
            *summary.exceptions.entry(state.as_str()).or_default() += count;
            let cause = match fault.as_deref() {
                Some("broker") => "broker",
                Some("message") => "message",
                Some("operator") => "operator",
                _ => "none",
            };
            match summary.parked.iter_mut().find(|known| (known.state, known.cause) == (state, cause)) {
                Some(known) => {
                    known.count += count;
                    known.longest = known.longest.max(span(longest));
                }
                None => summary.parked.push(ParkedCount { state, cause, count, longest: span(longest) }),
            }
            match state {
                Held | Retrying => {
                    summary.waiting += count;
                    summary.oldest = summary.oldest.into_iter().chain([id]).min();
                }
                Scheduled if is_due => {
                    summary.waiting += count;
                    let age = span(since_due);
                    summary.overdue =
                        summary.overdue.into_iter().chain([(id, age)]).max_by_key(|(_, age)| *age);
                }
                _ => {}
            }
        }
        summary
    }

    /// Adds those that wait to a backlog; `age` is that of the oldest held or retrying entry.
    pub(crate) fn add_to(&self, backlog: Backlog, age: Option<Duration>) -> Backlog {
        let oldest = self.oldest.zip(age);
        let oldest_parked = oldest.into_iter().chain(self.overdue).max_by_key(|(_, age)| *age);
        Backlog { parked: self.waiting, oldest_parked, ..backlog }
    }
}

/// A span of the database, which is negative where its clock was set back.
fn span(seconds: Option<f64>) -> Duration {
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(state: &str, fault: Option<&str>, is_due: bool, count: i64, id: i64) -> CountedRow {
        let since_due = is_due.then_some(7.0);
        (state.to_owned(), fault.map(str::to_owned), is_due, count, id, since_due, Some(id as f64))
    }

    #[test]
    fn held_retrying_and_due_entries_wait_and_the_others_do_not() {
        let summary = ParkedSummary::of(vec![
            row("held", None, false, 184, 12),
            row("retrying", Some("broker"), false, 2, 10),
            row("retrying", Some("broker"), true, 1, 11),
            row("scheduled", None, false, 5, 1),
            row("scheduled", None, true, 4, 2),
            row("dead", Some("message"), false, 3, 3),
            row("unknown", None, false, 9, 4),
        ]);
        assert_eq!(summary.waiting, 184 + 3 + 4);
        assert_eq!(summary.exceptions["retrying"], 3);
        assert_eq!(summary.exceptions["scheduled"], 9);
        assert_eq!(summary.exceptions["discarded"], 0);
        assert!(summary.parked.contains(&ParkedCount {
            state: ExceptionState::Dead,
            cause: "message",
            count: 3,
            longest: Duration::from_secs(3),
        }));
        let retrying = summary.parked.iter().find(|parked| parked.state == ExceptionState::Retrying);
        assert_eq!(retrying.map(|parked| parked.longest), Some(Duration::from_secs(11)));
        let backlog = Backlog { entries_max: 1, oldest: None, parked: 0, oldest_parked: None };
        let backlog = summary.add_to(backlog, Some(Duration::from_secs(60)));
        assert_eq!(backlog.waiting_max(), 192);
        assert_eq!(backlog.oldest_waiting(), Some((EntryId(10), Duration::from_secs(60))));
    }
}
