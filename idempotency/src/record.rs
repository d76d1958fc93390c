//! The row of a key, its states, what operators see of it, and what they decide about it.

use message::{Fingerprint, Tenant};
use outbox::AuditLine;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::id::KeyId;
use crate::options::OnExpired;

/// How a request ended. Both endings are final: every repeated request gets the outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    /// It did what was requested.
    Succeeded,
    /// It was refused for good.
    Failed,
}

/// State of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// A holder has it on lease.
    InProgress {
        /// Until then no other caller may have it.
        lease_until: OffsetDateTime,
    },
    /// Its holder, or an operator, has released it: any caller may run it.
    Released,
    /// It ended.
    Ended(Ending),
}

impl State {
    /// Returns the word in the table; the lease has its own column.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::InProgress { .. } => "in_progress",
            Self::Released => "released",
            Self::Ended(Ending::Succeeded) => "succeeded",
            Self::Ended(Ending::Failed) => "failed",
        }
    }

    /// Returns until when it is held on lease.
    pub(crate) fn lease_until(self) -> Option<OffsetDateTime> {
        match self {
            Self::InProgress { lease_until } => Some(lease_until),
            Self::Released | Self::Ended(_) => None,
        }
    }

    /// Returns the state that the two columns describe.
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
    /// `None` for a key that an operator has discarded.
    pub(crate) outcome: Option<Vec<u8>>,
    pub(crate) processed_at: Option<OffsetDateTime>,
    pub(crate) expires_at: OffsetDateTime,
    /// Whether the key waits for an operator when its lease has expired: the policy of its holder.
    pub(crate) refuses: bool,
}

impl Record {
    /// Returns whether its answer and the fingerprint of its request were erased.
    pub(crate) fn is_erased(&self) -> bool {
        self.state == State::Ended(Ending::Failed)
            && self.outcome.is_none()
            && *self.fingerprint.as_bytes() == [0; 32]
    }

    /// Returns whether the row counts as missing. A key in progress never does while its row
    /// exists, because it is unknown whether its effect happened.
    pub(crate) fn has_expired(&self, now: OffsetDateTime) -> bool {
        !matches!(self.state, State::InProgress { .. }) && self.expires_at <= now
    }
}

/// The row, lock and clock that a claim has read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// Whether the reading transaction holds the lock of the key. Without the lock only a stored
    /// outcome counts; anything else belongs to the current owner.
    pub(crate) is_held: bool,
    /// Whether a standby was read. It may lag, and its locks are its own.
    pub(crate) is_standby: bool,
    /// The database's clock.
    pub(crate) read_at: OffsetDateTime,
    /// The row.
    pub(crate) record: Option<Record>,
}

/// A key whose lease has expired, or ends further ahead than any lease can.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StuckKey {
    /// The key.
    pub id: KeyId,
    /// Number of times it was held.
    pub attempt: u32,
    /// Id of its last holder, as logs show it.
    pub holder: Uuid,
    /// When its holder claimed it or last renewed the lease.
    pub claimed_at: OffsetDateTime,
    /// When its lease expired. No lease lasts longer than a day: if this is further ahead, the
    /// database's clock was ahead when the lease was granted.
    pub lease_until: OffsetDateTime,
    /// The policy for it: [`OnExpired::Refuse`] waits for an operator, anything else for the next
    /// caller.
    pub on_expired: OnExpired,
}

/// Maximum keys that one call of [`named`](crate::IdempotencyKeys::named) looks at.
pub const KEYS_LOOKED_AT_MAX: u32 = 10_000;

/// The keys that an erasure concerns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeysOfName {
    /// The key itself, or the tenant (the account) that it belongs to.
    pub name: String,
    /// Only keys of this tenant.
    pub tenant: Option<Tenant>,
}

/// A part of the keys with a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedSlice {
    /// Keys that have ended: their answers can be erased.
    pub ended: Vec<KeyId>,
    /// Number of keys that are in progress, or that any caller may run.
    pub running: u64,
    /// The beginning of the next slice; `None` after the last key.
    pub next: Option<KeyId>,
}

message::words! {
    /// The choice of an operator about a stuck key.
    #[derive(Hash)]
    pub enum Action {
        /// The next caller runs the request again.
        Release = "release",
        /// It is discarded: it never runs, and every caller gets that answer.
        Discard = "discard",
    }
}

/// A decision about a key, as the audit stores it.
pub type Decision = AuditLine<Action, KeyId>;
