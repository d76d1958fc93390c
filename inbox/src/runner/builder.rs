//! The builder of a consumer.

use std::convert::Infallible;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use message::{Backoff, Event, ForeignMessage, InvalidText, Malformed, Message, Subscriber};
use outbox::Outbox;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::broker_session::SubscriptionFactory;
use super::crash::CrashHook;
use super::drive::RunError;
use super::kinds::{Kinds, UnknownKinds};
use super::options::RunnerOptions;
use super::parts::{Parts, Runner};
use super::shutdown::StopSignal;
use super::status::ConsumerStatus;
use super::store::InboxStore;
use super::tracing_spans::JoinTraces;
use super::worker::{Foreign, TenantOf};
use crate::dialect::Dialect;
use crate::function::{BatchFunction, BatchRoute, EventFunction, EventRoute, MessageFunction, MessageRoute};
use crate::handler::Handler;
use crate::held_keys::{AfterDeadLetter, PAUSE_MAX};
use crate::inbox::Inbox;
use crate::name::{ConsumerName, Tenant};

/// A builder of a [`Consumer`]; made by [`Consumer::builder`].
pub struct ConsumerBuilder<DB: Dialect> {
    inbox: Inbox<DB>,
    consumer: Result<ConsumerName, InvalidText>,
    factory: Option<SubscriptionFactory>,
    pub(super) handler: Option<Arc<dyn Handler<DB>>>,
    pub(super) observe: Option<Observe<DB>>,
    kinds: Kinds<DB>,
    unknown: UnknownKinds,
    foreign: Option<Foreign>,
    tenant_of: TenantOf,
    settings: RunnerOptions,
    pub(super) guarded: bool,
    pub(super) crash: Option<CrashHook>,
    traces: Option<Arc<dyn JoinTraces>>,
}

/// Wraps a handler.
pub(super) type Observe<DB> = Box<dyn FnOnce(Arc<dyn Handler<DB>>) -> Arc<dyn Handler<DB>> + Send + Sync>;

/// Why a consumer cannot be built. The program's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No subscription was given.
    #[error("the consumer has no subscription; call .subscribe(..)")]
    NoSubscription,
    /// No handler was given.
    #[error("the consumer has no handler; call .on(..), .on_message(..) or .handler(..)")]
    NoHandler,
    /// The name of the consumer is invalid.
    #[error("the consumer cannot have this name")]
    Name(#[from] InvalidText),
    /// Two handlers for one kind: one of them would never be called.
    #[error("the kind {kind:?} has two handlers; register one")]
    DuplicateKind {
        /// The kind.
        kind: String,
    },
    /// A function for many events is registered, but the consumer has no batches.
    #[error(
        "the function for kind {kind:?} takes many events, and the consumer gathers no batches; call .batch(n)"
    )]
    NoBatches {
        /// The kind.
        kind: String,
    },
    /// A kind that no message can have.
    #[error("no message can have the kind {kind:?}: {problem}")]
    InvalidKind {
        /// The kind.
        kind: String,
        /// The rule that it breaks.
        problem: String,
    },
    /// A handler for all messages is registered beside handlers for kinds: it is unclear which one
    /// to call.
    #[error("the consumer has a .handler(..) for all messages and handlers for kinds; use one of the two")]
    HandlerAndKinds,
    /// The limit of attempts is zero.
    #[error("the bound of attempts is 0; choose at least 1")]
    NoAttempts,
    /// The handler timeout is zero, so every call would fail.
    #[error("handler_timeout is 0; choose longer than the slowest handler takes")]
    NoHandlerTimeout,
}

/// A consumer that is ready to run.
#[derive(Debug)]
pub struct Consumer<DB: Dialect>(Runner<InboxStore<DB>>);

