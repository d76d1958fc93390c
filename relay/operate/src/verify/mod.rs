//! Compares outbox, broker and inboxes of a live system. Reads only.
//!
//! | file | what it holds |
//! |---|---|
//! | `range.rs` | the range of ids for a span of time |
//! | `progress.rs` | reports of progress |
//! | `sources.rs` | reads of databases, in sessions that cannot write |
//! | `bounded.rs`, `alive.rs` | their time limits |
//! | `topic.rs` | reads of Kafka's log |
//! | `spool.rs` | sightings of messages, on disk |
//! | `reconcile.rs` | the verdict on one message from all its sightings; pure |
//! | `suspects.rs` | the messages that look wrong, by their ids |
//! | `compare.rs` | one pipeline: read, reconcile, check suspects again |
//! | `report.rs` | the result |
//!
//! **No false alarm.** A running system is never seen at a single moment, so no message is reported
//! at first sight. Each suspect is checked again, the outbox first and then what is downstream of
//! it: a message that the relay has passed is at the broker when the broker is read. A message that
//! an inbox lacks may be on its way there. Such messages are checked until none of them has arrived
//! for the grace, and only the rest is reported.

#[cfg(feature = "postgres")]
mod alive;
mod bounded;
mod compare;
mod progress;
mod range;
mod reconcile;
mod report;
mod sources;
mod spool;
mod suspects;
#[cfg(feature = "kafka")]
mod topic;

pub use compare::Comparison;
pub use progress::Progress;
pub use range::Range;
pub use report::{COLUMNS, Compared, ComparedPipeline, ComparedPlace, FaultyMessage, NotCompared, Report};
pub use sources::Reading;
