//! Metrics, health, spans and the page of `relay run`: who reads them, and how they get there.

#[cfg(any(feature = "metrics-endpoint", feature = "page"))]
use std::fmt::Display;
#[cfg(any(feature = "metrics-endpoint", feature = "page"))]
use std::sync::Arc;
#[cfg(any(feature = "metrics-endpoint", feature = "page"))]
use std::time::Duration;

#[cfg(any(feature = "metrics-endpoint", feature = "page"))]
use message::Backoff;
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
use crate::page::{self, Page};

/// A task that ends when the handle is dropped.
#[cfg(any(feature = "metrics-endpoint", feature = "page"))]
pub(super) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(task))
}

/// Whether somebody reads the metrics.
pub(super) fn are_metrics_read(config: &Config) -> bool {
    config.http.listen.is_some() || config.otlp.as_ref().is_some_and(|otlp| otlp.metrics.is_some())
}

/// Records the metrics of the process, where somebody reads them.
#[cfg(feature = "metrics-endpoint")]
pub(super) fn recorder(config: &Config) -> Result<Option<Arc<Exporter>>, Failure> {
    if !are_metrics_read(config) {
        return Ok(None);
    }
    let exporter = Exporter::install()
        .map_err(|error| Failure::new(Exit::Broken, format_args!("metrics could not start: {error}")))?;
    Ok(Some(Arc::new(exporter)))
}

/// Exports to OpenTelemetry, where a collector is given.
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

/// Says that a collector which the environment names gets nothing.
#[cfg(not(feature = "otlp"))]
pub(super) fn warn_of_otel() {
    const NAME: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
    if std::env::var_os(NAME).is_some_and(|value| !value.is_empty()) {
        warn!("{NAME} is set, but this relay was built without its feature `otlp`: nothing is exported");
    }
}

/// The pauses between tries to open a listener.
#[cfg(any(feature = "metrics-endpoint", feature = "page"))]
const LISTENER: Backoff = Backoff { first: Duration::from_millis(500), max: Duration::from_secs(15) };

/// Opens a listener, again and again until that succeeds: an address may come later than the
/// process (DHCP, a virtual address that moves, the process before), and messages are published
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
        warn!("{what} not served: {error}; messages are published meanwhile, tried again in {pause:.1?}");
        failed();
        tokio::time::sleep(pause).await;
    }
}

/// Serves metrics and health, where an address is given, as soon as it can be had; ends when the
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

/// Serves the page for operators, where it has an address, as soon as that and the files that it
/// needs can be had; ends when the handle is dropped. `is_missing` learns whether it is waited for.
///
/// # Errors
/// [`Failure`] for what the configuration alone decides.
#[cfg(feature = "page")]
pub(super) fn serve_page(
    config: &Arc<Config>,
    own: page::Own,
    is_missing: impl Fn(bool) + Send + Sync + 'static,
) -> Result<Option<AbortOnDropHandle<()>>, Failure> {
    let (Some(settings), config) = (config.page.clone(), Arc::clone(config)) else { return Ok(None) };
    page::check_settings(&settings).map_err(|error| Failure::new(Exit::Usage, &error))?;
    Ok(Some(spawn(async move {
        let bind = || Page::bind(&config, &settings, own.clone());
        let page = listening("the page is", bind, || is_missing(true)).await;
        is_missing(false);
        let address = page.address().unwrap_or(settings.listen);
        let users = settings.users.len();
        info!(%address, users, tls = settings.tls.is_some(), "serving the page for operators");
        page.serve().await;
    })))
}
