//! The labels that alert rules, their tests and the dashboard use are those of the metrics' tables.
//! The suites compare the tables with what the programs emit, names of labels included.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use message::{Metric, MetricKind};
use serde_json::Value;

use super::{tables, text};

/// Labels that Prometheus adds to each series of a process.
const SCRAPED: [&str; 2] = ["instance", "job"];

/// The names under which metrics are found in Prometheus, with their labels.
type Labels = BTreeMap<String, BTreeSet<&'static str>>;

fn labels() -> Labels {
    let mut labels = Labels::new();
    for metric in tables().into_iter().flatten() {
        let of = |more: &[&'static str]| metric.labels.iter().chain(&SCRAPED).chain(more).copied().collect();
        match metric.kind {
            MetricKind::Histogram => {
                labels.insert(format!("{}_bucket", metric.name), of(&["le"]));
                labels.insert(format!("{}_sum", metric.name), of(&[]));
                labels.insert(format!("{}_count", metric.name), of(&[]));
            }
            MetricKind::Counter | MetricKind::Gauge => _ = labels.insert(metric.name.to_owned(), of(&[])),
        }
    }
    labels
}

/// A series that an expression selects.
#[derive(Debug, PartialEq)]
struct Selector<'e> {
    metric: &'e str,
    /// The names and values of the labels that it compares.
    labels: Vec<(&'e str, &'e str)>,
    /// Where its name begins.
    at: usize,
}

/// Splits `a="x", b=~"y"` into names and values.
fn compared(text: &str) -> Vec<(&str, &str)> {
    let pairs = text.split(',').filter(|pair| !pair.trim().is_empty());
    pairs
        .map(|pair| match pair.find(['=', '!']) {
            Some(at) => (pair[..at].trim(), pair[at..].trim_matches(['=', '!', '~', '"', ' '])),
            None => (pair.trim(), ""),
        })
        .collect()
}

/// Returns the words of an expression and where each begins.
fn words(expression: &str) -> Vec<(usize, &str)> {
    let is_between = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    let mut end = 0;
    let pieces = expression.split_inclusive(is_between).map(|piece| {
        let at = end;
        end += piece.len();
        (at, piece.trim_end_matches(is_between))
    });
    pieces.filter(|(_, word)| !word.is_empty()).collect()
}

/// Returns the series that an expression selects.
fn selectors<'e>(expression: &'e str, known: &Labels) -> Vec<Selector<'e>> {
    let metrics = words(expression).into_iter().filter(|(_, word)| known.contains_key(*word));
    metrics
        .map(|(at, metric)| {
            let braces = expression[at + metric.len()..].strip_prefix('{');
            let labels = braces.and_then(|rest| rest.split_once('}')).map(|(inner, _)| compared(inner));
            Selector { metric, labels: labels.unwrap_or_default(), at }
        })
        .collect()
}

/// Returns the text between an opening parenthesis, with which `text` begins, and its partner.
fn in_parentheses(text: &str) -> Option<&str> {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return (c == ')').then(|| &text[1..at]);
        }
    }
    None
}

/// A list of labels after `by`, and what it applies to.
struct Grouping<'e> {
    labels: Vec<&'e str>,
    /// The range of the expression that is grouped.
    range: std::ops::Range<usize>,
}

/// Returns every grouping of an expression, or the part that this reader does not understand.
fn groupings(expression: &str) -> Result<Vec<Grouping<'_>>, String> {
    let mut groupings = Vec::new();
    for (at, word) in words(expression) {
        if ["on", "ignoring", "without", "group_left", "group_right"].contains(&word) {
            return Err(format!("`{word}` is not read here"));
        }
        if word != "by" {
            continue;
        }
        let unread = || format!("the labels of a `by` come before what it groups: {}", &expression[at..]);
        let list_at = at + expression[at..].find('(').ok_or_else(unread)?;
        let list = in_parentheses(&expression[list_at..]).ok_or_else(unread)?;
        let rest_at = list_at + list.len() + 2;
        let rest = expression[rest_at..].trim_start();
        let grouped = in_parentheses(rest).ok_or_else(unread)?;
        let begin = expression.len() - rest.len();
        let labels = list.split(',').map(str::trim).collect();
        groupings.push(Grouping { labels, range: begin..begin + grouped.len() + 2 });
    }
    Ok(groupings)
}