impl<DB: Dialect> Consumer<DB> {
    /// Returns a builder of a consumer. Its name is a [`ConsumerName`] or a text, which is checked
    /// when the consumer is built.
    ///
    /// ```no_run
    /// use inbox::{Consumer, HandlerError, Inbox, InboxOptions, Received, Tx};
    /// use message::{Event, Subscriber};
    ///
    /// #[derive(serde::Deserialize)]
    /// struct OrderPlaced { order: i64, cents: i64 }
    /// # #[derive(serde::Deserialize)]
    /// # struct OrderCancelled { order: i64 }
    ///
    /// impl Event for OrderPlaced {
    ///     const TOPIC: &'static str = "orders";
    ///     const KIND: &'static str = "order.placed";
    /// }
    /// # impl Event for OrderCancelled {
    /// #     const TOPIC: &'static str = "orders";
    /// #     const KIND: &'static str = "order.cancelled";
    /// # }
    ///
    /// async fn bill(tx: &mut Tx, order: OrderPlaced) -> Result<(), HandlerError> {
    ///     let statement = sqlx::query("INSERT INTO invoice (order_id, cents) VALUES ($1, $2)");
    ///     statement.bind(order.order).bind(order.cents).execute(&mut **tx).await?;
    ///     Ok(())
    /// }
    ///
    /// async fn refund(tx: &mut Tx, order: OrderCancelled, received: &Received) -> Result<(), HandlerError> {
    ///     let statement = sqlx::query("UPDATE invoice SET refunded_at = $2 WHERE order_id = $1");
    ///     statement.bind(order.order).bind(received.enqueued_at).execute(&mut **tx).await?;
    ///     Ok(())
    /// }
    ///
    /// # async fn example(pool: sqlx::PgPool, subscriber: impl Subscriber) -> Result<(), Box<dyn std::error::Error>> {
    /// # let shutdown_signal = || async {};
    /// Consumer::builder(Inbox::open(pool, InboxOptions::default()).await?, "billing")
    ///     .on(bill)
    ///     .on(refund)
    ///     .subscribe(subscriber)
    ///     .run(shutdown_signal())
    ///     .await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn builder<N>(inbox: Inbox<DB>, consumer: N) -> ConsumerBuilder<DB>
    where
        N: TryInto<ConsumerName, Error: Into<InvalidText>>,
    {
        ConsumerBuilder {
            inbox,
            consumer: consumer.try_into().map_err(Into::into),
            factory: None,
            handler: None,
            observe: None,
            kinds: Kinds(Vec::new()),
            unknown: UnknownKinds::default(),
            foreign: None,
            tenant_of: Arc::new(|_| Ok(Tenant::none())),
            settings: RunnerOptions::default(),
            guarded: true,
            crash: None,
            traces: None,
        }
    }

    /// Returns the consumer's status, for health probes: ask it while the consumer runs.
    #[must_use]
    pub fn status(&self) -> ConsumerStatus {
        self.0.status()
    }

    /// Runs until it is stopped: gracefully when any future completes, or by a
    /// [`Shutdown`](super::Shutdown). It waits out outages of the database and the broker
    /// indefinitely.
    ///
    /// # Errors
    /// [`RunError`] when it was aborted. Dropping the future is an abort.
    pub async fn run(self, shutdown: impl StopSignal) -> Result<(), RunError> {
        let (shutdown, signal) = shutdown.split();
        let graceful = shutdown.graceful.clone();
        self.0.watch();
        let running = self.0.run(shutdown);
        tokio::pin!(running);
        tokio::select! {
            biased;
            result = &mut running => return result,
            () = signal => graceful.cancel(),
        }
        running.await
    }
}

impl<DB: Dialect> ConsumerBuilder<DB> {
    /// Subscribes through an adapter's `Subscriber`, or through a closure that returns the future
    /// of a subscription. It is called again after each loss.
    #[must_use]
    pub fn subscribe(mut self, subscriber: impl Subscriber) -> Self {
        self.factory = Some(SubscriptionFactory::new(subscriber));
        self
    }

