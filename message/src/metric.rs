//! [`Metric`]: one row of a table of metrics. Each crate has its own table; a test compares all of
//! them with the operators' document.

crate::words! {
    /// The type of a metric in Prometheus.
    pub enum MetricKind {
        /// Only rises, until the process restarts; its name ends in `_total`.
        Counter = "counter",
        /// Rises and falls.
        Gauge = "gauge",
        /// Counts observations in buckets.
        Histogram = "histogram",
    }
}

/// One metric: its name, its labels, its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// The name, in base units: `_seconds`, `_bytes`, `_total` for counters.
    pub name: &'static str,
    /// The type.
    pub kind: MetricKind,
    /// The labels of every series, in the order of the document.
    pub labels: &'static [&'static str],
    /// The meaning, in one line.
    pub text: &'static str,
}

impl Metric {
    /// Makes a counter.
    #[must_use]
    pub const fn counter(name: &'static str, labels: &'static [&'static str], text: &'static str) -> Self {
        Self { name, kind: MetricKind::Counter, labels, text }
    }

    /// Makes a gauge.
    #[must_use]
    pub const fn gauge(name: &'static str, labels: &'static [&'static str], text: &'static str) -> Self {
        Self { name, kind: MetricKind::Gauge, labels, text }
    }

    /// Makes a histogram.
    #[must_use]
    pub const fn histogram(name: &'static str, labels: &'static [&'static str], text: &'static str) -> Self {
        Self { name, kind: MetricKind::Histogram, labels, text }
    }

    /// Returns the row of the document's table.
    #[must_use]
    pub fn row(&self) -> String {
        let labels = match self.labels {
            [] => String::from("–"),
            labels => labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", "),
        };
        format!("| `{}` | {} | {labels} | {} |", self.name, self.kind.as_str(), self.text)
    }
}

/// Registers the descriptions of a table of metrics, in a crate that depends on `metrics`.
#[doc(hidden)]
#[macro_export]
macro_rules! describe_metrics {
    ($table:expr) => {
        for metric in $table {
            match metric.kind {
                $crate::MetricKind::Counter => metrics::describe_counter!(metric.name, metric.text),
                $crate::MetricKind::Gauge => metrics::describe_gauge!(metric.name, metric.text),
                $crate::MetricKind::Histogram => metrics::describe_histogram!(metric.name, metric.text),
            }
        }
    };
}
