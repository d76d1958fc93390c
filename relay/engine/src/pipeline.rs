//! One pipeline from start to shutdown: stand by, take the lease, lead, and repeat.
//!
//! # States
//! *Standby*: another process holds the lease; ask again when it can have expired. *Leading*: this
//! process publishes. *Waiting*: database or operator trouble; ask again after a pause. A database
//! failure while leading always leads back to taking the lease and loading the cursor. Nothing in
//! memory can be trusted after a reconnect: another process may have led in between, and after
//! PostgreSQL's crash recovery, transaction ids that memory knows may have been assigned again.

use std::sync::Arc;
use std::time::Duration;

use message::{Backoff, Connector, Fault, PublishError, Runtime, Transactions};
use outbox_log::{
    Acquired, BrokerTrouble, CheckpointStore, Cursor, EntryId, Lease, LogError, LogStore, RelayName,
};
use time::OffsetDateTime;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::chunking::Chunking;
use crate::driver::{Ended, Lead, Observer};
use crate::options::EngineOptions;
use crate::publishing::Publishing;
use crate::takeover::Takeover;
use crate::telemetry::Telemetry;
use crate::transactions::{Recovering, Recovery};

/// The current role of a pipeline. Adding a role is a breaking change: every watcher must decide
/// what it means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Not started yet.
    Starting,
    /// Another process holds the lease.
    Standby {
        /// The process that holds it.
        holder: String,
    },
    /// This process publishes.
    Leading {
        /// The lease's fencing token.
        epoch: i64,
    },
    /// The database is unavailable or unsuitable; the pipeline retries.
    Waiting {
        /// Party at fault.
        fault: Fault,
        /// The problem, and what to do about it.
        reason: String,
    },
    /// It does not run, and waiting does not help: it needs another build of this program, or
    /// another database.
    Refused {
        /// The problem, and what to do about it.
        reason: String,
    },
    /// Stopped on request.
    Stopped,
}

/// The state of a pipeline, for health checks and embedding services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The role.
    pub role: Role,
    /// How many times in a row a bug in this program ended the pipeline shortly after it began; 0
    /// once it has run well. Above 1, the role says little, because the pipeline may lead only for
    /// a moment.
    pub faults: u32,
}

impl Status {
    /// Returns the status of a pipeline without faults.
    #[must_use]
    pub fn of(role: Role) -> Self {
        Self { role, faults: 0 }
    }
}

/// Reads one outbox and publishes to one broker. Also usable inside a service, without the `relay`
/// binary.
#[derive(Clone)]
pub struct Pipeline {
    name: RelayName,
    holder: String,
    store: Arc<dyn LogStore>,
    /// Opens the broker's sessions. If chunking is set, they split messages that are too large.
    connector: Arc<dyn Connector>,
    settings: EngineOptions,
    hint: Arc<Notify>,
    status: watch::Sender<Status>,
    host: Runtime,
    observer: Option<Observer>,
    transactions: Option<Arc<dyn Transactions>>,
}

/// Reports, when dropped, that the pipeline has stopped.
struct Stopped<'a>(&'a watch::Sender<Status>);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|status| status.role = Role::Stopped);
    }
}

impl Pipeline {
    /// Creates a pipeline that is not running yet.
    #[must_use]
    pub fn new(
        name: RelayName,
        store: Arc<dyn LogStore>,
        publishing: impl Into<Publishing>,
        settings: EngineOptions,
    ) -> Self {
        let publishing = publishing.into();
        let holder = holder();
        let connector = match settings.chunking {
            Some(splitter) => Arc::new(Chunking::new(publishing.connector(), splitter)),
            None => publishing.connector(),
        };
        let (status, _) = watch::channel(Status::of(Role::Starting));
        Self {
            name,
            holder,
            store,
            connector,
            settings,
            hint: Arc::new(Notify::new()),
            status,
            host: Runtime::default(),
            observer: None,
            transactions: publishing.transactions().cloned(),
        }
    }

    /// Wakes the reader whenever `hint` is notified: for producers in the same process.
    #[must_use]
    pub fn with_notify(mut self, hint: Arc<Notify>) -> Self {
        self.hint = hint;
        self
    }

