//! `relay run`: the daemon.

use std::sync::Arc;

use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::config::ConfigFile;
use super::exit::Exit;
use super::failure::Failure;
use super::preflight::{self, Candidate};
use super::reload::Reload;
use super::{database, log, observe, once, systemd};
use crate::config::{Config, LogFormat, Override, Overrides, PipelineConfig};
use crate::engine::Pipeline;
#[cfg(feature = "metrics-endpoint")]
use crate::http::Health;
use crate::maintenance::{self, Maintenance};
use crate::monitor::Monitor;
use crate::telemetry::{History, Looks};

/// The arguments of `relay run`.
#[derive(Debug, Args)]
pub struct Run {
    #[command(flatten)]
    config: ConfigFile,

    /// Stop when everything that had committed has left; exits with 3 when dead messages, or others
    /// held behind them, remain. Scheduled messages wait for the next run.
    #[arg(long)]
    once: bool,

    /// How a line of the log looks.
    #[arg(long, value_enum, value_name = "FORMAT")]
    log_format: Option<LogFormat>,

    /// The events to log: a level, or directives such as info,relay=debug. The variable RELAY_LOG
    /// does the same.
    #[arg(long, value_name = "LEVEL", env = log::VARIABLE)]
    log_level: Option<String>,
}

/// A pipeline that is ready to run.
struct Ready {
    config: PipelineConfig,
    pipeline: Pipeline,
    stop: CancellationToken,
}

impl Run {
    pub(crate) async fn execute(self) -> Result<Exit, Failure> {
        let (config, started_with) = self.config.load(&self.overrides())?;
        let level = log::start(&config.log, self.log_level.as_deref())?;
        let level_in_force = self.log_level.is_none().then(|| config.log.level.clone());
        let mut reload = Reload {
            file: self.config.clone(),
            overrides: self.overrides(),
            started_with,
            level,
            level_in_force,
        };
        let mut signals = Signals::new()?;
        #[cfg(feature = "metrics-endpoint")]
        let health = Health::new(config.http.unready_after);
        #[cfg(feature = "metrics-endpoint")]
        let exporter = observe::recorder(&config)?;
        #[cfg(feature = "metrics-endpoint")]
        let _upkeep = exporter.clone().map(|exporter| observe::spawn(async move { exporter.keep().await }));
        #[cfg(feature = "metrics-endpoint")]
        let _endpoint = observe::serve(&config, exporter.as_ref(), &health).await?;
        #[cfg(feature = "otlp")]
        let export = observe::export(&config, exporter.as_ref())?;
        #[cfg(not(feature = "otlp"))]
        observe::warn_of_otel();
        #[cfg(feature = "page")]
        let _page = observe::serve_page(&config).await?;
        let _watchdog = systemd::watchdog();
        let stop = CancellationToken::new();
        let file = self.config.shown();
        let ready = tokio::select! {
            ready = prepare(&config, &file, &stop) => ready?,
            () = signals.stop.next() => return Ok(Exit::Success),
        };
        info!(version = env!("CARGO_PKG_VERSION"), pipelines = ready.len(), "starting");
        let watches = if self.once { watch_all(&ready)? } else { JoinSet::new() };
        // A run that ends by itself leaves history to those that stay.
        let maintenance = if self.once { JoinSet::new() } else { maintain_all(&ready, &stop)? };
        let _looks = monitor_all(&config, &ready, &stop)?;
        #[cfg(feature = "metrics-endpoint")]
        health.watch(ready.iter().map(|it| (it.config.name.clone(), it.pipeline.status())).collect());
        let mut running = JoinSet::new();
        for Ready { pipeline, stop, .. } in ready {
            running.spawn(pipeline.run(stop));
        }
        systemd::ready();
        let exit = supervise(running, watches, &mut signals, &stop, &config, &mut reload).await?;
        if exit != Exit::Interrupted {
            stop.cancel();
            // A pass that has begun tells what it did; one that hangs is not waited for.
            let _ = tokio::time::timeout(maintenance::STOP_GRACE, maintenance.join_all()).await;
        }
        #[cfg(feature = "otlp")]
        if let Some(export) = export.filter(|_| exit != Exit::Interrupted) {
            export.finish().await;
        }
        Ok(exit)
    }

    fn overrides(&self) -> Overrides {
        let mut overrides = Overrides::from_environment();
        overrides.flags.extend(self.log_format.map(|format| Override {
            flag: "--log-format",
            path: "log.format",
            value: format.as_str().to_owned(),
        }));
        overrides
    }
}

/// Opens what the pipelines need and looks at every database once.
async fn prepare(config: &Config, file: &str, stop: &CancellationToken) -> Result<Vec<Ready>, Failure> {
    let mut ready = Vec::new();
    let mut candidates = Vec::new();
    for config in &config.pipelines {
        let store = database::store(config).map_err(|failure| failure.about(&config.name))?;
        candidates.push(Candidate { name: config.name.clone(), store: Arc::clone(&store) });
        let publishing = config.broker.publishing();
        let publishing = publishing.map_err(|error| Failure::from(error).about(&config.name))?;
        let pipeline = Pipeline::new(config.name.clone(), store, publishing, config.settings.clone());
        ready.push(Ready { config: config.clone(), pipeline, stop: stop.child_token() });
    }
    preflight::check(&candidates, file).await?;
    Ok(ready)
}

