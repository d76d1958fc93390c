//! The state shared by all workers of a consumer, and how they wait.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use message::crash_points::reached;
use message::{Backoff, MessageId, Runtime};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use super::crash::{CrashHook, CrashPoint};
use super::ended_owners::EndedOwners;
use super::failure::Limits;
use super::join_traces::JoinTraces;
use super::overdue::Running;
use super::reader::Reader;
use super::status::ConsumerStatus;
use super::store::Store;
use super::waits::{Outages, WaitReason, Waited, Waiting};
use crate::crash_points;
use crate::error_text::error_text;
use crate::ids::ConsumerName;
use crate::store_error::StoreError;
use crate::telemetry::Meter;

/// The state shared by all workers of a consumer.
pub(super) struct Worker<S> {
    pub(super) store: S,
    pub(super) consumer: ConsumerName,
    pub(super) reader: Reader,
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

/// How long a worker that gives up still waits for the database to answer a call about its notes. A
/// call that was cut off may leave a note that counts as the end of this process.
const LAST_NOTES_MAX: Duration = Duration::from_secs(1);

/// The signal that the session is over or the consumer is stopping: deliveries that wait, also for
/// their first turn, are released.
#[derive(Debug)]
pub(super) struct GivenUp;

impl<S: Store> Worker<S> {
    /// Waits for `delay`, or until it must stop.
    pub(super) async fn wait(&self, delay: Duration, give_up: &CancellationToken) -> Result<(), GivenUp> {
        tokio::select! {
            biased;
            () = give_up.cancelled() => Err(GivenUp),
            () = tokio::time::sleep(delay) => Ok(()),
        }
    }

    /// Records that messages wait for this reason, until the returned value is dropped.
    pub(super) fn waits(&self, reason: WaitReason, of: Waited) -> Waiting {
        self.status.message_waits().enter(reason, of)
    }

    /// Begins a transaction, or gives up: a database that does not answer does not delay a stop.
    pub(super) async fn begin(
        &self,
        give_up: &CancellationToken,
    ) -> Result<Result<S::Tx, StoreError>, GivenUp> {
        tokio::select! {
            biased;
            () = give_up.cancelled() => Err(GivenUp),
            tx = self.store.begin() => Ok(tx),
        }
    }

    /// Waits for a call about the notes of messages in hand. When the worker gives up, it waits for
    /// the answer only a moment longer: a database that does not answer does not delay a stop.
    pub(super) async fn noted<T>(
        &self,
        call: impl Future<Output = T>,
        give_up: &CancellationToken,
    ) -> Result<T, GivenUp> {
        let mut call = pin!(call);
        match give_up.run_until_cancelled(&mut call).await {
            Some(answer) => Ok(answer),
            None => tokio::time::timeout(LAST_NOTES_MAX, call).await.map_err(|_| GivenUp),
        }
    }

    /// Takes this many permits as soon as they are free, or gives up.
    pub(super) async fn permits(
        &self,
        count: u32,
        give_up: &CancellationToken,
    ) -> Result<SemaphorePermit<'_>, GivenUp> {
        tokio::select! {
            biased;
            () = give_up.cancelled() => Err(GivenUp),
            // Nothing closes it.
            permits = self.permits.acquire_many(count) => permits.map_err(|_| GivenUp),
        }
    }

    /// Stores the counts since the last call, or keeps them for the next call.
    pub(super) async fn store_counts(&self) {
        let Some(counts) = self.meter.tally().take() else { return };
        if let Err(error) = self.store.add_counts(counts).await {
            self.meter.tally().add(counts);
            tracing::debug!(consumer = %self.consumer, error = error_text(&error), "counts wait");
        }
    }

    /// Records that messages took effect.
    pub(super) fn succeeded(&self, messages: usize, took: Duration) {
        self.meter.applied(messages, took);
        self.applied.fetch_add(messages as u64, Ordering::Relaxed);
    }

    /// Waits while the database is unavailable, or until an operator has repaired it.
    pub(super) async fn wait_out(
        &self,
        outages: &mut Outages,
        of: Waited,
        error: &(dyn std::error::Error + Send + Sync + 'static),
        give_up: &CancellationToken,
    ) -> Result<(), GivenUp> {
        let text = error_text(error);
        outages.add(text.clone(), || self.waits(WaitReason::Outage, of));
        self.meter.outage();
        let delay = Backoff::OUTAGES.delay(outages.count, self.host.uniform());
        tracing::warn!(consumer = %self.consumer, error = text, ?delay, "failed, not counted; trying again");
        self.wait(delay, give_up).await
    }

    /// Reports a point where a crash must be harmless, to the named places of the process and to
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

impl<S> fmt::Debug for Worker<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("consumer", &self.consumer).finish_non_exhaustive()
    }
}
