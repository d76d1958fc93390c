//! Publishes few messages until the database stores a checkpoint again. Pure.
//!
//! A database can grant and renew a lease and store no checkpoint all the same: its disk is full,
//! so that an exception finds no room, or somebody has revoked a right or locked a table. Every
//! term would then publish the same messages again, as many as the broker confirms before the
//! checkpoint fails. So a term that follows such a failure begins with one message.
//!
//! One of the messages may have no answer, or be confirmed behind one that has none, so that there
//! is nothing to store. The others do not wait for it: after a while as many are permitted again.
//! Their answers show whether only that destination is silent.

use std::time::Duration;

/// Factor by which the number of messages grows with each checkpoint that is stored.
const GROWTH: usize = 8;

/// The messages that may be submitted before the next checkpoint.
#[derive(Debug)]
pub(super) struct Trial {
    allowed: usize,
    left: usize,
    /// When the last of them was submitted, since the term began.
    used_at: Duration,
    /// Whether a message was confirmed since the last checkpoint.
    is_ahead: bool,
}

impl Trial {
    /// Begins with one message.
    pub(super) fn new() -> Self {
        Self { allowed: 1, left: 1, used_at: Duration::ZERO, is_ahead: false }
    }

    /// Returns the number of messages that may be submitted now.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Records that messages were submitted. `now` is the time since the term began.
    pub(super) fn submitted(&mut self, messages: usize, now: Duration) {
        self.left = self.left.saturating_sub(messages);
        self.used_at = now;
    }

    /// Records that a message was confirmed.
    pub(super) fn confirmed(&mut self) {
        self.is_ahead = true;
    }

    /// Records a stored checkpoint. Returns whether the trial is over: it permits as many messages
    /// as a page may have.
    pub(super) fn stored(&mut self, page_entries: usize) -> bool {
        self.allowed = self.allowed.saturating_mul(GROWTH);
        self.left = self.allowed;
        self.is_ahead = false;
        self.allowed >= page_entries
    }

    /// Records that the submitted messages are answered and there is nothing to store. They go
    /// again if none was confirmed, as after a lost session.
    pub(super) fn came_back(&mut self) {
        if !self.is_ahead {
            self.left = self.allowed;
        }
    }

    /// Permits others if the submitted messages have had no stored checkpoint for this long.
    pub(super) fn waited(&mut self, now: Duration, patience: Duration) {
        if self.left == 0 && now.saturating_sub(self.used_at) >= patience {
            self.left = self.allowed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stored_checkpoint_permits_more_until_a_page_fits() {
        let mut trial = Trial::new();
        trial.submitted(1, Duration::ZERO);
        assert_eq!(trial.left(), 0);
        trial.came_back();
        assert_eq!(trial.left(), 1, "what came back may go again, and no more");
        assert!(!trial.stored(1_000));
        assert_eq!(trial.left(), 8);
        trial.submitted(3, Duration::ZERO);
        assert_eq!(trial.left(), 5);
        assert!(!trial.stored(1_000) && !trial.stored(1_000));
        assert!(trial.stored(1_000), "4,096 messages");
    }

    /// Goal: a confirmed message that is not stored permits no other at once, and none for ever.
    /// Oracle: the permitted messages.
    #[test]
    fn what_is_confirmed_and_not_stored_delays_others_for_a_while() {
        let patience = Duration::from_secs(1);
        let mut trial = Trial::new();
        trial.submitted(1, Duration::from_secs(7));
        trial.confirmed();
        trial.came_back();
        assert_eq!(trial.left(), 0);
        trial.waited(Duration::from_millis(7_999), patience);
        assert_eq!(trial.left(), 0);
        trial.waited(Duration::from_secs(8), patience);
        assert_eq!(trial.left(), 1);
        trial.submitted(1, Duration::from_secs(9));
        trial.stored(1_000);
        assert_eq!(trial.left(), 8);
        trial.submitted(8, Duration::from_secs(9));
        trial.came_back();
        assert_eq!(trial.left(), 8, "none was confirmed since");
    }
}
