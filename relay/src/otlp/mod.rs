//! Traces and metrics for an OpenTelemetry collector: OTLP over HTTP, in protobuf.
//!
//! | module | what it holds |
//! |---|---|
//! | `client` | requests to the collector: headers, TLS, retries |
//! | `spans` | converts publish attempts into spans |
//! | `sampling` | selects the messages that get a span |
//! | `metrics` | converts the text of a scrape into metrics |
//! | `resource` | the identity of the sender |
//! | `export` | the task that sends them |
//!
//! Nothing here delays publishing: spans go into a bounded queue without waiting, and a separate
//! task sends them. Metrics are those of the process's one recorder, read at an interval. While the
//! collector is unreachable both are dropped, which is logged once.

mod client;
mod export;
mod metrics;
mod resource;
mod sampling;
mod spans;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use crate::config::Otlp;
use crate::http::Exporter;
use engine::telemetry::set_span_recorder;

use client::Client;
use export::Export;
use spans::Spans;

/// Maximum number of spans that wait to be sent, some 700 bytes each and up to 8 KiB of trace
/// state. Further ones are dropped and counted.
const QUEUE_LEN: usize = 4_096;
/// Timeout of the last requests when the process stops.
const FLUSH_MAX: Duration = Duration::from_secs(3);

/// The export of a running process. Dropping it ends the export at once.
pub(crate) struct Running {
    task: AbortOnDropHandle<()>,
    stop: CancellationToken,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Running")
    }
}

/// Starts the export. `metrics` is the recorder of the process, if metrics are exported.
///
/// # Errors
/// The system's root certificates cannot be read, or the process already records spans; the text
/// names the cause.
pub(crate) fn start(config: &Otlp, metrics: Option<Arc<Exporter>>) -> Result<Running, String> {
    let client = Client::new(config)?;
    let (sender, queue) = mpsc::channel(QUEUE_LEN);
    let dropped = Arc::default();
    if config.traces.is_some() {
        let spans = Spans::new(sender, config.sampling, Arc::clone(&dropped));
        set_span_recorder(spans).map_err(|error| error.to_string())?;
    }
    let export = Export {
        client,
        resource: resource::resource(config),
        traces: config.traces.clone(),
        metrics: config.metrics.clone().zip(metrics),
        metrics_interval: config.metrics_interval,
        queue,
        dropped,
        started_at: SystemTime::now(),
    };
    info!(traces = config.traces, metrics = config.metrics, "exporting to OpenTelemetry");
    let stop = CancellationToken::new();
    let task = AbortOnDropHandle::new(tokio::spawn(export.run(stop.clone())));
    Ok(Running { task, stop })
}

impl Running {
    /// Sends the rest, for a bounded time: an unreachable collector does not keep the process
    /// alive.
    pub(crate) async fn finish(self) {
        self.stop.cancel();
        if tokio::time::timeout(FLUSH_MAX, self.task).await.is_err() {
            warn!("the collector did not accept the last traces and metrics within {FLUSH_MAX:?}");
        }
    }
}