    /// Handles the events of one type, by their [`KIND`](Event::KIND), with a function `async
    /// fn(&mut Tx, E) -> Result<R, HandlerError>`. The function can take the facts of the delivery
    /// as a third argument: [`&Received`](crate::Received). `R` is `()` or the bytes of a result
    /// ([`IntoResult`](crate::IntoResult)). The payload is parsed as JSON; a payload that does not
    /// match the type is dead-lettered at once.
    ///
    /// A closure brings state. Each call gets its own clone of what the closure captured by move,
    /// so what a call changes in it is lost: a `HashSet` of orders that were seen stays empty.
    /// Capture an `Arc` or another handle that is cheap to clone, and keep in the database what
    /// must be remembered. The type of `tx` must be written out.
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use inbox::{ConsumerBuilder, HandlerError, Tx};
    /// # #[derive(serde::Deserialize)]
    /// # struct OrderPlaced { order: i64 }
    /// # impl message::Event for OrderPlaced {
    /// #     const TOPIC: &'static str = "orders";
    /// #     const KIND: &'static str = "order.placed";
    /// # }
    /// # struct Billing;
    /// # impl Billing { async fn bill(&self, _: &mut Tx, _: OrderPlaced) -> Result<(), HandlerError> { Ok(()) } }
    /// # fn example(builder: ConsumerBuilder<sqlx::Postgres>, billing: Billing) {
    /// let billing = Arc::new(billing);
    /// builder.on(async move |tx: &mut Tx, placed: OrderPlaced| billing.bill(tx, placed).await)
    /// # ; }
    /// ```
    #[must_use]
    pub fn on<E, Form>(mut self, function: impl EventFunction<DB, E, Form>) -> Self
    where
        E: Event + DeserializeOwned + Send + 'static,
        Form: 'static,
    {
        self.kinds.0.push((E::KIND.to_owned(), Box::new(EventRoute::<_, E, Form>::new(function))));
        self
    }

    /// Handles the events of one type, by their [`KIND`](Event::KIND), many in one call, with a
    /// function `async fn(&mut Tx, Vec<E>) -> Result<(), HandlerError>`. The function can take the
    /// facts of each delivery as a third argument: `&[Received]`. It gets consecutive events of one
    /// [batch](Self::batch), in their order, all of them fresh. It stores no results. When it
    /// fails, the whole batch is rolled back and tried again in halves, until the failing event is
    /// alone; that event is retried and dead-lettered like any other. A closure brings state, as
    /// for [`on`](Self::on).
    #[must_use]
    pub fn on_batch<E, Form>(mut self, function: impl BatchFunction<DB, E, Form>) -> Self
    where
        E: Event + DeserializeOwned + Send + 'static,
        Form: 'static,
    {
        self.kinds.0.push((E::KIND.to_owned(), Box::new(BatchRoute::<_, E, Form>::new(function))));
        self
    }

