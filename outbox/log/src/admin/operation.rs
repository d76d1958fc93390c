//! Operations other than decisions about dead entries.

use time::OffsetDateTime;

/// One operation, as the audit stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// Sequence number; ascends.
    pub number: i64,
    /// When, by the database's clock.
    pub at: OffsetDateTime,
    /// The operator.
    pub actor: String,
    /// `pause`, `resume`, `replay` (begun), `replayed` (ended) or `tail`.
    pub action: String,
    /// Its target: a scope, or the filter of a replay with the number of entries it chose.
    pub selection: String,
    /// The reason.
    pub note: String,
}
