//! Queries, decisions and findings of operators, as data.

use std::num::NonZeroU32;
use std::time::Duration;

use outbox::AuditLine;

use crate::key::SagaId;
use crate::record::State;

/// A selection of sagas to list.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SagaQuery {
    /// Only sagas of this type.
    pub saga_type: Option<String>,
    /// Only sagas in this state.
    pub state: Option<State>,
    /// Only sagas that need an operator, starting with those that have needed one the longest.
    pub is_stuck: bool,
    /// Whether to include ended sagas.
    pub with_ended: bool,
    /// Maximum number of sagas in the list, the oldest first. PostgreSQL lists ended sagas in the
    /// order of their ends.
    pub limit: NonZeroU32,
}

impl SagaQuery {
    /// Selects at most `limit` sagas that have not ended.
    #[must_use]
    pub fn open(limit: NonZeroU32) -> Self {
        Self { saga_type: None, state: None, is_stuck: false, with_ended: false, limit }
    }
}

message::words! {
    /// The kind of a choice.
    #[non_exhaustive]
    pub enum Action {
        /// A stuck saga continues, with its attempts counted from zero.
        Retry = "retry",
        /// A running saga is undone.
        Cancel = "cancel",
        /// A step of a stuck saga is skipped.
        Skip = "skip",
    }
}

/// A decision about a saga, as the audit stores it.
pub type Decision = AuditLine<Action, DecidedSaga>;

/// The subject of a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DecidedSaga {
    /// The saga.
    pub id: SagaId,
    /// The step, if the decision is about one.
    pub step: Option<String>,
}

/// A saga with the id of an erasure.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SagaOfId {
    /// Its name.
    pub id: SagaId,
    /// Whether it has ended, so that its contents can be erased.
    pub has_ended: bool,
}

/// Maximum overdue sagas of a version that are counted. The statements repeat this number.
pub const OVERDUE_COUNTED_MAX: u64 = 100_000;

/// Overdue sagas of one version: no worker has the version, or there are too few workers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Overdue {
    /// The type.
    pub saga_type: String,
    /// The version.
    pub version: u16,
    /// The number of such sagas, up to [`OVERDUE_COUNTED_MAX`].
    pub sagas: u64,
    /// How long the longest overdue one has been due.
    pub longest: Duration,
}
