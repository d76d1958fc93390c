//! The limits, timeouts and intervals of a consumer.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use message::Backoff;

use super::ConsumerBuilder;
use crate::dead_letters::AfterDeadLetter;
use crate::dialect::Dialect;
use crate::runner::join_traces::JoinTraces;

impl<DB: Dialect> ConsumerBuilder<DB> {
    /// Sets the maximum number of concurrent transactions, each for a different ordering key; 8 by
    /// default. Give the pool one connection more. SQLite always writes one transaction at a time.
    #[must_use]
    pub fn concurrency(mut self, concurrency: NonZeroUsize) -> Self {
        self.settings.concurrency = concurrency;
        self
    }

    /// Sets the maximum number of unsettled deliveries, working and waiting; 256 by default. A key
    /// that waits for its backoff holds the deliveries behind it. When they reach this limit, the
    /// consumer receives nothing until the key continues.
    #[must_use]
    pub fn prefetch(mut self, deliveries_max: NonZeroUsize) -> Self {
        self.settings.prefetch = deliveries_max;
        self
    }

    /// Handles up to `messages_max` messages in one transaction, one batch at a time; by default
    /// each message has its own transaction. Raise [`prefetch`](Self::prefetch) to at least twice
    /// as many.
    #[must_use]
    pub fn batch(mut self, messages_max: NonZeroUsize) -> Self {
        self.settings.batch = Some(messages_max);
        self
    }

    /// Sets how long one call of the handler may take; 60 s by default. After that its transaction
    /// is rolled back, on PostgreSQL including the statement that the server is running, and the
    /// call counts as a failure. The commit is not included. Code that blocks its thread instead of
    /// awaiting cannot be cancelled; it is logged and counted (`inbox_handlers_blocked`).
    ///
    /// Deliveries are kept alive meanwhile, so this may be longer than the broker's visibility
    /// timeout or poll interval. In a [batch](Self::batch) it applies to each call, and with
    /// `on_batch` to the call for the whole batch: choose smaller batches, or more time. On
    /// PostgreSQL, a handler that waits for something other than its transaction also needs a pool
    /// with a longer `idle_in_transaction_session_timeout` (`outbox::pool_options`: 60 s).
    #[must_use]
    pub fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.settings.handler_timeout = timeout;
        self
    }

    /// Sets how often a handler may fail before its message is dead-lettered; 10 by default. A
    /// failure of the database (a statement timeout, a deadlock, a lost session) counts only if
    /// another message has succeeded since the previous failure. Otherwise
    /// [`failing_max`](Self::failing_max) is the limit.
    #[must_use]
    pub fn attempts_max(mut self, attempts_max: u32) -> Self {
        self.settings.attempts_max = attempts_max;
        self
    }

    /// Sets how long a message may fail, from its first failure, while no failure counts; 24 hours
    /// by default, by the clocks of database and process. Then it is dead-lettered. Choose longer
    /// than any outage that should be waited out.
    #[must_use]
    pub fn failing_max(mut self, age_max: Duration) -> Self {
        self.settings.failing_max = age_max;
        self
    }

    /// Sets how long a failed message waits, up to 24 h; [`Backoff::MESSAGES`] by default.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.settings.backoff = backoff;
        self
    }

    /// Sets the interval at which the consumer extends the visibility timeout of deliveries in
    /// hand; by default 10 s, or a third of the subscription's visibility timeout if that is less;
    /// at least 1 ms. An interval above half of that timeout is refused when the consumer runs:
    /// [`RunError::KeepAliveTooSeldom`](crate::RunError::KeepAliveTooSeldom).
    #[must_use]
    pub fn keep_alive_interval(mut self, interval: Duration) -> Self {
        self.settings.keep_alive_interval = Some(interval);
        self
    }

    /// Sets how often the inbox is maintained; hourly by default, at least 1 ms. With `None`
    /// something else has to do it. Choose `None` for a PostgreSQL role that may not create and
    /// drop partitions.
    #[must_use]
    pub fn maintain_interval(mut self, interval: Option<Duration>) -> Self {
        self.settings.maintain_interval = interval;
        self
    }

    /// Sets how the spans of this consumer join the traces of producers; by default they do not.
    /// The module `otel` of the crate `outbox-toolkit` has an adapter for OpenTelemetry.
    #[must_use]
    pub fn join_traces(mut self, join: impl JoinTraces) -> Self {
        self.traces = Some(Arc::new(join));
        self
    }

    /// Sets whether later messages of a key wait for its dead letter; by default they do not wait.
    #[must_use]
    pub fn after_dead_letter(mut self, choice: AfterDeadLetter) -> Self {
        self.settings.after_dead_letter = choice;
        self
    }

    /// Sets how often the consumer checks whether an operator requested a redrive (`relay dead
    /// redrive`) and whether a held message is due; 10 s by default, at least 1 ms. With `None`
    /// another process of the consumer has to do it.
    #[must_use]
    pub fn redrive_interval(mut self, interval: Option<Duration>) -> Self {
        self.settings.redrive_interval = interval;
        self
    }
}
