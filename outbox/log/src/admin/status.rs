//! The status of relays.

use std::collections::BTreeMap;
use std::time::Duration;

use message::Fault;
use time::OffsetDateTime;

use crate::{BrokerTrouble, Cursor, EntryId, ExceptionState, Pause};

/// One relay: its holder, its progress, its parked entries.
#[derive(Debug, Clone, PartialEq)]
pub struct RelayStatus {
    /// Its name.
    pub relay: String,
    /// The fencing token of the current or last holder.
    pub epoch: i64,
    /// The holder of the lease; `None` when it was released.
    pub holder: Option<Holder>,
    /// Number of processes that wait for the lease now; `None` where the database does not know its
    /// sessions (SQLite). One that has just taken the lease may still be counted.
    pub standbys: Option<u64>,
    /// Time since its last checkpoint.
    pub checkpoint_age: Duration,
    /// Time since the lease was first taken after that checkpoint; `None` if it was not: the holder
    /// has stored it.
    pub taken_for: Option<Duration>,
    /// Its position in the log.
    pub cursor: Cursor,
    /// The error that keeps its messages from the broker, or did so when it last ran.
    pub broker_trouble: Option<BrokerTrouble>,
    /// The server history in which the cursor is valid; `None` where none is stored (SQLite; a
    /// relay that has not led yet).
    pub history: Option<CursorHistory>,
    /// The entries that are not settled yet.
    pub backlog: Backlog,
    /// Number of parked entries by state, counted up to [`COUNTED_MAX`] in total.
    pub exceptions: BTreeMap<ExceptionState, u64>,
    /// The same count by state and cause.
    pub parked: Vec<ParkedCount>,
}

/// Maximum parked entries of a relay that are counted, beginning with the smallest ids. This keeps
/// the count cheap however many there are.
pub const COUNTED_MAX: u32 = 1_000_000;

/// Parked entries of one state and one cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedCount {
    /// The state.
    pub state: ExceptionState,
    /// The party at fault; `None` for entries that only wait, and for a party that this build does
    /// not know.
    pub cause: Option<Fault>,
    /// Number of entries.
    pub count: u64,
    /// How long the first of them has been parked, also if it was requeued in between; of discarded
    /// ones, how long it has been discarded.
    pub longest: Duration,
}

/// A relay and everything that keeps its entries, read in one session.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    /// The relay; `None` when it has no cursor.
    pub relay: Option<RelayStatus>,
    /// The oldest open transaction that has written to the outbox.
    pub blocker: Option<Blocker>,
    /// The pauses in force, in the order of scopes.
    pub pauses: Vec<Pause>,
    /// The errors of retrying and dead entries: of up to [`ERRORS_LOOKED_AT`] entries with the
    /// smallest ids, and as many with the largest ones, of each state.
    pub errors: Vec<CountedError>,
    /// The processes that lead or wait for the lease, at most 200; `None` where the database does
    /// not know its sessions (SQLite).
    pub processes: Option<Vec<Process>>,
}

/// A process of a relay, as its session shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Whether it took the lease last; otherwise it waits for it.
    pub is_leader: bool,
    /// Its version.
    pub version: String,
    /// The address that it connects from; `None` for this machine, and where the server hides it.
    pub address: Option<String>,
    /// When it connected; `None` where the server hides it, from roles without `pg_read_all_stats`.
    pub since: Option<OffsetDateTime>,
}

/// Number of entries from each end whose errors a [`Picture`] counts.
pub const ERRORS_LOOKED_AT: u32 = 500;

/// An error of parked entries of one state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountedError {
    /// The state.
    pub state: ExceptionState,
    /// The first 300 characters of the error.
    pub error: String,
    /// Number of entries with it.
    pub count: u64,
}

/// The server history in which a cursor was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CursorHistory {
    /// The identifier of the cluster.
    pub system_identifier: String,
    /// The timeline of the write-ahead log; each promotion begins a new one. 0 where the server
    /// does not report it.
    pub timeline: i64,
    /// Whether the answering server is that cluster, on the same timeline. Otherwise the next grant
    /// of the lease compares the histories.
    pub is_present: bool,
}

