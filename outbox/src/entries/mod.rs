//! Single entries of the log, as operators look at them: the story of one, and those that were
//! published and can be published again.
//!
//! An entry was published when the relay's cursor has passed it and nothing is recorded about it:
//! no exception, and no decision to discard it. Everything else has not left yet, or never leaves.
//!
//! | module | what it holds |
//! |---|---|
//! | [`found`] | [`FoundEntry`], [`ParkedState`], [`HeldBehind`], [`StoredPayload`]: all that the database knows of one entry |
//! | [`labels`] | [`Labels`]: by what relays that share an outbox divide it up |
//! | [`lag`] | [`TopicLag`]: entries that have not left, by topic |
//! | [`selection`] | [`Extent`], [`Selection`], [`SelectedEntry`], [`Standing`]: entries chosen from the log |

pub mod found;
pub mod labels;
pub mod lag;
pub mod selection;

use std::sync::Arc;

use async_trait::async_trait;
use message::Source;
use time::OffsetDateTime;
use uuid::Uuid;

pub use found::{FoundEntry, HeldBehind, ParkedState, StoredPayload};
pub use labels::Labels;
pub use lag::{TopicLag, UNREAD_COUNTED_MAX};
pub use selection::{Extent, SelectedEntry, SelectedPage, Selection, Standing};

use crate::address::Address;
use crate::admin::LogAdmin;
use crate::log::{Entry, EntryId, LogError, LogOptions, RelayName, RowLimit};

/// The name of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryRef {
    /// Its place in the log.
    Id(EntryId),
    /// Its message id.
    MessageId(Uuid),
}

/// Reads single entries. Each call opens a connection of its own; all reading calls are
/// cancel-safe.
#[async_trait]
pub trait LogEntries: Send + Sync + 'static {
    /// Everything that is known of the entries of this name: one, but where the sequence was set
    /// back.
    ///
    /// # Errors
    /// [`LogError`]: unreachable, wrong credentials, schema missing.
    async fn find(&self, relay: &RelayName, which: EntryRef) -> Result<Vec<FoundEntry>, LogError>;

    /// How far the log reaches and how far the relay has come, at this moment.
    ///
    /// # Errors
    /// As for [`LogEntries::find`].
    async fn extent(&self, relay: &RelayName) -> Result<Extent, LogError>;

    /// Entries of a selection with ids above `after`, in the order of ids, without their payloads.
    /// One call looks at a bounded number of rows and may bring none: go on at
    /// [`SelectedPage::seen_to`] until it is exhausted.
    ///
    /// # Errors
    /// As for [`LogEntries::find`].
    async fn select(
        &self,
        relay: &RelayName,
        extent: &Extent,
        selection: &Selection,
        after: EntryId,
    ) -> Result<SelectedPage, LogError>;

    /// Entries that the relay has passed between two extents, with ids above `after`, in the order
    /// of ids, without their payloads.
    ///
    /// # Errors
    /// As for [`LogEntries::find`].
    async fn passed_between(
        &self,
        relay: &RelayName,
        before: &Extent,
        now: &Extent,
        after: EntryId,
    ) -> Result<SelectedPage, LogError>;

    /// The content of entries, in the order of ids. What retention has removed is missing; what is
    /// larger than `limit` is not read, and no message.
    ///
    /// # Errors
    /// As for [`LogEntries::find`].
    async fn contents(&self, entries: &[(EntryId, Uuid)], limit: RowLimit) -> Result<Vec<Entry>, LogError>;

    /// The payload of an entry, whatever else its row holds: as an operator has edited it while it
    /// is parked, as it was enqueued, or the copy of a parked entry whose row is gone. `None` where
    /// none is there. The bytes are left out where they are more than `bytes_max`.
    ///
    /// # Errors
    /// As for [`LogEntries::find`].
    async fn payload(
        &self,
        relay: &RelayName,
        id: EntryId,
        message_id: &str,
        bytes_max: u64,
    ) -> Result<Option<StoredPayload>, LogError>;

    /// Entries that have not left, by topic, in the order of topics. Topics in which everything has
    /// left are not among them.
    ///
    /// # Errors
    /// As for [`LogEntries::find`].
    async fn lag(&self, relay: &RelayName) -> Result<Vec<TopicLag>, LogError>;

    /// The first entry made at each of these moments or later, by the time in its message id;
    /// `None` where there is none. Looks at as many rows as there are moments.
    ///
    /// # Errors
    /// As for [`LogEntries::find`].
    async fn firsts(&self, moments: &[OffsetDateTime]) -> Result<Vec<Option<EntryId>>, LogError>;

    /// Adds a line to what operators did, which [`LogAdmin::operations`] lists. Not cancel-safe:
    /// look at that list.
    ///
    /// # Errors
    /// As for [`LogEntries::find`].
    async fn note_operation(
        &self,
        relay: &RelayName,
        action: &str,
        selection: &str,
        signature: (&str, &str),
    ) -> Result<(), LogError>;
}

/// Administration and entries of one log.
pub type Opened = (Arc<dyn LogAdmin>, Arc<dyn LogEntries>);

/// Administration and entries of the log of the database at an address: `postgres://…` or
/// `sqlite:…`. Connects to nothing yet.
///
/// # Errors
/// [`LogError::Operator`] when the URL cannot be used or would send secrets in the clear.
pub fn open(address: impl Into<Address>, source: Source, options: LogOptions) -> Result<Opened, LogError> {
    let log = crate::log::open::log(address.into(), source, options)?;
    Ok((Arc::clone(&log) as Arc<dyn LogAdmin>, log))
}
