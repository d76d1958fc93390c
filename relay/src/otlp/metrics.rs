//! Converts the text of a scrape into OpenTelemetry metrics.
//!
//! The process has one recorder, so a message is counted once regardless of the readers, and both
//! readers see the same names and values. The parser reads only that recorder's text: lines in
//! another form are ignored.

use std::collections::BTreeMap;
use std::time::SystemTime;

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum,
};

use super::resource::text;
use super::spans::nanos;

/// Suffixes of the parts of a histogram.
const PARTS: [&str; 3] = ["_bucket", "_sum", "_count"];

type Labels<'a> = Vec<(&'a str, String)>;

/// The lines of one metric.
#[derive(Default)]
struct Family<'a> {
    kind: &'a str,
    help: String,
    samples: Vec<(&'a str, Labels<'a>, f64)>,
}

/// The parts of one histogram series.
#[derive(Default)]
struct Series {
    /// Upper bounds with the number of samples that do not exceed them.
    buckets: Vec<(f64, u64)>,
    sum: f64,
    count: u64,
}

/// Nanoseconds since 1970.
#[derive(Clone, Copy)]
struct Times {
    /// When counting began; 0 for a value that is not a count.
    started: u64,
    now: u64,
}

/// Parses the metrics of a text. Counters and histograms began at `started`.
pub(super) fn parse(text: &str, started: SystemTime, now: SystemTime) -> Vec<Metric> {
    let times = Times { started: nanos(started), now: nanos(now) };
    let mut families: BTreeMap<&str, Family<'_>> = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            families.entry(name).or_default().help = unescaped(help);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            families.entry(name).or_default().kind = kind;
        } else if let Some((name, labels, value)) = sample(line) {
            let of_histogram = PARTS.iter().find_map(|part| {
                let whole = name.strip_suffix(part)?;
                families.get(whole).filter(|family| family.kind == "histogram").map(|_| whole)
            });
            if let Some(family) = families.get_mut(of_histogram.unwrap_or(name)) {
                family.samples.push((name, labels, value));
            }
        }
    }
    families.into_iter().filter_map(|(name, family)| metric(name, family, times)).collect()
}

fn metric(name: &str, family: Family<'_>, times: Times) -> Option<Metric> {
    let temporality = AggregationTemporality::Cumulative.into();
    let data = match family.kind {
        "counter" => Data::Sum(Sum {
            data_points: numbers(family.samples, times),
            aggregation_temporality: temporality,
            is_monotonic: true,
        }),
        // A gauge with an unknown value is omitted.
        "gauge" => Data::Gauge(Gauge { data_points: numbers(family.samples, Times { started: 0, ..times }) }),
        "histogram" => Data::Histogram(Histogram {
            data_points: histograms(name, family.samples, times),
            aggregation_temporality: temporality,
        }),
        _ => return None,
    };
    let is_empty = match &data {
        Data::Sum(sum) => sum.data_points.is_empty(),
        Data::Gauge(gauge) => gauge.data_points.is_empty(),
        Data::Histogram(histogram) => histogram.data_points.is_empty(),
        _ => true,
    };
    let unit = match name.trim_end_matches("_total") {
        name if name.ends_with("_seconds") => "s",
        name if name.ends_with("_bytes") => "By",
        _ => "1",
    };
    (!is_empty).then(|| Metric {
        name: name.to_owned(),
        description: family.help,
        unit: unit.to_owned(),
        data: Some(data),
        ..Metric::default()
    })
}

fn numbers(samples: Vec<(&str, Labels<'_>, f64)>, times: Times) -> Vec<NumberDataPoint> {
    let known = samples.into_iter().filter(|(.., value)| value.is_finite());
    let points = known.map(|(_, labels, value)| NumberDataPoint {
        attributes: attributes(labels),
        start_time_unix_nano: times.started,
        time_unix_nano: times.now,
        value: Some(Value::AsDouble(value)),
        ..NumberDataPoint::default()
    });
    points.collect()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts, written as whole numbers"
)]
fn histograms(name: &str, samples: Vec<(&str, Labels<'_>, f64)>, times: Times) -> Vec<HistogramDataPoint> {
    let mut series: BTreeMap<Labels<'_>, Series> = BTreeMap::new();
    for (part, mut labels, value) in samples {
        let bound = labels.iter().position(|(label, _)| *label == "le").map(|at| labels.remove(at).1);
        let series = series.entry(labels).or_default();
        match (part.strip_prefix(name), bound) {
            (Some("_sum"), None) => series.sum = value,
            (Some("_count"), None) => series.count = value as u64,
            (Some("_bucket"), Some(bound)) => {
                // The last bucket has no bound and equals the count.
                if let Some(bound) = bound.parse::<f64>().ok().filter(|bound| bound.is_finite()) {
                    series.buckets.push((bound, value as u64));
                }
            }
            _ => {}
        }
    }
    let points = series.into_iter().map(|(labels, mut series)| {
        series.buckets.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let mut below = 0;
        let mut bucket_counts = Vec::with_capacity(series.buckets.len() + 1);
        for (_, up_to) in &series.buckets {
            bucket_counts.push(up_to.saturating_sub(below));
            below = *up_to;
        }
        bucket_counts.push(series.count.saturating_sub(below));
        HistogramDataPoint {
            attributes: attributes(labels),
            start_time_unix_nano: times.started,
            time_unix_nano: times.now,
            // The sum of the buckets, so that a text rendered during updates is consistent.
            count: bucket_counts.iter().sum(),
            sum: Some(series.sum),
            bucket_counts,
            explicit_bounds: series.buckets.iter().map(|(bound, _)| *bound).collect(),
            ..HistogramDataPoint::default()
        }
    });
    points.collect()
}

fn attributes(labels: Labels<'_>) -> Vec<KeyValue> {
    labels.into_iter().map(|(name, value)| text(name, value)).collect()
}

/// Splits a line into name, labels and value.
fn sample(line: &str) -> Option<(&str, Labels<'_>, f64)> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (label, behind) = rest.split_once("=\"")?;
            let end = closing_quote(behind)?;
            labels.push((label, unescaped(&behind[..end])));
            rest = behind[end + 1..].trim_start_matches(',');
        }
        rest = &rest[1..];
    }
    Some((name, labels, rest.trim().parse().ok()?))
}

/// Returns the position of the first unescaped quote.
fn closing_quote(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.bytes().position(|byte| {
        let closes = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        closes
    })
}

fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match (c, c == '\\') {
            (_, true) => match rest.next() {
                Some('n') => out.push('\n'),
                Some(other) => out.push(other),
                None => out.push(c),
            },
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
