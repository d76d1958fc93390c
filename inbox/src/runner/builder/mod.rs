//! The builder of a consumer.

mod handlers;
mod messages;
mod settings;

use std::sync::Arc;

use message::{InvalidText, Sealing, Subscriber, finite};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::broker_session::SubscriptionFactory;
use super::build_error::{BuildError, INTERVAL_MIN};
use super::consumer::Consumer;
use super::crash::CrashHook;
use super::inbox_store::InboxStore;
use super::join_traces::JoinTraces;
use super::kinds::{Kinds, UnknownKinds};
use super::options::RunnerOptions;
use super::parts::{Parts, Runner};
use super::reader::Reader;
use super::run_error::RunError;
use super::shutdown::StopSignal;
use crate::dead_letters::PAUSE_MAX;
use crate::dialect::Dialect;
use crate::handler::{Handler, SealedHandler};
use crate::ids::ConsumerName;
use crate::inbox::Inbox;

/// A builder of a [`Consumer`]; made by [`Consumer::builder`].
pub struct ConsumerBuilder<DB: Dialect> {
    inbox: Inbox<DB>,
    consumer: Result<ConsumerName, InvalidText>,
    factory: Option<SubscriptionFactory>,
    pub(super) handler: Option<Arc<dyn Handler<DB>>>,
    pub(super) observe: Option<Observe<DB>>,
    kinds: Kinds<DB>,
    unknown: UnknownKinds,
    sealing: Option<Arc<dyn Sealing>>,
    reader: Reader,
    settings: RunnerOptions,
    pub(super) guarded: bool,
    pub(super) crash: Option<CrashHook>,
    traces: Option<Arc<dyn JoinTraces>>,
}

/// Wraps a handler.
pub(super) type Observe<DB> = Box<dyn FnOnce(Arc<dyn Handler<DB>>) -> Arc<dyn Handler<DB>> + Send + Sync>;

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
        ConsumerBuilder::new(inbox, consumer.try_into().map_err(Into::into))
    }
}

impl<DB: Dialect> ConsumerBuilder<DB> {
    fn new(inbox: Inbox<DB>, consumer: Result<ConsumerName, InvalidText>) -> Self {
        Self {
            inbox,
            consumer,
            factory: None,
            handler: None,
            observe: None,
            kinds: Kinds(Vec::new()),
            unknown: UnknownKinds::default(),
            sealing: None,
            reader: Reader::default(),
            settings: RunnerOptions::default(),
            guarded: true,
            crash: None,
            traces: None,
        }
    }

    /// Subscribes through an adapter's `Subscriber`, or through a closure that returns the future
    /// of a subscription. It is called again after each loss.
    #[must_use]
    pub fn subscribe(mut self, subscriber: impl Subscriber) -> Self {
        self.factory = Some(SubscriptionFactory::new(subscriber));
        self
    }

    /// Builds the consumer.
    ///
    /// # Errors
    /// [`BuildError`] names what is missing or wrong.
    pub fn build(self) -> Result<Consumer<DB>, BuildError> {
        let consumer = self.consumer?;
        let in_batches = self.settings.batch.is_some();
        let handler: Arc<dyn Handler<DB>> = match self.handler {
            Some(_) if !self.kinds.0.is_empty() => return Err(BuildError::HandlerAndKinds),
            Some(handler) => handler,
            None if self.kinds.0.is_empty() => return Err(BuildError::NoHandler),
            None => Arc::new(self.kinds.dispatcher(consumer.clone(), self.unknown, in_batches)?),
        };
        let handler = match self.sealing {
            Some(sealing) => Arc::new(SealedHandler::new(handler, sealing, consumer.clone())),
            None => handler,
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
        check_intervals(&self.settings)?;
        let mut settings = self.settings;
        settings.backoff.max = settings.backoff.max.min(PAUSE_MAX);
        settings.handler_timeout = finite(settings.handler_timeout);
        let store = InboxStore {
            inbox: self.inbox,
            consumer: consumer.clone(),
            handler,
            handler_timeout: settings.handler_timeout,
            after_dead_letter: settings.after_dead_letter,
            guarded: self.guarded,
            process: Uuid::now_v7(),
            draining: CancellationToken::new(),
            stopping: CancellationToken::new(),
        };
        let parts = Parts {
            settings,
            reader: self.reader,
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

/// Refuses an interval of zero: the consumer would query its database, or wake the broker, without
/// a pause.
fn check_intervals(settings: &RunnerOptions) -> Result<(), BuildError> {
    for (setting, interval) in [
        ("keep_alive_interval", settings.keep_alive_interval),
        ("maintain_interval", settings.maintain_interval),
        ("redrive_interval", settings.redrive_interval),
    ] {
        if let Some(interval) = interval.filter(|interval| *interval < INTERVAL_MIN) {
            return Err(BuildError::NoInterval { setting, interval });
        }
    }
    Ok(())
}

impl<DB: Dialect> std::fmt::Debug for ConsumerBuilder<DB> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConsumerBuilder").field("consumer", &self.consumer).finish_non_exhaustive()
    }
}
