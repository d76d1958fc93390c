//! The settings of the engine, with the defaults and their reasons.

use std::time::Duration;

use message::{Backoff, Message, Oversize, SizeLimit, Splitter};
use outbox_log::RowLimit;

use super::filter::Filter;

/// Maximum time by which an unanswered entry is postponed, in multiples of
/// [`EngineOptions::outage_delay_max`]: one minute by default. Each time costs a row.
const POSTPONED_OUTAGES: u32 = 4;

/// The treatment of a key whose entry is dead.
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeadPolicy {
    /// The key waits for an operator: order is kept whatever happens.
    #[default]
    Hold,
    /// The key goes on without the entry: its order has a gap that a later requeue fills out of
    /// order.
    Pass,
}

/// Policy for retrying a failed message. Start from [`RetryPolicy::default`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryPolicy {
    /// Pause before the next attempt.
    pub backoff: Backoff,
    /// Number of attempts that count (failed by the message's own fault) before an entry is dead.
    pub attempts_max: u32,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { backoff: Backoff::MESSAGES, attempts_max: 10 }
    }
}

impl RetryPolicy {
    /// Sets the pause before the next attempt.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Sets the number of attempts that count before an entry is dead.
    #[must_use]
    pub fn attempts_max(mut self, attempts_max: u32) -> Self {
        self.attempts_max = attempts_max;
        self
    }
}

/// Settings of one pipeline. Start from [`EngineOptions::default`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineOptions {
    /// Maximum bytes of messages in memory, read but not confirmed. One message larger than this
    /// still passes. The broker's client library holds as much again, and up to twice as much while
    /// destinations are silent; the reader holds up to three pages. 12 MiB last 40 ms at 300 MB/s,
    /// longer than any nearby broker takes to confirm; a larger window only uses memory.
    pub window_bytes: usize,
    /// Maximum entries in memory.
    pub window_entries: usize,
    /// Maximum entries per read.
    pub page_entries: usize,
    /// Maximum bytes per read.
    pub page_bytes: usize,
    /// Maximum changes of exceptions that are not stored. At this number nothing new is read;
    /// entries already in the window may still add changes.
    pub unstored_max: usize,
    /// Maximum first changes in one checkpoint, those of entries that the cursor passes with it;
    /// the same maximum applies to other changes. Storing this many costs the database about 20 ms.
    /// When this many changes wait, they are stored at once.
    pub checkpoint_changes: usize,
    /// How long a lease lasts without renewal; it is renewed at a third of this. A standby takes
    /// over from a killed relay within this time.
    pub lease_ttl: Duration,
    /// Pause after an empty poll while messages keep coming. It at most doubles until a second
    /// after the last message.
    pub poll_min: Duration,
    /// Pause between the polls of an idle relay.
    pub poll_max: Duration,
    /// Time between two checkpoints. Messages published since the last one are published again
    /// after a crash.
    pub checkpoint_interval: Duration,
    /// How long a shutdown waits for outstanding confirmations.
    pub shutdown_grace: Duration,
    /// Retry policy for faults of the broker and of the message.
    pub retry: RetryPolicy,
    /// Longest pause after a failure that is not the message's fault: outages end without notice.
    pub outage_delay_max: Duration,
    /// How long the broker may leave a message unanswered while it answers for others, before the
    /// destination counts as silent. Its messages are then parked, and others flow. A fifth of this
    /// is enough where others wait for room in the window. A value shorter than an ordinary
    /// failover only costs rows, never copies.
    pub silent_after: Duration,
    /// The treatment of a key whose entry is dead.
    pub on_dead: DeadPolicy,
    /// The largest entry that the destination accepts. Larger entries are split, or parked at once.
    pub size_limit: SizeLimit,
    /// The way in which larger entries are split. With `None`, they are parked.
    pub chunking: Option<Splitter>,
    /// Maximum topics with metrics of their own; the others share the label `other`.
    pub topics_labelled_max: usize,
    /// Selects the entries that this relay publishes; the others count as passed. Passed entries
    /// are not read again when the filter changes.
    pub filter: Filter,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            window_bytes: 12 << 20,
            window_entries: 65_536,
            page_entries: 1_000,
            page_bytes: 2 << 20,
            unstored_max: 8_000,
            checkpoint_changes: 1_000,
            lease_ttl: Duration::from_secs(15),
            poll_min: Duration::from_millis(1),
            poll_max: Duration::from_millis(50),
            checkpoint_interval: Duration::from_millis(200),
            shutdown_grace: Duration::from_secs(20),
            retry: RetryPolicy::default(),
            outage_delay_max: Duration::from_secs(15),
            silent_after: Duration::from_secs(5),
            on_dead: DeadPolicy::default(),
            size_limit: SizeLimit { destination: "the destination", message_bytes_max: 16 << 20 },
            chunking: None,
            topics_labelled_max: crate::telemetry::TOPICS_MAX_DEFAULT,
            filter: Filter::default(),
        }
    }
}

impl EngineOptions {
    /// Sets the maximum bytes of messages in memory.
    #[must_use]
    pub fn window_bytes(mut self, window_bytes: usize) -> Self {
        self.window_bytes = window_bytes;
        self
    }

    /// Sets the maximum entries in memory.
    #[must_use]
    pub fn window_entries(mut self, window_entries: usize) -> Self {
        self.window_entries = window_entries;
        self
    }

