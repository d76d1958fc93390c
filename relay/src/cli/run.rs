//! `relay run`: the daemon.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use operate::PipelineConfig;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::config::ConfigFile;
use super::exit::Exit;
use super::failure::Failure;
use super::log::LogLines;
use super::preflight::{self, Candidate, Patience};
use super::reload::Reload;
use super::signals::{Signals, StopSignal};
use super::{database, log, observe, once, systemd};
use crate::config::{Config, LogFormat, Override, Overrides};
#[cfg(feature = "metrics-endpoint")]
use crate::http::Health;
use engine::maintenance::{self, Maintenance};
use engine::monitor::Monitor;
use engine::telemetry::{History, Looks};
use engine::{AfterFault, KeptEnd, Pipeline};

/// The arguments of `relay run`.
#[derive(Debug, Args)]
pub struct Run {
    #[command(flatten)]
    config: ConfigFile,

    /// Stop when every committed message is published. Exits with 3 if messages are left that need
    /// an operator (dead, or with a missing topic or queue), or if a signal stops it first. Exits
    /// with 2 if a database refuses its pipeline. Messages that are due later wait for another run.
    #[arg(long)]
    once: bool,

    /// Format of the log lines.
    #[arg(long, value_enum, value_name = "FORMAT")]
    log_format: Option<LogFormat>,

    /// The log level, or directives such as info,relay=debug.
    #[arg(long, value_name = "LEVEL", env = log::VARIABLE)]
    log_level: Option<String>,
}

/// A pipeline that is ready to run.
struct Ready {
    config: PipelineConfig,
    pipeline: Pipeline,
    stop: CancellationToken,
    /// How long the destination may take for an answer, if that is limited.
    answer_max: Option<Duration>,
}

/// All pipelines after their databases were opened once.
struct Prepared {
    ready: Vec<Ready>,
    /// Pipelines that do not run. They are kept to report their status.
    refused: Vec<Ready>,
}

impl Run {
    pub(crate) async fn execute(self) -> Result<Exit, Failure> {
        let (config, started_with) = self.config.load_without_files(&self.overrides())?;
        let log::Started { level, end, lines } = log::start(&config.log, self.log_level.as_deref())?;
        let level_in_force = self.log_level.is_none().then(|| config.log.level.clone());
        let reload = Reload {
            file: self.config.clone(),
            overrides: self.overrides(),
            started_with,
            level,
            level_in_force,
        };
        let ended = Box::pin(self.run(Arc::new(config), reload, lines)).await;
        // Standard error belongs to the log by now: any other writer would wait for its reader.
        Ok(ended.unwrap_or_else(|failure| {
            end.print(&failure.shown());
            failure.exit()
        }))
    }

    async fn run(self, config: Arc<Config>, mut reload: Reload, lines: LogLines) -> Result<Exit, Failure> {
        let mut signals = Signals::new()?;
        let stop = CancellationToken::new();
        let pipelines = open(&config, &stop)?;
        #[cfg(feature = "metrics-endpoint")]
        let health = Health::new(config.http.unready_after);
        #[cfg(feature = "metrics-endpoint")]
        let exporter = observe::recorder(&config)?;
        let _dropped_lines = lines.report();
        #[cfg(feature = "metrics-endpoint")]
        let _upkeep = exporter.clone().map(|exporter| observe::spawn(async move { exporter.keep().await }));
        #[cfg(feature = "metrics-endpoint")]
        let _endpoint = observe::serve(&config, exporter.as_ref(), &health);
        #[cfg(feature = "otlp")]
        let export = observe::export(&config, exporter.as_ref())?;
        #[cfg(not(feature = "otlp"))]
        observe::warn_of_otel();
        #[cfg(all(feature = "page", feature = "metrics-endpoint"))]
        let is_page_missing = {
            let health = health.clone();
            move |is_missing| health.set_page_missing(is_missing)
        };
        #[cfg(all(feature = "page", not(feature = "metrics-endpoint")))]
        let is_page_missing = |_| {};
        #[cfg(feature = "page")]
        let own = pipelines
            .iter()
            .map(|opened| (opened.candidate.name.to_string(), opened.ready.pipeline.status()));
        #[cfg(feature = "page")]
        let page = observe::serve_page(&config, own.collect(), is_page_missing)?;
        let _watchdog = systemd::watchdog();
        let file = self.config.shown();
        let Prepared { ready, refused } = tokio::select! {
            prepared = self.prepare(pipelines, &file) => prepared?,
            _ = signals.stop.next() => {
                let exit = if self.once { Exit::Unavailable } else { Exit::Success };
                #[cfg(feature = "page")]
                let exit = if signals.stop.let_end(end_page(page)).await { exit } else { cut_short() };
                return Ok(exit);
            }
        };
        info!(version = env!("CARGO_PKG_VERSION"), pipelines = ready.len(), "starting");
        let watches = if self.once { watch_all(&ready) } else { JoinSet::new() };
        // The remaining relays delete history.
        let maintenance = if self.once { JoinSet::new() } else { maintain_all(&ready, &stop) };
        let _looks = monitor_all(&config, &ready, &stop);
        #[cfg(feature = "metrics-endpoint")]
        health.watch(
            ready.iter().chain(&refused).map(|it| (it.config.name.clone(), it.pipeline.status())).collect(),
        );
        let mut running = JoinSet::new();
        let after = if self.once { AfterFault::Stop } else { AfterFault::Restart };
        for Ready { pipeline, stop, .. } in ready {
            running.spawn(async move {
                match pipeline.keep_running(stop, after).await {
                    KeptEnd::Well => Exit::Success,
                    KeptEnd::Faulty => Exit::Broken,
                }
            });
        }
        systemd::ready();
        let ended = supervise(running, watches, &mut signals, &stop, &config, &mut reload).await;
        let exit = if refused.is_empty() { ended } else { ended.worst(Exit::Usage) };
        if exit == Exit::Interrupted {
            return Ok(exit);
        }
        stop.cancel();
        let ending = async {
            // A pass that has begun reports its result; a hanging one is abandoned.
            let _ = tokio::time::timeout(maintenance::STOP_GRACE, maintenance.join_all()).await;
            #[cfg(feature = "page")]
            end_page(page).await;
            #[cfg(feature = "otlp")]
            if let Some(export) = export {
                export.finish().await;
            }
        };
        Ok(if signals.stop.let_end(ending).await { exit } else { cut_short() })
    }

