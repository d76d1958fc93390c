//! An OpenTelemetry collector in this process: OTLP over HTTP, kept in memory.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::trial::Failure;

/// The received spans and metrics.
#[derive(Default)]
struct Received {
    spans: Mutex<Vec<(String, Span)>>,
    metrics: Mutex<Vec<Metric>>,
    /// The raw bodies, to check what must not be in them.
    bodies: Mutex<Vec<Bytes>>,
    /// The header `authorization` of the last request that had one.
    authorization: Mutex<Option<String>>,
    /// The number of requests that are still to be refused, as by a busy collector.
    busy: AtomicUsize,
}

/// A collector that listens until it is dropped.
pub struct Collector {
    received: Arc<Received>,
    endpoint: String,
    task: JoinHandle<Result<(), Infallible>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Received {
    /// Stores a body, unless requests are still to be refused.
    fn take<M: prost::Message + Default>(&self, headers: &HeaderMap, body: &Bytes) -> Result<M, StatusCode> {
        let busy = self.busy.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1));
        if busy.is_ok() {
            return Err(StatusCode::SERVICE_UNAVAILABLE);
        }
        if headers.get("content-type").is_none_or(|value| value != "application/x-protobuf") {
            return Err(StatusCode::UNSUPPORTED_MEDIA_TYPE);
        }
        let authorization = headers.get("authorization").and_then(|value| value.to_str().ok());
        if let Some(authorization) = authorization {
            *lock(&self.authorization) = Some(authorization.to_owned());
        }
        lock(&self.bodies).push(body.clone());
        M::decode(body.clone()).map_err(|_| StatusCode::BAD_REQUEST)
    }
}

async fn traces(
    State(received): State<Arc<Received>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Vec<u8>, StatusCode> {
    let request: ExportTraceServiceRequest = received.take(&headers, &body)?;
    let mut spans = lock(&received.spans);
    for resource in request.resource_spans {
        let attributes = resource.resource.map(|resource| resource.attributes).unwrap_or_default();
        let service = text(&attributes, "service.name").unwrap_or_default();
        let found = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
        spans.extend(found.map(|span| (service.clone(), span)));
    }
    Ok(Vec::new())
}

async fn metrics(
    State(received): State<Arc<Received>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Vec<u8>, StatusCode> {
    let request: ExportMetricsServiceRequest = received.take(&headers, &body)?;
    let scopes = request.resource_metrics.into_iter().flat_map(|resource| resource.scope_metrics);
    lock(&received.metrics).extend(scopes.flat_map(|scope| scope.metrics));
    Ok(Vec::new())
}

/// Returns the value of a text attribute.
#[must_use]
pub fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    match value(attributes, key)? {
        Value::StringValue(text) => Some(text.clone()),
        _ => None,
    }
}

/// Returns the value of an attribute that is a whole number.
#[must_use]
pub fn int(attributes: &[KeyValue], key: &str) -> Option<i64> {
    match value(attributes, key)? {
        Value::IntValue(number) => Some(*number),
        _ => None,
    }
}

fn value<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a Value> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    found.value.as_ref().and_then(|AnyValue { value }| value.as_ref())
}

impl Collector {
    /// Listens on a port that the system assigns.
    ///
    /// # Errors
    /// No port is free.
    pub async fn start() -> Result<Self, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let received = Arc::<Received>::default();
        let router = Router::new()
            .route("/v1/traces", post(traces))
            .route("/v1/metrics", post(metrics))
            .layer(DefaultBodyLimit::max(64 << 20))
            .with_state(Arc::clone(&received));
        let task = tokio::spawn(async move {
            // It ends only when this task is aborted.
            let _ = axum::serve(listener, router).await;
            Ok(())
        });
        Ok(Self { received, endpoint, task })
    }

    /// Returns its address.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Refuses the next `requests` requests, as a busy collector does.
    pub fn turn_away(&self, requests: usize) {
        self.received.busy.store(requests, Ordering::Release);
    }

    /// Returns the spans of a service so far.
    #[must_use]
    pub fn spans(&self, service: &str) -> Vec<Span> {
        let spans = lock(&self.received.spans);
        spans.iter().filter(|(name, _)| name == service).map(|(_, span)| span.clone()).collect()
    }

    /// Returns the metrics so far.
    #[must_use]
    pub fn metrics(&self) -> Vec<Metric> {
        lock(&self.received.metrics).clone()
    }

    /// Returns the header `authorization` of the last request that had one.
    #[must_use]
    pub fn authorization(&self) -> Option<String> {
        lock(&self.received.authorization).clone()
    }

    /// Returns whether any request contained these bytes.
    #[must_use]
    pub fn has_seen(&self, bytes: &[u8]) -> bool {
        let bodies = lock(&self.received.bodies);
        bodies.iter().any(|body| body.windows(bytes.len()).any(|window| window == bytes))
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}
