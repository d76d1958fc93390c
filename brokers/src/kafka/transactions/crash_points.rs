//! Places at which a test ends a process that publishes in transactions: see
//! [`message::crash_points`].
//!
//! | place | the brokers | the coordinator |
//! |---|---|---|
//! | [`BEFORE_MARK`] | have all records of a batch | has an open transaction |
//! | [`BEFORE_COMMIT`] | have the mark as well | has an open transaction |
//! | [`AFTER_COMMIT`] | show all of it | has answered that it is committed |

/// The brokers have the records of a batch.
pub const BEFORE_MARK: &str = "kafka::before_mark";
/// The brokers also have the mark.
pub const BEFORE_COMMIT: &str = "kafka::before_commit";
/// The transaction is committed.
pub const AFTER_COMMIT: &str = "kafka::after_commit";

/// All crash points.
pub const ALL: [&str; 3] = [BEFORE_MARK, BEFORE_COMMIT, AFTER_COMMIT];
