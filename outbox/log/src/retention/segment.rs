//! The segments of the log.

use std::fmt;
use std::time::Duration;

use crate::EntryId;

/// A part of the log that is removed as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Its number, from 0.
    pub number: u16,
    /// The entry that was enqueued last; `None` when the segment is empty.
    pub newest: Option<EntryId>,
    /// The age of that entry.
    pub newest_age: Option<Duration>,
    /// The age of the entry that was enqueued first.
    pub oldest_age: Option<Duration>,
    /// The bytes on disk, indexes included; `None` where the database does not report them.
    pub bytes: Option<u64>,
    /// Why it stays; `None` when it can be removed.
    pub held_back: Option<HeldBack>,
}

/// Why a segment stays.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeldBack {
    /// It contains no entries.
    Empty,
    /// Its newest entry is not old enough.
    Young,
    /// No relay has ever read this outbox.
    Unread,
    /// A relay has not passed it. This is the one furthest behind.
    Relay(String),
    /// This relay has parked one of its messages, which is too large to be copied.
    Parked(String),
    /// The log was restored from another cluster, and no relay has read it since.
    Restored,
    /// It is old enough by the server's clock, which is this far ahead of this machine's, and not
    /// by this machine's clock. One of the two is wrong.
    Clocks(Duration),
    /// It was in use.
    Busy,
}

impl HeldBack {
    /// Returns whether an operator should act.
    #[must_use]
    pub fn needs_attention(&self) -> bool {
        matches!(self, Self::Unread | Self::Relay(_) | Self::Parked(_) | Self::Restored | Self::Clocks(_))
    }
}

impl fmt::Display for HeldBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("empty"),
            Self::Young => f.write_str("young"),
            Self::Unread => f.write_str("no relay has read this outbox"),
            Self::Relay(name) => write!(f, "relay {name} has not passed it"),
            Self::Parked(name) => {
                write!(f, "relay {name} has parked one of its messages that is too large to be copied")
            }
            Self::Restored => f.write_str("restored from another cluster, and no relay has read it since"),
            Self::Clocks(ahead) => write!(
                f,
                "the clocks differ: the server's is {} s ahead of this machine's, and messages must be old \
                 enough by both",
                ahead.as_secs()
            ),
            Self::Busy => f.write_str("in use; retrying"),
        }
    }
}

/// The amount of history that was removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Expired {
    /// Number of emptied segments. On SQLite, with its single segment, 1 when rows were removed.
    pub segments: u64,
    /// Number of removed rows; `None` where they were not counted.
    pub rows: Option<u64>,
    /// The bytes on disk that became free; `None` where the file keeps its size.
    pub bytes: Option<u64>,
}
