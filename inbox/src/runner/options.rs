//! RunnerOptions of the runner, which it takes besides its parts.

use std::num::NonZeroUsize;
use std::time::Duration;

use message::Backoff;

use crate::held_keys::AfterDeadLetter;

/// How a consumer behaves; [`ConsumerBuilder`](super::ConsumerBuilder) explains each.
#[derive(Debug, Clone, Copy)]
pub struct RunnerOptions {
    /// Deliveries in hand at most.
    pub prefetch: NonZeroUsize,
    /// Messages per transaction at most; each has its own without.
    pub batch: Option<NonZeroUsize>,
    /// Transactions at once at most.
    pub concurrency: NonZeroUsize,
    /// Failures after which a message is dead-lettered.
    pub attempts_max: u32,
    /// How long a failed message waits.
    pub backoff: Backoff,
    /// How often the broker hears that deliveries are being worked on, if that was chosen.
    pub keep_alive_interval: Option<Duration>,
    /// How often the inbox is maintained, if at all.
    pub maintain_interval: Option<Duration>,
    /// How long one call of the handler may take.
    pub handler_timeout: Duration,
    /// How long a message may fail without a failure that is counted.
    pub failing_max: Duration,
    /// Whether a dead letter holds its key.
    pub after_dead_letter: AfterDeadLetter,
    /// How often it is looked whether an operator asks for a redrive and whether held messages have
    /// their turn, if at all.
    pub redrive_interval: Option<Duration>,
}

const fn non_zero(value: usize) -> NonZeroUsize {
    match NonZeroUsize::new(value) {
        Some(value) => value,
        None => NonZeroUsize::MIN,
    }
}

impl Default for RunnerOptions {
    fn default() -> Self {
        Self {
            prefetch: non_zero(256),
            batch: None,
            concurrency: non_zero(8),
            attempts_max: 10,
            backoff: Backoff::MESSAGES,
            keep_alive_interval: None,
            maintain_interval: Some(Duration::from_secs(3_600)),
            handler_timeout: Duration::from_secs(60),
            failing_max: Duration::from_secs(86_400),
            after_dead_letter: AfterDeadLetter::KeyGoesOn,
            redrive_interval: Some(Duration::from_secs(10)),
        }
    }
}
