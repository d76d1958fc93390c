//! The state shared by all workers of a consumer.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use message::crash_points::reached;
use message::{
    Backoff, Committed, Delivery, ForeignMessage, Malformed, Message, MessageId, Runtime, error_text as texts,
};
use migrations::SqlErrorKind;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::bounded::{self, Called};
use super::crash::{CrashHook, CrashPoint};
use super::ended_owners::EndedOwners;
use super::failure::Limits;
use super::overdue::Running;
use super::status::ConsumerStatus;
use super::store::Store;
use super::tracing_spans::JoinTraces;
use crate::attempts::error_text;
use crate::crash_points;
use crate::dead_letter::Reason;
use crate::error::CommitError;
use crate::handler::HandlerError;
use crate::name::{ConsumerName, Tenant};
use crate::received::Received;
use crate::store_dead_letter::Cause;
use crate::store_error::StoreError;
use crate::telemetry::Meter;

/// A function that returns the tenant of a message.
pub(super) type TenantOf = Arc<dyn Fn(&Message) -> Result<Tenant, String> + Send + Sync>;

/// Maximum bytes of the reason why a foreign message could not be read.
const PROBLEM_BYTES_MAX: usize = 2_048;

/// A function that reads a message of a foreign producer.
pub(super) type Foreign = Arc<dyn Fn(&Malformed) -> Result<ForeignMessage, String> + Send + Sync>;

pub(super) struct Worker<S> {
    pub(super) store: S,
    pub(super) consumer: ConsumerName,
    pub(super) tenant_of: TenantOf,
    pub(super) foreign: Option<Foreign>,
    pub(super) backoff: Backoff,
    pub(super) limits: Limits,
    /// Whether later messages of a key wait for its dead letter.
    pub(super) holds_keys: bool,
    pub(super) handler_timeout: Duration,
    /// The handlers that are running.
    pub(super) handling: Arc<Running>,
    /// Number of messages that took effect in this process.
    pub(super) applied: AtomicU64,
    /// Limits the running transactions; waiting for the next attempt takes no permit.
    pub(super) permits: Semaphore,
    /// Total number of permits.
    pub(super) permits_max: u32,
    pub(super) ended_owners: EndedOwners,
    pub(super) crash: Option<CrashHook>,
    pub(super) meter: Meter,
    pub(super) status: ConsumerStatus,
    pub(super) traces: Option<Arc<dyn JoinTraces>>,
    pub(super) host: Runtime,
}

/// A dead letter that is not stored yet.
#[derive(Debug)]
pub(super) struct NewDeadLetter {
    pub(super) cause: Cause,
    /// The whole message, if the delivery is the chunk that completed it.
    pub(super) whole: Option<Box<Message>>,
}

impl NewDeadLetter {
    pub(super) fn new(reason: Reason, error: String, attempts: u32) -> Self {
        Self { cause: Cause { reason, error, attempts }, whole: None }
    }

    pub(super) fn of_whole(self, whole: Box<Message>) -> Self {
        Self { whole: Some(whole), ..self }
    }
}

/// The signal that the session is over or the consumer is stopping: waiting deliveries are
/// released.
#[derive(Debug)]
pub(super) struct GivenUp;

impl<S: Store> Worker<S> {
    /// Waits for `delay`, or until it must give up.
    pub(super) async fn wait(&self, delay: Duration, give_up: &CancellationToken) -> Result<(), GivenUp> {
        tokio::select! {
            biased;
            () = give_up.cancelled() => Err(GivenUp),
            () = tokio::time::sleep(delay) => Ok(()),
        }
    }

    /// Returns the tenant of a message, or why it is unknown.
    pub(super) fn tenant(&self, message: &Message) -> Result<Tenant, String> {
        let tenant = catch_unwind(AssertUnwindSafe(|| (self.tenant_of)(message)))
            .unwrap_or_else(|_| Err(String::from("the function for tenants panicked")));
        tenant.map_err(|problem| match &message.chunk {
            Some(chunk) => {
                let number = chunk.index() + 1;
                let count = chunk.count();
                format!(
                    "{problem}; this is chunk {number} of {count}: only its envelope and headers are those of the \
                     whole message, so the function for tenants must not read the payload"
                )
            }
            None => problem,
        })
    }

    /// Reads a malformed delivery as a foreign producer's message, if the consumer can.
    pub(super) fn adopt(&self, delivery: &mut Delivery) {
        let (Err(malformed), Some(foreign)) = (&mut delivery.message, &self.foreign) else { return };
        match catch_unwind(AssertUnwindSafe(|| foreign(malformed))) {
            Ok(Ok(message)) => delivery.message = Ok(message.into()),
            Ok(Err(problem)) => malformed.problem = foreign_problem(&problem, &malformed.problem),
            Err(_) => malformed.problem.push_str("; the function for foreign messages panicked"),
        }
    }

    /// Returns the facts of a delivery that a handler gets; `failures` were counted before.
    pub(super) fn received(&self, tenant: &Tenant, message: &Message, failures: u32) -> Received {
        Received::after(failures, self.consumer.clone(), tenant.clone(), message)
    }

    /// Runs the handler. A handler that times out is dropped, and its running statement is
    /// interrupted.
    pub(super) async fn handle(
        &self,
        tx: &mut S::Tx,
        guard: &S::Guard,
        message: &Message,
        received: &Received,
    ) -> Result<Option<Vec<u8>>, HandlerError> {
        let entry = self.handling.enter(message.id);
        let called = bounded::call(self.handler_timeout, self.store.handle(tx, message, received)).await;
        drop(entry);
        self.ended(called, guard).await
    }

