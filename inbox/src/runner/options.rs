//! Options of the runner, beside its parts.

use std::num::NonZeroUsize;
use std::time::Duration;

use message::Backoff;

use crate::dead_letters::AfterDeadLetter;

/// Options of a consumer; [`ConsumerBuilder`](super::ConsumerBuilder) explains each.
#[derive(Debug, Clone, Copy)]
pub struct RunnerOptions {
    /// Maximum number of unsettled deliveries.
    pub prefetch: NonZeroUsize,
    /// Maximum number of messages per transaction; with `None` each message has its own.
    pub batch: Option<NonZeroUsize>,
    /// Maximum number of concurrent transactions.
    pub concurrency: NonZeroUsize,
    /// Number of failures after which a message is dead-lettered.
    pub attempts_max: u32,
    /// How long a failed message waits.
    pub backoff: Backoff,
    /// Interval between keep-alives for deliveries in hand; `None` for the default.
    pub keep_alive_interval: Option<Duration>,
    /// How often the inbox is maintained; `None` for never.
    pub maintain_interval: Option<Duration>,
    /// How long one call of the handler may take.
    pub handler_timeout: Duration,
    /// How long a message may keep failing before it is dead-lettered although none of its failures
    /// counts.
    pub failing_max: Duration,
    /// Whether a dead letter holds its key.
    pub after_dead_letter: AfterDeadLetter,
    /// How often to check for requested redrives and for held messages that are due; `None` for
    /// never.
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
