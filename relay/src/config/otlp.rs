//! The section `[otlp]`: the OpenTelemetry collector for traces and metrics.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use message::loopback::is_loopback;
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use super::problems::Problems;
use operate::units::Time;

/// The section as written in the file.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OtlpSection {
    /// The collector's address; `/v1/traces` and `/v1/metrics` are added to it.
    endpoint: Option<String>,
    /// The whole URL for traces, if it differs from the endpoint.
    traces_endpoint: Option<String>,
    /// The whole URL for metrics, if it differs from the endpoint.
    metrics_endpoint: Option<String>,
    /// Headers of every request, such as `authorization`.
    #[schemars(with = "Option<BTreeMap<String, String>>")]
    headers: Option<BTreeMap<String, SecretString>>,
    /// A file with headers: `name=value`, separated by commas or line breaks.
    headers_file: Option<PathBuf>,
    service_name: Option<String>,
    /// Further attributes of the resource, such as `deployment.environment.name`.
    #[serde(default)]
    resource: BTreeMap<String, String>,
    traces: Option<bool>,
    metrics: Option<bool>,
    /// The share of messages that get a span, 0 to 1.
    sampling: Option<f64>,
    metrics_interval: Option<Time>,
    timeout: Option<Time>,
    #[serde(default)]
    allow_plaintext: bool,
}

/// The collector of traces and metrics.
#[derive(Debug, Clone)]
#[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "without it, the section is refused"))]
pub(crate) struct Otlp {
    /// The URL for traces; without one, none are sent.
    pub(crate) traces: Option<String>,
    /// The URL for metrics; without one, none are sent.
    pub(crate) metrics: Option<String>,
    /// The headers of every request.
    pub(crate) headers: OtlpHeaders,
    /// The name of the service: `service.name`.
    pub(crate) service_name: String,
    /// Further attributes of the resource.
    pub(crate) resource: BTreeMap<String, String>,
    /// The share of messages that get a span.
    pub(crate) sampling: f64,
    /// Interval at which metrics are sent.
    pub(crate) metrics_interval: Duration,
    /// Timeout of one request.
    pub(crate) timeout: Duration,
}

/// The headers of every request to a collector; their values are secrets.
#[derive(Debug, Clone)]
#[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "without it, the section is refused"))]
pub(crate) enum OtlpHeaders {
    /// The headers in the configuration.
    Given(BTreeMap<String, SecretString>),
    /// A file that is read for every request, so that a rotated secret takes effect.
    File(PathBuf),
}

const SERVICE_NAME_DEFAULT: &str = "outbox-relay";
/// OpenTelemetry's defaults for both.
const INTERVAL_DEFAULT: Duration = Duration::from_secs(60);
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
const INTERVAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3_600));
const TIMEOUT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));

impl Otlp {
    /// Returns `None` without the section.
    pub(super) fn check(section: Option<OtlpSection>, problems: &mut Problems) -> Option<Self> {
        let section = section?;
        if cfg!(not(feature = "otlp")) {
            let help = "build the relay with the feature `otlp`, or remove the section";
            let message = "this relay was built without OpenTelemetry export";
            problems.add(String::from("otlp"), message, Some(help));
            return None;
        }
        let service_name = section.service_name.unwrap_or_else(|| String::from(SERVICE_NAME_DEFAULT));
        if service_name.trim().is_empty() {
            problems.add(String::from("otlp.service_name"), "is empty", Some("remove it to use the default"));
        }
        let sampling = section.sampling.unwrap_or(1.0);
        if !(0.0..=1.0).contains(&sampling) {
            problems.add(String::from("otlp.sampling"), format!("{sampling} is outside 0 to 1"), None);
        }
        let mut time = |name: &str, given: Option<Time>, default: Duration, (min, max)| {
            let time = given.map_or(default, |Time(time)| time);
            if !(min..=max).contains(&time) {
                let message = format!("{} is outside {} to {}", Time(time), Time(min), Time(max));
                problems.add(format!("otlp.{name}"), message, None);
            }
            time
        };
        let metrics_interval = time("metrics_interval", section.metrics_interval, INTERVAL_DEFAULT, INTERVAL);
        let timeout = time("timeout", section.timeout, TIMEOUT_DEFAULT, TIMEOUT);
        let headers = headers(section.headers, section.headers_file, problems);
        let plaintext = section.allow_plaintext;
        let mut url = |name: &str, text: &str| match check_url(text, plaintext) {
            Ok(()) => {}
            Err((problem, help)) => problems.add(format!("otlp.{name}"), problem, Some(help)),
        };
        let mut target = |wanted: Option<bool>, (name, own): (&str, Option<String>), path: &str| {
            if !wanted.unwrap_or(true) {
                return None;
            }
            match (own, &section.endpoint) {
                (Some(own), _) => {
                    url(name, &own);
                    Some(own)
                }
                (None, Some(base)) => Some(format!("{}{path}", base.trim_end_matches('/'))),
                (None, None) => None,
            }
        };
        let traces = target(section.traces, ("traces_endpoint", section.traces_endpoint), "/v1/traces");
        let metrics = target(section.metrics, ("metrics_endpoint", section.metrics_endpoint), "/v1/metrics");
        if let Some(endpoint) = &section.endpoint {
            url("endpoint", endpoint);
        }
        if traces.is_none() && metrics.is_none() {
            let help = "set endpoint, for example \"http://127.0.0.1:4318\", and enable traces or metrics; or remove the section";
            problems.add(String::from("otlp"), "nothing would be exported", Some(help));
        }
        let resource = section.resource;
        Some(Self { traces, metrics, headers, service_name, resource, sampling, metrics_interval, timeout })
    }
}

