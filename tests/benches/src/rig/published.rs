//! Counts the messages that the relay reports as published. It is the smallest possible metrics
//! recorder, unless a turn measures the whole one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use metrics::{Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

use super::{Recording, reach};

/// The relay's counter of confirmed messages.
#[derive(Clone)]
pub(crate) struct Published {
    count: Arc<AtomicU64>,
    recording: Recording,
}

/// A counter that counts here and in the whole recorder.
struct Twice {
    here: Arc<AtomicU64>,
    recorded: Counter,
}

impl CounterFn for Twice {
    fn increment(&self, value: u64) {
        self.here.fetch_add(value, Ordering::Relaxed);
        self.recorded.increment(value);
    }

    fn absolute(&self, value: u64) {
        self.recorded.absolute(value);
    }
}

struct OnlyPublished(Published);

impl Published {
    /// Installs the recorder for this process.
    pub(crate) fn install() -> Result<Self, crate::Failure> {
        let published = Self { count: Arc::default(), recording: Recording::new()? };
        metrics::set_global_recorder(OnlyPublished(published.clone())).map_err(|error| error.to_string())?;
        Ok(published)
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns the whole recorder, for turns that measure it.
    pub(crate) fn recording(&self) -> &Recording {
        &self.recording
    }

    /// Waits until `target` messages are confirmed.
    ///
    /// Fails if nothing has been confirmed for `patience`.
    pub(crate) async fn reach(&self, target: u64, patience: Duration) -> Result<(), crate::Failure> {
        reach(target, patience, Duration::from_millis(1), async || Ok(self.count())).await
    }
}

impl Recorder for OnlyPublished {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        let recorder = self.0.recording.recorder();
        let recorded = recorder.map(|recorder| recorder.register_counter(key, metadata));
        let here = Arc::clone(&self.0.count);
        match (key.name(), recorded) {
            ("relay_published_total", None) => Counter::from_arc(here),
            ("relay_published_total", Some(recorded)) => {
                Counter::from_arc(Arc::new(Twice { here, recorded }))
            }
            (_, recorded) => recorded.unwrap_or_else(Counter::noop),
        }
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        let recorder = self.0.recording.recorder();
        recorder.map_or_else(Gauge::noop, |recorder| recorder.register_gauge(key, metadata))
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        let recorder = self.0.recording.recorder();
        recorder.map_or_else(Histogram::noop, |recorder| recorder.register_histogram(key, metadata))
    }
}
