//! How many requests a queue may have in flight: fewer while SQS throttles it.
//!
//! A throttled request keeps its place and is sent again after a pause (`send.rs`). If others took
//! all free places meanwhile, new batches would use up what the quota allows, and those that have
//! paused several times would be refused until their topic pauses. So a throttle halves the limit
//! of its queue, and each success raises it by one, until it is whole again. An answer counts only
//! if its request was sent after the last change: requests that are throttled together halve the
//! limit once, and it rises once per round trip.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

/// Maximum number of queues with a lower limit. Beyond it, the one whose limit has not changed for
/// the longest time has its whole limit again.
const QUEUES_MAX: usize = 1_000;

/// The limits of a session's queues.
#[derive(Debug)]
pub(super) struct Limits(Mutex<Lowered>);

/// The queues whose limit is lower than the whole one.
#[derive(Debug)]
pub(super) struct Lowered {
    whole: usize,
    queues: HashMap<String, Limit>,
}

#[derive(Debug)]
struct Limit {
    requests: usize,
    lowered_at: Instant,
    /// When it was lowered or raised.
    changed_at: Instant,
}

impl Lowered {
    /// Returns how many requests of a queue may be in flight, at least one.
    pub(super) fn of(&self, queue: &str) -> usize {
        self.queues.get(queue).map_or(self.whole, |limit| limit.requests)
    }

    fn forget_the_oldest(&mut self) {
        let oldest = self.queues.iter().min_by_key(|(_, limit)| limit.changed_at);
        if let Some(queue) = oldest.map(|(queue, _)| queue.clone()) {
            self.queues.remove(&queue);
        }
    }
}

impl Limits {
    /// Starts with this limit for every queue, at least one.
    pub(super) fn new(whole: usize) -> Self {
        Self(Mutex::new(Lowered { whole, queues: HashMap::new() }))
    }

    /// Returns the present limits.
    pub(super) fn lock(&self) -> MutexGuard<'_, Lowered> {
        // A change is complete before anything else can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a request that was sent to this queue at `sent_at` was throttled.
    pub(super) fn throttled(&self, queue: &str, sent_at: Instant, now: Instant) {
        let mut lowered = self.lock();
        let before = lowered.queues.get(queue);
        if before.is_some_and(|limit| sent_at < limit.lowered_at) {
            return;
        }
        if before.is_none() && lowered.queues.len() >= QUEUES_MAX {
            lowered.forget_the_oldest();
        }
        let requests = (lowered.of(queue) / 2).max(1);
        let limit = Limit { requests, lowered_at: now, changed_at: now };
        lowered.queues.insert(queue.to_owned(), limit);
    }

    /// Records that SQS has stored messages of a request that was sent to this queue at `sent_at`.
    pub(super) fn stored(&self, queue: &str, sent_at: Instant, now: Instant) {
        let mut lowered = self.lock();
        let whole = lowered.whole;
        let Some(limit) = lowered.queues.get_mut(queue).filter(|limit| sent_at >= limit.changed_at) else {
            return;
        };
        limit.requests += 1;
        limit.changed_at = now;
        if limit.requests >= whole {
            lowered.queues.remove(queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A clock of whole seconds.
    fn clock() -> impl Fn(u64) -> Instant {
        let start = Instant::now();
        move |seconds| start + Duration::from_secs(seconds)
    }

    #[test]
    fn requests_that_are_throttled_together_halve_the_limit_once() {
        let limits = Limits::new(16);
        let at = clock();
        for answered_at in [1, 2, 3] {
            limits.throttled("orders", at(0), at(answered_at));
        }
        assert_eq!(limits.lock().of("orders"), 8);
        for expected in [4, 2, 1, 1] {
            limits.throttled("orders", at(4), at(4));
            assert_eq!(limits.lock().of("orders"), expected);
        }
        assert_eq!(limits.lock().of("bills"), 16, "another queue is not throttled");
    }

    #[test]
    fn a_success_raises_the_limit_by_one_until_it_is_whole() {
        let limits = Limits::new(4);
        let at = clock();
        limits.stored("orders", at(0), at(0));
        assert_eq!(limits.lock().of("orders"), 4);
        limits.throttled("orders", at(0), at(2));
        limits.stored("orders", at(1), at(3));
        assert_eq!(limits.lock().of("orders"), 2, "it was sent before the throttle");
        limits.stored("orders", at(3), at(5));
        limits.stored("orders", at(4), at(5));
        assert_eq!(limits.lock().of("orders"), 3, "the second was sent before the first was answered");
        limits.stored("orders", at(6), at(7));
        assert_eq!(limits.lock().of("orders"), 4);
        assert!(limits.lock().queues.is_empty(), "nothing is left to remember");
    }

    /// A request that was sent before the limit rose, but after it fell, still says that it is too
    /// high.
    #[test]
    fn a_throttle_after_a_rise_counts() {
        let limits = Limits::new(16);
        let at = clock();
        limits.throttled("orders", at(0), at(1));
        limits.stored("orders", at(2), at(4));
        assert_eq!(limits.lock().of("orders"), 9);
        limits.throttled("orders", at(3), at(5));
        assert_eq!(limits.lock().of("orders"), 4);
    }

    #[test]
    fn of_any_number_of_throttled_queues_the_last_are_remembered() {
        let limits = Limits::new(16);
        let at = clock();
        let names: Vec<String> = (0..=QUEUES_MAX).map(|number| format!("orders-{number}")).collect();
        for (name, second) in names.iter().zip(0..) {
            limits.throttled(name, at(second), at(second));
        }
        let lowered = limits.lock();
        assert_eq!(lowered.queues.len(), QUEUES_MAX);
        assert_eq!((lowered.of("orders-0"), lowered.of("orders-1")), (16, 8));
    }
}
