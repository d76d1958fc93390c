//! The metrics recorder of the relay program, enabled for some turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusRecorder};
use tokio::task::JoinHandle;

use crate::Failure;

/// The buckets of the relay program.
const BUCKETS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0];
/// How often samples are put into buckets, and the metrics scraped: as the program does, and ten
/// times as often as Prometheus would.
const UPKEEP: Duration = Duration::from_secs(1);

/// The recorder, and whether relays that start now record into it.
#[derive(Clone)]
pub(crate) struct Recording {
    recorder: Arc<PrometheusRecorder>,
    is_on: Arc<AtomicBool>,
}

/// A recorded turn. It ends when this is dropped.
pub(crate) struct Recorded {
    is_on: Arc<AtomicBool>,
    upkeep: JoinHandle<()>,
}

impl Recording {
    pub(super) fn new() -> Result<Self, Failure> {
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix(String::from("_seconds")), &BUCKETS)?
            .build_recorder();
        Ok(Self { recorder: Arc::new(recorder), is_on: Arc::default() })
    }

    /// Returns the recorder while it is enabled.
    pub(super) fn recorder(&self) -> Option<&PrometheusRecorder> {
        self.is_on.load(Ordering::Relaxed).then_some(&*self.recorder)
    }

    /// Records, runs upkeep and scrapes until the result is dropped.
    pub(crate) fn record(&self) -> Recorded {
        self.is_on.store(true, Ordering::Relaxed);
        let handle = self.recorder.handle();
        let upkeep = tokio::spawn(async move {
            let mut tick = tokio::time::interval(UPKEEP);
            loop {
                tick.tick().await;
                handle.run_upkeep();
                std::hint::black_box(handle.render());
            }
        });
        Recorded { is_on: Arc::clone(&self.is_on), upkeep }
    }

    /// Returns the number of messages that were recorded as published.
    pub(crate) fn published(&self) -> u64 {
        let text = self.recorder.handle().render();
        let values =
            text.lines().filter_map(|line| line.strip_prefix("relay_published_total{")?.rsplit_once(' '));
        values.filter_map(|(_, value)| value.parse::<u64>().ok()).sum()
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        self.is_on.store(false, Ordering::Relaxed);
        self.upkeep.abort();
    }
}