/// The holder of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The name that it gave itself.
    pub name: String,
    /// Time until the lease expires; `None` when it has expired and no process has taken it over.
    pub expires_in: Option<Duration>,
    /// Time since the lease expired, by the database's clock; `None` while it has not.
    pub expired_for: Option<Duration>,
}

/// Returns how long ago the lease was first taken after a checkpoint of this age, according to the
/// stored cursor.
pub(crate) fn taken_for(cursor: &str, checkpoint_age: Duration) -> Option<Duration> {
    Some(checkpoint_age.saturating_sub(crate::stored::read_taken_after(cursor)?))
}

impl Holder {
    /// Creates a holder whose lease ends in this number of seconds, which is negative afterwards.
    pub(crate) fn of(name: String, seconds: Option<f64>) -> Self {
        let expires_in = seconds.and_then(crate::row::wait);
        let expired_for = seconds.and_then(|seconds| Duration::try_from_secs_f64(-seconds).ok());
        Self { name, expires_in, expired_for: expired_for.filter(|_| expires_in.is_none()) }
    }
}

/// The entries that a relay has not settled yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backlog {
    /// Maximum number of entries: the ids between the cursor, or the oldest entry if a long
    /// transaction has left it below the cursor, and the end of the log. Transactions that were
    /// rolled back leave gaps, so there may be fewer. Counting them would cost as much as reading
    /// them.
    pub entries_max: u64,
    /// The oldest committed entry that is not settled, and its age; `None` when the relay has
    /// caught up.
    pub oldest: Option<(EntryId, Duration)>,
    /// Entries that the cursor has passed but that have not left yet: held, retrying, and scheduled
    /// ones that are due.
    pub parked: u64,
    /// The oldest of those, and its age since it was enqueued or since it was due.
    pub oldest_parked: Option<(EntryId, Duration)>,
}

impl Backlog {
    /// Returns the maximum number of entries that wait to be published, including parked ones.
    #[must_use]
    pub fn waiting_max(&self) -> u64 {
        self.entries_max.saturating_add(self.parked)
    }

    /// Returns the entry that has waited longest, parked or not, and its age.
    #[must_use]
    pub fn oldest_waiting(&self) -> Option<(EntryId, Duration)> {
        self.oldest.into_iter().chain(self.oldest_parked).max_by_key(|(_, age)| *age)
    }
}

/// An open transaction that has written to the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Blocker {
    /// The transaction of a session.
    Session {
        /// The server process.
        pid: i32,
        /// The transaction's id. It differs for the next transaction of the same process.
        transaction: String,
        /// The name that the client gave itself.
        application_name: String,
        /// `active`, `idle in transaction`, …; `None` where the server hides it, like the age.
        state: Option<String>,
        /// How long the transaction has been open; `None` where the server hides it. Only members
        /// of `pg_read_all_stats` see sessions of other roles.
        age: Option<Duration>,
    },
    /// A prepared transaction, which has no server process.
    Prepared {
        /// The name by which it is committed or rolled back.
        name: String,
        /// The transaction's id.
        transaction: String,
        /// How long it has been prepared.
        age: Duration,
    },
}

impl Blocker {
    /// Returns the server process; `None` for a prepared transaction.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        match self {
            Self::Session { pid, .. } => Some(*pid),
            Self::Prepared { .. } => None,
        }
    }

    /// Returns the transaction's id.
    #[must_use]
    pub fn transaction(&self) -> &str {
        match self {
            Self::Session { transaction, .. } | Self::Prepared { transaction, .. } => transaction,
        }
    }

    /// Returns how long the transaction has been open or prepared; `None` where the server hides
    /// it.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        match self {
            Self::Session { age, .. } => *age,
            Self::Prepared { age, .. } => Some(*age),
        }
    }
}

/// A group of parked entries as the database counts them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Counted {
    pub(crate) state: String,
    /// The party at fault.
    pub(crate) fault: Option<String>,
    pub(crate) is_due: bool,
    pub(crate) entries: u64,
    /// The smallest id.
    pub(crate) first: EntryId,
    /// Seconds since the first of them was due.
    pub(crate) since_due: Option<f64>,
    /// Seconds that the first of them has been parked, or discarded.
    pub(crate) longest: Option<f64>,
}

