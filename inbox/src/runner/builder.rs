//! Describing a consumer.

use std::convert::Infallible;
use std::future::Future;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use message::{Message, MessageId, Subscription, SubscriptionError};

use super::crash::{CrashHook, CrashPoint};
use super::drive::RunError;
use super::link::SubscriptionFactory;
use super::parts::{Parts, Runner};
use super::settings::Settings;
use super::shutdown::Shutdown;
use super::store::InboxStore;
use super::worker::ScopeOf;
use crate::backoff::Backoff;
use crate::dialect::Dialect;
use crate::handler::Handler;
use crate::inbox::Inbox;
use crate::name::{ConsumerName, Scope};

/// Describes a [`Consumer`]; made by [`Consumer::builder`].
pub struct ConsumerBuilder<DB: Dialect> {
    inbox: Inbox<DB>,
    consumer: ConsumerName,
    factory: Option<SubscriptionFactory>,
    handler: Option<Arc<dyn Handler<DB>>>,
    scope_of: ScopeOf,
    settings: Settings,
    guarded: bool,
    crash: Option<CrashHook>,
}

/// A reason why a consumer cannot be built. The program's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No subscription was given.
    #[error("the consumer has no subscription; call .subscription(..) before .build()")]
    NoSubscription,
    /// No handler was given.
    #[error("the consumer has no handler; call .handler(..) before .build()")]
    NoHandler,
    /// Zero attempts would dead-letter nothing and everything.
    #[error("the bound of attempts is 0; choose at least 1")]
    NoAttempts,
    /// A handler that may take no time fails always.
    #[error("handler_timeout is 0; choose longer than the slowest handler takes")]
    NoHandlerTimeout,
}

/// A consumer that is ready to run.
#[derive(Debug)]
pub struct Consumer<DB: Dialect>(Runner<InboxStore<DB>>);

impl<DB: Dialect> Consumer<DB> {
    /// Begins to describe a consumer.
    #[must_use]
    pub fn builder(inbox: Inbox<DB>, consumer: ConsumerName) -> ConsumerBuilder<DB> {
        ConsumerBuilder {
            inbox,
            consumer,
            factory: None,
            handler: None,
            scope_of: Arc::new(|_| Ok(Scope::none())),
            settings: Settings::default(),
            guarded: true,
            crash: None,
        }
    }

    /// Runs until it is told to stop. Outages of the database and the broker are waited out, without end.
    ///
    /// # Errors
    /// [`RunError`] when it was aborted. Dropping the future is an abort.
    pub async fn run(self, shutdown: Shutdown) -> Result<(), RunError> {
        self.0.watch();
        self.0.run(shutdown).await
    }
}

impl<DB: Dialect> ConsumerBuilder<DB> {
    /// Makes the subscription; called again after each loss.
    #[must_use]
    pub fn subscription<F, Fut>(mut self, make: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Box<dyn Subscription>, SubscriptionError>> + Send + 'static,
    {
        self.factory = Some(SubscriptionFactory::new(make));
        self
    }

    /// Applies the effects.
    #[must_use]
    pub fn handler(mut self, handler: impl Handler<DB> + 'static) -> Self {
        self.handler = Some(Arc::new(handler));
        self
    }

    /// Which tenant or account a message belongs to; nobody's by default. When the function panics, the message is
    /// dead-lettered with the reason [`Reason::NoScope`](crate::Reason::NoScope).
    #[must_use]
    pub fn scope(self, scope_of: impl Fn(&Message) -> Scope + Send + Sync + 'static) -> Self {
        self.try_scope(move |message| Ok::<_, Infallible>(scope_of(message)))
    }

    /// As [`scope`](Self::scope), for a function that can refuse a message: one without a tenant,
    /// or with an invalid name. A refused message is dead-lettered with the reason
    /// [`Reason::NoScope`](crate::Reason::NoScope) and the error.
    #[must_use]
    pub fn try_scope<E: std::fmt::Display>(
        mut self,
        scope_of: impl Fn(&Message) -> Result<Scope, E> + Send + Sync + 'static,
    ) -> Self {
        self.scope_of = Arc::new(move |message| scope_of(message).map_err(|error| error.to_string()));
        self
    }

    /// How many transactions work at once, each on another ordering key; 8 by default. Give the pool one connection
    /// more. SQLite writes one transaction at a time whatever this says.
    #[must_use]
    pub fn concurrency(mut self, concurrency: NonZeroUsize) -> Self {
        self.settings.concurrency = concurrency;
        self
    }

    /// How many deliveries are in hand at most, working and waiting; 256 by default. A key that waits for its backoff
    /// holds what came behind it: when they fill this bound, the consumer receives nothing until the key goes on.
    #[must_use]
    pub fn prefetch(mut self, deliveries_max: NonZeroUsize) -> Self {
        self.settings.prefetch = deliveries_max;
        self
    }

    /// Handles up to so many messages in one transaction, one batch at a time; by default each has its own. Raise
    /// [`prefetch`](Self::prefetch) to at least twice as many.
    #[must_use]
    pub fn batch(mut self, messages_max: NonZeroUsize) -> Self {
        self.settings.batch = Some(messages_max);
        self
    }

    /// How long one call of the handler may take; 60 s by default. After that its transaction is rolled back, on PostgreSQL also
    /// the statement that the server is working on, and the call counts as a failure. The commit is not part of it. Code that
    /// blocks its thread instead of waiting cannot be ended; it is logged and counted (`inbox_handlers_blocked`).
    ///
    /// Deliveries are kept alive meanwhile, so this may be longer than the broker's visibility timeout or poll interval; in a
    /// batch it holds for each message. On PostgreSQL a handler that waits for something else than its transaction needs a pool
    /// with a longer `idle_in_transaction_session_timeout` too (`outbox::pool_options`: 60 s).
    #[must_use]
    pub fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.settings.handler_timeout = timeout;
        self
    }

