//! Rules that can be left out.

/// A rule that is left out, to check that its absence is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Breakage {
    /// All rules are kept.
    #[default]
    Nothing,
    /// The pending row is written in a transaction of its own, after that of the message.
    NotedLater,
    /// The trigger is disabled: the message of the last transaction gets no pending row.
    NotNoted,
    /// A look continues after the last id of the previous look, not from the lowest pending row.
    LookGoesOn,
    /// The order within a key is not that of the ids.
    AnyOrder,
    /// Messages of a key are sent before the earlier ones are confirmed.
    NotOneByOne,
    /// A checkpoint deletes the rows of messages that were sent, not of those that were confirmed.
    DeletedWhenSent,
    /// Checkpoints are not fenced by the epoch.
    NoEpoch,
    /// A process keeps its lease and its memory when its session breaks.
    GoesOnAfterBreak,
    /// Retention deletes rows that are pending.
    PendingNotKept,
    /// Messages are sent after one look, although the server's read views can have gaps.
    OneLook,
}

impl Breakage {
    /// Every breakage.
    pub const ALL: [Self; 10] = [
        Self::NotedLater,
        Self::NotNoted,
        Self::LookGoesOn,
        Self::AnyOrder,
        Self::NotOneByOne,
        Self::DeletedWhenSent,
        Self::NoEpoch,
        Self::GoesOnAfterBreak,
        Self::PendingNotKept,
        Self::OneLook,
    ];
}
