//! Counts what the relay reports as published: the smallest possible metrics recorder.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

use super::reach;

/// The relay's own counter of confirmed messages.
#[derive(Debug, Clone, Default)]
pub(crate) struct Published(Arc<AtomicU64>);

struct OnlyPublished(Published);

impl Published {
    /// Installs the recorder for this process.
    pub(crate) fn install() -> Result<Self, crate::Failure> {
        let published = Self::default();
        metrics::set_global_recorder(OnlyPublished(published.clone())).map_err(|error| error.to_string())?;
        Ok(published)
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Waits until `target` messages are confirmed.
    ///
    /// Fails when nothing has been confirmed for `patience`.
    pub(crate) async fn reach(&self, target: u64, patience: Duration) -> Result<(), crate::Failure> {
        reach(target, patience, Duration::from_millis(1), async || Ok(self.count())).await
    }
}

impl Recorder for OnlyPublished {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match key.name() {
            "relay_published_total" => Counter::from_arc(Arc::clone(&self.0.0)),
            _ => Counter::noop(),
        }
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
