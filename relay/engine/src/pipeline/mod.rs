//! One pipeline from start to shutdown: stand by, take the lease, lead, and repeat.
//!
//! # States
//! *Standby*: another process holds the lease; ask again when it can have expired. *Leading*: this
//! process publishes. *Waiting*: database or operator trouble; ask again after a pause. A database
//! failure while leading always leads back to taking the lease and loading the cursor. Nothing in
//! memory can be trusted after a reconnect: another process may have led in between, and after
//! PostgreSQL's crash recovery, transaction ids that memory knows may have been assigned again.

mod claim;
#[cfg(test)]
mod claim_tests;
mod kept;
mod status;
#[cfg(test)]
mod unstored_tests;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use message::{Backoff, Connector, Fault, Runtime, Transactions};
use outbox_log::{EntryId, LogError, LogStore, RelayName};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use self::claim::{Claim, Claimed, Open, Taken};
pub use self::kept::{AfterFault, KeptEnd};
pub use self::status::{Role, Status};
use crate::chunking::Chunking;
use crate::driver::{Ended, Lead, Observer, Term};
use crate::options::EngineOptions;
use crate::publishing::Publishing;
use crate::takeover::Takeover;
use crate::telemetry::Telemetry;

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
    /// Whether the present term has had a session with the broker.
    session: watch::Sender<bool>,
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
        let (session, _) = watch::channel(false);
        Self {
            name,
            holder,
            store,
            connector,
            settings,
            hint: Arc::new(Notify::new()),
            status,
            session,
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

    /// Returns a receiver that shows whether this process has had a session with the broker since
    /// it took the lease. Until then, nothing that waits has been tried.
    #[must_use]
    pub fn session(&self) -> watch::Receiver<bool> {
        self.session.subscribe()
    }

    /// Reports that the pipeline was refused before it ran, for the reason of an error.
    pub fn report_refusal(&self, reason: String, error: &LogError) {
        self.enter(Role::Refused { reason, remedy: error.remedy().map(str::to_owned) });
    }

    /// Reports that a bug in this program has ended the pipeline: how many times in a row, and the
    /// reason. `None` reports that the pipeline has run well since then.
    fn report_faults(&self, fault: Option<(u32, String)>) {
        let Some((faults, reason)) = fault else {
            self.status.send_modify(|status| status.faults = 0);
            return;
        };
        let role = Role::Waiting { fault: Fault::Operator, reason, remedy: None };
        self.status.send_replace(Status { role, faults });
    }

    fn enter(&self, role: Role) {
        self.status.send_modify(|status| status.role = role);
    }

    /// Runs until `stop` is cancelled: then it stops reading, waits for outstanding confirmations
    /// within the grace period, stores the cursor and releases the lease.
    ///
    /// It never returns because of a problem with the database or the broker: it waits and retries.
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
        let mut open = Open::default();
        while !stop.is_cancelled() {
            let mut ended = self.term(&stop, &telemetry, &mut open).await;
            if let Ok(Ended::SharedId(id)) = ended {
                open.shared_id = Some(id);
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
                    self.wait_because(&error);
                    // Only now, because the answer may take longer than a lease lasts, and needs a
                    // session, while this relay has none open.
                    let cause = tokio::select! {
                        biased;
                        () = stop.cancelled() => None,
                        cause = self.store.cause_of(&error) => cause,
                    };
                    let error = error.caused_by(cause);
                    telemetry.database_failed(&error, pause);
                    self.wait_because(&error);
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

    fn wait_because(&self, error: &LogError) {
        let remedy = error.remedy().map(str::to_owned);
        self.enter(Role::Waiting { fault: error.fault(), reason: error.to_string(), remedy });
    }

    /// Runs one term, from asking for the lease to losing it.
    async fn term(
        &self,
        stop: &CancellationToken,
        telemetry: &Telemetry,
        open: &mut Open,
    ) -> Result<Ended, LogError> {
        let mut checkpointer = tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(Ended::Stopped),
            checkpointer = self.store.checkpoint_store(&self.name, &self.holder) => checkpointer?,
        };
        let claim = Claim { pipeline: self, checkpointer: &mut *checkpointer, stop, telemetry };
        let Claimed { taken, continued } = match claim.run(open).await? {
            ControlFlow::Continue(claimed) => claimed,
            ControlFlow::Break(ended) => return Ok(ended),
        };
        let Taken { mut reader, lease, asked_at, cursor } = taken;
        self.session.send_replace(false);
        self.enter(Role::Leading { epoch: lease.epoch });
        let mut takeover = Takeover::new(checkpointer, lease, asked_at, self.settings.renew_interval());
        match reader.begin().await {
            // The session was idle while the broker was asked for its mark, and a server or a
            // pooler may end idle sessions before the broker answers.
            Err(LogError::Unavailable { .. }) => reader = self.store.reader(&self.name).await?,
            begun => begun?,
        }
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
            continued,
            session: self.session.clone(),
            follows_unstored: open.is_unstored,
        };
        let Term { ended, is_unstored } = lead.run().await;
        open.is_unstored = is_unstored;
        Ok(ended)
    }
}

fn shared(id: EntryId) -> LogError {
    LogError::Unavailable {
        reason: format!(
            "two unpublished rows have the same id {}, which can happen after the sequence was set back: \
             the later rows get new ids",
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
