//! Places where a test ends a consumer: see [`message::crash_points`].
//!
//! | place | the inbox row | the effect | the delivery |
//! |---|---|---|---|
//! | [`AFTER_ADMIT`] | written | not written | unsettled |
//! | [`AFTER_EFFECT`] | written | written | unsettled |
//! | [`AFTER_COMMIT`] | committed | committed | unsettled |
//! | [`AFTER_SETTLE`] | there for good | there for good | settled |

/// A message is admitted, in a transaction that is open.
pub const AFTER_ADMIT: &str = "inbox::after_admit";
/// The effect is written but not committed.
pub const AFTER_EFFECT: &str = "inbox::after_effect";
/// Inbox row and effect are committed.
pub const AFTER_COMMIT: &str = "inbox::after_commit";
/// The delivery is settled at the broker.
pub const AFTER_SETTLE: &str = "inbox::after_settle";

/// All of them. The first one is also in [`Inbox::admit`](crate::Inbox::admit); the others are only
/// in the [runner](crate::Consumer).
#[cfg(feature = "testing")]
pub const ALL: [&str; 4] = [AFTER_ADMIT, AFTER_EFFECT, AFTER_COMMIT, AFTER_SETTLE];
