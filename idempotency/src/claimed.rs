//! The outcome of a claim.

use std::time::Duration;

use bytes::Bytes;
use message::Fingerprint;
use time::OffsetDateTime;

use crate::decide::{BUSY_RETRY_AFTER, Verdict};
use crate::record::Ending;

/// The outcome of a claim.
#[derive(Debug)]
#[must_use = "only an acquired key lets the request run"]
pub enum Claimed<T> {
    /// Run the request, and store its outcome.
    Acquired(T),
    /// Another caller is running it: ask again later.
    InFlight {
        /// How long to wait: the rest of its holder's lease, or a second for a key held by a
        /// transaction.
        retry_after: Duration,
    },
    /// Its lease has expired, it is unknown whether it took effect, and the policy requires an
    /// operator.
    Stuck {
        /// When the lease expired, by the database's clock.
        since: OffsetDateTime,
    },
    /// It has run, with this outcome.
    Replay(Replay),
    /// An operator has discarded it: it never runs. A new request needs a new key.
    Discarded {
        /// When it was discarded.
        decided_at: OffsetDateTime,
    },
    /// The key belongs to another request: the caller's bug. Nothing was run.
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
    /// Returns the acquired key; `None` otherwise.
    #[must_use]
    pub fn acquired(self) -> Option<T> {
        match self {
            Self::Acquired(it) => Some(it),
            _ => None,
        }
    }

    /// Returns the word for metrics and logs.
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

    /// Returns the granted attempt, or the outcome to answer with instead.
    pub(crate) fn of(verdict: Verdict) -> Result<u32, Self> {
        Err(match verdict {
            Verdict::Take { attempt, .. } | Verdict::Held { attempt } => return Ok(attempt),
            Verdict::Busy => Self::InFlight { retry_after: BUSY_RETRY_AFTER },
            Verdict::InFlight { retry_after } => Self::InFlight { retry_after },
            Verdict::Stuck { since } => Self::Stuck { since },
            Verdict::Replay { ending, outcome, processed_at } => {
                Self::Replay(Replay { ending, outcome: Bytes::from(outcome), processed_at })
            }
            Verdict::Discarded { decided_at } => Self::Discarded { decided_at },
            Verdict::Conflict { stored } => Self::Conflict { stored },
        })
    }
}