    /// Sets the maximum entries per read.
    #[must_use]
    pub fn page_entries(mut self, page_entries: usize) -> Self {
        self.page_entries = page_entries;
        self
    }

    /// Sets the maximum bytes per read.
    #[must_use]
    pub fn page_bytes(mut self, page_bytes: usize) -> Self {
        self.page_bytes = page_bytes;
        self
    }

    /// Sets the maximum changes of exceptions that are not stored.
    #[must_use]
    pub fn unstored_max(mut self, unstored_max: usize) -> Self {
        self.unstored_max = unstored_max;
        self
    }

    /// Sets the maximum first changes in one checkpoint.
    #[must_use]
    pub fn checkpoint_changes(mut self, checkpoint_changes: usize) -> Self {
        self.checkpoint_changes = checkpoint_changes;
        self
    }

    /// Sets how long a lease lasts without renewal.
    #[must_use]
    pub fn lease_ttl(mut self, lease_ttl: Duration) -> Self {
        self.lease_ttl = lease_ttl;
        self
    }

    /// Sets the pause after an empty poll while messages keep coming.
    #[must_use]
    pub fn poll_min(mut self, poll_min: Duration) -> Self {
        self.poll_min = poll_min;
        self
    }

    /// Sets the pause between the polls of an idle relay.
    #[must_use]
    pub fn poll_max(mut self, poll_max: Duration) -> Self {
        self.poll_max = poll_max;
        self
    }

    /// Sets the time between two checkpoints.
    #[must_use]
    pub fn checkpoint_interval(mut self, checkpoint_interval: Duration) -> Self {
        self.checkpoint_interval = checkpoint_interval;
        self
    }

    /// Sets how long a shutdown waits for outstanding confirmations.
    #[must_use]
    pub fn shutdown_grace(mut self, shutdown_grace: Duration) -> Self {
        self.shutdown_grace = shutdown_grace;
        self
    }

    /// Sets the retry policy for faults of the broker and of the message.
    #[must_use]
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    /// Sets the longest pause after a failure that is not the message's fault.
    #[must_use]
    pub fn outage_delay_max(mut self, outage_delay_max: Duration) -> Self {
        self.outage_delay_max = outage_delay_max;
        self
    }

    /// Sets how long the broker may leave a message unanswered while it answers for others.
    #[must_use]
    pub fn silent_after(mut self, silent_after: Duration) -> Self {
        self.silent_after = silent_after;
        self
    }

    /// Sets the treatment of a key whose entry is dead.
    #[must_use]
    pub fn on_dead(mut self, on_dead: DeadPolicy) -> Self {
        self.on_dead = on_dead;
        self
    }

    /// Sets the largest entry that the destination accepts.
    #[must_use]
    pub fn size_limit(mut self, size_limit: SizeLimit) -> Self {
        self.size_limit = size_limit;
        self
    }

    /// Sets the way in which larger entries are split; with `None`, they are parked.
    #[must_use]
    pub fn chunking(mut self, chunking: Option<Splitter>) -> Self {
        self.chunking = chunking;
        self
    }

    /// Sets the maximum topics with metrics of their own.
    #[must_use]
    pub fn topics_labelled_max(mut self, topics_labelled_max: usize) -> Self {
        self.topics_labelled_max = topics_labelled_max;
        self
    }

    /// Sets which entries this relay publishes.
    #[must_use]
    pub fn filter(mut self, filter: Filter) -> Self {
        self.filter = filter;
        self
    }

    /// Checks that a message can be sent, whole or in chunks.
    ///
    /// # Errors
    /// [`Oversize`] with its size and the limit.
    pub fn check_size(&self, message: &Message) -> Result<(), Oversize> {
        match &self.chunking {
            Some(splitter) => splitter.check(message),
            None => self.size_limit.check(message),
        }
    }

    /// Returns the time by which an entry is postponed whose message is with the publisher and not
    /// answered. The answer and the end of the session make it due at once. But after a crash, a
    /// lost lease or an error of the database, the next term knows neither, and waits for this
    /// time. So it is not the largest retry delay, which may be a day.
    pub(crate) fn postponed_max(&self) -> Duration {
        self.retry.backoff.max.min(self.outage_delay_max.saturating_mul(POSTPONED_OUTAGES))
    }

    /// Returns an upper estimate of a message's bytes on the wire, in all of its chunks.
    pub(crate) fn wire_bytes(&self, message: &Message) -> usize {
        self.chunking.map_or_else(|| message.wire_bytes(), |splitter| splitter.wire_bytes(message))
    }

    /// Returns the largest row that is read. A row that [`check_size`](Self::check_size) refuses
    /// for its length alone uses no memory.
    #[must_use]
    pub fn row_limit(&self) -> RowLimit {
        let payload = self.chunking.map_or(self.size_limit, |splitter| SizeLimit {
            message_bytes_max: splitter.chunked_bytes_max,
            ..splitter.limit
        });
        // Each chunk has all headers.
        RowLimit { payload, headers: self.size_limit }
    }

    /// Returns how long the relay may publish after it asked for a lease or its renewal. A tenth is
    /// reserved for messages that are already on their way to the broker.
    #[must_use]
    pub fn lease_trust(&self) -> Duration {
        self.lease_ttl - self.lease_ttl / 10
    }

    /// Returns how often the lease is renewed.
    #[must_use]
    pub fn renew_interval(&self) -> Duration {
        self.lease_ttl / 3
    }
}
