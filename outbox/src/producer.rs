//! The producer's handle.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;

use message::token::{DriftWindow, IdGenerator, MintError, ProcessIds};
use message::{IntoMessage, MessageId, NewMessage, Prepared, SizeLimit, Topic, TraceContext, VaryingHeaders};
use migrations::Identifier;
use sqlx::Transaction;

use crate::dialect::{Dialect, Requires};
use crate::drift::DriftGuard;
use crate::enqueue_error::EnqueueError;
use crate::store::{self, Batch};
use crate::trace::{Capture, TaskLocal};
use crate::transaction::RetryPolicy;
use crate::wake::CommitNotify;

/// The outcome of enqueueing one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enqueued {
    /// The message is a row of this transaction.
    Stored(MessageId),
    /// The same message was enqueued before under this id. It is published once.
    Duplicate(MessageId),
}

impl Enqueued {
    /// Returns the message's id.
    #[must_use]
    pub fn message_id(self) -> MessageId {
        match self {
            Self::Stored(id) | Self::Duplicate(id) => id,
        }
    }

    /// Returns whether the message was enqueued before.
    #[must_use]
    pub fn is_duplicate(self) -> bool {
        matches!(self, Self::Duplicate(_))
    }
}

/// The answer to an id under which the same message was enqueued before. Another message is always
/// [`EnqueueError::IdReused`]. Rows that retention has removed do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDuplicate {
    /// Returns [`Enqueued::Duplicate`].
    #[default]
    Ignore,
    /// Returns [`EnqueueError::DuplicateId`].
    Error,
}

/// Enqueues messages in the caller's own transactions. Cheap to clone.
///
/// Outside a transaction it does not compile:
/// ```compile_fail,E0308
/// # async fn example(pool: sqlx::PgPool, outbox: outbox::Outbox<sqlx::Postgres>) -> Result<(), outbox::EnqueueError> {
/// let mut connection = pool.acquire().await.expect("a connection");
/// outbox.enqueue(&mut connection, outbox::NewMessage::new("orders")).await?;
/// # Ok(()) }
/// ```
///
/// Inside one it does:
/// ```no_run
/// # async fn example(pool: sqlx::PgPool, outbox: outbox::Outbox<sqlx::Postgres>) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = pool.begin().await?;
/// sqlx::query("UPDATE orders SET state = 'placed' WHERE id = 7").execute(&mut *tx).await?;
/// outbox.enqueue(&mut tx, outbox::NewMessage::new("orders").key("order-7")).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Outbox<DB: Dialect> {
    pub(crate) settings: Arc<ProducerOptions<DB>>,
}

impl<DB: Dialect> Clone for Outbox<DB> {
    fn clone(&self) -> Self {
        Self { settings: Arc::clone(&self.settings) }
    }
}

pub(crate) struct ProducerOptions<DB: Dialect> {
    pub(crate) statements: DB::ProducerStatements,
    pub(crate) on_duplicate: OnDuplicate,
    pub(crate) varying: VaryingHeaders,
    pub(crate) retry: RetryPolicy,
    pub(crate) wake: CommitNotify,
    pub(crate) drift: DriftGuard,
    pub(crate) ids: Arc<dyn IdGenerator>,
    limit: SizeLimit,
    topic_limits: HashMap<Topic, SizeLimit>,
    capture: Arc<dyn Capture>,
}

impl<DB: Dialect> std::fmt::Debug for ProducerOptions<DB> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProducerOptions")
            .field("limit", &self.limit)
            .field("topic_limits", &self.topic_limits)
            .field("on_duplicate", &self.on_duplicate)
            .finish_non_exhaustive()
    }
}

/// Builds an [`Outbox`].
#[must_use = "call build"]
pub struct OutboxBuilder<DB> {
    schema: Option<Identifier>,
    limit: SizeLimit,
    topic_limits: HashMap<Topic, SizeLimit>,
    on_duplicate: OnDuplicate,
    varying: VaryingHeaders,
    retry: RetryPolicy,
    wake: CommitNotify,
    capture: Arc<dyn Capture>,
    ids: Arc<dyn IdGenerator>,
    ids_accepted: DriftWindow,
    dialect: PhantomData<fn() -> DB>,
}

impl<DB: Dialect> Default for Outbox<DB> {
    fn default() -> Self {
        Self::builder().build()
    }
}

impl<DB: Dialect> Outbox<DB> {
    /// Makes an outbox with all defaults: tables in the `search_path`, a maximum size that every
    /// broker accepts, duplicates ignored.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a builder with all defaults.
    pub fn builder() -> OutboxBuilder<DB> {
        OutboxBuilder {
            schema: None,
            limit: SizeLimit::PORTABLE,
            topic_limits: HashMap::new(),
            on_duplicate: OnDuplicate::default(),
            varying: VaryingHeaders::default(),
            retry: RetryPolicy::default(),
            wake: CommitNotify::new(),
            capture: Arc::new(TaskLocal),
            ids: Arc::new(ProcessIds),
            ids_accepted: DriftWindow::DEFAULT,
            dialect: PhantomData,
        }
    }

    /// Enqueues a message in the caller's transaction. It is published if and only if that
    /// transaction commits.
    ///
    /// After an error, roll the transaction back. A raw transaction does not enforce this. After a
    /// database error, PostgreSQL has aborted it, and a later `commit()` returns `Ok` although
    /// everything is rolled back. After a validation error, and on SQLite after most errors, a
    /// `commit()` stores the business rows *without* the message.
    /// [`OutboxTransaction`](crate::OutboxTransaction) refuses both.
    ///
    /// # Errors
    /// [`EnqueueError`]. Not cancel-safe: drop the transaction with the call.
    pub async fn enqueue(
        &self,
        tx: &mut Transaction<'_, DB>,
        message: impl IntoMessage,
    ) -> Result<Enqueued, EnqueueError> {
        let prepared = self.prepare(message.into_message(), || self.settings.ids.mint(), None)?;
        let stored = store::store_one::<DB>(tx, &self.settings, &prepared, Requires::Nothing).await?;
        Ok(stored.answer)
    }