    /// Spawns tasks and draws random numbers through `host`, for simulations.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn with_host(mut self, host: Runtime) -> Self {
        self.host = host;
        self
    }

    /// Shows the state of the engine to `observer` after every step, for simulations. The observer
    /// must not block.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn with_observer(mut self, observer: Observer) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Returns a receiver of the pipeline's state.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Reports that the pipeline was refused before it ran.
    pub fn report_refusal(&self, reason: String) {
        self.enter(Role::Refused { reason });
    }

    /// Reports that a bug in this program has ended the pipeline: how many times in a row, and the
    /// reason. `None` reports that the pipeline has run well since then.
    pub fn report_faults(&self, fault: Option<(u32, String)>) {
        let Some((faults, reason)) = fault else {
            self.status.send_modify(|status| status.faults = 0);
            return;
        };
        crate::telemetry::pipeline_fault(&self.name);
        let role = Role::Waiting { fault: Fault::Operator, reason };
        self.status.send_replace(Status { role, faults });
    }

    fn enter(&self, role: Role) {
        self.status.send_modify(|status| status.role = role);
    }

    /// Runs until `stop` is cancelled: then it stops reading, waits for outstanding confirmations
    /// within the grace period, stores the cursor and releases the lease.
    ///
    /// It never returns because of trouble with the database or the broker: it waits and retries.
    /// Not cancel-safe: dropping the future skips the orderly shutdown. Nothing is lost, but the
    /// lease has to expire.
    pub async fn run(self, stop: CancellationToken) {
        let telemetry = Telemetry::new(
            &self.name,
            self.store.origin(),
            self.connector.destination(),
            self.settings.topics_labelled_max,
        );
        // Dropping the future, or a panic, must not leave watchers believing that it still leads.
        let _stopped = Stopped(&self.status);
        let mut failures = 0;
        let mut shared_id = None;
        let mut refused_since = None;
        while !stop.is_cancelled() {
            let mut ended = self.term(&stop, &telemetry, &mut shared_id, &mut refused_since).await;
            if let Ok(Ended::SharedId(id)) = ended {
                shared_id = Some(id);
                ended = Err(shared(id));
            }
            telemetry.not_leading();
            let pause = match ended {
                Ok(Ended::Stopped) => {
                    failures = 0;
                    Duration::ZERO
                }
                Ok(Ended::LeaseLost | Ended::SharedId(_)) => {
                    telemetry.lease_lost();
                    failures = 0;
                    Duration::ZERO
                }
                Ok(Ended::Failed(error)) | Err(error) => {
                    failures += 1;
                    let pause = pause(failures, self.host.uniform());
                    telemetry.database_failed(&error, pause);
                    let role = Role::Waiting { fault: error.fault(), reason: error.to_string() };
                    self.enter(role);
                    pause
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        telemetry.stopped();
    }

    /// Runs one term, from asking for the lease to losing it. `refused_since` is when the broker
    /// first became unreachable, for a pipeline that needs the broker in order to lead. If two
    /// entries share `shared_id`, nothing is published before each has its own id: otherwise every
    /// retry would publish the same messages again.
    async fn term(
        &self,
        stop: &CancellationToken,
        telemetry: &Telemetry,
        shared_id: &mut Option<EntryId>,
        refused_since: &mut Option<OffsetDateTime>,
    ) -> Result<Ended, LogError> {
        let mut checkpointer = tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(Ended::Stopped),
            checkpointer = self.store.checkpoint_store(&self.name, &self.holder) => checkpointer?,
        };
        let (lease, asked_at, cursor, transactions) = loop {
            let Some((lease, asked_at, mut cursor)) =
                self.take_lease(&mut *checkpointer, stop, telemetry).await?
            else {
                return Ok(Ended::Stopped);
            };
            if let Some(id) = *shared_id {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return Ok(Ended::Stopped),
                    renumbered = checkpointer.renumber(id) => renumbered?,
                }
                *shared_id = None;
                // `Lost` if anything was renumbered: that ends every lease.
                let _ = checkpointer.release(lease.epoch).await?;
                continue;
            }
            let Some(transactions) = &self.transactions else { break (lease, asked_at, cursor, None) };
            let recovering = Recovering {
                transactions,
                checkpointer: &mut *checkpointer,
                relay: &self.name,
                lease,
                asked_at,
                renew_interval: self.settings.renew_interval(),
                timeout: self.settings.lease_ttl,
            };
            let recovery = match recovering.run(&cursor).await {
                Ok(recovery) => recovery,
                Err(error) => {
                    if let Some(reason) = refusal_of_broker(&error) {
                        let since = *refused_since.get_or_insert_with(OffsetDateTime::now_utc);
                        let trouble = BrokerTrouble::of(reason, error.fault() == Fault::Broker, since);
                        let _ = checkpointer.note_trouble(lease.epoch, Some(trouble)).await;
                    }
                    // Another process may reach the broker, and this one may stop before its next
                    // try.
                    let _ = checkpointer.release(lease.epoch).await;
                    return Err(error);
                }
            };
            match recovery {
                Recovery::Done(recovered) => {
                    cursor.transaction = None;
                    let transactions = (Arc::clone(transactions), recovered);
                    break (lease, transactions.1.asked_at, cursor, Some(transactions));
                }
                Recovery::Again => {}
                Recovery::LeaseLost => return Ok(Ended::LeaseLost),
            }
        };
        *refused_since = None;
        self.enter(Role::Leading { epoch: lease.epoch });
        let mut takeover = Takeover::new(checkpointer, lease, asked_at, self.settings.renew_interval());
        let mut reader = self.store.reader(&self.name).await?;
        let Some(blocks) = takeover.blocks(&mut *reader, self.settings.on_dead).await? else {
            return Ok(Ended::LeaseLost);
        };
        let Some((checkpointer, asked_at)) = takeover.end().await? else { return Ok(Ended::LeaseLost) };
        let lead = Lead {
            reader,
            checkpointer,
            lease,
            asked_at,
            cursor,
            blocks,
            connector: Arc::clone(&self.connector),
            settings: self.settings.clone(),
            hint: Arc::clone(&self.hint),
            stop: stop.clone(),
            telemetry: telemetry.clone(),
            host: self.host.clone(),
            observer: self.observer.clone(),
            transactions,
        };
        Ok(lead.run().await)
    }

    /// Waits for the lease. Returns `None` when asked to stop.
    async fn take_lease(
        &self,
        checkpointer: &mut dyn CheckpointStore,
        stop: &CancellationToken,
        telemetry: &Telemetry,
    ) -> Result<Option<(Lease, Instant, Cursor)>, LogError> {
        loop {
            let asked_at = Instant::now();
            match checkpointer.acquire(self.settings.lease_ttl).await? {
                Acquired::Granted { lease, cursor, taken_over_from } => {
                    telemetry.leading(lease.epoch, taken_over_from.as_deref());
                    return Ok(Some((lease, asked_at, cursor)));
                }
                Acquired::Busy { holder, expires_in } => {
                    // Asked several times a second, but reported only when the holder changes.
                    let role = Role::Standby { holder: holder.clone() };
                    if self.status.borrow().role != role {
                        telemetry.standby(&holder);
                        self.enter(role);
                    }
                    // Ask again soon after the lease can have expired, and often enough to notice a
                    // release.
                    let pause = expires_in.min(self.settings.renew_interval()).min(STANDBY_PAUSE_MAX);
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => return Ok(None),
                        () = tokio::time::sleep(pause.max(STANDBY_PAUSE_MIN)) => {}
                    }
                }
            }
        }
    }
}

