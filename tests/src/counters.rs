//! What the components of a test binary have counted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Metadata, Recorder, SharedString, Unit};

/// The counters and gauges of this process. All tests of a binary count into the same ones: ask with labels of the test's own, or
/// for growth.
#[derive(Clone, Default)]
pub struct Counters {
    counters: Registered,
    gauges: Registered,
}

type Registered = Arc<Mutex<HashMap<Key, Arc<AtomicU64>>>>;

fn registered(registered: &Registered, key: &Key) -> Arc<AtomicU64> {
    let mut registered = registered.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(registered.entry(key.clone()).or_default())
}

fn key(name: &'static str, labels: &[(&'static str, &str)]) -> Key {
    let label = |(name, value): &(&'static str, &str)| Label::new(*name, (*value).to_owned());
    Key::from_parts(name, labels.iter().map(label).collect::<Vec<_>>())
}

static INSTALLED: LazyLock<Counters> = LazyLock::new(|| {
    let counters = Counters::default();
    // Another recorder in this process would have been installed by the binary itself: then nothing is counted here, and
    // every test that asks fails.
    drop(metrics::set_global_recorder(counters.clone()));
    counters
});

impl Counters {
    /// Those of this process, which counts from the first call on.
    #[must_use]
    pub fn installed() -> &'static Self {
        &INSTALLED
    }

    /// What was counted under a name and labels.
    #[must_use]
    pub fn value(&self, name: &'static str, labels: &[(&'static str, &str)]) -> u64 {
        registered(&self.counters, &key(name, labels)).load(Ordering::Relaxed)
    }

    /// What a gauge shows under a name and labels.
    #[must_use]
    pub fn gauge(&self, name: &'static str, labels: &[(&'static str, &str)]) -> f64 {
        f64::from_bits(registered(&self.gauges, &key(name, labels)).load(Ordering::Relaxed))
    }
}

impl Recorder for Counters {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(registered(&self.counters, key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(registered(&self.gauges, key))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
