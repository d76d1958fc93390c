//! Places at which a test ends a worker: see [`message::crash_points`].

message::places! {
    /// All crash points.
    #[cfg(feature = "testing")]
    ALL:
    /// A saga is claimed.
    AFTER_CLAIM = "saga::after_claim";
    /// A step's row, effect, result and messages are written but not committed.
    BEFORE_STEP_COMMIT = "saga::before_step_commit";
    /// They are committed.
    AFTER_STEP_COMMIT = "saga::after_step_commit";
    /// A call is announced but not made: its row says `calling`, committed.
    BEFORE_CALL = "saga::before_call";
    /// A call was made, so its effect happened elsewhere; its row still says `calling`.
    AFTER_CALL = "saga::after_call";
    /// Its outcome is stored: its row says `done`, committed.
    AFTER_CALL_STORED = "saga::after_call_stored";
    /// A step is about to wait: its row says `waiting`, its message is written and the saga is
    /// released, but nothing is committed.
    BEFORE_WAIT = "saga::before_wait";
    /// A step waits; all of that is committed.
    AFTER_WAIT = "saga::after_wait";
    /// An undo is written, and the row says that the step is undone; neither is committed.
    BEFORE_UNDO_COMMIT = "saga::before_undo_commit";
    /// Both are committed.
    AFTER_UNDO_COMMIT = "saga::after_undo_commit";
    /// A call was undone elsewhere; its undo is not stored: its row says `pending`, committed.
    AFTER_UNDO_CALL = "saga::after_undo_call";
    /// Everything is done or undone; the saga has not ended.
    BEFORE_END = "saga::before_end";
}
