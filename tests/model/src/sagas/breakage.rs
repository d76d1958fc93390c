//! Rules that can be left out.

/// A rule that is left out, to check that its absence is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Breakage {
    /// All rules are kept.
    #[default]
    Nothing,
    /// Changes are not fenced by the epoch.
    NoEpoch,
    /// The effect of a step commits before its row.
    EffectApart,
    /// The undo of a step commits before its row records it.
    UndoApart,
    /// A call is made before its row records it.
    UnannouncedCall,
    /// A call whose outcome is unknown is not undone.
    UnknownCallStays,
    /// Steps are undone in the order in which they began.
    UndoneInOrder,
    /// A saga begins to wait without checking for replies that arrived meanwhile.
    RepliesNotCounted,
    /// A request times out without checking for replies that arrived meanwhile.
    TimeoutsNotCounted,
    /// A cancelled saga continues with its next step.
    CancelNotLookedAt,
    /// The service that is called does not honour keys.
    KeysNotHonoured,
}

impl Breakage {
    /// Every breakage.
    pub const ALL: [Self; 10] = [
        Self::NoEpoch,
        Self::EffectApart,
        Self::UndoApart,
        Self::UnannouncedCall,
        Self::UnknownCallStays,
        Self::UndoneInOrder,
        Self::RepliesNotCounted,
        Self::TimeoutsNotCounted,
        Self::CancelNotLookedAt,
        Self::KeysNotHonoured,
    ];
}
