//! Tracks which queues answer, to determine the scope of a missing answer.
//!
//! HTTP has no sessions. A request without an answer means an outage only if no other request is
//! answered either.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use message::FaultScope;
use tokio::time::Instant;

/// When each queue last answered.
#[derive(Debug, Default)]
pub(super) struct Answers(Mutex<HashMap<String, Instant>>);

impl Answers {
    /// Records that a queue has answered, whatever the answer.
    pub(super) fn note(&self, queue: &str, answered_at: Instant) {
        let mut answers = self.lock();
        match answers.get_mut(queue) {
            Some(at) => *at = answered_at,
            None => _ = answers.insert(queue.to_owned(), answered_at),
        }
    }

    /// Returns the scope of a missing answer to a request that was sent to this queue at
    /// `begun_at`.
    pub(super) fn reach(&self, queue: &str, begun_at: Instant) -> FaultScope {
        let answers = self.lock();
        if answers.get(queue).is_some_and(|at| *at >= begun_at) {
            FaultScope::Message
        } else if answers.values().any(|at| *at >= begun_at) {
            FaultScope::Topic
        } else {
            FaultScope::Session
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        // A map of times is consistent even if another thread panicked while it held the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_silence_reaches_as_far_as_nobody_answers() {
        let answers = Answers::default();
        let start = Instant::now();
        let (begun_at, later) = (start + Duration::from_secs(1), start + Duration::from_secs(2));
        answers.note("orders", start);
        assert_eq!(answers.reach("orders", begun_at), FaultScope::Session);
        answers.note("bills", later);
        assert_eq!(answers.reach("orders", begun_at), FaultScope::Topic);
        answers.note("orders", later);
        assert_eq!(answers.reach("orders", begun_at), FaultScope::Message);
    }
}
