//! Rules that can be left out.

/// A rule that is left out, to check that its absence is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Breakage {
    /// All rules are kept.
    #[default]
    Nothing,
    /// There is no inbox.
    GuardOff,
    /// A message is looked up first and inserted later: two workers may both find nothing.
    SelectThenInsert,
    /// The inbox's key is the message id alone, not (consumer, message id).
    DedupByIdAlone,
    /// The inbox row commits before the effect does.
    EffectInAnotherTransaction,
    /// The delivery is acknowledged before the commit.
    AckBeforeCommit,
    /// Expired ids are admitted like new ones.
    ExpiredAdmitted,
}

impl Breakage {
    /// Every breakage.
    pub const ALL: [Self; 6] = [
        Self::GuardOff,
        Self::SelectThenInsert,
        Self::DedupByIdAlone,
        Self::EffectInAnotherTransaction,
        Self::AckBeforeCommit,
        Self::ExpiredAdmitted,
    ];
}