/// Returns the metrics and labels in an expression that no program emits.
fn unknown(expression: &str, known: &Labels) -> Vec<String> {
    let selectors = selectors(expression, known);
    let mut problems = Vec::new();
    for Selector { metric, labels, .. } in &selectors {
        let wrong = labels.iter().filter(|(label, _)| !known[*metric].contains(label));
        problems.extend(wrong.map(|(label, _)| format!("{metric} has no label {label}")));
    }
    let groupings = match groupings(expression) {
        Ok(groupings) => groupings,
        Err(problem) => return vec![problem],
    };
    for Grouping { labels, range } in groupings {
        for Selector { metric, .. } in selectors.iter().filter(|selector| range.contains(&selector.at)) {
            let wrong = labels.iter().filter(|label| !known[*metric].contains(*label));
            problems
                .extend(wrong.map(|label| format!("{metric} has no label {label}, by which it is grouped")));
        }
    }
    problems
}

/// Returns the labels that a text shows: `{{ $labels.relay }}` of an alert, `{{relay}}` of a
/// legend.
fn shown(text: &str) -> BTreeSet<&str> {
    let braces = text.split("{{").skip(1).filter_map(|rest| rest.split("}}").next());
    let names = braces.map(|inner| inner.trim().strip_prefix("$labels.").unwrap_or(inner.trim()));
    names.filter(|name| !name.starts_with('$')).collect()
}

/// One rule of `alerts.yml`.
#[derive(Debug, Default)]
struct Rule<'f> {
    name: &'f str,
    expression: String,
    /// The lines of its labels and annotations.
    texts: Vec<&'f str>,
}

/// Reads the rules: one `alert`, one `expr` of one or more lines, and other lines.
fn rules(file: &str) -> Vec<Rule<'_>> {
    let mut rules: Vec<Rule<'_>> = Vec::new();
    let mut is_expression = false;
    for line in file.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix("- alert: ") {
            rules.push(Rule { name, ..Rule::default() });
            continue;
        }
        let Some(rule) = rules.last_mut() else { continue };
        if let Some(expression) = line.strip_prefix("expr: ") {
            is_expression = true;
            rule.expression.push_str(expression.trim_start_matches(">-"));
        } else if ["for: ", "labels: ", "annotations:"].iter().any(|key| line.starts_with(key)) {
            is_expression = false;
        } else if is_expression {
            rule.expression.push(' ');
            rule.expression.push_str(line);
        } else {
            rule.texts.push(line);
        }
    }
    rules
}

#[test]
fn alerts_read_only_labels_that_their_metrics_have() {
    let (file, known) = (text("alerts.yml"), labels());
    let rules = rules(&file);
    assert!(rules.len() >= 15, "{} rules were found", rules.len());
    for Rule { name, expression, texts } in &rules {
        assert!(!selectors(expression, &known).is_empty(), "{name} reads nothing: {expression}");
        assert_eq!(unknown(expression, &known), [""; 0], "{name}: {expression}");
        let groupings = groupings(expression).unwrap();
        for label in texts.iter().flat_map(|text| shown(text)) {
            let has = groupings.iter().any(|grouping| grouping.labels.contains(&label));
            assert!(has, "{name} shows the label {label}, which it does not keep: {expression}");
        }
    }
}

/// Goal: promtool proves nothing about a series that no program emits. Oracle: each series of the
/// tests has exactly the labels of its metric, and those of the scrape.
#[test]
fn the_tests_of_alerts_have_series_as_they_are_emitted() {
    let (file, known) = (text("alerts.test.yml"), labels());
    let mut seen = 0;
    for line in file.lines().filter_map(|line| line.trim().strip_prefix("- series: ")) {
        let line = line.trim_matches('\'');
        if line.starts_with("up{") {
            continue;
        }
        let found = selectors(line, &known);
        let [Selector { metric, labels, .. }] = &found[..] else { panic!("one series: {line}") };
        let is_own = |label: &&str| !SCRAPED.contains(label);
        let has: BTreeSet<&str> = labels.iter().map(|(label, _)| *label).filter(is_own).collect();
        let emitted: BTreeSet<&str> = known[*metric].iter().copied().filter(is_own).collect();
        assert_eq!(has, emitted, "{line}");
        seen += 1;
    }
    assert!(seen >= 20, "{seen} series were found");
}

