//! The builder of a consumer.

mod handlers;
mod messages;
mod settings;

use std::sync::Arc;

use message::{InvalidText, Subscriber};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::broker_session::SubscriptionFactory;
use super::build_error::{BuildError, INTERVAL_MIN};
use super::consumer::Consumer;
use super::crash::CrashHook;
use super::inbox_store::InboxStore;
use super::kinds::{Kinds, UnknownKinds};
use super::options::RunnerOptions;
use super::parts::{Parts, Runner};
use super::reading::{Foreign, TenantOf};
use super::run_error::RunError;
use super::shutdown::StopSignal;
use super::tracing_spans::JoinTraces;
use crate::dialect::Dialect;
use crate::handler::Handler;
use crate::held_turn::PAUSE_MAX;
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

impl<DB: Dialect> ConsumerBuilder<DB> {
    pub(super) fn new(inbox: Inbox<DB>, consumer: Result<ConsumerName, InvalidText>) -> Self {
        Self {
            inbox,
            consumer,
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
        let store = InboxStore {
            inbox: self.inbox,
            consumer: consumer.clone(),
            handler,
            handler_timeout: settings.handler_timeout,
            after_dead_letter: settings.after_dead_letter,
            guarded: self.guarded,
            process: Uuid::now_v7(),
            stopping: CancellationToken::new(),
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
