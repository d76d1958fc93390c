//! Ways in which a system like this one can be broken. Each must be found, or the simulation proves
//! nothing.

use std::fmt;

use clap::ValueEnum;

/// A part of the environment that breaks its promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
pub enum Breakage {
    /// A checkpoint is stored whatever its epoch.
    StaleCheckpoint,
    /// The lease is granted although another process holds it.
    SharedLease,
    /// Everything above the last id is read, so a transaction that commits late is passed over.
    CursorById,
    /// A lost confirmation counts as one.
    ConfirmAssumed,
    /// The broker forgets what it has confirmed when the session breaks.
    ConfirmBeforeStore,
    /// The proof of a commit exists before the commit.
    ProofBeforeCommit,
    /// The inbox admits everything.
    GuardOff,
    /// The inbox row commits on its own, before the effect.
    GuardApart,
    /// An exception is stored without the cursor that has passed its entry.
    ChangesWithoutCursor,
    /// Retention removes what the relay has read, not what it has settled.
    RetentionByReader,
    /// Rows of transactions that were rolled back are visible.
    DirtyRead,
    /// A mark from before the database went back is accepted.
    HistoryBelieved,
    /// While one topic is silent, nothing is confirmed for any topic.
    SilenceSpreads,
}

impl Breakage {
    /// Returns all of them.
    #[must_use]
    pub fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// Returns whether it breaks no promise and only takes time. Random schedules do not measure
    /// time; [`contain`](crate::containment::contain) does.
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