/// The longest pause on standby: a released lease is taken over within this time. Asking who holds
/// the lease writes nothing.
const STANDBY_PAUSE_MAX: Duration = Duration::from_millis(200);
const STANDBY_PAUSE_MIN: Duration = Duration::from_millis(50);

/// Returns why a recovery ended, if the cause was the broker or its stored state and not the
/// database.
fn refusal_of_broker(error: &LogError) -> Option<&str> {
    let (LogError::Operator { reason, source } | LogError::Unavailable { reason, source }) = error else {
        return None;
    };
    source.as_ref().is_none_or(|source| source.is::<PublishError>()).then_some(reason)
}

fn shared(id: EntryId) -> LogError {
    LogError::Unavailable {
        reason: format!(
            "two rows that had not left have the id {}, as after a sequence was set back: the later ones get new ids",
            id.0
        ),
        source: None,
    }
}

fn pause(failures: u32, uniform: f64) -> Duration {
    Backoff { max: Duration::from_secs(5), ..Backoff::OUTAGES }.delay(failures, uniform)
}

/// Names this process for operators: host, process id, and a random part, because process ids are
/// reused.
fn holder() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "unknown-host" } else { host.trim() };
    format!("{host}:{}:{:08x}", std::process::id(), rand::random::<u32>())
}
