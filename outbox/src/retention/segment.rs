//! Segments, into which the log is divided.

use std::fmt;
use std::time::Duration;

use crate::log::EntryId;

/// A part of the log that goes as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Its number, from 0.
    pub number: u16,
    /// The entry that was enqueued last; `None` when there is none.
    pub newest: Option<EntryId>,
    /// The age of that entry.
    pub newest_age: Option<Duration>,
    /// The age of the entry that was enqueued first.
    pub oldest_age: Option<Duration>,
    /// The bytes on disk, indexes included; `None` where the database does not tell.
    pub bytes: Option<u64>,
    /// Why it stays; `None` when it can go.
    pub held_back: Option<HeldBack>,
}

/// Why a segment stays.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeldBack {
    /// There is nothing in it.
    Empty,
    /// Its newest entry is not old enough.
    Young,
    /// No relay has ever read this outbox.
    Unread,
    /// A relay has not passed it: this one is the furthest behind.
    Relay(String),
    /// This relay has parked a message of it that is too large to be copied.
    Parked(String),
    /// The log was restored from another cluster and no relay has taken it up yet.
    Restored,
    /// It was in use at the moment.
    Busy,
}

impl HeldBack {
    /// Whether somebody should do something about it.
    #[must_use]
    pub fn needs_attention(&self) -> bool {
        matches!(self, Self::Unread | Self::Relay(_) | Self::Parked(_) | Self::Restored)
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
                write!(f, "relay {name} has parked a message of it that is too large to be copied")
            }
            Self::Restored => f.write_str("restored from another cluster, and no relay has taken it up"),
            Self::Busy => f.write_str("in use, tried again"),
        }
    }
}

/// The amount of history that was removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Expired {
    /// Segments that were emptied. Where it was all of the log's only one, and where it was a part
    /// of it, 1.
    pub segments: u64,
    /// How many rows; `None` where they went without being counted.
    pub rows: Option<u64>,
    /// The bytes on disk that became free; `None` where the file keeps its size.
    pub bytes: Option<u64>,
}