    /// How often a handler may fail before its message is dead-lettered; 10 by default. What the database did not do (a statement
    /// that took too long, a deadlock, a lost session) counts only if another message has succeeded since the failure before:
    /// otherwise [`failing_max`](Self::failing_max) ends it.
    #[must_use]
    pub fn attempts_max(mut self, attempts_max: u32) -> Self {
        self.settings.attempts_max = attempts_max;
        self
    }

    /// How long a message may fail, from its first failure, without one that is counted; 24 hours by default. Then it is
    /// dead-lettered: longer than any outage that is to be waited for.
    #[must_use]
    pub fn failing_max(mut self, age_max: Duration) -> Self {
        self.settings.failing_max = age_max;
        self
    }

    /// How long a failed message waits; [`Backoff::MESSAGES`] by default.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.settings.backoff = backoff;
        self
    }

    /// How often the broker is told that deliveries are still being worked on; by default 10 s, or a third of the
    /// subscription's visibility timeout where that is less. More than half of it is refused when the consumer runs:
    /// [`RunError::KeepAliveTooSeldom`].
    #[must_use]
    pub fn keep_alive_interval(mut self, interval: Duration) -> Self {
        self.settings.keep_alive_interval = Some(interval);
        self
    }

    /// How often the inbox is maintained; hourly by default, never with `None`: then something else has to. Choose
    /// `None` for a PostgreSQL role that may not create and drop partitions.
    #[must_use]
    pub fn maintain_interval(mut self, interval: Option<Duration>) -> Self {
        self.settings.maintain_interval = interval;
        self
    }

    /// How often it is looked whether an operator asks for a dead letter to be redriven (`relay inbox dead redrive`); 10 s by
    /// default, never with `None`.
    #[must_use]
    pub fn redrive_interval(mut self, interval: Option<Duration>) -> Self {
        self.settings.redrive_interval = interval;
        self
    }

    /// Switches the guard off, to show what happens without an inbox.
    #[doc(hidden)]
    #[must_use]
    pub fn without_guard(mut self) -> Self {
        self.guarded = false;
        self
    }

    /// Calls a test's hook at the moments where a crash must do no harm.
    #[doc(hidden)]
    #[must_use]
    pub fn crash_hook(mut self, hook: impl Fn(CrashPoint, MessageId) + Send + Sync + 'static) -> Self {
        self.crash = Some(CrashHook(Arc::new(hook)));
        self
    }

    /// The consumer.
    ///
    /// # Errors
    /// [`BuildError`] names what is missing.
    pub fn build(self) -> Result<Consumer<DB>, BuildError> {
        let factory = self.factory.ok_or(BuildError::NoSubscription)?;
        let handler = self.handler.ok_or(BuildError::NoHandler)?;
        if self.settings.attempts_max == 0 {
            return Err(BuildError::NoAttempts);
        }
        if self.settings.handler_timeout.is_zero() {
            return Err(BuildError::NoHandlerTimeout);
        }
        let Self { inbox, consumer, settings, guarded, .. } = self;
        let handler_timeout = settings.handler_timeout;
        let store = InboxStore { inbox, consumer: consumer.clone(), handler, handler_timeout, guarded };
        let parts =
            Parts { settings, scope_of: self.scope_of, crash: self.crash, ..Parts::new(consumer, factory) };
        Ok(Consumer(Runner::new(store, parts)))
    }
}

impl<DB: Dialect> std::fmt::Debug for ConsumerBuilder<DB> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConsumerBuilder").field("consumer", &self.consumer).finish_non_exhaustive()
    }
}
