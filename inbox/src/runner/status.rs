//! Status of a consumer, for health probes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Maximum age of the last iteration of a live loop. It iterates every few seconds, however long
/// its handlers take.
const ALIVE_MAX: Duration = Duration::from_secs(60);

/// Status of a consumer; made by [`Consumer::status`](super::Consumer::status). Cheap to clone and
/// to ask.
///
/// Use [`is_alive`](Self::is_alive) for a liveness probe: only then does a restart help. Use
/// [`stalled_for`](Self::stalled_for) for a readiness probe and alerts; it also grows while the
/// broker or the database is unavailable.
#[derive(Debug, Clone)]
pub struct ConsumerStatus(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    turned_at: Option<Instant>,
    is_connected: bool,
    in_hand: usize,
    lag: Option<u64>,
    /// When it last settled something or had nothing to do.
    progressed_at: Instant,
}

impl ConsumerStatus {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            turned_at: None,
            is_connected: false,
            in_hand: 0,
            lag: None,
            progressed_at: Instant::now(),
        })))
    }

    /// Returns whether the consumer's loop is running. Returns false if the loop has not iterated
    /// for a minute, because a handler blocks the only thread of its runtime.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.state().is_alive(Instant::now())
    }

    /// Returns whether it has a session with the broker.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.state().is_connected
    }

    /// Returns the number of unsettled deliveries.
    #[must_use]
    pub fn in_hand(&self) -> usize {
        self.state().in_hand
    }

    /// Returns the number of messages that wait for it at the broker, if the broker reports it.
    #[must_use]
    pub fn lag(&self) -> Option<u64> {
        self.state().lag
    }

    /// Returns how long it has settled nothing although it had work, or had no session. It is at
    /// most a few seconds in normal operation.
    #[must_use]
    pub fn stalled_for(&self) -> Duration {
        self.state().progressed_at.elapsed()
    }

    /// Records an iteration of the loop.
    pub(super) fn turned(&self, is_connected: bool, in_hand: usize) {
        self.state().turned(Instant::now(), is_connected, in_hand);
    }

    /// Records that the running loop waits for the broker.
    pub(super) fn waits(&self) {
        if let Some(turned_at) = &mut self.state().turned_at {
            *turned_at = Instant::now();
        }
    }

    /// Records that deliveries were settled.
    pub(super) fn settled(&self) {
        self.state().progressed_at = Instant::now();
    }

    /// Records the number of messages at the broker; `None` when unknown.
    pub(super) fn lags(&self, lag: Option<u64>) {
        self.state().lag = lag;
    }

    /// Records that the loop ended.
    pub(super) fn ended(&self) {
        let mut state = self.state();
        state.turned_at = None;
        state.is_connected = false;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_alive(&self, now: Instant) -> bool {
        self.turned_at.is_some_and(|turned_at| now.duration_since(turned_at) < ALIVE_MAX)
    }

    fn turned(&mut self, now: Instant, is_connected: bool, in_hand: usize) {
        self.turned_at = Some(now);
        self.is_connected = is_connected;
        self.in_hand = in_hand;
        if is_connected && in_hand == 0 && self.lag.unwrap_or_default() == 0 {
            self.progressed_at = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stalls_with_work_and_without_a_session_and_not_when_idle() {
        let begun_at = Instant::now();
        let later = begun_at + 10 * ALIVE_MAX;
        for (is_connected, in_hand, lag, stalls) in [
            (true, 0, None, false),
            (true, 0, Some(0), false),
            (true, 3, Some(0), true),
            (true, 0, Some(7), true),
            (false, 0, None, true),
        ] {
            let mut state =
                State { turned_at: None, is_connected: false, in_hand: 0, lag, progressed_at: begun_at };
            assert!(!state.is_alive(later), "its loop has not turned");
            state.turned(later, is_connected, in_hand);
            assert!(state.is_alive(later) && !state.is_alive(later + ALIVE_MAX));
            assert_eq!(state.progressed_at == begun_at, stalls, "{is_connected} {in_hand} {lag:?}");
        }
    }
}
