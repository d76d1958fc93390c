//! Rules that can be left out.

/// A rule that is left out, to check that its absence is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Breakage {
    /// All rules are kept.
    #[default]
    Nothing,
    /// The last mark is read before any previous session is fenced.
    NobodyShutOut,
    /// The last mark is read when only one of the two previous producers is fenced.
    OneShutOut,
    /// A mark is made when its transaction is committed, not when it is closed.
    MarkMadeLate,
    /// Messages are committed first, and their mark in a later transaction.
    MarkAfterCommit,
    /// The mark that the database lacks is not stored in it.
    MarkForgotten,
    /// Parked entries are stored in the database only after the mark that passes them.
    ParkedApart,
    /// A mark does not name the entries that were published ahead of its cursor.
    SettledForgotten,
    /// A process keeps its session and its memory after a commit without an answer.
    GoesOnAfterUnknown,
    /// The checkpoint is stored before its transaction is committed.
    StoredBeforeCommit,
    /// Checkpoints are not fenced by the epoch.
    NoEpoch,
    /// A process publishes from a database that was set back to an earlier state.
    NumbersNotCompared,
}

impl Breakage {
    /// Every breakage.
    pub const ALL: [Self; 11] = [
        Self::NobodyShutOut,
        Self::OneShutOut,
        Self::MarkMadeLate,
        Self::MarkAfterCommit,
        Self::MarkForgotten,
        Self::ParkedApart,
        Self::SettledForgotten,
        Self::GoesOnAfterUnknown,
        Self::StoredBeforeCommit,
        Self::NoEpoch,
        Self::NumbersNotCompared,
    ];
}
