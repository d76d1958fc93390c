//! Measures consumer lag beside a subscription, at a low rate.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use message::Lag;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

/// Interval between two measurements: short enough for an alert, and negligible beside a consumer's
/// traffic.
const LOOK_EVERY: Duration = Duration::from_secs(15);

/// A task that measures lag, and its last result. Dropping this stops the task.
#[derive(Debug)]
pub(crate) struct LagWatch {
    known: Arc<Mutex<Vec<Lag>>>,
    task: JoinHandle<()>,
}

impl LagWatch {
    /// Starts measuring at an interval. A failed measurement clears the last result and logs the
    /// reason.
    pub(crate) fn new<Look, Answer>(origin: String, look: Look) -> Self
    where
        Look: Fn() -> Answer + Send + Sync + 'static,
        Answer: Future<Output = Result<Vec<Lag>, String>> + Send,
    {
        let known = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&known);
        let task = tokio::spawn(async move {
            let mut tick = interval(LOOK_EVERY);
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tick.tick().await;
                let answer = tokio::time::timeout(LOOK_EVERY, look()).await;
                let lags =
                    answer.unwrap_or_else(|_| Err(String::from("no answer"))).unwrap_or_else(|reason| {
                        tracing::debug!(origin, "the consumer's lag is unknown: {reason}");
                        Vec::new()
                    });
                *seen.lock().unwrap_or_else(PoisonError::into_inner) = lags;
            }
        });
        Self { known, task }
    }

    /// Returns the last measurement.
    pub(crate) fn known(&self) -> Vec<Lag> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for LagWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}
