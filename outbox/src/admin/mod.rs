//! Questions and decisions of operators.
//!
//! Decisions are made about dead entries, and about retrying ones that wait for an operator, up to
//! 500 in one transaction, each with its line in
//! `outbox_audit`: who, when, what, why, and the digests of the content before and after. The relay
//! finds a requeued or discarded entry by its due time, within a poll.
//!
//! | module | what it holds |
//! |---|---|
//! | [`status`] | [`RelayStatus`], [`Holder`], [`Blocker`], [`Backlog`], [`ParkedCount`] |
//! | [`entry`] | [`ListedEntry`], [`AuditRecord`] |
//! | [`operation`] | [`Operation`]: what operators do besides |
//! | [`decision`] | [`Decision`], [`OperatorDecision`], [`ChosenEntry`], [`DecideError`] |

pub mod decision;
pub mod entry;
pub mod operation;
pub mod status;

use std::sync::Arc;

use async_trait::async_trait;
use message::Source;
use time::OffsetDateTime;

pub use decision::{Action, ChosenEntry, DECIDED_MAX, DecideError, Decision, OperatorDecision};
pub use entry::{AuditRecord, ListedEntry};
pub use operation::Operation;
pub use status::{Backlog, Blocker, COUNTED_MAX, CursorHistory, Holder, ParkedCount, RelayStatus};

use crate::address::Address;
use crate::log::{EntryId, ExceptionState, LogError, LogOptions, Pause, PauseScope, RelayName};

/// Status and decisions. Each call opens a connection of its own; all reading calls are
/// cancel-safe.
#[async_trait]
pub trait LogAdmin: Send + Sync + 'static {
    /// Every relay that has a cursor, in the order of names.
    ///
    /// # Errors
    /// [`LogError`]: unreachable, wrong credentials, schema missing.
    async fn relays(&self) -> Result<Vec<RelayStatus>, LogError>;

    /// One relay; `None` without a cursor. The others cost nothing.
    ///
    /// # Errors
    /// As for [`LogAdmin::relays`].
    async fn relay(&self, relay: &RelayName) -> Result<Option<RelayStatus>, LogError>;

    /// The oldest transaction that has written to the outbox and is still open: its rows cannot be
    /// read yet. Always `None` on SQLite.
    ///
    /// # Errors
    /// As for [`LogAdmin::relays`].
    async fn blocker(&self) -> Result<Option<Blocker>, LogError>;

    /// Parked entries in one state, with ids above `after`, in the order of ids, at most
    /// `entries_max`.
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

    /// Decides about dead entries: requeue, discard or edit; discards and edits also retrying ones
    /// with the operator's fault, between two retries. All of them in one transaction, so at most
    /// [`DECIDED_MAX`] at once. Returns a verdict on each, in their order: one that is not
    /// dead, or another message by now, is left as it is. Not cancel-safe: the outcome of a dropped
    /// call is unknown; list the entries.
    ///
    /// # Errors
    /// [`DecideError`] says what stands in the way of all; nothing is changed then, but for
    /// [`DecideError::Unknown`].
    async fn decide(
        &self,
        relay: &RelayName,
        entries: &[ChosenEntry],
        decree: OperatorDecision,
    ) -> Result<Vec<Result<(), DecideError>>, DecideError>;

    /// The decisions about a relay's entries, the latest first, at most `records_max`.
    ///
    /// # Errors
    /// As for [`LogAdmin::relays`].
    async fn audit(&self, relay: &RelayName, records_max: u32) -> Result<Vec<AuditRecord>, LogError>;

    /// The pauses in force, in the order of scopes.
    ///
    /// # Errors
    /// As for [`LogAdmin::relays`].
    async fn pauses(&self, relay: &RelayName) -> Result<Vec<Pause>, LogError>;

    /// Pauses a pipeline, a topic or a key, with a line in the audit; a running relay takes it up
    /// within a second. Returns false when it was paused already: nothing is changed then. Not
    /// cancel-safe: look at [`LogAdmin::pauses`].
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

    /// Ends a pause, with a line in the audit: the one that began at `since`, or whichever is in
    /// force. Returns false when there is none of this scope, or it began at another moment. Not
    /// cancel-safe: look at [`LogAdmin::pauses`].
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

    /// The operations besides decisions about dead entries, the latest first, at most
    /// `records_max`.
    ///
    /// # Errors
    /// As for [`LogAdmin::relays`].
    async fn operations(&self, relay: &RelayName, records_max: u32) -> Result<Vec<Operation>, LogError>;
}

/// Administration of the database at an address: `postgres://…` or `sqlite:…`. Connects to nothing yet.
///
/// # Errors
/// [`LogError::Operator`] when the URL cannot be used or would send secrets in the clear.
pub fn open(
    address: impl Into<Address>,
    source: Source,
    options: LogOptions,
) -> Result<Arc<dyn LogAdmin>, LogError> {
    Ok(crate::log::open::log(address.into(), source, options)?)
}
