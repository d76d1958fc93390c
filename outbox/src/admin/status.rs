//! How the relays are doing.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::log::{Cursor, EntryId, ExceptionState};

/// One relay: who runs it, how far it is, what it has put aside.
#[derive(Debug, Clone, PartialEq)]
pub struct RelayStatus {
    /// Its name.
    pub relay: String,
    /// The fencing token of the present or last holder.
    pub epoch: i64,
    /// Who holds the lease; `None` when it was given back.
    pub holder: Option<Holder>,
    /// How long ago it made its last checkpoint.
    pub checkpoint_age: Duration,
    /// Where it stands.
    pub cursor: Cursor,
    /// In which server's history that means something; `None` where nothing is stored about it
    /// (SQLite; a relay that has not led yet).
    pub history: Option<CursorHistory>,
    /// The entries that it has not settled yet.
    pub backlog: Backlog,
    /// How many entries are parked, by state.
    pub exceptions: BTreeMap<&'static str, u64>,
}

/// The history of a server in which a cursor was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CursorHistory {
    /// The cluster's own identifier.
    pub system_identifier: String,
    /// Of the write-ahead log: a promotion begins a new one.
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
}

/// An open transaction that has written to the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocker {
    /// The server process.
    pub pid: i32,
    /// The name that the client gives itself.
    pub application_name: String,
    /// `active`, `idle in transaction`, …
    pub state: String,
    /// How long the transaction has been open.
    pub age: Duration,
}

/// Counts by state; a state without entries counts zero.
pub(crate) fn counts(rows: Vec<(String, i64)>) -> BTreeMap<&'static str, u64> {
    use ExceptionState::{Dead, Discarded, Held, Retrying, Scheduled};
    let mut counts: BTreeMap<&'static str, u64> =
        [Scheduled, Retrying, Held, Dead, Discarded].map(|state| (state.as_str(), 0)).into();
    for (state, count) in rows {
        if let Ok(state) = state.parse::<ExceptionState>() {
            counts.insert(state.as_str(), u64::try_from(count).unwrap_or_default());
        }
    }
    counts
}
