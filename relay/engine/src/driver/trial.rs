//! Publishes few messages until the database stores a checkpoint again. Pure.
//!
//! A database can grant and renew a lease and still be unable to store a checkpoint: its disk has
//! no room for an exception, a right was revoked, or a table is locked. Every term would then
//! publish the same messages again, as many as the broker confirms before the checkpoint fails. So
//! a term that follows such a failure begins with one message.

/// Factor by which the number of messages grows with each checkpoint that is stored.
const GROWTH: usize = 8;

/// The messages that may be submitted before the next checkpoint.
#[derive(Debug)]
pub(super) struct Trial {
    allowed: usize,
    left: usize,
}

impl Trial {
    /// Begins with one message.
    pub(super) fn new() -> Self {
        Self { allowed: 1, left: 1 }
    }

    /// Returns the number of messages that may be submitted now.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    pub(super) fn submitted(&mut self, messages: usize) {
        self.left = self.left.saturating_sub(messages);
    }

    /// Records a stored checkpoint. Returns whether the trial is over: it permits as many messages
    /// as a page may have.
    pub(super) fn stored(&mut self, page_entries: usize) -> bool {
        self.allowed = self.allowed.saturating_mul(GROWTH);
        self.left = self.allowed;
        self.allowed >= page_entries
    }

    /// Records that the submitted messages came back without any change to store, for example from
    /// a lost session.
    pub(super) fn came_back(&mut self) {
        self.left = self.allowed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stored_checkpoint_permits_more_until_a_page_fits() {
        let mut trial = Trial::new();
        trial.submitted(1);
        assert_eq!(trial.left(), 0);
        trial.came_back();
        assert_eq!(trial.left(), 1, "what came back may go again, and no more");
        assert!(!trial.stored(1_000));
        assert_eq!(trial.left(), 8);
        trial.submitted(3);
        assert_eq!(trial.left(), 5);
        assert!(!trial.stored(1_000) && !trial.stored(1_000));
        assert!(trial.stored(1_000), "4,096 messages");
    }
}
