//! Requests to the collector.

use std::collections::BTreeMap;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{HeaderMap, Method, Request, StatusCode};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message as _;
use secrecy::ExposeSecret;

use crate::config::otel_env::parse_pairs;
use crate::config::otlp::check_header;
use crate::config::{Otlp, OtlpHeaders};

const PROTOBUF: HeaderValue = HeaderValue::from_static("application/x-protobuf");
const AGENT: HeaderValue = HeaderValue::from_static(concat!("outbox-relay/", env!("CARGO_PKG_VERSION")));
/// Maximum size of a response: one that is longer counts as empty.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Maximum number of attempts for one request; then its data is dropped.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(500);
/// Maximum pause: if the collector asks for more, the next attempt may fail and lose the data.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Sends requests, one at a time.
pub(super) struct Client {
    http: HyperClient<HttpsConnector<HttpConnector>, Full<Bytes>>,
    headers: OtlpHeaders,
    timeout: Duration,
}

/// The reason why a request failed.
enum Refused {
    /// It may be repeated, after this pause if the collector names one.
    ForNow(String, Option<Duration>),
    /// Repeating it changes nothing.
    ForGood(String),
}

impl Client {
    pub(super) fn new(config: &Otlp) -> Result<Self, String> {
        let connector = HttpsConnectorBuilder::new()
            .with_provider_and_native_roots(rustls::crypto::aws_lc_rs::default_provider())
            .map_err(|error| format!("cannot read the system's root certificates: {error}"))?
            .https_or_http()
            .enable_http1()
            .build();
        let http = HyperClient::builder(TokioExecutor::new()).build(connector);
        Ok(Self { http, headers: config.headers.clone(), timeout: config.timeout })
    }

    /// Sends a message to a URL, and repeats it while the collector is busy. Returns how many of
    /// its spans or data points the collector has rejected.
    ///
    /// # Errors
    /// The collector did not accept it; the text has the reason and no secret.
    pub(super) async fn send(&self, url: &str, message: Vec<u8>) -> Result<u64, String> {
        let body = Bytes::from(message);
        let mut tries = 0;
        loop {
            tries += 1;
            let sent = tokio::time::timeout(self.timeout, self.send_once(url, body.clone())).await;
            match sent.unwrap_or_else(|_| Err(Refused::ForNow(String::from("no answer in time"), None))) {
                Ok(rejected) => return Ok(rejected),
                Err(Refused::ForGood(reason)) => return Err(reason),
                Err(Refused::ForNow(reason, _)) if tries >= TRIES => return Err(reason),
                Err(Refused::ForNow(_, pause)) => {
                    tokio::time::sleep(pause.unwrap_or(PAUSE * tries).min(PAUSE_MAX)).await;
                }
            }
        }
    }

    async fn send_once(&self, url: &str, body: Bytes) -> Result<u64, Refused> {
        let mut request = Request::builder().method(Method::POST).uri(url).body(Full::new(body));
        let request = request.as_mut().map_err(|error| Refused::ForGood(error.to_string()))?;
        *request.headers_mut() = self.headers().await.map_err(Refused::ForGood)?;
        let answer = self.http.request(std::mem::take(request)).await;
        let answer = answer.map_err(|error| Refused::ForNow(with_causes(&error), None))?;
        let (status, pause) = (answer.status(), retry_after(answer.headers()));
        // Also read so that the connection can be reused. Its text is ignored: it may repeat a
        // secret.
        let content = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        match status {
            status if status.is_success() => Ok(content.map_or(0, |content| rejected(&content.to_bytes()))),
            // The statuses for which the protocol permits a repetition.
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => {
                Err(Refused::ForNow(format!("it responded with {status}"), pause))
            }
            status => Err(Refused::ForGood(format!("it responded with {status}"))),
        }
    }

