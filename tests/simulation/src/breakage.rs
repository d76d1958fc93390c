//! Ways in which a system like this one can be broken. Each must be found, or the simulation proves
//! nothing.

use std::fmt;

use clap::ValueEnum;

/// A part of the surroundings that does not do what it promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
pub enum Breakage {
    /// A checkpoint is stored whatever its epoch.
    StaleCheckpoint,
    /// The lease is granted although somebody holds it.
    SharedLease,
    /// Everything above the last id is read, so a transaction that commits late is passed over.
    CursorById,
    /// A lost confirmation counts as one.
    ConfirmAssumed,
    /// The broker forgets what it has confirmed when the session breaks.
    ConfirmBeforeStore,
    /// The proof of a commit is given before the commit.
    ProofBeforeCommit,
    /// The inbox lets everything through.
    GuardOff,
    /// The inbox row commits on its own, before the effect.
    GuardApart,
    /// An exception is stored without the cursor that has passed its entry.
    ChangesWithoutCursor,
    /// Retention removes what the relay has read, not what it has settled.
    RetentionByReader,
    /// Rows of transactions that were rolled back are visible.
    DirtyRead,
    /// A mark of before the database went back is believed.
    HistoryBelieved,
    /// While one topic is silent, nothing of any topic is confirmed.
    SilenceSpreads,
}

impl Breakage {
    /// All of them.
    #[must_use]
    pub fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// Whether it breaks no promise and only takes time, which random schedules do not measure:
    /// [`contain`](crate::containment::contain) does.
    #[must_use]
    pub fn is_delay(self) -> bool {
        self == Self::SilenceSpreads
    }
}

impl fmt::Display for Breakage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_possible_value() {
            Some(value) => f.pad(value.get_name()),
            None => f.pad("unknown"),
        }
    }
}