/// A summary of a relay's parked entries.
#[derive(Debug, Default)]
pub(crate) struct ParkedSummary {
    /// Number by state; zero for a state without entries.
    pub(crate) exceptions: BTreeMap<ExceptionState, u64>,
    pub(crate) parked: Vec<ParkedCount>,
    /// The number that wait to be published.
    pub(crate) waiting: u64,
    /// The oldest held or retrying entry.
    pub(crate) oldest: Option<EntryId>,
    /// The scheduled entry that has been due longest.
    pub(crate) overdue: Option<(EntryId, Duration)>,
}

impl ParkedSummary {
    /// Sums up the groups. Leaves out states that this build does not know.
    pub(crate) fn of(groups: Vec<Counted>) -> Self {
        use ExceptionState::{Dead, Discarded, Held, Retrying, Scheduled};
        let exceptions = [Scheduled, Retrying, Held, Dead, Discarded].map(|state| (state, 0)).into();
        let mut summary = Self { exceptions, ..Self::default() };
        for group in groups {
            let Ok(state) = group.state.parse::<ExceptionState>() else { continue };
            let count = group.entries;
            let id = group.first;
            let longest = span(group.longest);
            *summary.exceptions.entry(state).or_default() += count;
            let cause = group.fault.as_deref().and_then(Fault::from_word);
            match summary.parked.iter_mut().find(|known| (known.state, known.cause) == (state, cause)) {
                Some(known) => {
                    known.count += count;
                    known.longest = known.longest.max(longest);
                }
                None => summary.parked.push(ParkedCount { state, cause, count, longest }),
            }
            match state {
                Held | Retrying => {
                    summary.waiting += count;
                    summary.oldest = summary.oldest.into_iter().chain([id]).min();
                }
                Scheduled if group.is_due => {
                    summary.waiting += count;
                    let age = span(group.since_due);
                    summary.overdue =
                        summary.overdue.into_iter().chain([(id, age)]).max_by_key(|(_, age)| *age);
                }
                _ => {}
            }
        }
        summary
    }

    /// Adds the waiting entries to a backlog. `age` is the age of the oldest held or retrying
    /// entry.
    pub(crate) fn add_to(&self, backlog: Backlog, age: Option<Duration>) -> Backlog {
        let oldest = self.oldest.zip(age);
        let oldest_parked = oldest.into_iter().chain(self.overdue).max_by_key(|(_, age)| *age);
        Backlog { parked: self.waiting, oldest_parked, ..backlog }
    }
}

/// Converts a time span of the database. It is negative where its clock was set back: zero then.
fn span(seconds: Option<f64>) -> Duration {
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(state: &str, fault: Option<&str>, is_due: bool, entries: u64, id: i64) -> Counted {
        let since_due = is_due.then_some(7.0);
        let (state, fault) = (state.to_owned(), fault.map(str::to_owned));
        Counted { state, fault, is_due, entries, first: EntryId(id), since_due, longest: Some(id as f64) }
    }

    #[test]
    fn a_lease_is_over_since_its_end() {
        let of = |seconds| {
            let Holder { expires_in, expired_for, .. } = Holder::of(String::from("a"), seconds);
            (expires_in, expired_for)
        };
        let seconds = Duration::from_secs;
        assert_eq!(of(Some(13.0)), (Some(seconds(13)), None));
        assert_eq!(of(Some(-8.0)), (None, Some(seconds(8))));
        assert_eq!(of(Some(0.0)), (None, Some(Duration::ZERO)));
        assert_eq!(of(None), (None, None));
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
        assert_eq!(summary.exceptions[&ExceptionState::Retrying], 3);
        assert_eq!(summary.exceptions[&ExceptionState::Scheduled], 9);
        assert_eq!(summary.exceptions[&ExceptionState::Discarded], 0);
        assert!(summary.parked.contains(&ParkedCount {
            state: ExceptionState::Dead,
            cause: Some(Fault::Message),
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
