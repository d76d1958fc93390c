//! Operators' queries and decisions.
//!
//! Operators decide about dead entries, and about retrying ones that wait for an operator: up to
//! 500 in one transaction. Each decision has a row in `outbox_audit`: who, when, what, why, and the
//! digests of the content before and after. The relay finds a requeued or discarded entry by its
//! due time, within one poll interval.
//!
//! | module | contents |
//! |---|---|
//! | `status` | [`RelayStatus`], [`Holder`], [`Blocker`], [`Backlog`], [`ParkedCount`], [`Picture`], [`Process`] |
//! | `entry` | [`ListedEntry`], [`AuditRecord`], [`DecidedEntry`], [`AuditedDecision`] |
//! | `operation` | [`Operation`]: all other operations |
//! | `content` | [`ParkedContent`], [`EditRecord`]: what an edit replaces, and what it replaced |
//! | `decision` | [`Decision`], [`OperatorDecision`], [`ChosenEntry`], [`Confirmed`], [`DecideError`] |
//! | `parked` | [`Desk`]: many parked entries in one session |

pub(crate) mod content;
pub(crate) mod decision;
pub(crate) mod entry;
mod operation;
mod parked;
pub(crate) mod status;

use async_trait::async_trait;
use time::OffsetDateTime;
use uuid::Uuid;

pub use content::{CONTENT_KEPT_BYTES_MAX, EditRecord, ParkedContent};
pub use decision::{
    Action, ChosenEntry, Confirmed, DECIDED_MAX, DecideError, Decision, OperatorDecision, WITHDRAWN_BY,
};
pub use entry::{AuditQuery, AuditRecord, AuditSlice, AuditedDecision, DecidedEntry, ListedEntry};
pub use operation::Operation;
pub use parked::{
    DecisionRecord, Desk, FOLLOWED_MAX, FoundParked, GROUPED_MAX, LOOKED_AT_MAX, ParkedFilter, ParkedGroup,
    ParkedQuery, ParkedSlice, SURVEYED_MAX, StandingCount, Survey,
};
pub use status::{
    Backlog, Blocker, COUNTED_MAX, CountedError, CursorHistory, ERRORS_LOOKED_AT, Holder, ParkedCount,
    Picture, Process, RelayStatus,
};

pub use crate::open::admin as open;
use crate::{EntryId, ExceptionState, LogError, Pause, PauseScope, RelayName};

