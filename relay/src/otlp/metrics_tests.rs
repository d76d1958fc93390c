//! Parses text that the recorder renders, instead of text written for the test.

use std::time::{Duration, UNIX_EPOCH};

use metrics::{counter, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use opentelemetry_proto::tonic::common::v1::any_value;

use super::*;

const HOSTILE: &str = "a\"} 1\nb{c=\"d\"} 1 \\";

fn parsed(record: impl FnOnce()) -> Vec<Metric> {
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix(String::from("_seconds")), &[0.1, 1.0])
        .unwrap()
        .build_recorder();
    metrics::with_local_recorder(&recorder, record);
    recorder.handle().run_upkeep();
    let text = recorder.handle().render();
    parse(&text, UNIX_EPOCH + Duration::from_secs(1), UNIX_EPOCH + Duration::from_secs(2))
}

fn value(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|one| one.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        any_value::Value::StringValue(text) => Some(text.clone()),
        _ => None,
    }
}

#[test]
fn counters_gauges_and_histograms_are_read_back() {
    let metrics = parsed(|| {
        metrics::describe_counter!("relay_read_total", "entries \\ read");
        counter!("relay_read_total", "relay" => "orders", "topic" => HOSTILE).increment(7);
        gauge!("relay_window_bytes", "relay" => "orders").set(1.5);
        gauge!("inbox_lag_messages", "consumer" => "gone").set(f64::NAN);
        for seconds in [0.05, 0.5, 0.5, 7.0] {
            histogram!("relay_publish_seconds", "relay" => "orders").record(seconds);
        }
    });
    let [publish, read, window] = &metrics[..] else { panic!("{metrics:?}") };
    assert_eq!((read.name.as_str(), read.description.as_str()), ("relay_read_total", "entries \\ read"));
    let Some(Data::Sum(sum)) = &read.data else { panic!("a sum") };
    let [point] = &sum.data_points[..] else { panic!("one series") };
    assert!(sum.is_monotonic && point.value == Some(Value::AsDouble(7.0)), "{point:?}");
    assert_eq!(value(&point.attributes, "topic").as_deref(), Some(HOSTILE));
    assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (1_000_000_000, 2_000_000_000));

    let Some(Data::Gauge(gauge)) = &window.data else { panic!("a gauge") };
    assert!(window.unit == "By" && gauge.data_points[0].value == Some(Value::AsDouble(1.5)));

    let Some(Data::Histogram(histogram)) = &publish.data else { panic!("a histogram") };
    let [point] = &histogram.data_points[..] else { panic!("one series") };
    assert_eq!((point.count, point.sum, publish.unit.as_str()), (4, Some(8.05), "s"));
    assert_eq!((&point.explicit_bounds[..], &point.bucket_counts[..]), (&[0.1, 1.0][..], &[1, 2, 1][..]));
    assert_eq!(value(&point.attributes, "relay").as_deref(), Some("orders"));
}

#[test]
fn a_text_of_another_form_is_left_out() {
    for text in ["", "a", "a{", "a{b=\"c", "# TYPE a gauge\na{b=\"c\"} x", "# TYPE a gauge\na 1 2 3", "a 1"] {
        assert!(parse(text, UNIX_EPOCH, UNIX_EPOCH).is_empty(), "{text:?}");
    }
}
