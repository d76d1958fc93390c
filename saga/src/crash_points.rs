//! Places at which a test ends a worker: see [`message::crash_points`].
//!
//! | place | the step's row | its effect |
//! |---|---|---|
//! | [`AFTER_CLAIM`] | – | – |
//! | [`BEFORE_STEP_COMMIT`] | written | written |
//! | [`AFTER_STEP_COMMIT`] | committed | committed |
//! | [`BEFORE_CALL`] | says `calling`, committed | not requested |
//! | [`AFTER_CALL`] | says `calling`, committed | happened elsewhere |
//! | [`AFTER_CALL_STORED`] | says `done`, committed | happened elsewhere |
//! | [`BEFORE_WAIT`] | says `waiting`; the saga is released; neither is committed | message written |
//! | [`AFTER_WAIT`] | both are committed | message committed |
//! | [`BEFORE_UNDO_COMMIT`] | says undone | undone |
//! | [`AFTER_UNDO_COMMIT`] | says undone, committed | undone, committed |
//! | [`AFTER_UNDO_CALL`] | says `pending`, committed | undone elsewhere |
//! | [`BEFORE_END`] | complete | complete; the saga has not ended |

/// A saga is claimed.
pub const AFTER_CLAIM: &str = "saga::after_claim";
/// A step's effect, result and messages are written but not committed.
pub const BEFORE_STEP_COMMIT: &str = "saga::before_step_commit";
/// They are committed.
pub const AFTER_STEP_COMMIT: &str = "saga::after_step_commit";
/// A call is announced but not made.
pub const BEFORE_CALL: &str = "saga::before_call";
/// A call was made; its outcome is not stored.
pub const AFTER_CALL: &str = "saga::after_call";
/// Its outcome is stored.
pub const AFTER_CALL_STORED: &str = "saga::after_call_stored";
/// A step is about to wait.
pub const BEFORE_WAIT: &str = "saga::before_wait";
/// A step waits.
pub const AFTER_WAIT: &str = "saga::after_wait";
/// An undo is written but not committed.
pub const BEFORE_UNDO_COMMIT: &str = "saga::before_undo_commit";
/// It is committed.
pub const AFTER_UNDO_COMMIT: &str = "saga::after_undo_commit";
/// A call was undone; its undo is not stored.
pub const AFTER_UNDO_CALL: &str = "saga::after_undo_call";
/// Everything is done or undone; the saga has not ended.
pub const BEFORE_END: &str = "saga::before_end";

/// All crash points.
#[cfg(feature = "testing")]
pub const ALL: [&str; 12] = [
    AFTER_CLAIM,
    BEFORE_STEP_COMMIT,
    AFTER_STEP_COMMIT,
    BEFORE_CALL,
    AFTER_CALL,
    AFTER_CALL_STORED,
    BEFORE_WAIT,
    AFTER_WAIT,
    BEFORE_UNDO_COMMIT,
    AFTER_UNDO_COMMIT,
    AFTER_UNDO_CALL,
    BEFORE_END,
];
