//! Endpoints to which nothing may be sent: for a time, or until a restart.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::Uri;
use tokio::time::Instant;

/// Number of endpoints at which stops that are over are forgotten.
const STOPS_MAX: usize = 1_000;

/// Why nothing may be sent to an endpoint now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// It answered that it is gone (410). Until a restart.
    Gone,
    /// It asked to wait (`Retry-After`).
    Until(Instant),
}

/// The stopped endpoints of a connector. They outlive its sessions.
#[derive(Debug, Default)]
pub(super) struct Stops(Mutex<HashMap<Uri, Stop>>);

impl Stops {
    /// Records that an endpoint is gone. Returns whether this is news.
    pub(super) fn gone(&self, endpoint: &Uri) -> bool {
        self.insert(endpoint, Stop::Gone) != Some(Stop::Gone)
    }

    /// Records that an endpoint asked to wait for a time.
    pub(super) fn wait(&self, endpoint: &Uri, time: Duration) {
        let until = Instant::now() + time;
        if self.of(endpoint).is_none_or(|stop| matches!(stop, Stop::Until(at) if at < until)) {
            self.insert(endpoint, Stop::Until(until));
        }
    }

    /// Returns the stop of an endpoint, if it is not over.
    pub(super) fn of(&self, endpoint: &Uri) -> Option<Stop> {
        self.lock().get(endpoint).copied().filter(|stop| stop.holds(Instant::now()))
    }

    fn insert(&self, endpoint: &Uri, stop: Stop) -> Option<Stop> {
        let mut stops = self.lock();
        if stops.len() >= STOPS_MAX {
            let now = Instant::now();
            stops.retain(|_, stop| stop.holds(now));
        }
        stops.insert(endpoint.clone(), stop)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uri, Stop>> {
        // A map is consistent even if another thread panicked while it held the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stop {
    fn holds(self, now: Instant) -> bool {
        match self {
            Self::Gone => true,
            Self::Until(at) => now < at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_and_a_gone_endpoint_stays_gone() {
        let stops = Stops::default();
        let [a, b] = ["http://a/", "http://a/b"].map(Uri::from_static);
        stops.wait(&a, Duration::from_secs(10));
        stops.wait(&a, Duration::from_secs(2));
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(matches!(stops.of(&a), Some(Stop::Until(_))), "the longer time counts");
        assert_eq!(stops.of(&b), None);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(stops.of(&a), None);
        assert!(stops.gone(&a) && !stops.gone(&a));
        stops.wait(&a, Duration::from_secs(1));
        tokio::time::advance(Duration::from_secs(86_400)).await;
        assert_eq!(stops.of(&a), Some(Stop::Gone));
    }

    #[tokio::test(start_paused = true)]
    async fn stops_that_are_over_are_forgotten() {
        let stops = Stops::default();
        for number in 0..3 * STOPS_MAX {
            stops.wait(&format!("http://a/{number}").parse().unwrap(), Duration::from_secs(1));
            tokio::time::advance(Duration::from_millis(2)).await;
            assert!(stops.lock().len() <= STOPS_MAX);
        }
    }
}
