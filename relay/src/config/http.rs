//! The section `[http]`: the endpoint of metrics and health.

use std::net::SocketAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::problems::Problems;
use engine::monitor::INTERVAL_DEFAULT;
use engine::telemetry::TOPICS_MAX_DEFAULT;
use operate::units::Time;

/// The section as written in the file.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HttpSection {
    listen: Option<String>,
    topics_max: Option<usize>,
    poll_interval: Option<Time>,
    unready_after: Option<Time>,
}

/// The endpoint of metrics and health.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Http {
    /// The address; without one, nothing is served.
    pub(crate) listen: Option<SocketAddr>,
    /// Maximum number of topics of a pipeline with their own metrics. The others share the label
    /// `other`.
    pub(crate) topics_max: usize,
    /// Interval of the database queries for metrics.
    pub(crate) poll_interval: Duration,
    /// How long the database may be away before the process is not ready.
    pub(crate) unready_after: Duration,
}

const SECOND: Duration = Duration::from_secs(1);
/// With more series, Prometheus sooner or later refuses the response.
const TOPICS_MAX: usize = 10_000;
const POLL_MAX: Duration = Duration::from_secs(600);
const UNREADY_MAX: Duration = Duration::from_secs(3_600);
/// Longer than an ordinary failover.
const UNREADY_DEFAULT: Duration = Duration::from_secs(30);

impl Http {
    pub(super) fn check(section: HttpSection, problems: &mut Problems) -> Self {
        let listen = section.listen.and_then(|text| match text.parse() {
            Ok(address) => Some(address),
            Err(_) => {
                let help = "write an IP address and a port, for example \"127.0.0.1:9464\" or \"[::1]:9464\"";
                problems.add(String::from("http.listen"), format!("{text:?} is not an address"), Some(help));
                None
            }
        });
        if listen.is_some() && cfg!(not(feature = "metrics-endpoint")) {
            let help = "build the relay with the feature `metrics-endpoint`, or remove the setting";
            let message = "this relay was built without metrics and health";
            problems.add(String::from("http.listen"), message, Some(help));
        }
        let topics_max = section.topics_max.unwrap_or(TOPICS_MAX_DEFAULT);
        if topics_max > TOPICS_MAX {
            let message = format!("{topics_max} is outside 0 to {TOPICS_MAX}");
            problems.add(String::from("http.topics_max"), message, None);
        }
        let mut time = |name: &str, given: Option<Time>, default: Duration, max: Duration| {
            let time = given.map_or(default, |Time(time)| time);
            if !(SECOND..=max).contains(&time) {
                let message = format!("{} is outside {} to {}", Time(time), Time(SECOND), Time(max));
                problems.add(format!("http.{name}"), message, None);
            }
            time
        };
        let poll_interval = time("poll_interval", section.poll_interval, INTERVAL_DEFAULT, POLL_MAX);
        let unready_after = time("unready_after", section.unready_after, UNREADY_DEFAULT, UNREADY_MAX);
        Self { listen, topics_max, poll_interval, unready_after }
    }
}