    /// Opens every database once. A refused pipeline does not run; the others do.
    async fn prepare(&self, pipelines: Vec<Opened>, file: &str) -> Result<Prepared, Failure> {
        let patience = if self.once { Patience::Once } else { Patience::Daemon };
        let (candidates, pipelines): (Vec<Candidate>, Vec<Ready>) =
            pipelines.into_iter().map(|Opened { candidate, ready }| (candidate, ready)).unzip();
        let looks = preflight::look(&candidates, patience).await;
        if looks.iter().all(Option::is_some) {
            let refused: Vec<_> = candidates.iter().zip(looks.iter().flatten()).collect();
            return Err(preflight::nothing_left(&refused, file));
        }
        let mut prepared = Prepared { ready: Vec::new(), refused: Vec::new() };
        for ((ready, candidate), look) in pipelines.into_iter().zip(&candidates).zip(looks) {
            let Some(error) = look else {
                prepared.ready.push(ready);
                continue;
            };
            let reason = preflight::told(candidate, &error);
            error!(relay = %candidate.name, "refused and not retried; other pipelines run: {reason}");
            ready.pipeline.report_refusal(reason, &error);
            prepared.refused.push(ready);
        }
        Ok(prepared)
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

/// A pipeline with its log, before its database is opened.
struct Opened {
    candidate: Candidate,
    ready: Ready,
}

/// Creates the pipelines. Connects to nothing.
///
/// # Errors
/// [`Failure`] for errors in the configuration itself.
fn open(config: &Config, stop: &CancellationToken) -> Result<Vec<Opened>, Failure> {
    let open = |config: &PipelineConfig| {
        let store = database::patient_store(config).map_err(|failure| failure.about(&config.name))?;
        let publishing = config.broker.publishing();
        let publishing = publishing.map_err(|error| Failure::from(error).about(&config.name))?;
        let answer_max = publishing.connector().answer_max();
        let pipeline =
            Pipeline::new(config.name.clone(), Arc::clone(&store), publishing, config.settings.clone());
        Ok(Opened {
            candidate: Candidate { name: config.name.clone(), store },
            ready: Ready { config: config.clone(), pipeline, stop: stop.child_token(), answer_max },
        })
    };
    config.pipelines.iter().map(open).collect()
}

/// Spawns for each pipeline a task that stops it when everything is published, or nothing more can
/// be, and logs what is left. The task returns whether that needs an operator or a signal came
/// first.
fn watch_all(ready: &[Ready]) -> JoinSet<bool> {
    let mut watches = JoinSet::new();
    for Ready { config, pipeline, stop, answer_max } in ready {
        let (config, stop) = (config.clone(), stop.clone());
        let now =
            once::Now { status: pipeline.status(), session: pipeline.session(), answer_max: *answer_max };
        watches.spawn(async move {
            let name = config.name.clone();
            let ended = async {
                let admin = database::when_open(|| database::administration(&config)).await;
                once::ended(admin.as_ref(), &name, now).await
            };
            let Some(ended) = stop.run_until_cancelled(ended).await else {
                warn!(relay = %name, "stopped before all messages were published");
                return true;
            };
            stop.cancel();
            match ended {
                Ok(left @ once::Left { scheduled, .. }) if !left.needs_an_operator() => {
                    info!(relay = %name, dead = 0, held = 0, scheduled, "all messages are published");
                    false
                }
                Ok(once::Left { dead, held, scheduled, blocked: 0, is_paused }) => {
                    warn!(relay = %name, dead, held, scheduled, is_paused, "the run ends: the remaining messages \
                                                                            wait for an operator; `relay status` \
                                                                            shows why");
                    true
                }
                Ok(once::Left { dead, held, scheduled, blocked, .. }) => {
                    warn!(relay = %name, dead, held, scheduled, blocked, "the run ends: the destination does \
                                                                          not accept the remaining messages \
                                                                          until an operator acts; `relay \
                                                                          dead list --state retrying` shows \
                                                                          why");
                    true
                }
                Err(reason) => {
                    warn!(relay = %name, "the run ends: no message can be published until an operator acts: \
                                          {reason}");
                    true
                }
            }
        });
    }
    watches
}

/// Spawns for each pipeline a task that keeps its outbox in bounds. The tasks end when the set is
/// dropped.
fn maintain_all(ready: &[Ready], stop: &CancellationToken) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for Ready { config, .. } in ready {
        if let Some(keep) = config.retention.keep() {
            let (config, stop) = (config.clone(), stop.child_token());
            let keep_decisions = config.audit_retention.keep();
            tasks.spawn(async move {
                let open = database::when_open(|| database::retention(&config));
                let Some(log) = stop.run_until_cancelled(open).await else { return };
                let telemetry = History::new(&config.name);
                Maintenance { log, keep, keep_decisions, telemetry }.keep_running(stop).await;
            });
        }
    }
    tasks
}

/// Spawns for each pipeline a task that queries its database for metrics, if these are read. The
/// tasks end when the set is dropped.
fn monitor_all(config: &Config, ready: &[Ready], stop: &CancellationToken) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    if !observe::are_metrics_read(config) {
        return tasks;
    }
    for Ready { config: pipeline, .. } in ready {
        let (pipeline, interval, stop) = (pipeline.clone(), config.http.poll_interval, stop.child_token());
        tasks.spawn(async move {
            let open = database::when_open(|| database::administration(&pipeline));
            let Some(log) = stop.run_until_cancelled(open).await else { return };
            let looks = Looks::new(&pipeline.name);
            Monitor { log, name: pipeline.name, interval, looks }.keep_running(stop).await;
        });
    }
    tasks
}

