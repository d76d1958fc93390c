//! The documents for operators: the tables of metrics are those of the crates, alert rules and
//! dashboard use no other metric, and each printed command is one of the relay. And the
//! [`packaging`]: it fits the relay that it carries.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod documented_commands;
mod labels;
mod packaging;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use message::{Metric, MetricKind};
use serde_json::Value;

/// The file of promtool, when it is not in the search path.
const PROMTOOL: &str = "OUTBOX_PROMTOOL";
/// With the value `all`, what cannot be tested fails.
const REQUIRE: &str = "OUTBOX_REQUIRE";

fn folder() -> PathBuf {
    PathBuf::from("../docs/operations")
}

fn text(file: &str) -> String {
    std::fs::read_to_string(folder().join(file)).unwrap()
}

fn tables() -> [&'static [Metric]; 5] {
    [
        engine::telemetry::METRICS,
        outbox::telemetry::METRICS,
        inbox::telemetry::METRICS,
        idempotency::telemetry::METRICS,
        saga::telemetry::METRICS,
    ]
}

/// Every name under which a metric is found in Prometheus.
fn names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for metric in tables().into_iter().flatten() {
        match metric.kind {
            MetricKind::Histogram => {
                names.extend(["bucket", "sum", "count"].map(|end| format!("{}_{end}", metric.name)));
            }
            MetricKind::Counter | MetricKind::Gauge => _ = names.insert(metric.name.to_owned()),
        }
    }
    names
}

/// The words of a text that could be a metric of ours.
fn mentioned(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| {
            ["outbox_", "relay_", "inbox_", "idempotency_", "saga_"]
                .iter()
                .any(|prefix| word.starts_with(prefix))
        })
        .collect()
}

#[test]
fn the_document_has_the_rows_of_the_tables_and_no_others() {
    let document = text("metrics.md");
    let found: Vec<&str> = document.lines().filter(|line| line.starts_with("| `")).collect();
    let expected: Vec<String> = tables().into_iter().flatten().map(Metric::row).collect();
    for row in &expected {
        assert!(found.contains(&row.as_str()), "docs/operations/metrics.md lacks this row:\n{row}");
    }
    assert_eq!(found, expected, "the rows stand in the order of the tables, and there are no others");
}

#[test]
fn names_and_units_follow_the_conventions_of_prometheus() {
    let mut seen = BTreeSet::new();
    for metric in tables().into_iter().flatten() {
        let name = metric.name;
        assert!(seen.insert(name), "{name} stands twice");
        assert_eq!(name.ends_with("_total"), metric.kind == MetricKind::Counter, "{name}");
        assert!(metric.kind != MetricKind::Histogram || name.ends_with("_seconds"), "{name}");
        assert!(["_ms", "_millis", "_kb", "_minutes"].iter().all(|unit| !name.ends_with(unit)), "{name}");
        let reserved = ["le", "quantile", "instance", "job"];
        assert!(metric.labels.iter().all(|label| !reserved.contains(label)), "{name}");
    }
}

#[test]
fn alerts_and_their_tests_use_only_metrics_of_the_tables() {
    let names = names();
    for file in ["alerts.yml", "alerts.test.yml"] {
        let text = text(file);
        let used = mentioned(&text);
        assert!(used.len() >= 10, "{file} is nearly empty");
        for name in used {
            assert!(names.contains(name), "{file}: {name} is in no table");
        }
    }
    let (rules, tests) = (text("alerts.yml"), text("alerts.test.yml"));
    for alert in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(tests.contains(&format!("alertname: {alert}\n")), "alerts.test.yml does not test {alert}");
    }
}

#[test]
fn the_dashboard_is_sound_and_uses_only_metrics_of_the_tables() {
    let dashboard: Value = serde_json::from_str(&text("dashboard.json")).unwrap();
    for key in ["title", "uid", "schemaVersion", "panels", "templating", "time"] {
        assert!(!dashboard[key].is_null(), "{key} is missing");
    }
    let names = names();
    let (mut ids, mut queries) = (BTreeSet::new(), 0);
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its id is another one's");
        let place = &panel["gridPos"];
        let (x, w) = (place["x"].as_u64().unwrap(), place["w"].as_u64().unwrap());
        assert!(place["y"].is_u64() && place["h"].is_u64() && x + w <= 24, "{title}: {place}");
        if panel["type"] == "row" {
            continue;
        }
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title} shows nothing");
        for target in targets {
            let query = target["expr"].as_str().unwrap();
            let used = mentioned(query);
            assert!(!used.is_empty(), "{title}: {query}");
            used.iter().for_each(|name| assert!(names.contains(*name), "{title}: {name} is in no table"));
            assert_eq!(query.matches('(').count(), query.matches(')').count(), "{title}: {query}");
            queries += 1;
        }
    }
    assert!(queries >= 20, "{queries}");
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        let query = variable["query"].as_str().unwrap();
        mentioned(query).iter().for_each(|name| assert!(names.contains(*name), "{name} is in no table"));
    }
}

#[test]
fn promtool_accepts_the_alerts_and_their_tests_pass() {
    let promtool = std::env::var_os(PROMTOOL).unwrap_or_else(|| "promtool".into());
    for arguments in [["check", "rules", "alerts.yml"], ["test", "rules", "alerts.test.yml"]] {
        match Command::new(&promtool).args(arguments).current_dir(folder()).output() {
            Ok(output) => {
                let told = [output.stdout, output.stderr].concat();
                let told = String::from_utf8_lossy(&told);
                assert!(output.status.success() && told.contains("SUCCESS"), "{arguments:?}: {told}");
            }
            Err(error) => {
                let why = format!("{promtool:?}: {error}; install Debian's `prometheus`, or set {PROMTOOL}");
                assert!(std::env::var(REQUIRE).as_deref() != Ok("all"), "promtool is required: {why}");
                eprintln!("NOT TESTED: the alert rules were not given to promtool. {why}");
                return;
            }
        }
    }
}