fn headers(
    given: Option<BTreeMap<String, SecretString>>,
    file: Option<PathBuf>,
    problems: &mut Problems,
) -> OtlpHeaders {
    match (given, file) {
        (Some(_), Some(_)) => {
            let message = "set headers or headers_file, not both";
            problems.add(String::from("otlp.headers"), message, None);
            OtlpHeaders::Given(BTreeMap::new())
        }
        (None, Some(file)) => OtlpHeaders::File(file),
        (given, None) => {
            let given = given.unwrap_or_default();
            for (name, value) in &given {
                if let Err(problem) = check_header(name, value.expose_secret()) {
                    problems.add(format!("otlp.headers.{name}"), problem, None);
                }
            }
            OtlpHeaders::Given(given)
        }
    }
}

/// Returns the problem of a header, without its value.
pub(crate) fn check_header(name: &str, value: &str) -> Result<(), &'static str> {
    let is_token = |c: u8| c.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&c);
    if name.is_empty() || !name.bytes().all(is_token) {
        return Err("is not a header name: use letters, digits, - and _");
    }
    if value.bytes().any(|c| !(c == b'\t' || (b' '..=b'~').contains(&c))) {
        return Err("its value has a character that is not allowed in a header");
    }
    Ok(())
}

fn check_url(text: &str, allow_plaintext: bool) -> Result<(), (String, &'static str)> {
    let help = "write http://<host>:<port> or https://<host>, for example \"http://127.0.0.1:4318\"";
    let Some((scheme @ ("http" | "https"), rest)) = text.split_once("://") else {
        return Err((String::from("is neither an http nor an https URL"), help));
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err((
            String::from("contains credentials"),
            "put them into otlp.headers or otlp.headers_file",
        ));
    }
    if rest.contains(['?', '#']) || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err((String::from("may only have host, port and path"), help));
    }
    // An IPv6 address is in brackets.
    let (host, port) = match authority.rfind(':') {
        Some(at) if !authority.ends_with(']') => (&authority[..at], Some(&authority[at + 1..])),
        _ => (authority, None),
    };
    if host.is_empty() || port.is_some_and(|port| port.parse::<u16>().is_err()) {
        return Err((String::from("has no host, or an invalid port"), help));
    }
    let host = host.trim_matches(['[', ']']);
    if scheme == "http" && !allow_plaintext && !is_loopback(host) {
        let problem = format!(
            "{host} is another machine, and ids, keys and headers would cross the network unencrypted"
        );
        return Err((problem, "use https, a collector on this machine, or allow_plaintext = true"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_one_of_a_collector_and_plaintext_stays_on_this_machine() {
        for good in
            ["http://127.0.0.1:4318", "http://[::1]:4318/a", "http://localhost", "https://otel.example/x"]
        {
            assert!(check_url(good, false).is_ok(), "{good}");
        }
        assert!(check_url("http://collector:4318", true).is_ok());
        for bad in [
            "",
            "collector:4318",
            "grpc://h",
            "http://",
            "http://h:x",
            "https://u:p@h",
            "https://h/?a",
            "https://h h",
        ] {
            let (problem, help) = check_url(bad, true).unwrap_err();
            assert!(!problem.contains("u:p") && !help.is_empty(), "{bad}: {problem}");
        }
        assert!(check_url("http://collector:4318", false).unwrap_err().0.contains("another machine"));
    }

    #[test]
    fn a_header_can_be_sent_as_it_is() {
        assert!(check_header("x-api-key", "a b=c").is_ok());
        for (name, value) in [("", "a"), ("a b", "c"), ("a", "b\r\nc: d"), ("a", "ü")] {
            assert!(check_header(name, value).is_err(), "{name:?} {value:?}");
        }
    }
}