/// Waits for the pipelines, and passes signals on to them.
async fn supervise(
    mut running: JoinSet<Exit>,
    mut watches: JoinSet<bool>,
    signals: &mut Signals,
    stop: &CancellationToken,
    config: &Config,
    reload: &mut Reload,
) -> Exit {
    let mut exit = Exit::Success;
    loop {
        tokio::select! {
            ended = running.join_next() => match ended {
                None => break,
                Some(ended) => exit = exit.worst(ended.unwrap_or_else(|error| crashed(&error))),
            },
            Some(left) = watches.join_next() => exit = exit.worst(watched(left)),
            Some(()) = signals.reload.recv() => {
                systemd::reloading();
                reload.run();
                systemd::ready();
            }
            signal = signals.stop.next() => match signal {
                StopSignal::First => {
                    systemd::stopping();
                    info!("stopping; a second signal ends the process immediately");
                    stop.cancel();
                }
                StopSignal::Second => {
                    // Shown at any level: the process abandons work that it would otherwise settle.
                    error!("{}", interrupted(config));
                    return Exit::Interrupted;
                }
            },
        }
    }
    while let Some(left) = watches.join_next().await {
        exit = exit.worst(watched(left));
    }
    exit
}

/// Returns the exit code of a watch. `left` holds whether messages were left that need an operator.
fn watched(left: Result<bool, JoinError>) -> Exit {
    match left {
        Ok(true) => Exit::Unavailable,
        Ok(false) => Exit::Success,
        Err(error) => crashed(&error),
    }
}

fn crashed(error: &JoinError) -> Exit {
    error!("an internal error ended a task: {error}");
    Exit::Broken
}

/// Stops the page with its jobs, and waits for these.
#[cfg(feature = "page")]
async fn end_page(page: Option<observe::ServedPage>) {
    if let Some(page) = page {
        page.end().await;
    }
}

/// Reports that a second signal arrived when no pipeline ran any more.
fn cut_short() -> Exit {
    error!(
        "stopped immediately: no pipeline ran any more, but a job of the page may be cut off, and a replay \
         without its last line in the audit"
    );
    Exit::Interrupted
}

fn interrupted(config: &Config) -> String {
    let ttl = config.pipelines.iter().map(|pipeline| pipeline.settings.lease_ttl).max().unwrap_or_default();
    format!(
        "stopped immediately: no message is lost, but unconfirmed messages are published again, and a \
         standby takes over only when the leases have expired (within {})",
        super::output::age(ttl)
    )
}
