//! Questions about many parked entries, and decisions about many in one session.

use std::time::Duration;

use async_trait::async_trait;
use outbox::Signature;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::admin::decision::{ChosenEntry, Confirmed, DecideError, OperatorDecision};
use crate::admin::entry::ListedEntry;
use crate::{EntryId, ExceptionState, LogError};

/// Maximum entries that one call examines, whatever the filter is.
pub const LOOKED_AT_MAX: u32 = 10_000;
/// Maximum entries that [`Desk::survey`] counts.
pub const SURVEYED_MAX: u32 = 1_000_000;
/// Entries from each end whose errors [`Desk::survey`] groups.
pub const GROUPED_MAX: u32 = 5_000;
/// Maximum entries of a decision whose current state [`Desk::decision`] looks up.
pub const FOLLOWED_MAX: u32 = 20_000;

/// The longest age that a condition may name: a hundred years.
const AGE_MAX: Duration = Duration::from_secs(100 * 366 * 86_400);

/// Conditions on parked entries. All must hold; without any, all entries match.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ParkedFilter {
    /// The topic.
    pub topic: Option<String>,
    /// The ordering key.
    pub key: Option<String>,
    /// The CloudEvents type.
    pub kind: Option<String>,
    /// The party at fault.
    pub fault: Option<String>,
    /// Texts that the error contains, in this order. SQLite ignores the case of ASCII letters.
    pub error_parts: Vec<String>,
    /// Only entries that were parked longer ago than this, which is limited to a hundred years.
    pub older_than: Option<Duration>,
    /// Only entries that were parked at most this long ago, which is limited to a hundred years.
    pub newer_than: Option<Duration>,
    /// Only entries that have not changed since this time, by the database's clock. Ages are
    /// measured at this time as well.
    pub as_of: Option<OffsetDateTime>,
}

impl ParkedFilter {
    /// Returns the pattern that errors with all parts match.
    pub(crate) fn error_pattern(&self) -> Option<String> {
        migrations::query::like_pattern(&self.error_parts)
    }

    /// Returns the conditions about ages, as every database can take them.
    pub(crate) fn ages(&self) -> [Option<Duration>; 2] {
        [self.older_than, self.newer_than].map(|age| age.map(|age| age.min(AGE_MAX)))
    }
}

/// A query for parked entries in one state, in the order of ids.
#[derive(Debug, Clone, PartialEq)]
pub struct ParkedQuery {
    /// The state.
    pub state: ExceptionState,
    /// Only entries with larger ids.
    pub after: EntryId,
    /// Maximum entries to return.
    pub entries_max: u32,
    /// The conditions.
    pub filter: ParkedFilter,
}

/// A part of the parked entries.
#[derive(Debug, Clone, PartialEq)]
pub struct ParkedSlice<T> {
    /// The entries that match.
    pub entries: Vec<T>,
    /// The beginning of the next slice; `None` after the last entry.
    pub next: Option<EntryId>,
}

/// A parked entry, with the columns that a decision needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundParked {
    /// The entry.
    pub chosen: ChosenEntry,
    /// Its topic.
    pub topic: String,
    /// When it was parked.
    pub created_at: OffsetDateTime,
    /// Its error, if the filter asks for a part of it.
    pub error: Option<String>,
}

/// Entries with the same topic, party at fault and error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedGroup {
    /// Their topic.
    pub topic: String,
    /// The party at fault.
    pub fault: Option<String>,
    /// The first 300 characters of the error.
    pub error: Option<String>,
    /// Their number.
    pub count: u64,
    /// When the first of them was parked.
    pub first: OffsetDateTime,
    /// When the last of them was parked.
    pub last: OffsetDateTime,
}

/// The number of entries that match a filter, and their errors.
#[derive(Debug, Clone, PartialEq)]
pub struct Survey {
    /// The database's time before it counted.
    pub at: OffsetDateTime,
    /// The number of entries that match.
    pub count: u64,
    /// Whether there may be more: only [`SURVEYED_MAX`] entries are looked at.
    pub is_at_least: bool,
    /// Groups of the [`GROUPED_MAX`] entries from each end.
    pub groups: Vec<ParkedGroup>,
    /// Whether the groups leave out entries in the middle.
    pub is_sample: bool,
}

/// The result of a decision in one outbox, according to the audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecisionRecord {
    /// Who decided, and why.
    pub signature: Signature,
    /// `requeue`, `discard` or `edit`.
    pub action: String,
    /// Number of entries decided about.
    pub count: u64,
    /// When the first of them was decided about.
    pub first: OffsetDateTime,
    /// When the last of them was decided about.
    pub last: OffsetDateTime,
    /// The current states of the first [`FOLLOWED_MAX`] of them, each with its number of entries.
    /// An entry without a state has left: it was published, or discarded.
    pub now: Vec<StandingCount>,
}

/// A number of entries in one state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandingCount {
    /// The state; `None` for entries that are not parked any more.
    pub state: Option<ExceptionState>,
    /// The number.
    pub count: u64,
}

/// A session for one job of an operator: queries about the parked entries of one relay, and
/// decisions about many of them. It connects with the first call, and again after an error.
///
/// Reading calls are cancel-safe. Each call ends within the call timeout of the log's options.
#[async_trait]
pub trait Desk: Send {
    /// Returns the next entries that match, for display. Looks at [`LOOKED_AT_MAX`] entries of the
    /// state, so a slice can be empty and still have a next one.
    ///
    /// # Errors
    /// As for [`LogAdmin::relays`](crate::admin::LogAdmin::relays).
    async fn parked(&mut self, query: &ParkedQuery) -> Result<ParkedSlice<ListedEntry>, LogError>;

    /// Returns the next dead or retrying entries that match, for a decision. Looks at
    /// [`LOOKED_AT_MAX`] entries, and returns all of these that match.
    ///
    /// # Errors
    /// As for [`Desk::parked`].
    async fn choose(&mut self, query: &ParkedQuery) -> Result<ParkedSlice<FoundParked>, LogError>;

    /// Returns the database's time. Entries that appear later are younger.
    ///
    /// # Errors
    /// As for [`Desk::parked`].
    async fn now(&mut self) -> Result<OffsetDateTime, LogError>;

    /// Counts the dead or retrying entries that match, and groups their errors.
    ///
    /// # Errors
    /// As for [`Desk::parked`].
    async fn survey(&mut self, state: ExceptionState, filter: &ParkedFilter) -> Result<Survey, LogError>;

    /// Decides about entries, as [`LogAdmin::decide`](crate::admin::LogAdmin::decide) does. With a
    /// confirmation, a dead entry that has changed since is left unchanged. Not cancel-safe: query
    /// the [`decision`](Self::decision).
    ///
    /// # Errors
    /// [`DecideError`] for a problem that concerns all entries. Nothing was changed then, except
    /// with [`DecideError::Unknown`].
    async fn decide(
        &mut self,
        entries: &[ChosenEntry],
        decree: &OperatorDecision,
        confirmed: Option<Confirmed>,
    ) -> Result<Vec<Result<(), DecideError>>, DecideError>;

    /// Returns the result of a decision; `None` when it changed nothing here.
    ///
    /// # Errors
    /// As for [`Desk::parked`].
    async fn decision(&mut self, id: Uuid) -> Result<Option<DecisionRecord>, LogError>;
}
