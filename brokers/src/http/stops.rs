//! Endpoints to which nothing may be sent: for a time, or until a restart.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::Uri;
use tokio::time::Instant;

/// Maximum endpoints that are remembered. A new stop replaces the one that ends soonest. One more
/// request to that endpoint then gets the same answer again.
const STOPS_MAX: usize = 10_000;

/// How long nothing is sent to an endpoint that a message named, after it answered that it is gone.
/// Messages could otherwise fill the memory with any number of URLs. And no setting can correct
/// such a URL, so it must work again without a restart once its receiver is back.
const NAMED_GONE_FOR: Duration = Duration::from_secs(600);

/// Why nothing may be sent to an endpoint now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// It answered that it is gone (410): until this time, or until a restart.
    Gone(Option<Instant>),
    /// It asked to wait (`Retry-After`).
    Until(Instant),
}

/// The stopped endpoints of a connector. They outlive its sessions.
#[derive(Debug, Default)]
pub(super) struct Stops(Mutex<HashMap<Uri, Stop>>);

impl Stops {
    /// Records that an endpoint is gone; `is_named`: a message names it. Returns whether this was
    /// unknown.
    pub(super) fn gone(&self, endpoint: &Uri, is_named: bool) -> bool {
        let until = is_named.then(|| Instant::now() + NAMED_GONE_FOR);
        !matches!(self.insert(endpoint, Stop::Gone(until)), Some(Stop::Gone(_)))
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
        if stops.len() >= STOPS_MAX && !stops.contains_key(endpoint) {
            let now = Instant::now();
            stops.retain(|_, stop| stop.holds(now));
            if stops.len() >= STOPS_MAX {
                let ending = stops.iter().filter_map(|(uri, stop)| Some((stop.end()?, uri.clone())));
                if let Some((_, first)) = ending.min_by_key(|(end, _)| *end) {
                    stops.remove(&first);
                }
            }
        }
        stops.insert(endpoint.clone(), stop)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uri, Stop>> {
        // A map is consistent even if another thread panicked while it held the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stop {
    /// Returns when it ends; `None` if only a restart ends it.
    fn end(self) -> Option<Instant> {
        match self {
            Self::Gone(end) => end,
            Self::Until(end) => Some(end),
        }
    }

    fn holds(self, now: Instant) -> bool {
        self.end().is_none_or(|end| now < end)
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
        assert!(stops.gone(&a, false) && !stops.gone(&a, false));
        stops.wait(&a, Duration::from_secs(1));
        tokio::time::advance(Duration::from_secs(86_400)).await;
        assert_eq!(stops.of(&a), Some(Stop::Gone(None)));
        assert!(stops.gone(&b, true));
        tokio::time::advance(NAMED_GONE_FOR - Duration::from_millis(1)).await;
        assert!(stops.of(&b).is_some());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(stops.of(&b), None, "no restart is needed for a URL that a message names");
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

    /// Goal: however many URLs messages name, a bounded number is remembered, and no stop of a
    /// configured endpoint is forgotten for them. Oracle: the number, and the operator's stop.
    #[tokio::test(start_paused = true)]
    async fn a_bounded_number_of_stops_is_kept_and_those_of_settings_last() {
        let stops = Stops::default();
        let own = Uri::from_static("http://own/");
        stops.gone(&own, false);
        for number in 0..STOPS_MAX + 100 {
            stops.gone(&format!("http://a/{number}").parse().unwrap(), true);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(stops.lock().len(), STOPS_MAX);
        assert_eq!(stops.of(&own), Some(Stop::Gone(None)));
        assert_eq!(stops.of(&Uri::from_static("http://a/0")), None, "the oldest is forgotten");
    }
}
