//! The relay under test: this program, in its own process.

use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use brokers::kafka::{Config, TransactionalConnector};
use engine::{EngineOptions, Pipeline, Publishing};
use tests::workload::Workload;
use tests::{Backend, Dialect, Failure, Outcome, Stage, eventually};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::ends::{Ends, EndsBroker, EndsDatabase};

/// URL of the database of a child process. When it is set, this program runs a relay instead of
/// tests.
const DATABASE: &str = "OUTBOX_TRANSACTIONAL_RELAY";
/// Bootstrap servers of a cluster other than that of the tests.
const CLUSTER: &str = "OUTBOX_TRANSACTIONAL_RELAY_CLUSTER";
/// TTL of the relay's lease, and so the timeout of its transactions.
pub(super) const LEASE: Duration = Duration::from_secs(2);

/// Number of relays started so far, which gives each its own log.
static STARTED: AtomicU32 = AtomicU32::new(0);

/// Runs the relay if this program was started as one.
pub(crate) fn relay() -> Option<ExitCode> {
    let url = std::env::var(DATABASE).ok()?;
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(tracing::Level::INFO).init();
    let run = || -> Outcome {
        let options = outbox_log::LogOptions::default().allow_plaintext(true);
        let store = outbox_log::open(&url, message::Source::new("/tests")?, options)?;
        let servers = std::env::var(CLUSTER).or_else(|_| Backend::Kafka.address())?;
        let broker = Arc::new(TransactionalConnector::new(Config::new(servers.split(',')))?);
        let settings = EngineOptions::default()
            .lease_ttl(LEASE)
            .checkpoint_interval(Duration::from_millis(50))
            .shutdown_grace(Duration::from_millis(500));
        let name = outbox_log::RelayName::new("orders")?;
        let ends = Ends::from_environment()?;
        let store = Arc::new(EndsDatabase::new(store, ends.clone()));
        let publishing = Publishing::InTransactions(Arc::new(EndsBroker::new(broker, ends)));
        let pipeline = Pipeline::new(name, store, publishing, settings);
        tokio::runtime::Runtime::new()?.block_on(async {
            let stop = CancellationToken::new();
            let mut terminated = signal(SignalKind::terminate())?;
            let stopping = stop.clone();
            tokio::spawn(async move {
                terminated.recv().await;
                stopping.cancel();
            });
            pipeline.run(stop).await;
            Ok(())
        })
    };
    Some(run().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS))
}

/// A relay in a process of its own.
pub(super) struct Relay {
    child: Child,
    log: std::path::PathBuf,
}

impl Relay {
    pub(super) fn start<DB: Dialect>(stage: &Stage, workload: &Workload<DB>) -> Result<Self, Failure> {
        Self::start_with(stage, workload, &[])
    }

    /// Starts a relay that ends itself when it reaches a place for the `times`-th time.
    pub(super) fn start_doomed<DB: Dialect>(
        stage: &Stage,
        workload: &Workload<DB>,
        place: &str,
        times: u32,
    ) -> Result<Self, Failure> {
        Self::start_with(stage, workload, &[(Ends::VARIABLE, &format!("{place}={times}"))])
    }

    /// Starts a relay that publishes to another cluster.
    pub(super) fn start_elsewhere<DB: Dialect>(
        stage: &Stage,
        workload: &Workload<DB>,
        servers: &str,
    ) -> Result<Self, Failure> {
        Self::start_with(stage, workload, &[(CLUSTER, servers)])
    }

    fn start_with<DB: Dialect>(
        stage: &Stage,
        workload: &Workload<DB>,
        variables: &[(&str, &str)],
    ) -> Result<Self, Failure> {
        // Each relay has its own log: a relay that resumes would overwrite its successor's lines.
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let log = stage.folder().join(format!("relay_{number}.log"));
        stage.show_on_failure(&log);
        let child = Command::new(std::env::current_exe()?)
            .env(DATABASE, workload.database.relay_url()?)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log)?)
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self { child, log })
    }

    /// Kills the relay and returns its log.
    pub(super) async fn kill(mut self) -> Result<String, Failure> {
        self.child.kill().await?;
        Ok(std::fs::read_to_string(self.log)?)
    }

    /// Waits until the relay has ended itself, and returns its log.
    pub(super) async fn ended(mut self) -> Result<String, Failure> {
        tokio::time::timeout(Duration::from_secs(60), self.child.wait())
            .await
            .map_err(|_| "the relay does not reach the place at which it is to end")??;
        Ok(std::fs::read_to_string(self.log)?)
    }

    pub(super) async fn signal(&self, name: &str) -> Outcome {
        let pid = self.child.id().ok_or("the relay has ended")?.to_string();
        let sent = Command::new("kill").args([&format!("-{name}"), &pid]).status().await?;
        if sent.success() { Ok(()) } else { Err(format!("signal {name} did not reach the relay").into()) }
    }

    /// Waits until the relay has logged this text.
    pub(super) async fn tells(&self, text: &str) -> Outcome {
        eventually(&format!("the relay tells {text:?}"), || async {
            Ok(eventually::when(std::fs::read_to_string(&self.log)?.contains(text)))
        })
        .await
    }
}
