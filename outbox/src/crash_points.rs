//! Where a test ends a producer: see [`message::crash_points`].
//!
//! | place | the business rows | the messages | the commit |
//! |---|---|---|---|
//! | [`BEFORE_ENQUEUE`] | written | not written | |
//! | [`AFTER_ENQUEUE`] | written | written | not sent |
//! | [`BEFORE_COMMIT`] | written | all written, staged ones too | not sent |
//! | [`AFTER_COMMIT`] | there for good | there for good | happened, and the caller does not know |

/// A message is about to be written.
pub const BEFORE_ENQUEUE: &str = "outbox::before_enqueue";
/// A message is written.
pub const AFTER_ENQUEUE: &str = "outbox::after_enqueue";
/// COMMIT is about to be sent.
pub const BEFORE_COMMIT: &str = "outbox::before_commit";
/// COMMIT has happened.
pub const AFTER_COMMIT: &str = "outbox::after_commit";

/// All of them. The first two are places of [`Outbox::enqueue`](crate::Outbox::enqueue) too, the
/// others of [`OutboxTransaction`](crate::OutboxTransaction) and
/// [`Outbox::transaction`](crate::Outbox::transaction) only.
#[cfg(feature = "testing")]
pub const ALL: [&str; 4] = [BEFORE_ENQUEUE, AFTER_ENQUEUE, BEFORE_COMMIT, AFTER_COMMIT];
