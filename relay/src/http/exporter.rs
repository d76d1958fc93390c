//! The recorder of metrics, and the text of a scrape.

use std::time::Duration;

use hyper::body::Bytes;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::sync::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// The upper bounds of the buckets of every histogram of seconds.
pub(super) const BUCKETS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0];

/// Maximum age of the text of a scrape. Scrapers, however many, cause at most two renderings per
/// second.
const RENDERED_FOR: Duration = Duration::from_millis(500);
/// Interval at which samples of histograms move into their buckets. Until then each takes 16 bytes.
const UPKEEP: Duration = Duration::from_secs(1);

/// Every metric of the process, in the format of Prometheus.
pub(crate) struct Exporter {
    handle: PrometheusHandle,
    rendered: Mutex<Option<(Instant, Bytes)>>,
}

impl Exporter {
    /// Installs this as the recorder of the process, and registers every description.
    ///
    /// # Errors
    /// The process already has a recorder, or a bucket cannot be used; the text names the cause.
    pub(crate) fn install() -> Result<Self, String> {
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix(String::from("_seconds")), &BUCKETS)
            .map_err(|error| error.to_string())?
            .build_recorder();
        let handle = recorder.handle();
        metrics::set_global_recorder(recorder).map_err(|error| error.to_string())?;
        engine::telemetry::describe();
        Ok(Self { handle, rendered: Mutex::new(None) })
    }

    /// Keeps the memory of histograms small, until dropped.
    pub(crate) async fn keep(&self) {
        let mut tick = interval(UPKEEP);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.handle.run_upkeep();
        }
    }

    /// Returns the text of a scrape, at most half a second old.
    pub(crate) async fn text(&self) -> Bytes {
        let mut rendered = self.rendered.lock().await;
        match &*rendered {
            Some((at, text)) if at.elapsed() < RENDERED_FOR => text.clone(),
            _ => {
                let text = Bytes::from(self.handle.render());
                *rendered = Some((Instant::now(), text.clone()));
                text
            }
        }
    }
}
