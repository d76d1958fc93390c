//! Whether anything is still on its way.

use crate::Failure;
use crate::setup::Plot;
use crate::stage::Stage;

/// What is still on its way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Pending {
    /// Messages in the outbox and not beside it.
    pub messages: u64,
    /// Messages beside the log that will move by themselves.
    pub moving: u64,
    /// Messages without an effect and without a dead letter, over all consumers.
    pub undecided: u64,
}

impl Pending {
    /// Nothing is.
    #[must_use]
    pub fn is_quiet(self) -> bool {
        self.moving == 0 && self.undecided == 0
    }
}

/// Looks.
///
/// # Errors
/// A database does not answer.
pub async fn pending(plot: &Plot, stage: &Stage) -> Result<Pending, Failure> {
    super::stores::pending(plot, stage).await
}
