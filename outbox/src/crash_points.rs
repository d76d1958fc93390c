//! Crash points, at which a test kills a producer: see [`message::crash_points`].
//!
//! | place | the business rows | the messages | the commit |
//! |---|---|---|---|
//! | [`BEFORE_ENQUEUE`] | written | not written | |
//! | [`AFTER_ENQUEUE`] | written | written | not sent |
//! | [`BEFORE_COMMIT`] | written | all written, also staged ones | not sent |
//! | [`AFTER_COMMIT`] | committed | committed | done, but the caller does not know |

/// Before a message is written.
pub const BEFORE_ENQUEUE: &str = "outbox::before_enqueue";
/// After a message is written.
pub const AFTER_ENQUEUE: &str = "outbox::after_enqueue";
/// Before COMMIT is sent.
pub const BEFORE_COMMIT: &str = "outbox::before_commit";
/// After COMMIT.
pub const AFTER_COMMIT: &str = "outbox::after_commit";

/// All places. [`Outbox::enqueue`](crate::Outbox::enqueue) passes the first two.
/// [`OutboxTransaction`](crate::OutboxTransaction) and
/// [`Outbox::transaction`](crate::Outbox::transaction) pass all four.
#[cfg(feature = "testing")]
pub const ALL: [&str; 4] = [BEFORE_ENQUEUE, AFTER_ENQUEUE, BEFORE_COMMIT, AFTER_COMMIT];
