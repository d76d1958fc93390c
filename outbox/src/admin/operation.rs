//! Operations besides decisions about dead entries.

use time::OffsetDateTime;

/// One operation, as the audit keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// When, by the database's clock.
    pub at: OffsetDateTime,
    /// Who.
    pub actor: String,
    /// `pause`, `resume`, `replay` (begun), `replayed` (ended) or `tail`.
    pub action: String,
    /// Of what: a scope, or the filter of a replay with how many it chose.
    pub selection: String,
    /// Why.
    pub note: String,
}
