//! Places where a test ends a service that holds a key: see [`message::crash_points`].
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
/// The outcome is written but not committed. Only for keys held by a transaction.
pub const AFTER_OUTCOME: &str = "keys::after_outcome";
/// The outcome is committed; the caller has no answer yet.
pub const AFTER_COMPLETE: &str = "keys::after_complete";

/// All of them. The second one is in the HTTP layer.
#[cfg(feature = "testing")]
pub const ALL: [&str; 4] = [AFTER_CLAIM, AFTER_EFFECT, AFTER_OUTCOME, AFTER_COMPLETE];
