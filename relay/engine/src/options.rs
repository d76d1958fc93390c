//! The settings of the engine, with the defaults and their reasons.

use std::time::Duration;

use message::chunk::Splitter;
use message::limits::Oversize;
use message::{Backoff, Message, SizeLimit};
use outbox::log::RowLimit;

use super::filter::Filter;

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

/// How often and when a failed message is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// How long to wait before the next attempt.
    pub backoff: Backoff,
    /// Attempts that count (the message's own fault) before an entry is dead.
    pub attempts_max: u32,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { backoff: Backoff::MESSAGES, attempts_max: 10 }
    }
}

/// How one pipeline behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineOptions {
    /// Bytes of messages in memory at most, read but not confirmed. One message larger than this
    /// still passes. The broker's client library holds as much again, and the reader up to three
    /// pages. 12 MiB are 40 ms of 300 MB/s, longer than any broker near by takes to confirm: a
    /// larger window only takes memory.
    pub window_bytes: usize,
    /// Entries in memory at most.
    pub window_entries: usize,
    /// Entries per read at most.
    pub page_entries: usize,
    /// Bytes per read at most.
    pub page_bytes: usize,
    /// Changes of exceptions that are not stored, at most: then nothing new is read. What is in the
    /// window already may add to them.
    pub unstored_max: usize,
    /// First changes of entries that one checkpoint stores at most, and changes of others: some 20
    /// ms of the database's time. So many are stored at once.
    pub checkpoint_changes: usize,
    /// How long a lease lasts without renewal; it is renewed at a third of this. A standby takes
    /// over a killed relay after at most this long.
    pub lease_ttl: Duration,
    /// The pause after an empty poll while messages are coming; at most twice as long until a
    /// second after the last.
    pub poll_min: Duration,
    /// The pause to which an idle relay slows down.
    pub poll_max: Duration,
    /// How often the cursor is stored at most. What was published since is published again after a
    /// crash.
    pub checkpoint_interval: Duration,
    /// How long a shutdown waits for outstanding confirmations.
    pub shutdown_grace: Duration,
    /// How the broker's and the message's faults are retried.
    pub retry: RetryPolicy,
    /// The longest pause after a failure that is not the message's fault: outages end without
    /// notice.
    pub outage_delay_max: Duration,
    /// How long the broker may leave a message without an answer while it answers for others,
    /// before that destination is taken to be silent: its messages are parked, and others flow. A
    /// fifth of it is enough where others wait for room in the window. Shorter than what an
    /// ordinary failover takes only costs rows, never copies.
    pub silent_after: Duration,
    /// The treatment of a key whose entry is dead.
    pub on_dead: DeadPolicy,
    /// The largest entry that the destination takes; larger ones are split, or parked at once.
    pub size_limit: SizeLimit,
    /// How larger entries are split; without, they are parked.
    pub chunking: Option<Splitter>,
    /// So many topics get metrics of their own; the others share the label `other`.
    pub topics_labelled_max: usize,
    /// Which entries this relay publishes; the others count as passed. What it has passed is not
    /// read again when the filter changes.
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
    /// Whether a message can leave, whole or in chunks.
    ///
    /// # Errors
    /// [`Oversize`] with its size and the limit.
    pub fn check_size(&self, message: &Message) -> Result<(), Oversize> {
        match &self.chunking {
            Some(splitter) => splitter.check(message),
            None => self.size_limit.check(message),
        }
    }

    /// The largest row that is read: what [`check_size`](Self::check_size) refuses for its length
    /// alone takes no memory.
    #[must_use]
    pub fn row_limit(&self) -> RowLimit {
        let payload = self.chunking.map_or(self.size_limit, |splitter| SizeLimit {
            message_bytes_max: splitter.chunked_bytes_max,
            ..splitter.limit
        });
        // Each chunk has all headers.
        RowLimit { payload, headers: self.size_limit }
    }

    /// How long the relay may publish after it asked for a lease or its renewal: a tenth is kept
    /// back for what is already on its way to the broker.
    #[must_use]
    pub fn lease_trust(&self) -> Duration {
        self.lease_ttl - self.lease_ttl / 10
    }

    /// How often the lease is renewed.
    #[must_use]
    pub fn renew_interval(&self) -> Duration {
        self.lease_ttl / 3
    }
}