/// Reads status and carries out decisions. Each call opens its own connection. All reading calls
/// are cancel-safe.
#[async_trait]
pub trait LogAdmin: Send + Sync + 'static {
    /// Returns every relay that has a cursor, in the order of names.
    ///
    /// # Errors
    /// [`LogError`]: unreachable, wrong credentials, schema missing.
    async fn relays(&self) -> Result<Vec<RelayStatus>, LogError>;

    /// Returns one relay; `None` when it has no cursor. Does not read the other relays.
    ///
    /// # Errors
    /// As for [`LogAdmin::relays`].
    async fn relay(&self, relay: &RelayName) -> Result<Option<RelayStatus>, LogError>;

    /// Returns the oldest open transaction that has written to the outbox: its rows cannot be read
    /// yet. Always `None` on SQLite.
    ///
    /// # Errors
    /// As for [`LogAdmin::relays`].
    async fn blocker(&self) -> Result<Option<Blocker>, LogError>;

    /// Returns the session that locks a table of the outbox and so keeps others waiting, as a text
    /// with the remedy behind its last semicolon. Reads no table that may be locked. The default,
    /// for a database that names no sessions, returns `None`.
    ///
    /// # Errors
    /// As for [`LogAdmin::relays`].
    async fn lock_holder(&self) -> Result<Option<String>, LogError> {
        Ok(None)
    }

    /// Returns a relay and everything that keeps its entries, in one session.
    ///
    /// # Errors
    /// As for [`LogAdmin::relays`].
    async fn picture(&self, relay: &RelayName) -> Result<Picture, LogError>;

    /// Returns up to `entries_max` parked entries in one state with ids above `after`, in the order
    /// of ids.
    ///
    /// # Errors
    /// As for [`LogAdmin::relays`].
    async fn list(
        &self,
        relay: &RelayName,
        state: ExceptionState,
        after: EntryId,
        entries_max: u32,
    ) -> Result<Vec<ListedEntry>, LogError>;

    /// Returns the discarded entries of these messages, in the order of ids. The cost does not
    /// depend on the number of other decisions.
    ///
    /// # Errors
    /// As for [`LogAdmin::relays`].
    async fn discarded(&self, relay: &RelayName, message_ids: &[Uuid]) -> Result<Vec<ListedEntry>, LogError>;

    /// Returns up to `entries_max` held entries, in no order: those of the first queues in the
    /// order of their names. The cost does not depend on the number of other parked entries.
    ///
    /// # Errors
    /// As for [`LogAdmin::relays`].
    async fn held(&self, relay: &RelayName, entries_max: u32) -> Result<Vec<ListedEntry>, LogError>;

    /// Decides about dead entries: requeue, discard or edit. Discards also apply to retrying
    /// entries, and edits to those where the operator is at fault, between two retries. All are
    /// decided in one transaction, at most [`DECIDED_MAX`]. Returns one result for each, in order:
    /// an entry that is no longer dead, or whose position now belongs to another message, is left
    /// unchanged. Not cancel-safe: the outcome of a dropped call is unknown; list the entries.
    ///
    /// # Errors
    /// [`DecideError`] for a problem that concerns all entries. Nothing was changed then, except
    /// with [`DecideError::Unknown`].
    async fn decide(
        &self,
        relay: &RelayName,
        entries: &[ChosenEntry],
        decree: OperatorDecision,
    ) -> Result<Vec<Result<(), DecideError>>, DecideError>;

    /// Returns a session for one job: to choose many parked entries, and to decide about them. Does
    /// not connect yet.
    fn desk(&self, relay: &RelayName) -> Box<dyn Desk>;

    /// Returns up to `records_max` decisions about a relay's entries, latest first.
    ///
    /// # Errors
    /// As for [`LogAdmin::relays`].
    async fn audit(&self, relay: &RelayName, records_max: u32) -> Result<Vec<AuditRecord>, LogError> {
        self.audit_before(relay, i64::MAX, records_max).await
    }

    /// Returns up to `records_max` decisions about a relay's entries with numbers below `before`,
    /// latest first.
    ///
    /// # Errors
    /// As for [`LogAdmin::relays`].
    async fn audit_before(
        &self,
        relay: &RelayName,
        before: i64,
        records_max: u32,
    ) -> Result<Vec<AuditRecord>, LogError>;

    /// Returns the next decisions about a relay's entries, latest first. A decision about many
    /// entries is returned once, with their exact number, even if some of its records are not read.
    ///
    /// # Errors
    /// As for [`LogAdmin::relays`].
    async fn audited(&self, relay: &RelayName, asked: &AuditQuery) -> Result<AuditSlice, LogError>;

    /// Returns up to `records_max` decisions about one message of a relay, latest first.
    ///
    /// # Errors
    /// As for [`LogAdmin::relays`].
    async fn audit_of(
        &self,
        relay: &RelayName,
        message_id: Uuid,
        records_max: u32,
    ) -> Result<Vec<AuditRecord>, LogError>;

    /// Returns the content of a parked entry as it would be published; `None` when it is not
    /// parked.
    ///
    /// # Errors
    /// As for [`LogAdmin::relays`].
    async fn content(
        &self,
        relay: &RelayName,
        entry: &ChosenEntry,
    ) -> Result<Option<ParkedContent>, LogError>;

    /// Returns what an edit found and left, by the number of the decision; `None` when the relay
    /// has no edit with this number.
    ///
    /// # Errors
    /// As for [`LogAdmin::relays`].
    async fn edit(&self, relay: &RelayName, number: i64) -> Result<Option<EditRecord>, LogError>;

    /// Returns the pauses in force, in the order of scopes.
    ///
    /// # Errors
    /// As for [`LogAdmin::relays`].
    async fn pauses(&self, relay: &RelayName) -> Result<Vec<Pause>, LogError>;

    /// Pauses a pipeline, a topic or a key, and records it in the audit. A running relay follows
    /// within a second. Returns false and changes nothing when it was already paused. Not
    /// cancel-safe: check [`LogAdmin::pauses`].
    ///
    /// # Errors
    /// As for [`LogAdmin::relays`]; [`LogError::Operator`] for a name, an actor or a reason that is
    /// empty or too long.
    async fn pause(
        &self,
        relay: &RelayName,
        scope: &PauseScope,
        actor: &str,
        reason: &str,
    ) -> Result<bool, LogError>;

    /// Ends a pause and records it in the audit. With `since`, only the pause that began then.
    /// Returns false when there is no such pause. Not cancel-safe: check [`LogAdmin::pauses`].
    ///
    /// # Errors
    /// As for [`LogAdmin::pause`].
    async fn resume(
        &self,
        relay: &RelayName,
        scope: &PauseScope,
        since: Option<OffsetDateTime>,
        actor: &str,
        reason: &str,
    ) -> Result<bool, LogError>;

    /// Returns up to `records_max` operations other than decisions about dead entries, latest
    /// first.
    ///
    /// # Errors
    /// As for [`LogAdmin::relays`].
    async fn operations(&self, relay: &RelayName, records_max: u32) -> Result<Vec<Operation>, LogError> {
        self.operations_before(relay, i64::MAX, records_max).await
    }

    /// Returns up to `records_max` such operations with numbers below `before`, latest first.
    ///
    /// # Errors
    /// As for [`LogAdmin::relays`].
    async fn operations_before(
        &self,
        relay: &RelayName,
        before: i64,
        records_max: u32,
    ) -> Result<Vec<Operation>, LogError>;

    /// Returns up to `records_max` operations of one action with numbers below `before`, latest
    /// first. Its cost does not depend on how many others there are.
    ///
    /// # Errors
    /// As for [`LogAdmin::relays`].
    async fn operations_of(
        &self,
        relay: &RelayName,
        action: &str,
        before: i64,
        records_max: u32,
    ) -> Result<Vec<Operation>, LogError>;
}