    /// Enqueues many messages in one round trip, all or none. The answers are in the order of the
    /// messages.
    ///
    /// # Errors
    /// As for [`Outbox::enqueue`], for the first message that fails.
    pub async fn enqueue_batch(
        &self,
        tx: &mut Transaction<'_, DB>,
        messages: impl IntoIterator<Item: IntoMessage> + Send,
    ) -> Result<Vec<Enqueued>, EnqueueError> {
        let mint = || self.settings.ids.mint();
        let prepared: Result<Vec<_>, _> =
            messages.into_iter().map(|message| self.prepare(message.into_message(), mint, None)).collect();
        let Batch { answers, .. } =
            store::store_all::<DB>(tx, &self.settings, prepared?, Requires::Nothing).await?;
        Ok(answers)
    }

    /// Returns the hint for a relay in the same process. [`Outbox::transaction`] and
    /// [`OutboxTransaction::commit`](crate::OutboxTransaction::commit) give it after a commit.
    /// After the commit of a raw transaction call [`CommitNotify::wake`] yourself, or wait for the
    /// relay's next poll.
    #[must_use]
    pub fn wake_up(&self) -> CommitNotify {
        self.settings.wake.clone()
    }

    /// Returns the trace context for a message without one.
    pub(crate) fn capture(&self) -> Option<TraceContext> {
        self.settings.capture.capture()
    }

    /// Checks a message and its size. `inherited` is the trace context of the caller that started
    /// the work.
    pub(crate) fn prepare(
        &self,
        message: NewMessage,
        mint: impl FnOnce() -> Result<MessageId, MintError>,
        inherited: Option<&TraceContext>,
    ) -> Result<Prepared, EnqueueError> {
        let mint = || mint().map_err(EnqueueError::from);
        let prepared = message.prepare(mint, || self.capture().or_else(|| inherited.cloned()))?;
        let limits = &self.settings.topic_limits;
        let limit = limits.get(&prepared.message.topic).unwrap_or(&self.settings.limit);
        limit.check_without_source(&prepared.message)?;
        Ok(prepared)
    }
}

impl<DB: Dialect> OutboxBuilder<DB> {
    /// Sets the PostgreSQL schema of the tables. Default: by the `search_path`.
    pub fn schema(mut self, schema: Option<Identifier>) -> Self {
        self.schema = schema;
        self
    }

    /// Sets the maximum size of a message. Default: [`SizeLimit::PORTABLE`], 1,000,000 bytes.
    pub fn limit(mut self, limit: SizeLimit) -> Self {
        self.limit = limit;
        self
    }

    /// Sets a different maximum size for the messages of one topic.
    pub fn topic_limit(mut self, topic: Topic, limit: SizeLimit) -> Self {
        self.topic_limits.insert(topic, limit);
        self
    }

    /// Sets the answer to an id that was enqueued before. Default: [`OnDuplicate::Ignore`].
    pub fn on_duplicate(mut self, on_duplicate: OnDuplicate) -> Self {
        self.on_duplicate = on_duplicate;
        self
    }

    /// Names headers that may have other values when a command is repeated under its id, so that
    /// the repetition is a duplicate and not [`EnqueueError::IdReused`]. Case is ignored. The
    /// headers of tracing and of HTTP requests need no entry: `baggage`, `b3` and `x-b3-*`,
    /// `request-id`, `correlation-id` and both with `x-`, `sentry-trace`, `uber-trace-id`,
    /// `x-amzn-trace-id`, `x-cloud-trace-context`, `x-datadog-*`.
    pub fn varying_headers(mut self, names: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        names.into_iter().for_each(|name| self.varying.add(name.as_ref()));
        self
    }

    /// Sets how [`Outbox::transaction`] retries.
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    /// Sets the source of trace contexts. Default: [`TaskLocal`].
    pub fn capture(mut self, capture: impl Capture) -> Self {
        self.capture = Arc::new(capture);
        self
    }

    /// Sets the generator of ids for messages without one. Default: [`MessageId::new`]. Use
    /// [`NodeIds`](crate::nodes::NodeIds) if ids must name the node that made them.
    pub fn ids(mut self, ids: impl IdGenerator) -> Self {
        self.ids = Arc::new(ids);
        self
    }

    /// Sets how old a supplied id may be, and how far ahead of the database's clock. Default:
    /// [`DriftWindow::DEFAULT`], 14 days and 5 minutes, as in the inbox. Choose a window that all
    /// consumers accept.
    pub fn ids_accepted(mut self, window: DriftWindow) -> Self {
        self.ids_accepted = window;
        self
    }

    /// Sets the hint that commits give. Default: a new one.
    pub fn wake_up(mut self, wake: CommitNotify) -> Self {
        self.wake = wake;
        self
    }

    /// Builds the outbox.
    #[must_use]
    pub fn build(self) -> Outbox<DB> {
        Outbox {
            settings: Arc::new(ProducerOptions {
                statements: DB::producer_statements(self.schema.as_ref()),
                on_duplicate: self.on_duplicate,
                varying: self.varying,
                retry: self.retry,
                wake: self.wake,
                limit: self.limit,
                topic_limits: self.topic_limits,
                capture: self.capture,
                ids: self.ids,
                drift: DriftGuard::new(self.ids_accepted),
            }),
        }
    }
}