/// Returns the folders with the sources of the crates that emit a metric.
fn sources(metric: &str) -> Vec<PathBuf> {
    let folders: &[&str] = match metric.split('_').next() {
        Some("relay") => &["relay/engine/src", "outbox/log/src", "message/src"],
        Some("inbox") => &["inbox/src"],
        Some("idempotency") => &["idempotency/src"],
        Some("saga") => &["saga/src"],
        _ => &["outbox/src"],
    };
    folders.iter().map(|folder| Path::new("..").join(folder)).collect()
}

/// Returns whether a source in one of the folders, or below, has this text literal.
fn has_literal(mut folders: Vec<PathBuf>, value: &str) -> bool {
    let literal = format!("\"{value}\"");
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if std::fs::read_to_string(&path).unwrap_or_default().contains(&literal) {
                return true;
            }
        }
    }
    false
}

/// Goal: an alert does not wait for a value that no program reports. Oracle: the sources of the
/// crates that emit the metric have each value as a text.
#[test]
fn alerts_compare_labels_with_values_that_the_programs_report() {
    let (file, known) = (text("alerts.yml"), labels());
    let mut compared = BTreeSet::new();
    for Rule { expression, .. } in rules(&file) {
        for Selector { metric, labels, .. } in selectors(&expression, &known) {
            compared.extend(labels.iter().map(|(_, value)| (metric.to_owned(), (*value).to_owned())));
        }
    }
    assert!(compared.len() >= 5, "{compared:?}");
    for (metric, value) in compared {
        assert!(has_literal(sources(&metric), &value), "{metric}: no program reports {value:?}");
    }
}

#[test]
fn the_dashboard_reads_only_labels_that_its_metrics_have() {
    let (dashboard, known) = (text("dashboard.json"), labels());
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let targets = |panel: &Value| panel["targets"].as_array().cloned().unwrap_or_default();
    for target in dashboard["panels"].as_array().unwrap().iter().flat_map(targets) {
        let query = target["expr"].as_str().unwrap();
        assert_eq!(unknown(query, &known), [""; 0], "{query}");
        for label in shown(target["legendFormat"].as_str().unwrap_or_default()) {
            let groupings = groupings(query).unwrap();
            let has = groupings.iter().all(|grouping| grouping.labels.contains(&label));
            assert!(has, "the legend shows the label {label}, which the query does not keep: {query}");
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        let query = variable["query"].as_str().unwrap();
        let Some(arguments) = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'))
        else {
            continue;
        };
        let (metric, label) = arguments.split_once(", ").unwrap();
        assert!(known[metric].contains(label), "{query}");
    }
}

#[test]
fn a_label_that_is_renamed_is_found() {
    const METRIC: Metric = Metric::gauge("relay_lag", &["relay", "topic"], "a test");
    let known = Labels::from([(METRIC.name.to_owned(), METRIC.labels.iter().copied().collect())]);
    let right =
        "max by (relay) (relay_lag{topic=\"a\"}) > 1 and sum by (relay, topic) (rate(relay_lag[5m])) > 0";
    assert_eq!(unknown(right, &known), [""; 0]);
    assert_eq!(selectors(right, &known)[0].labels, [("topic", "a")]);
    for wrong in [
        "max by (pipeline) (relay_lag) > 1",
        "max by (relay) (sum by (relay, instance) (relay_lag)) > 0",
        "max by (relay) (relay_lag{subject!=\"a\"}) > 1",
        "relay_lag > 1 and on (relay) relay_lag",
        "sum(relay_lag) by (topic)",
    ] {
        assert_eq!(unknown(wrong, &known).len(), 1, "{wrong}");
    }
}