/// For each pipeline a task that stops it when everything has left, or nothing more can, and says
/// what is left; whether that needs an operator.
fn watch_all(ready: &[Ready]) -> Result<JoinSet<bool>, Failure> {
    let mut watches = JoinSet::new();
    for Ready { config, pipeline, stop } in ready {
        let (admin, name, stop) = (database::administration(config)?, config.name.clone(), stop.clone());
        let status = pipeline.status();
        watches.spawn(async move {
            let ended = tokio::select! {
                ended = once::ended(admin.as_ref(), &name, status) => ended,
                () = stop.cancelled() => return false,
            };
            stop.cancel();
            match ended {
                Ok(left) => {
                    let once::Left { dead, held, scheduled, .. } = left;
                    info!(relay = %name, dead, held, scheduled, "everything has left");
                    left.needs_an_operator()
                }
                Err(reason) => {
                    warn!(relay = %name, "it ends: nothing leaves before an operator acts: {reason}");
                    true
                }
            }
        });
    }
    Ok(watches)
}

/// For each pipeline a task that keeps its outbox in bounds; they end when the set is dropped.
fn maintain_all(ready: &[Ready], stop: &CancellationToken) -> Result<JoinSet<()>, Failure> {
    let mut tasks = JoinSet::new();
    for Ready { config, .. } in ready {
        if let Some(keep) = config.retention.keep() {
            let (log, telemetry) = (database::retention(config)?, History::new(&config.name));
            tasks.spawn(Maintenance { log, keep, telemetry }.keep_running(stop.child_token()));
        }
    }
    Ok(tasks)
}

/// For each pipeline a task that looks at its database for metrics, where they are served; they end
/// when the set is dropped.
fn monitor_all(config: &Config, ready: &[Ready], stop: &CancellationToken) -> Result<JoinSet<()>, Failure> {
    let mut tasks = JoinSet::new();
    if !observe::are_metrics_read(config) {
        return Ok(tasks);
    }
    for Ready { config: pipeline, .. } in ready {
        let monitor = Monitor {
            log: database::administration(pipeline)?,
            name: pipeline.name.clone(),
            interval: config.http.poll_interval,
            looks: Looks::new(&pipeline.name),
        };
        tasks.spawn(monitor.run(stop.child_token()));
    }
    Ok(tasks)
}

/// Waits for the pipelines, and passes signals on to them.
async fn supervise(
    mut running: JoinSet<()>,
    mut watches: JoinSet<bool>,
    signals: &mut Signals,
    stop: &CancellationToken,
    config: &Config,
    reload: &mut Reload,
) -> Result<Exit, Failure> {
    let mut exit = Exit::Success;
    loop {
        tokio::select! {
            ended = running.join_next() => match ended {
                None => break,
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    stop.cancel();
                    exit = crashed(&error);
                }
            },
            Some(left) = watches.join_next() => match left {
                Ok(true) => exit = exit.max(Exit::Unavailable),
                Ok(false) => {}
                Err(error) => {
                    stop.cancel();
                    exit = crashed(&error);
                }
            },
            Some(()) = signals.reload.recv() => {
                systemd::reloading();
                reload.run();
                systemd::ready();
            }
            () = signals.stop.next() => {
                if stop.is_cancelled() {
                    eprintln!("{}", interrupted(config));
                    return Ok(Exit::Interrupted);
                }
                systemd::stopping();
                info!("stopping; a second signal ends the process at once");
                stop.cancel();
            }
        }
    }
    while let Some(left) = watches.join_next().await {
        match left {
            Ok(true) => exit = exit.max(Exit::Unavailable),
            Ok(false) => {}
            Err(error) => exit = crashed(&error),
        }
    }
    Ok(exit)
}

fn crashed(error: &JoinError) -> Exit {
    warn!("a pipeline ended by a fault of this program, the others are stopped: {error}");
    Exit::Broken
}

fn interrupted(config: &Config) -> String {
    let ttl = config.pipelines.iter().map(|pipeline| pipeline.settings.lease_ttl).max().unwrap_or_default();
    format!(
        "stopped at once: nothing is lost, but what was not confirmed is published again, and a standby takes over \
         only when the leases have expired (within {})",
        super::output::age(ttl)
    )
}

/// The signals that the relay listens to.
struct Signals {
    stop: StopSignals,
    /// SIGHUP.
    reload: Signal,
}

/// The signals that stop the relay.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                Failure::new(Exit::Broken, format_args!("signals cannot be received: {error}"))
            })
        };
        Ok(Self {
            stop: StopSignals {
                terminate: listen(SignalKind::terminate())?,
                interrupt: listen(SignalKind::interrupt())?,
            },
            reload: listen(SignalKind::hangup())?,
        })
    }
}

impl StopSignals {
    /// The next one. Cancel-safe.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