    /// Handles the messages of one kind unchanged, with a function `async fn(&mut Tx, &Message) ->
    /// Result<R, HandlerError>`, optionally with [`&Received`](crate::Received) as a third
    /// argument. A closure brings state, as for [`on`](Self::on).
    #[must_use]
    pub fn on_message<Form: 'static>(
        mut self,
        kind: impl Into<String>,
        function: impl MessageFunction<DB, Form>,
    ) -> Self {
        self.kinds.0.push((kind.into(), Box::new(MessageRoute::<_, Form>::new(function))));
        self
    }

    /// Sets the outbox with which handlers enqueue: `tx.enqueue(&event).await?`. Its tables are in
    /// the inbox's database. Without one, an enqueue fails with
    /// [`EnqueueError::NoOutbox`](outbox::EnqueueError::NoOutbox); the message waits, uncounted,
    /// until a version of the service has one.
    ///
    /// ```no_run
    /// use inbox::{Consumer, HandlerError, Inbox, Tx};
    /// use message::{Event, Subscriber};
    /// use outbox::Outbox;
    ///
    /// #[derive(serde::Deserialize)]
    /// struct OrderPlaced { order: i64, cents: i64 }
    /// # impl Event for OrderPlaced {
    /// #     const TOPIC: &'static str = "orders";
    /// #     const KIND: &'static str = "order.placed";
    /// # }
    ///
    /// #[derive(serde::Serialize)]
    /// struct InvoiceIssued { order: i64, cents: i64 }
    /// # impl Event for InvoiceIssued {
    /// #     const TOPIC: &'static str = "invoices";
    /// #     const KIND: &'static str = "invoice.issued";
    /// # }
    ///
    /// async fn bill(tx: &mut Tx, placed: OrderPlaced) -> Result<(), HandlerError> {
    ///     let OrderPlaced { order, cents } = placed;
    ///     sqlx::query("INSERT INTO invoice (order_id, cents) VALUES ($1, $2)")
    ///         .bind(order).bind(cents).execute(&mut **tx).await?;
    ///     tx.enqueue(&InvoiceIssued { order, cents }).await?;
    ///     Ok(())
    /// }
    ///
    /// # fn example(inbox: Inbox<sqlx::Postgres>, subscriber: impl Subscriber) -> Result<(), inbox::BuildError> {
    /// let billing = Consumer::builder(inbox, "billing").outbox(Outbox::new()).on(bill).subscribe(subscriber).build()?;
    /// # drop(billing); Ok(()) }
    /// ```
    #[must_use]
    pub fn outbox(mut self, outbox: Outbox<DB>) -> Self {
        self.inbox = self.inbox.with_outbox(outbox);
        self
    }

    /// Sets what happens to kinds without a handler; they are refused by default. It has no effect
    /// together with [`handler`](Self::handler).
    #[must_use]
    pub fn unknown_kinds(mut self, decision: UnknownKinds) -> Self {
        self.unknown = decision;
        self
    }

    /// Reads messages of foreign producers. The function is called for a delivery without a usable
    /// envelope or id, before it is dead-lettered. What it returns is consumed as that message. Its
    /// error becomes the dead letter's error; a panic leaves the delivery malformed.
    ///
    /// A redelivery must yield the same id. Derive it with
    /// [`MessageId::derived`](message::MessageId::derived) from the event's own time and id, never
    /// from the clock. That time decides whether the inbox still accepts the message: it refuses
    /// one that is older than its retention or from the future. For an event without a time of its
    /// own use [`Malformed::timestamp`], which a redelivery repeats.
    ///
    /// ```
    /// use message::{ForeignMessage, Malformed, MessageId};
    /// use time::{OffsetDateTime, format_description::well_known::Rfc3339};
    ///
    /// /// A CloudEvent with an id in another format.
    /// fn webhook(malformed: &Malformed) -> Result<ForeignMessage, Box<dyn std::error::Error>> {
    ///     let source = malformed.header("ce_source").ok_or("no ce_source")?;
    ///     let id = malformed.header("ce_id").ok_or("no ce_id")?;
    ///     let at = OffsetDateTime::parse(malformed.header("ce_time").ok_or("no ce_time")?, &Rfc3339)?;
    ///     let id = MessageId::derived(at, [source, id])?;
    ///     Ok(malformed.to_message(id, malformed.header("ce_type").ok_or("no ce_type")?)?)
    /// }
    /// # let _ = webhook;
    /// ```
    #[must_use]
    pub fn on_foreign<E: std::fmt::Display>(
        mut self,
        read: impl Fn(&Malformed) -> Result<ForeignMessage, E> + Send + Sync + 'static,
    ) -> Self {
        self.foreign =
            Some(Arc::new(move |malformed: &Malformed| read(malformed).map_err(|error| error.to_string())));
        self
    }

    /// Handles all messages, whatever their kind.
    #[must_use]
    pub fn handler(mut self, handler: impl Handler<DB> + 'static) -> Self {
        self.handler = Some(Arc::new(handler));
        self
    }

    /// Sets the function that returns the tenant or account of a message; by default there is none.
    /// When the function panics, the message is dead-lettered with the reason
    /// [`Reason::NoTenant`](crate::Reason::NoTenant).
    ///
    /// The tenant is part of a message's identity: a copy for which the function returns another
    /// tenant takes effect again. Drain the consumer before a release that changes the function.
    ///
    /// A large message can come in chunks. The function is called with each chunk: its envelope and
    /// headers are those of the whole message, its payload is a part of the whole. So take the
    /// tenant from the envelope or a header, not from the payload.
    #[must_use]
    pub fn tenant(self, tenant_of: impl Fn(&Message) -> Tenant + Send + Sync + 'static) -> Self {
        self.try_tenant(move |message| Ok::<_, Infallible>(tenant_of(message)))
    }

    /// Does the same as [`tenant`](Self::tenant), for a function that can refuse a message without
    /// a tenant or with an invalid name. A refused message is dead-lettered with the reason
    /// [`Reason::NoTenant`](crate::Reason::NoTenant) and the error. As with
    /// [`tenant`](Self::tenant), every copy and every chunk of a message needs the same answer.
    #[must_use]
    pub fn try_tenant<E: std::fmt::Display>(
        mut self,
        tenant_of: impl Fn(&Message) -> Result<Tenant, E> + Send + Sync + 'static,
    ) -> Self {
        self.tenant_of = Arc::new(move |message| tenant_of(message).map_err(|error| error.to_string()));
        self
    }

    /// Sets the maximum number of concurrent transactions, each for another ordering key; 8 by
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

    /// Sets how often the broker is told that deliveries are still being worked on; by default 10
    /// s, or a third of the subscription's visibility timeout if that is less. An interval above
    /// half of that timeout is refused when the consumer runs: [`RunError::KeepAliveTooSeldom`].
    #[must_use]
    pub fn keep_alive_interval(mut self, interval: Duration) -> Self {
        self.settings.keep_alive_interval = Some(interval);
        self
    }

    /// Sets how often the inbox is maintained; hourly by default. With `None` something else has to
    /// do it. Choose `None` for a PostgreSQL role that may not create and drop partitions.
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

    /// Sets whether later messages of a key wait for its dead letter; by default the key goes on.
    #[must_use]
    pub fn after_dead_letter(mut self, choice: AfterDeadLetter) -> Self {
        self.settings.after_dead_letter = choice;
        self
    }

    /// Sets how often the consumer checks whether an operator requested a redrive (`relay dead
    /// redrive`) and whether a held message is due; 10 s by default. With `None` another process of
    /// the consumer has to do it.
    #[must_use]
    pub fn redrive_interval(mut self, interval: Option<Duration>) -> Self {
        self.settings.redrive_interval = interval;
        self
    }

    /// Builds the consumer.
    ///
    /// # Errors
    /// [`BuildError`] names what is missing.
    pub fn build(self) -> Result<Consumer<DB>, BuildError> {
        let consumer = self.consumer?;
        let handler: Arc<dyn Handler<DB>> = match (self.handler, self.kinds.0.is_empty()) {
            (Some(_), false) => return Err(BuildError::HandlerAndKinds),
            (Some(handler), true) => handler,
            (None, true) => return Err(BuildError::NoHandler),
            (None, false) => {
                let in_batches = self.settings.batch.is_some();
                Arc::new(self.kinds.dispatcher(consumer.clone(), self.unknown, in_batches)?)
            }
        };
        let handler = match self.observe {
            Some(observe) => observe(handler),
            None => handler,
        };
        let factory = self.factory.ok_or(BuildError::NoSubscription)?;
        if self.settings.attempts_max == 0 {
            return Err(BuildError::NoAttempts);
        }
        if self.settings.handler_timeout.is_zero() {
            return Err(BuildError::NoHandlerTimeout);
        }
        let Self { inbox, mut settings, guarded, .. } = self;
        settings.backoff.max = settings.backoff.max.min(PAUSE_MAX);
        let RunnerOptions { handler_timeout, after_dead_letter, .. } = settings;
        let name = consumer.clone();
        let store = InboxStore {
            inbox,
            consumer: name,
            handler,
            handler_timeout,
            after_dead_letter,
            guarded,
            process: Uuid::now_v7(),
        };
        let parts = Parts {
            settings,
            tenant_of: self.tenant_of,
            foreign: self.foreign,
            crash: self.crash,
            traces: self.traces,
            ..Parts::new(consumer, factory)
        };
        Ok(Consumer(Runner::new(store, parts)))
    }

    /// Builds the consumer and runs it: see [`Consumer::run`].
    ///
    /// # Errors
    /// [`RunError::Build`] names what is missing; otherwise as [`Consumer::run`].
    pub async fn run(self, shutdown: impl StopSignal) -> Result<(), RunError> {
        self.build()?.run(shutdown).await
    }
}

impl<DB: Dialect> std::fmt::Debug for ConsumerBuilder<DB> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConsumerBuilder").field("consumer", &self.consumer).finish_non_exhaustive()
    }
}
