//! A consumer over any store.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use message::Runtime;
use tokio::sync::Semaphore;

use super::broker_session::SubscriptionFactory;
use super::crash::CrashHook;
use super::drive::Drive;
use super::ended_owners::EndedOwners;
use super::failure::Limits;
use super::join_traces::JoinTraces;
use super::options::RunnerOptions;
use super::overdue;
use super::reader::Reader;
use super::run_error::RunError;
use super::shutdown::Shutdown;
use super::status::ConsumerStatus;
use super::store::Store;
use super::worker::Worker;
use crate::dead_letters::AfterDeadLetter;
use crate::ids::ConsumerName;
use crate::telemetry::Meter;

/// A consumer that is ready to run, over any [`Store`]. [`Consumer`](super::Consumer) is the one
/// for an inbox.
pub struct Runner<S> {
    worker: Arc<Worker<S>>,
    factory: SubscriptionFactory,
    settings: RunnerOptions,
}

/// The parts of a runner other than its store.
pub struct Parts {
    /// The name of the consumer.
    pub consumer: ConsumerName,
    /// Makes the subscription.
    pub factory: SubscriptionFactory,
    /// Its options.
    pub settings: RunnerOptions,
    pub(super) reader: Reader,
    pub(super) crash: Option<CrashHook>,
    pub(super) traces: Option<Arc<dyn JoinTraces>>,
    /// Where its tasks run.
    pub host: Runtime,
}

impl Parts {
    /// Returns parts with the default settings and without tenants.
    #[must_use]
    pub fn new(consumer: ConsumerName, factory: SubscriptionFactory) -> Self {
        let settings = RunnerOptions::default();
        Self {
            consumer,
            factory,
            settings,
            reader: Reader::default(),
            crash: None,
            traces: None,
            host: Runtime::default(),
        }
    }
}

impl<S: Store> Runner<S> {
    /// Makes a runner for a store.
    #[must_use]
    pub fn new(store: S, parts: Parts) -> Self {
        let Parts { consumer, factory, settings, reader, crash, traces, host } = parts;
        let permits_max = u32::try_from(settings.concurrency.get().min(Semaphore::MAX_PERMITS));
        let permits_max = permits_max.unwrap_or(u32::MAX);
        let handling = Arc::default();
        let worker = Worker {
            store,
            meter: Meter::new(&consumer),
            status: ConsumerStatus::new(&consumer, &handling),
            consumer,
            reader,
            backoff: settings.backoff,
            holds_keys: settings.after_dead_letter == AfterDeadLetter::HoldKey,
            limits: Limits { attempts_max: settings.attempts_max, failing_max: settings.failing_max },
            handler_timeout: settings.handler_timeout,
            handling,
            applied: AtomicU64::new(0),
            permits: Semaphore::new(permits_max as usize),
            permits_max,
            ended_owners: EndedOwners::default(),
            crash,
            traces,
            host,
        };
        Self { worker: Arc::new(worker), factory, settings }
    }

    /// Returns its status.
    pub(super) fn status(&self) -> ConsumerStatus {
        self.worker.status.clone()
    }

    /// Starts a thread that reports handlers that block their threads: a blocked runtime cannot do
    /// so.
    pub(super) fn watch(&self) {
        let Worker { handling, consumer, meter, handler_timeout, .. } = &*self.worker;
        overdue::watch(handling, consumer.clone(), meter.clone(), *handler_timeout);
    }

    /// Runs until it is stopped; see [`Consumer::run`](super::Consumer::run).
    ///
    /// # Errors
    /// [`RunError`] when it was aborted.
    pub async fn run(self, shutdown: Shutdown) -> Result<(), RunError> {
        Drive::new(self.worker, self.factory, self.settings, shutdown).run().await
    }
}

impl<S> fmt::Debug for Runner<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner").field("worker", &self.worker).finish_non_exhaustive()
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("consumer", &self.consumer).finish_non_exhaustive()
    }
}
