//! Rules that can be left out.

/// A rule that is left out, to check that its absence is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Breakage {
    /// All rules are kept.
    #[default]
    Nothing,
    /// The reader asks for ids above the last one instead of for snapshot differences.
    CursorById,
    /// A checkpoint is stored whatever its epoch.
    CheckpointWithoutEpoch,
    /// A message counts as confirmed as soon as it is sent.
    ConfirmIgnored,
    /// The checkpoint names the last entry read instead of the last one settled.
    CheckpointAhead,
    /// The checkpoint names the highest settled entry, passing unsettled ones.
    CheckpointOverGaps,
    /// After a lost session, a key continues with messages that were not sent yet; the lost ones
    /// follow.
    RetryOvertakes,
    /// The consumer has no inbox.
    GuardOff,
    /// The consumer acknowledges before it commits.
    AckBeforeCommit,
}

impl Breakage {
    /// Every breakage.
    pub const ALL: [Self; 8] = [
        Self::CursorById,
        Self::CheckpointWithoutEpoch,
        Self::ConfirmIgnored,
        Self::CheckpointAhead,
        Self::CheckpointOverGaps,
        Self::RetryOvertakes,
        Self::GuardOff,
        Self::AckBeforeCommit,
    ];
}
