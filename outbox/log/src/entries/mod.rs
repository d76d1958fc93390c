//! Single entries of the log, for operators: the history of one entry, and the published entries,
//! which can be published again.
//!
//! An entry is published when the relay's cursor has passed it and nothing is recorded about it: no
//! exception, and no decision to discard it. Every other entry is not published yet, or never will
//! be.
//!
//! | module | contents |
//! |---|---|
//! | `erasure` | [`Erasure`]: the removal of what published entries hold |
//! | `found` | [`FoundEntry`], [`ParkedState`], [`EarlierError`], [`HeldBehind`], [`StoredPayload`]: everything that the database knows about one entry |
//! | `labels` | [`Labels`]: the values by which relays that share an outbox divide its messages |
//! | `lag` | [`TopicLag`]: entries that have not left yet, by topic |
//! | `search` | [`Search`], [`Searched`]: a search from the newest entry to the oldest |
//! | `selection` | [`Extent`], [`Selection`], [`EntryName`], [`SelectedEntry`], [`Standing`]: entries chosen from the log |

pub(crate) mod erasure;
mod found;
mod labels;
pub(crate) mod lag;
pub(crate) mod search;
pub(crate) mod selection;

use std::sync::Arc;

use async_trait::async_trait;
use outbox::Signature;
use time::OffsetDateTime;
use uuid::Uuid;

pub use erasure::{ERASED_MAX, Erasure};
pub use found::{
    EARLIER_ERROR_CHARS_MAX, EARLIER_ERRORS_MAX, EarlierError, FoundEntry, HeldBehind, ParkedState,
    StoredPayload,
};
pub use labels::Labels;
pub use lag::{TopicLag, UNREAD_COUNTED_MAX};
pub use search::{HEADERS_SEARCHED_BYTES_MAX, HeaderIs, Search, Searched};
pub use selection::{EntryName, Extent, SelectedEntry, SelectedPage, Selection, Standing};

use crate::admin::LogAdmin;
pub use crate::open::entries as open;
use crate::{Entry, EntryId, LogError, RelayName, RowLimit};

/// A reference to an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryRef {
    /// Its position in the log.
    Id(EntryId),
    /// Its message id.
    MessageId(Uuid),
}

/// Reads single entries. Each call opens its own connection. All reading calls are cancel-safe.
#[async_trait]
pub trait LogEntries: Send + Sync + 'static {
    /// Returns everything known about the referenced entry. There is more than one only where a
    /// sequence was set back.
    ///
    /// # Errors
    /// [`LogError`]: unreachable, wrong credentials, schema missing.
    async fn find(&self, relay: &RelayName, which: EntryRef) -> Result<Vec<FoundEntry>, LogError>;

    /// Returns the current extent of the log and the relay's progress in it.
    ///
    /// # Errors
    /// As for [`LogEntries::find`].
    async fn extent(&self, relay: &RelayName) -> Result<Extent, LogError>;

    /// Returns entries of a selection with ids above `after`, in the order of ids, without their
    /// payloads. One call looks at a bounded number of rows and may return none. Continue at
    /// [`SelectedPage::seen_to`] until the selection is exhausted.
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

    /// Returns entries that match a search, newest first, with ids below `below`, without their
    /// payloads: a few of them, at most some `wanted`. One call looks at a bounded number of rows
    /// and may return none. Continue at [`Searched::below`].
    ///
    /// # Errors
    /// As for [`LogEntries::find`].
    async fn search(
        &self,
        relay: &RelayName,
        extent: &Extent,
        search: &Search,
        below: EntryId,
        wanted: u32,
    ) -> Result<Searched, LogError>;

    /// Returns entries that the relay passed between two extents, with ids above `after`, in the
    /// order of ids, without their payloads.
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

    /// Returns the content of entries, in the order of ids. Entries that retention has removed are
    /// missing. Content larger than `limit` is not read; such an entry is not a valid message.
    ///
    /// # Errors
    /// As for [`LogEntries::find`].
    async fn contents(&self, entries: &[(EntryId, Uuid)], limit: RowLimit) -> Result<Vec<Entry>, LogError>;

    /// Returns the payload of an entry, even when the rest of its row is invalid: an operator's
    /// edit while it is parked, the row as it was enqueued, or the copy of a parked entry whose row
    /// no longer exists. `None` where none exists. The bytes are left out when there are more than
    /// `bytes_max`.
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

    /// Returns entries that are not published yet, by topic, in the order of topics. Leaves out
    /// topics without such entries.
    ///
    /// # Errors
    /// As for [`LogEntries::find`].
    async fn lag(&self, relay: &RelayName) -> Result<Vec<TopicLag>, LogError>;

    /// Returns the first entry generated at each of these times or later, by the time in its
    /// message id; `None` where there is none. Reads one row per time.
    ///
    /// # Errors
    /// As for [`LogEntries::find`].
    async fn firsts(&self, moments: &[OffsetDateTime]) -> Result<Vec<Option<EntryId>>, LogError>;

    /// Removes what entries hold: key, headers, trace context and payload, and the contents of
    /// edits in the audit. All in one transaction, at most [`ERASED_MAX`]. The rows stay, with the
    /// content type [`ERASED_CONTENT_TYPE`](message::ERASED_CONTENT_TYPE), and the audit of every
    /// relay records an edit of each. Returns the number of erased rows of the log: one that a
    /// relay has parked, unless it is discarded, stays as it is.
    ///
    /// The caller has checked that every relay of the log has passed the entries: one that has not
    /// would park them as dead instead of publishing them. Needs the rights of the owner of the
    /// tables. Not cancel-safe: call it again, which erases what is left.
    ///
    /// # Errors
    /// As for [`LogEntries::find`]; [`LogError::Operator`] for more entries, or for an actor or a
    /// reason that is empty or too long.
    async fn erase(&self, entries: &[EntryName], erasure: &Erasure) -> Result<u64, LogError>;

    /// Returns the identity of this log: the same for every spelling of its location, and different
    /// for any other log. On PostgreSQL it is server, database and table, on SQLite the resolved
    /// file.
    ///
    /// # Errors
    /// As for [`LogEntries::find`].
    async fn identity(&self) -> Result<String, LogError>;

    /// Adds an entry to the operations that [`LogAdmin::operations`] lists; the signature's
    /// selection is what the operation is about. Not cancel-safe: check that list.
    ///
    /// # Errors
    /// As for [`LogEntries::find`].
    async fn note_operation(&self, relay: &RelayName, action: &str, by: &Signature) -> Result<(), LogError>;
}

/// The administration and the entries of one log.
pub type Opened = (Arc<dyn LogAdmin>, Arc<dyn LogEntries>);
