//! Operations other than decisions about dead entries.

use outbox::AuditLine;

/// One operation, as the audit stores it: `pause`, `resume`, `replay` (begun), `replayed` (ended)
/// or `tail`. The selection of its signature is its target: a scope, or the filter of a replay with
/// the number of entries it chose.
pub type Operation = AuditLine<String, ()>;
