//! Metrics, health, spans and the page of `relay run`: who reads them, and how they get there.

#[cfg(feature = "metrics-endpoint")]
use std::sync::Arc;

#[cfg(any(feature = "metrics-endpoint", feature = "page"))]
use tokio_util::task::AbortOnDropHandle;
#[cfg(any(feature = "metrics-endpoint", feature = "page"))]
use tracing::info;
#[cfg(not(feature = "otlp"))]
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
use crate::page::{Page, PageError};

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

/// Serves metrics and health, where an address is given; ends when the handle is dropped.
#[cfg(feature = "metrics-endpoint")]
pub(super) async fn serve(
    config: &Config,
    exporter: Option<&Arc<Exporter>>,
    health: &Health,
) -> Result<Option<AbortOnDropHandle<()>>, Failure> {
    let (Some(address), Some(exporter)) = (config.http.listen, exporter) else { return Ok(None) };
    let endpoint = Endpoint::bind(address, Arc::clone(exporter), health.clone()).await.map_err(|error| {
        let help = "free the address, or set another one as http.listen";
        Failure::with_help(Exit::Usage, format_args!("http.listen: {address} cannot be used: {error}"), help)
    })?;
    let address = endpoint.address().unwrap_or(address);
    info!(%address, "serving /metrics, /livez and /readyz");
    Ok(Some(spawn(endpoint.serve())))
}

/// Serves the page for operators, where it has an address; ends when the handle is dropped.
#[cfg(feature = "page")]
pub(super) async fn serve_page(config: &Config) -> Result<Option<AbortOnDropHandle<()>>, Failure> {
    let Some(settings) = &config.page else { return Ok(None) };
    let page = Page::bind(config, settings).await.map_err(|error| {
        let help = "free the address, or set another one as page.listen";
        match &error {
            PageError::Address { .. } => Failure::with_help(Exit::Usage, &error, help),
            _ => Failure::new(Exit::Usage, &error),
        }
    })?;
    let address = page.address().unwrap_or(settings.listen);
    info!(%address, users = settings.users.len(), tls = settings.tls.is_some(), "serving the page for operators");
    Ok(Some(spawn(page.serve())))
}
