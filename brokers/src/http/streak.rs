//! Failures of an endpoint on one message after the other.
//!
//! The failure of an endpoint on one message, for example because its handler throws, shows nothing
//! about other messages. If it fails on many different messages and answers none in between, the
//! endpoint itself is failing, for example because its database is away. Then one message tries it,
//! instead of each in turn.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use message::MessageId;

/// With fewer requests at once, some messages on which a handler throws would count as a failing
/// endpoint.
const LEN_MIN: usize = 4;

/// The messages on which an endpoint has failed since it answered another one.
#[derive(Debug)]
pub(super) struct Streak {
    len_max: usize,
    failed: Mutex<HashSet<MessageId>>,
}

/// A streak while one request adds its outcome to it. Receipts are sent meanwhile, so that they
/// come in the order in which they were added.
#[derive(Debug)]
pub(super) struct Outcomes<'a> {
    len_max: usize,
    failed: MutexGuard<'a, HashSet<MessageId>>,
}

impl Streak {
    /// `concurrency`: requests to the endpoint at once. Failures on as many different messages mark
    /// it as failing.
    pub(super) fn new(concurrency: usize) -> Self {
        Self { len_max: concurrency.max(LEN_MIN), failed: Mutex::default() }
    }

    /// Begins to add an outcome.
    pub(super) fn outcomes(&self) -> Outcomes<'_> {
        // A set is consistent even if another thread panicked while it held the lock.
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        Outcomes { len_max: self.len_max, failed }
    }

    /// Returns whether the endpoint is failing.
    pub(super) fn is_full(&self) -> bool {
        self.outcomes().failed.len() >= self.len_max
    }

    /// Returns whether the endpoint has failed on no message since it answered one.
    pub(super) fn is_empty(&self) -> bool {
        self.outcomes().failed.is_empty()
    }
}

impl Outcomes<'_> {
    /// Adds a failure on a message. Returns the number of messages if the endpoint is failing.
    pub(super) fn failed(&mut self, id: MessageId) -> Option<usize> {
        if self.failed.len() < self.len_max {
            self.failed.insert(id);
        }
        (self.failed.len() >= self.len_max).then_some(self.failed.len())
    }

    /// Records that the endpoint has answered about a message.
    pub(super) fn answered(&mut self) {
        self.failed.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_messages_in_succession_make_an_endpoint_failing() {
        let streak = Streak::new(4);
        let [poison, other] = [MessageId::new(), MessageId::new()];
        for _ in 0..20 {
            assert_eq!(streak.outcomes().failed(poison), None, "one message is no streak");
        }
        assert_eq!(streak.outcomes().failed(other), None);
        streak.outcomes().answered();
        assert!(streak.is_empty());
        let failed = |_| streak.outcomes().failed(MessageId::new());
        let many: Vec<_> = (0..6).map(failed).collect();
        assert_eq!(many, [None, None, None, Some(4), Some(4), Some(4)]);
        assert_eq!(streak.outcomes().failed(poison), Some(4), "until it answers");
        streak.outcomes().answered();
        assert_eq!(streak.outcomes().failed(poison), None);
    }

    #[test]
    fn few_messages_do_not_make_an_endpoint_failing_that_takes_one_at_a_time() {
        let streak = Streak::new(1);
        let many: Vec<_> = (0..4).map(|_| streak.outcomes().failed(MessageId::new())).collect();
        assert_eq!(many, [None, None, None, Some(4)]);
    }
}
