//! The outcome of a claim.

use std::time::Duration;

use bytes::Bytes;
use message::Fingerprint;
use time::OffsetDateTime;

use super::decide::{BUSY_RETRY_AFTER, Decision};
use super::record::Ending;

/// The outcome of a claim.
#[derive(Debug)]
#[must_use = "only an acquired key lets the request run"]
pub enum Claimed<T> {
    /// Run the request, and store its outcome.
    Acquired(T),
    /// Somebody runs it at this moment: ask again later.
    InFlight {
        /// When: the rest of its holder's lease, or a second for a key that a transaction holds.
        retry_after: Duration,
    },
    /// Its holder is gone, it is unknown whether it took effect, and the policy leaves it to an
    /// operator.
    Stuck {
        /// When the lease expired, by the database's clock.
        since: OffsetDateTime,
    },
    /// It has run: this came of it.
    Replay(Replay),
    /// An operator has given it up: it never runs. A new request needs a new key.
    Discarded {
        /// When.
        decided_at: OffsetDateTime,
    },
    /// The key names another request: the caller's bug. Nothing was run.
    Conflict {
        /// The fingerprint of the request that the key belongs to.
        stored: Fingerprint,
    },
}

/// A request that has run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// How it ended.
    pub ending: Ending,
    /// The outcome that its holder stored.
    pub outcome: Bytes,
    /// When it ended, by the database's clock.
    pub processed_at: OffsetDateTime,
}

impl<T> Claimed<T> {
    /// The acquired key; nothing otherwise.
    #[must_use]
    pub fn acquired(self) -> Option<T> {
        match self {
            Self::Acquired(it) => Some(it),
            _ => None,
        }
    }

    /// The word in metrics and logs.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Acquired(_) => "acquired",
            Self::InFlight { .. } => "in_flight",
            Self::Stuck { .. } => "stuck",
            Self::Replay(_) => "replay",
            Self::Discarded { .. } => "discarded",
            Self::Conflict { .. } => "conflict",
        }
    }

    /// The attempt that is granted, or what is answered instead.
    pub(crate) fn of(decision: Decision) -> Result<u32, Self> {
        Err(match decision {
            Decision::Take { attempt } | Decision::Held { attempt } => return Ok(attempt),
            Decision::Busy => Self::InFlight { retry_after: BUSY_RETRY_AFTER },
            Decision::InFlight { retry_after } => Self::InFlight { retry_after },
            Decision::Stuck { since } => Self::Stuck { since },
            Decision::Replay { ending, outcome, processed_at } => {
                Self::Replay(Replay { ending, outcome: Bytes::from(outcome), processed_at })
            }
            Decision::Discarded { decided_at } => Self::Discarded { decided_at },
            Decision::Conflict { stored } => Self::Conflict { stored },
        })
    }
}
