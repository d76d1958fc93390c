//! The row of a key, and the states that it can have.

use message::Fingerprint;
use time::OffsetDateTime;
use uuid::Uuid;

/// How a request ended. Both are final: the outcome is given to everybody who asks again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    /// It did what was asked for.
    Succeeded,
    /// It was refused for good.
    Failed,
}

/// Where a key stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Somebody holds it on lease.
    InProgress {
        /// Until then nobody else may.
        lease_until: OffsetDateTime,
    },
    /// Its holder, or an operator, has given it back: anybody may run it.
    Released,
    /// It ended.
    Ended(Ending),
}

impl State {
    /// The word in the table; the lease is a column of its own.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::InProgress { .. } => "in_progress",
            Self::Released => "released",
            Self::Ended(Ending::Succeeded) => "succeeded",
            Self::Ended(Ending::Failed) => "failed",
        }
    }

    /// Until when it is held on lease.
    pub(crate) fn lease_until(self) -> Option<OffsetDateTime> {
        match self {
            Self::InProgress { lease_until } => Some(lease_until),
            Self::Released | Self::Ended(_) => None,
        }
    }

    /// The state of the two columns.
    pub(crate) fn of_columns(word: &str, lease_until: Option<OffsetDateTime>) -> Result<Self, sqlx::Error> {
        match (word, lease_until) {
            ("in_progress", Some(lease_until)) => Ok(Self::InProgress { lease_until }),
            ("released", None) => Ok(Self::Released),
            ("succeeded", None) => Ok(Self::Ended(Ending::Succeeded)),
            ("failed", None) => Ok(Self::Ended(Ending::Failed)),
            _ => Err(sqlx::Error::Decode(
                "the state of an idempotency key is one that this build does not know".into(),
            )),
        }
    }
}

/// The row of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) state: State,
    pub(crate) attempt: u32,
    pub(crate) holder: Uuid,
    /// Nothing for a key that an operator has given up.
    pub(crate) outcome: Option<Vec<u8>>,
    pub(crate) processed_at: Option<OffsetDateTime>,
    pub(crate) expires_at: OffsetDateTime,
    /// Whether a key whose lease has expired waits for an operator, as its holder had it.
    pub(crate) refuses: bool,
}

impl Record {
    /// Whether it is as if it were not there. A key in progress never is, as long as its row is
    /// there: whether its effect happened is not known.
    pub(crate) fn has_expired(&self, now: OffsetDateTime) -> bool {
        !matches!(self.state, State::InProgress { .. }) && self.expires_at <= now
    }
}

/// The row, lock and clock that a claim has read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The transaction that looks has the lock of the key. Without it only an outcome counts:
    /// anything else is the owner's at this moment.
    pub(crate) is_held: bool,
    /// The database's clock.
    pub(crate) read_at: OffsetDateTime,
    /// The row.
    pub(crate) record: Option<Record>,
}