    /// Returns the headers of a request. Reads a file each time, so that a rotated secret takes
    /// effect.
    async fn headers(&self) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::from_iter([(CONTENT_TYPE, PROTOBUF), (USER_AGENT, AGENT)]);
        let mut add = |name: &str, value: &str| {
            check_header(name, value).map_err(|problem| format!("the header {name:?}: {problem}"))?;
            let name = HeaderName::try_from(name).map_err(|error| error.to_string())?;
            let mut value = HeaderValue::try_from(value).map_err(|error| error.to_string())?;
            value.set_sensitive(true);
            headers.insert(name, value);
            Ok::<_, String>(())
        };
        match &self.headers {
            OtlpHeaders::Given(given) => {
                given.iter().try_for_each(|(name, value)| add(name, value.expose_secret()))?;
            }
            OtlpHeaders::File(path) => {
                let text = tokio::fs::read_to_string(path).await;
                let text = text.map_err(|error| format!("otlp.headers_file {}: {error}", path.display()))?;
                let pairs = parse_pairs(&text).map_err(|part| {
                    format!("otlp.headers_file {}: part {part} is not name=value", path.display())
                })?;
                let pairs: BTreeMap<String, String> = pairs.into_iter().collect();
                pairs.iter().try_for_each(|(name, value)| add(name, value))?;
            }
        }
        Ok(headers)
    }
}

/// Returns how many items of a request the collector has rejected. The response about metrics has
/// the same fields as that about traces.
fn rejected(content: &[u8]) -> u64 {
    let response = ExportTraceServiceResponse::decode(content).unwrap_or_default();
    response.partial_success.map_or(0, |partial| u64::try_from(partial.rejected_spans).unwrap_or(0))
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// Returns an error with its causes: the first text alone says only "client error".
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::metrics::v1::{
        ExportMetricsPartialSuccess, ExportMetricsServiceResponse,
    };
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTracePartialSuccess;

    use super::*;

    /// Goal: a file of headers is read for every request, so a replaced secret takes effect; what
    /// cannot be read is reported without the secret. Oracle: the headers and the errors.
    #[tokio::test]
    async fn a_file_of_headers_is_read_for_every_request() {
        let path = std::env::temp_dir().join(format!("{}-headers", uuid::Uuid::now_v7()));
        let client = Client::new(&Otlp {
            traces: None,
            metrics: None,
            headers: OtlpHeaders::File(path.clone()),
            service_name: String::new(),
            resource: BTreeMap::new(),
            sampling: 1.0,
            metrics_interval: Duration::ZERO,
            timeout: Duration::ZERO,
        });
        let client = client.unwrap();
        let missing = client.headers().await.unwrap_err();
        assert!(missing.starts_with("otlp.headers_file ") && missing.contains("-headers: "), "{missing}");
        for secret in ["first", "second"] {
            std::fs::write(&path, format!("api-key={secret}%20half, x-tenant=shop\n")).unwrap();
            let headers = client.headers().await.unwrap();
            assert_eq!(headers["api-key"], format!("{secret} half"));
            assert!(headers["api-key"].is_sensitive());
            assert_eq!(headers["x-tenant"], "shop");
            assert_eq!(headers[CONTENT_TYPE], PROTOBUF);
        }
        for (text, told) in
            [("x-tenant=shop\ns3cret", "part 2 is not name=value"), ("api key=s3cret", "\"api key\"")]
        {
            std::fs::write(&path, text).unwrap();
            let error = client.headers().await.unwrap_err();
            assert!(error.contains(told) && !error.contains("s3cret"), "{error}");
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn rejected_spans_and_data_points_are_counted() {
        let error_message = String::from("too old");
        let traces = ExportTracePartialSuccess { rejected_spans: 3, error_message: error_message.clone() };
        let traces = ExportTraceServiceResponse { partial_success: Some(traces) };
        assert_eq!(rejected(&traces.encode_to_vec()), 3);
        let metrics = ExportMetricsPartialSuccess { rejected_data_points: 4, error_message };
        let metrics = ExportMetricsServiceResponse { partial_success: Some(metrics) };
        assert_eq!(rejected(&metrics.encode_to_vec()), 4);
        for nothing in [&b""[..], &b"{\"partialSuccess\":{}}"[..]] {
            assert_eq!(rejected(nothing), 0);
        }
    }
}
