//! Where a test ends a service that holds a key: see [`message::crash_points`].
//!
//! | place | the key | the effect in the database | the answer |
//! |---|---|---|---|
//! | [`AFTER_CLAIM`] | held | not written | not sent |
//! | [`AFTER_EFFECT`] | held | written in a transaction | not sent |
//! | [`AFTER_OUTCOME`] | outcome written in a transaction | written in a transaction | not sent |
//! | [`AFTER_COMPLETE`] | ended for good | there for good | not sent |

/// The key is held; nothing was done.
pub const AFTER_CLAIM: &str = "keys::after_claim";
/// The handler has answered; its outcome is not written.
#[cfg(any(feature = "http", feature = "testing"))]
pub const AFTER_EFFECT: &str = "keys::after_effect";
/// The outcome is written, not committed. Only of keys that a transaction holds.
pub const AFTER_OUTCOME: &str = "keys::after_outcome";
/// The outcome is committed; the caller has heard nothing.
pub const AFTER_COMPLETE: &str = "keys::after_complete";

/// All of them. The second is a place of the HTTP layer.
#[cfg(feature = "testing")]
pub const ALL: [&str; 4] = [AFTER_CLAIM, AFTER_EFFECT, AFTER_OUTCOME, AFTER_COMPLETE];
