//! Tracks which queues answer, to determine the scope of a missing answer.
//!
//! HTTP has no sessions. A request without an answer means an outage only if no other request is
//! answered either.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use message::FaultScope;
use tokio::time::Instant;

/// Number of queues from which on old answers are forgotten.
const QUEUES_MAX: usize = 1_000;
/// How long an answer is remembered at least: longer than a request takes, with all its attempts.
const KEPT: Duration = Duration::from_secs(3_600);

/// When each queue last answered.
#[derive(Debug, Default)]
pub(super) struct Answers(Mutex<Answered>);

#[derive(Debug)]
struct Answered {
    at: HashMap<String, Instant>,
    /// Number of queues at which old answers are forgotten next.
    forget_at: usize,
}

impl Default for Answered {
    fn default() -> Self {
        Self { at: HashMap::new(), forget_at: QUEUES_MAX }
    }
}

impl Answered {
    /// Forgets old answers, so that a session that meets any number of queues keeps those of the
    /// last hour. Seldom enough for all of them to be looked at.
    fn forget(&mut self, now: Instant) {
        if self.at.len() >= self.forget_at {
            self.at.retain(|_, at| now.saturating_duration_since(*at) < KEPT);
            self.forget_at = QUEUES_MAX.max(2 * self.at.len());
        }
    }
}

impl Answers {
    /// Records that a queue has answered, whatever the answer.
    pub(super) fn note(&self, queue: &str, answered_at: Instant) {
        let mut answers = self.lock();
        match answers.at.get_mut(queue) {
            Some(at) => *at = answered_at,
            None => {
                answers.forget(answered_at);
                answers.at.insert(queue.to_owned(), answered_at);
            }
        }
    }

    /// Returns the scope of a missing answer to a request that was sent to this queue at
    /// `begun_at`.
    pub(super) fn reach(&self, queue: &str, begun_at: Instant) -> FaultScope {
        let answers = self.lock();
        if answers.at.get(queue).is_some_and(|at| *at >= begun_at) {
            FaultScope::Message
        } else if answers.at.values().any(|at| *at >= begun_at) {
            FaultScope::Topic
        } else {
            FaultScope::Session
        }
    }

    fn lock(&self) -> MutexGuard<'_, Answered> {
        // A map of times is consistent even if another thread panicked while it held the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn of_any_number_of_queues_the_answers_of_the_last_hour_are_kept() {
        let answers = Answers::default();
        let start = Instant::now();
        for number in 0..100_000_u32 {
            answers.note(&format!("orders-{number}"), start + Duration::from_secs(10) * number);
        }
        let answered = answers.lock().at.len();
        assert!((360..=QUEUES_MAX).contains(&answered), "{answered}");
        let last = start + Duration::from_secs(10) * 99_999;
        assert_eq!(answers.reach("orders-99640", last - KEPT), FaultScope::Message);
    }
}
