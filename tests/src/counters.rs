//! The metrics that the components of a test binary report.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use message::{Metric, MetricKind};
use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Label, Metadata, Recorder, SharedString, Unit,
};

/// Counters, gauges and histograms. All tests of a binary share the
/// [installed](Counters::installed) one, so query it with labels that only this test uses, or for
/// growth. For a separate instance, use [`metrics::with_local_recorder`].
#[derive(Clone, Default)]
pub struct Counters {
    counters: Registered,
    gauges: Registered,
    histograms: Registered,
    described: Arc<Mutex<BTreeMap<String, Kind>>>,
}

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A count that only grows.
    Counter,
    /// A present value.
    Gauge,
    /// Records samples.
    Histogram,
}

/// A metric that a value was reported for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Emitted {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// The names of its labels, in order.
    pub labels: Vec<String>,
}

/// Returns the rows of a table of metrics.
fn documented(table: &[Metric]) -> BTreeSet<Emitted> {
    let row = |metric: &Metric| Emitted {
        name: metric.name.to_owned(),
        kind: match metric.kind {
            MetricKind::Counter => Kind::Counter,
            MetricKind::Gauge => Kind::Gauge,
            MetricKind::Histogram => Kind::Histogram,
        },
        labels: metric.labels.iter().map(|label| (*label).to_owned()).collect(),
    };
    table.iter().map(row).collect()
}

/// Counts the samples of a histogram.
struct Samples(Arc<AtomicU64>);

impl HistogramFn for Samples {
    fn record(&self, _: f64) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

type Registered = Arc<Mutex<HashMap<Key, Arc<AtomicU64>>>>;

fn registered(registered: &Registered, key: &Key) -> Arc<AtomicU64> {
    let mut registered = registered.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(registered.entry(key.clone()).or_default())
}

/// Returns the value, 0 if nothing was reported, and does not register the metric.
fn read(registered: &Registered, name: &'static str, labels: &[(&'static str, &str)]) -> u64 {
    let registered = registered.lock().unwrap_or_else(PoisonError::into_inner);
    registered.get(&key(name, labels)).map_or(0, |value| value.load(Ordering::Relaxed))
}

fn key(name: &'static str, labels: &[(&'static str, &str)]) -> Key {
    let label = |(name, value): &(&'static str, &str)| Label::new(*name, (*value).to_owned());
    Key::from_parts(name, labels.iter().map(label).collect::<Vec<_>>())
}

static INSTALLED: LazyLock<Counters> = LazyLock::new(|| {
    let counters = Counters::default();
    // If the binary itself has installed another recorder, nothing is counted here, and every test
    // that asks fails.
    drop(metrics::set_global_recorder(counters.clone()));
    counters
});

impl Counters {
    /// Returns the counters of this process, which counts from the first call on.
    #[must_use]
    pub fn installed() -> &'static Self {
        &INSTALLED
    }

    /// Returns the count under a name and labels.
    #[must_use]
    pub fn value(&self, name: &'static str, labels: &[(&'static str, &str)]) -> u64 {
        read(&self.counters, name, labels)
    }

    /// Returns the value of a gauge under a name and labels.
    #[must_use]
    pub fn gauge(&self, name: &'static str, labels: &[(&'static str, &str)]) -> f64 {
        f64::from_bits(read(&self.gauges, name, labels))
    }

    /// Returns how many samples a histogram recorded under a name and labels.
    #[must_use]
    pub fn samples(&self, name: &'static str, labels: &[(&'static str, &str)]) -> u64 {
        read(&self.histograms, name, labels)
    }

    /// Returns the metrics that were described, with their kinds.
    #[must_use]
    pub fn described(&self) -> BTreeMap<String, Kind> {
        self.described.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the metrics that were emitted, whatever the values of their labels.
    #[must_use]
    pub fn emitted(&self) -> BTreeSet<Emitted> {
        let kinds = [
            (Kind::Counter, &self.counters),
            (Kind::Gauge, &self.gauges),
            (Kind::Histogram, &self.histograms),
        ];
        let mut emitted = BTreeSet::new();
        for (kind, registered) in kinds {
            for key in registered.lock().unwrap_or_else(PoisonError::into_inner).keys() {
                let labels = key.labels().map(|label| label.key().to_owned()).collect();
                emitted.insert(Emitted { name: key.name().to_owned(), kind, labels });
            }
        }
        emitted
    }

    /// Asserts that three sets of metrics are equal: the rows of the table, its descriptions, and
    /// the emitted metrics. Only names that begin with `prefix` count.
    ///
    /// # Panics
    /// The sets differ.
    pub fn assert_all_emitted(&self, table: &[Metric], prefix: &str, describe: fn()) {
        self.assert_emitted_but(&[], table, prefix, describe);
    }

    /// As [`Counters::assert_all_emitted`], but metrics with the names `slow` may be missing,
    /// because they are recorded only after a long time.
    ///
    /// # Panics
    /// The sets differ.
    pub fn assert_emitted_but(&self, slow: &[&str], table: &[Metric], prefix: &str, describe: fn()) {
        let is_quick = |metric: &Emitted| !slow.contains(&metric.name.as_str());
        let quick = |metrics: BTreeSet<Emitted>| -> BTreeSet<Emitted> {
            metrics.into_iter().filter(is_quick).collect()
        };
        let of_prefix = |metrics: BTreeSet<Emitted>| -> BTreeSet<Emitted> {
            metrics.into_iter().filter(|metric| metric.name.starts_with(prefix)).collect()
        };
        let documented = of_prefix(documented(table));
        assert!(!documented.is_empty(), "no table of metrics");
        let described = Self::default();
        metrics::with_local_recorder(&described, describe);
        let described = described.described().into_iter().filter(|(name, _)| name.starts_with(prefix));
        let named = documented.iter().map(|metric| (metric.name.clone(), metric.kind));
        assert_eq!(described.collect::<BTreeMap<_, _>>(), named.collect(), "described, and in the table");
        assert_eq!(quick(of_prefix(self.emitted())), quick(documented), "emitted, and in the table");
    }

    fn describe(&self, name: &KeyName, kind: Kind) {
        let mut described = self.described.lock().unwrap_or_else(PoisonError::into_inner);
        described.insert(name.as_str().to_owned(), kind);
    }
}

impl Recorder for Counters {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe(&name, Kind::Counter);
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe(&name, Kind::Gauge);
    }

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe(&name, Kind::Histogram);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(registered(&self.counters, key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(registered(&self.gauges, key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(Samples(registered(&self.histograms, key))))
    }
}
