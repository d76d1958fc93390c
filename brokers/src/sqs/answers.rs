//! Which queues answer: how far it reaches when one does not.
//!
//! HTTP has no sessions. A request without an answer means an outage only where no other request
//! has an answer either.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use message::FaultScope;
use tokio::time::Instant;

/// When each queue answered last.
#[derive(Debug, Default)]
pub(super) struct Answers(Mutex<HashMap<String, Instant>>);

impl Answers {
    /// A queue has answered, whatever it said.
    pub(super) fn note(&self, queue: &str, answered_at: Instant) {
        let mut answers = self.lock();
        match answers.get_mut(queue) {
            Some(at) => *at = answered_at,
            None => _ = answers.insert(queue.to_owned(), answered_at),
        }
    }

    /// How far it reaches that a request to this queue, begun then, has no answer.
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
        // A map of times is whole even if another thread panicked with it.
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