    /// Does the same as [`handle`](Self::handle) for many messages of one kind in one call, with
    /// the same timeout.
    pub(super) async fn handle_many(
        &self,
        tx: &mut S::Tx,
        guard: &S::Guard,
        messages: &[&Message],
        received: &[Received],
    ) -> Result<(), HandlerError> {
        let entries: Vec<_> = messages.iter().map(|message| self.handling.enter(message.id)).collect();
        let handling = async { self.store.handle_many(tx, messages, received).await.map(|()| None) };
        let called = bounded::call(self.handler_timeout, handling).await;
        drop(entries);
        self.ended(called, guard).await.map(drop)
    }

    async fn ended(&self, called: Called, guard: &S::Guard) -> Result<Option<Vec<u8>>, HandlerError> {
        let error = match called {
            Called::Ended(result) => return result,
            Called::TimedOut(error) => error,
        };
        self.meter.timed_out();
        // The rollback waits for the statement.
        bounded::interrupt(|| self.store.interrupt(guard), std::future::ready(())).await;
        Err(error)
    }

    /// Stores the counts since the last call, or keeps them for the next call.
    pub(super) async fn store_counts(&self) {
        let Some(counts) = self.meter.tally().take() else { return };
        if let Err(error) = self.store.add_counts(counts).await {
            self.meter.tally().add(counts);
            tracing::debug!(consumer = %self.consumer, error = error_text(&error), "counts wait");
        }
    }

    /// Notes that messages took effect.
    pub(super) fn succeeded(&self, messages: usize, took: Duration) {
        self.meter.applied(messages, took);
        self.applied.fetch_add(messages as u64, Ordering::Relaxed);
    }

    /// Waits while the database is unavailable, or until an operator has repaired it.
    pub(super) async fn wait_out(
        &self,
        outages: &mut u32,
        error: &(dyn std::error::Error + Send + Sync + 'static),
        give_up: &CancellationToken,
    ) -> Result<(), GivenUp> {
        *outages = outages.saturating_add(1);
        self.meter.outage();
        let delay = Backoff::OUTAGES.delay(*outages, self.host.uniform());
        let text = error_text(error);
        tracing::warn!(consumer = %self.consumer, error = text, ?delay, "not done, not counted; trying again");
        self.wait(delay, give_up).await
    }

    /// Dead-letters a delivery, however long the database is unavailable.
    pub(super) async fn store_dead_letter(
        &self,
        delivery: &Delivery,
        tenant: &Tenant,
        dead: NewDeadLetter,
        give_up: &CancellationToken,
    ) -> Result<Committed, GivenUp> {
        let NewDeadLetter { cause, whole } = dead;
        let mut outages = 0;
        loop {
            let stored = match &whole {
                Some(whole) => self.store.dead_letter_whole(tenant, delivery, whole, cause.clone()).await,
                None => self.store.dead_letter(tenant, delivery, cause.clone()).await,
            };
            match stored {
                Ok(proof) => {
                    let Cause { reason, error, attempts } = cause;
                    self.meter.dead(reason);
                    let subject = delivery.subject();
                    let origin = &delivery.origin;
                    if reason == Reason::Held {
                        tracing::info!(consumer = %self.consumer, message_id = %subject, origin, error, "held");
                    } else {
                        tracing::error!(consumer = %self.consumer, message_id = %subject, origin, %reason,
                            attempts, error, "dead-lettered");
                    }
                    return Ok(proof);
                }
                Err(error) => self.wait_out(&mut outages, &error, give_up).await?,
            }
        }
    }

    /// Reports a moment when a crash must do no harm, to the named places of the process and to
    /// this consumer's own hook.
    pub(super) fn crash(&self, point: CrashPoint, id: MessageId) {
        reached(match point {
            CrashPoint::AfterEffect => crash_points::AFTER_EFFECT,
            CrashPoint::AfterCommit => crash_points::AFTER_COMMIT,
        });
        if let Some(CrashHook(hook)) = &self.crash {
            hook(point, id);
        }
    }
}

/// Returns the error of a delivery that the reader of foreign messages refused.
fn foreign_problem(problem: &str, envelope: &str) -> String {
    texts::storable(&format!("{problem} (its envelope: {envelope})"), PROBLEM_BYTES_MAX)
}

/// Returns the failure of the handler, if the messages that it staged could not be stored before
/// the commit; otherwise the error itself.
pub(super) fn of_staged(error: CommitError) -> Result<HandlerError, CommitError> {
    let CommitError::RolledBack { reason, source: Some(source) } = error else { return Err(error) };
    match source.downcast::<outbox::CommitError>() {
        Ok(error) => Ok(HandlerError::of_enqueue(error.remedy(), *error)),
        Err(source) => Err(CommitError::RolledBack { reason, source: Some(source) }),
    }
}

/// Makes the error of a closed semaphore, although nothing closes it.
pub(super) fn closed(error: tokio::sync::AcquireError) -> StoreError {
    StoreError::new("be asked: the consumer is ending", SqlErrorKind::Unavailable, error)
}

impl<S> fmt::Debug for Worker<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("consumer", &self.consumer).finish_non_exhaustive()
    }
}
