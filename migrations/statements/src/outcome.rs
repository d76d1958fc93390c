//! The outcome of handling a message.

use message::Committed;

use crate::admit::Known;
use crate::fail::Failed;
use crate::finish::Kept;

/// A message that was handled in a transaction, before its commit.
#[derive(Debug)]
#[must_use = "commit its transaction"]
pub enum Handled {
    /// Its effect is in the transaction.
    Applied(Kept),
    /// It had been handled before.
    Known(Known),
}

/// The outcome of handling a message. All but [`Again`](Self::Again) are final: settle the delivery
/// with the proof.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "settle the delivery, or try again"]
pub enum Outcome {
    /// Its effect is committed.
    Applied(Committed),
    /// It had been handled before: nothing was done.
    Known(Committed),
    /// It is a dead letter.
    DeadLetter(Committed),
    /// Its handler failed: try again, after a pause.
    Again {
        /// How often it has failed.
        attempts: u32,
    },
}

impl Handled {
    /// Returns the outcome. Call it only when the commit has succeeded.
    pub fn after_commit(self) -> Outcome {
        match self {
            Self::Applied(kept) => Outcome::Applied(kept.after_commit()),
            Self::Known(known) => Outcome::Known(known.after_commit()),
        }
    }
}

impl Failed {
    /// Returns the outcome. Call it when the failure is committed: if the operation ran outside a
    /// transaction, at once.
    pub fn after_commit(self) -> Outcome {
        match self {
            Self::Again { attempts } => Outcome::Again { attempts },
            Self::DeadLetter(letter) => Outcome::DeadLetter(letter.after_commit()),
        }
    }
}
