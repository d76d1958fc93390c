//! Metrics, health, spans and the page of `relay run`: recorder, export and listeners.

#[cfg(any(feature = "metrics-endpoint", feature = "page"))]
use std::fmt::Display;
#[cfg(any(feature = "metrics-endpoint", feature = "page"))]
use std::sync::Arc;
#[cfg(any(feature = "metrics-endpoint", feature = "page"))]
use std::time::Duration;

#[cfg(any(feature = "metrics-endpoint", feature = "page"))]
use message::Backoff;
#[cfg(feature = "page")]
use tokio_util::sync::CancellationToken;
#[cfg(any(feature = "metrics-endpoint", feature = "page"))]
use tokio_util::task::AbortOnDropHandle;
#[cfg(any(feature = "metrics-endpoint", feature = "page"))]
use tracing::info;
#[cfg(any(feature = "metrics-endpoint", feature = "page", not(feature = "otlp")))]
use tracing::warn;

#[cfg(any(feature = "metrics-endpoint", feature = "page"))]
use super::exit::Exit;
#[cfg(any(feature = "metrics-endpoint", feature = "page"))]
use super::failure::Failure;
use crate::config::Config;
#[cfg(feature = "metrics-endpoint")]
use crate::http::{Endpoint, Exporter, Health};
#[cfg(feature = "otlp")]
use crate::otlp;
#[cfg(feature = "page")]
use web::Page;

/// Spawns a task that ends when the handle is dropped.
#[cfg(any(feature = "metrics-endpoint", feature = "page"))]
pub(super) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(task))
}

/// Returns whether the metrics have a reader: an endpoint or a collector.
pub(super) fn are_metrics_read(config: &Config) -> bool {
    config.http.listen.is_some() || config.otlp.as_ref().is_some_and(|otlp| otlp.metrics.is_some())
}

/// Records the metrics of the process, if they have a reader.
#[cfg(feature = "metrics-endpoint")]
pub(super) fn recorder(config: &Config) -> Result<Option<Arc<Exporter>>, Failure> {
    if !are_metrics_read(config) {
        return Ok(None);
    }
    let exporter = Exporter::install()
        .map_err(|error| Failure::new(Exit::Broken, format_args!("metrics could not start: {error}")))?;
    Ok(Some(Arc::new(exporter)))
}

/// Starts the export to OpenTelemetry, if a collector is configured.
#[cfg(feature = "otlp")]
pub(super) fn export(
    config: &Config,
    exporter: Option<&Arc<Exporter>>,
) -> Result<Option<otlp::Running>, Failure> {
    let Some(config) = &config.otlp else { return Ok(None) };
    let running = otlp::start(config, exporter.cloned()).map_err(|error| {
        Failure::new(Exit::Broken, format_args!("the export to OpenTelemetry could not start: {error}"))
    })?;
    Ok(Some(running))
}

/// Warns that a collector named by the environment receives nothing.
#[cfg(not(feature = "otlp"))]
pub(super) fn warn_of_otel() {
    const NAME: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
    if std::env::var_os(NAME).is_some_and(|value| !value.is_empty()) {
        warn!("{NAME} is set, but this relay was built without the feature `otlp`: nothing is exported");
    }
}

/// Pauses between attempts to open a listener.
#[cfg(any(feature = "metrics-endpoint", feature = "page"))]
const LISTENER: Backoff = Backoff { first: Duration::from_millis(500), max: Duration::from_secs(15) };

/// Opens a listener, and retries until that succeeds. The address may become available later than
/// the process (DHCP, a virtual address that moves, a predecessor), and messages are published
/// meanwhile. Cancel-safe.
#[cfg(any(feature = "metrics-endpoint", feature = "page"))]
async fn listening<T, E: Display, F: Future<Output = Result<T, E>>>(
    what: &str,
    open: impl Fn() -> F,
    failed: impl Fn(),
) -> T {
    let mut failures = 0;
    loop {
        let error = match open().await {
            Ok(listener) => return listener,
            Err(error) => error,
        };
        failures += 1;
        let pause = LISTENER.delay(failures, rand::random());
        warn!("{what} not served: {error}; messages are published meanwhile, next attempt in {pause:.1?}");
        failed();
        tokio::time::sleep(pause).await;
    }
}

/// Serves metrics and health at the configured address, as soon as it is available. Ends when the
/// handle is dropped.
#[cfg(feature = "metrics-endpoint")]
pub(super) fn serve(
    config: &Config,
    exporter: Option<&Arc<Exporter>>,
    health: &Health,
) -> Option<AbortOnDropHandle<()>> {
    let (address, exporter, health) = (config.http.listen?, Arc::clone(exporter?), health.clone());
    Some(spawn(async move {
        let bind = || async {
            let bound = Endpoint::bind(address, Arc::clone(&exporter), health.clone()).await;
            bound.map_err(|error| format!("http.listen: {address} cannot be used: {error}"))
        };
        let endpoint = listening("metrics and health are", bind, || {}).await;
        let address = endpoint.address().unwrap_or(address);
        info!(%address, "serving /metrics, /livez and /readyz");
        endpoint.serve().await;
    }))
}

/// Maximum time to wait for the jobs of the page when the relay stops.
#[cfg(feature = "page")]
const JOBS_END_MAX: Duration = Duration::from_secs(10);

/// The page that is served. It also ends when this is dropped, without its jobs.
#[cfg(feature = "page")]
pub(super) struct ServedPage {
    task: AbortOnDropHandle<()>,
    stop: CancellationToken,
}

#[cfg(feature = "page")]
impl ServedPage {
    /// Stops the page with its jobs, and waits until they have ended, for at most
    /// [`JOBS_END_MAX`].
    pub(super) async fn end(self) {
        self.stop.cancel();
        if tokio::time::timeout(JOBS_END_MAX, self.task).await.is_err() {
            warn!("a job of the page did not end within {} s, and is cut off", JOBS_END_MAX.as_secs());
        }
    }
}

/// Serves the page for operators, if it has an address, as soon as that and the files that it needs
/// are available. Calls `is_missing` with whether it still waits.
///
/// # Errors
/// [`Failure`] for errors in the configuration itself.
#[cfg(feature = "page")]
pub(super) fn serve_page(
    config: &Arc<Config>,
    own: web::Own,
    is_missing: impl Fn(bool) + Send + Sync + 'static,
) -> Result<Option<ServedPage>, Failure> {
    let (Some(settings), config) = (config.page.clone(), Arc::clone(config)) else { return Ok(None) };
    web::check_settings(&settings).map_err(|error| Failure::new(Exit::Usage, &error))?;
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let task = spawn(async move {
        let bind = || Page::bind(&config.pipelines, &config.verify, &settings, own.clone());
        let page = tokio::select! {
            page = listening("the page is", bind, || is_missing(true)) => page,
            () = stopped.cancelled() => return,
        };
        is_missing(false);
        let address = page.address().unwrap_or(settings.listen);
        let users = settings.users.len();
        info!(%address, users, tls = settings.tls.is_some(), "serving the page for operators");
        page.serve(stopped).await;
    });
    Ok(Some(ServedPage { task, stop }))
}
