//! Rules that can be left out.

/// A rule that is left out, to see that its absence is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Breakage {
    /// All rules are kept.
    #[default]
    Nothing,
    /// Nobody is shut out before the last mark is read.
    NobodyShutOut,
    /// The last mark is read when only one of the two producers before is shut out.
    OneShutOut,
    /// A mark is made when it is committed, and not when its transaction is closed.
    MarkMadeLate,
    /// Messages are committed, and their mark in a transaction behind it.
    MarkAfterCommit,
    /// The mark that the database does not have is not brought to it.
    MarkForgotten,
    /// Parked entries go to the database behind the mark that passes it.
    ParkedApart,
    /// A mark does not name what has left ahead of its cursor.
    SettledForgotten,
    /// A process goes on with its session and its memory when a commit was not answered.
    GoesOnAfterUnknown,
    /// The checkpoint is stored before its transaction is committed.
    StoredBeforeCommit,
    /// Checkpoints are not fenced by the epoch.
    NoEpoch,
    /// A database that was set back is published from.
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
