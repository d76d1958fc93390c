//! The task that sends spans and metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::client::Client;
use super::metrics;
use super::resource::scope;
use crate::http::Exporter;

/// Maximum number of spans per request.
const BATCH_LEN: usize = 512;
/// How long the first span of a request waits for more.
const BATCH_WAIT: Duration = Duration::from_secs(1);

/// The sources and the destination of spans and metrics.
pub(super) struct Export {
    pub(super) client: Client,
    pub(super) resource: Resource,
    pub(super) traces: Option<String>,
    pub(super) metrics: Option<(String, Arc<Exporter>)>,
    pub(super) metrics_interval: Duration,
    pub(super) queue: mpsc::Receiver<Span>,
    /// Number of spans that did not fit into the queue.
    pub(super) dropped: Arc<AtomicU64>,
    pub(super) started_at: SystemTime,
}

/// Logs a failing collector once until it accepts data again.
#[derive(Default)]
struct Health {
    is_failing: bool,
    lost: u64,
}

impl Health {
    /// Records the outcome of a request with `items` items: the number that the collector has
    /// rejected, or the reason why it took none.
    fn record(&mut self, signal: &'static str, items: u64, sent: Result<u64, String>) {
        let (lost, reason) = match sent {
            Ok(0) => {
                if std::mem::take(&mut self.is_failing) {
                    let lost = std::mem::take(&mut self.lost);
                    info!(signal, lost, "the collector accepts data again");
                }
                return;
            }
            Ok(rejected) => (rejected, format!("it rejected {rejected} of a request")),
            Err(reason) => (items, reason),
        };
        self.lost += lost;
        if std::mem::replace(&mut self.is_failing, true) {
            debug!(signal, "the collector does not accept data: {reason}");
        } else {
            warn!(signal, "the collector does not accept data, so it is dropped: {reason}");
        }
    }
}

impl Export {
    /// Exports until it is stopped, and then sends the rest. Traces and metrics do not wait for
    /// each other.
    pub(super) async fn run(self, stop: CancellationToken) {
        let Self { client, resource, traces, metrics, metrics_interval, queue, dropped, started_at } = self;
        let (client, resource) = (&client, &resource);
        let spans = async {
            if let Some(url) = traces {
                send_spans(client, resource, &url, queue, &dropped, &stop).await;
            }
        };
        let metrics = async {
            if let Some((url, exporter)) = metrics {
                let source = Source { exporter: &exporter, started_at, every: metrics_interval };
                send_metrics(client, resource, &url, &source, &stop).await;
            }
        };
        tokio::join!(spans, metrics);
    }
}

async fn send_spans(
    client: &Client,
    resource: &Resource,
    url: &str,
    mut queue: mpsc::Receiver<Span>,
    dropped: &AtomicU64,
    stop: &CancellationToken,
) {
    let mut health = Health::default();
    let mut spans = Vec::with_capacity(BATCH_LEN);
    loop {
        let is_stopping = gather(&mut queue, &mut spans, stop).await;
        if !spans.is_empty() {
            let items = spans.len() as u64;
            let request = ExportTraceServiceRequest {
                resource_spans: vec![ResourceSpans {
                    resource: Some(resource.clone()),
                    scope_spans: vec![ScopeSpans {
                        scope: Some(scope()),
                        spans: std::mem::take(&mut spans),
                        ..ScopeSpans::default()
                    }],
                    ..ResourceSpans::default()
                }],
            };
            health.record("traces", items, client.send(url, request.encode_to_vec()).await);
        } else if is_stopping {
            return;
        }
        let dropped = dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            warn!(dropped, "spans were dropped: the collector accepts them too slowly");
        }
    }
}

/// Gathers the spans of one request. Returns whether the process stops.
async fn gather(queue: &mut mpsc::Receiver<Span>, spans: &mut Vec<Span>, stop: &CancellationToken) -> bool {
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        _ = queue.recv_many(spans, BATCH_LEN) => {
            let wait = tokio::time::sleep(BATCH_WAIT);
            tokio::pin!(wait);
            while spans.len() < BATCH_LEN {
                let room = BATCH_LEN - spans.len();
                tokio::select! {
                    biased;
                    () = stop.cancelled() => break,
                    () = &mut wait => break,
                    _ = queue.recv_many(spans, room) => {}
                }
            }
        }
    }
    while spans.len() < BATCH_LEN
        && let Ok(span) = queue.try_recv()
    {
        spans.push(span);
    }
    stop.is_cancelled()
}

/// Where metrics come from, and how often they are sent.
struct Source<'a> {
    exporter: &'a Exporter,
    started_at: SystemTime,
    every: Duration,
}

async fn send_metrics(
    client: &Client,
    resource: &Resource,
    url: &str,
    source: &Source<'_>,
    stop: &CancellationToken,
) {
    let mut health = Health::default();
    let mut tick = interval(source.every);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is immediate, when there is nothing to report yet.
    tick.tick().await;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            _ = tick.tick() => {}
        }
        let text = source.exporter.text().await;
        let metrics = metrics::parse(&String::from_utf8_lossy(&text), source.started_at, SystemTime::now());
        let items = metrics.len() as u64;
        let request = ExportMetricsServiceRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(resource.clone()),
                scope_metrics: vec![ScopeMetrics {
                    scope: Some(scope()),
                    metrics,
                    ..ScopeMetrics::default()
                }],
                ..ResourceMetrics::default()
            }],
        };
        health.record("metrics", items, client.send(url, request.encode_to_vec()).await);
        if stop.is_cancelled() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what a collector rejects counts as lost, although it accepted the request. Oracle: the
    /// count of lost items, and that the collector counts as failing until it takes everything.
    #[test]
    fn what_the_collector_rejects_is_lost() {
        let mut health = Health::default();
        health.record("traces", 512, Ok(3));
        health.record("traces", 512, Err(String::from("no answer in time")));
        assert!(health.is_failing);
        assert_eq!(health.lost, 515);
        health.record("traces", 512, Ok(0));
        assert!(!health.is_failing);
        assert_eq!(health.lost, 0);
    }
}
