//! The result, for people.

use std::fmt::Write as _;

use operate::verify::{COLUMNS, ComparedPipeline, ComparedPlace, FaultyMessage, NotCompared, Report};

use super::super::output::{or_dash, table};

/// Returns a row for each place, then the skipped checks, then the messages.
pub(super) fn shown(report: &Report) -> String {
    let places = |shown: &ComparedPipeline| -> Vec<[String; 12]> {
        let row = |place: &ComparedPlace| {
            let found = |column| or_dash(place.found.get(column).copied());
            [
                shown.pipeline.clone(),
                place.name.clone(),
                shown.enqueued.to_string(),
                shown.published.to_string(),
                shown.pending.to_string(),
                shown.parked.to_string(),
                or_dash(place.applied.or(place.records)),
                or_dash(place.waiting),
                found(COLUMNS[0]),
                found(COLUMNS[1]),
                found(COLUMNS[2]),
                found(COLUMNS[3]),
            ]
        };
        std::iter::once(&shown.broker).chain(&shown.inboxes).map(row).collect()
    };
    let headers = [
        "pipeline",
        "place",
        "enqueued",
        "published",
        "pending",
        "parked",
        "there",
        "waiting",
        "missing",
        "doubled",
        "phantom",
        "altered",
    ];
    let mut text = table(headers, report.pipelines.iter().flat_map(places));
    text.push('\n');
    // Writing to a String cannot fail.
    for shown in &report.pipelines {
        if shown.discarded > 0 {
            let ComparedPipeline { pipeline, discarded, .. } = shown;
            let _ = writeln!(
                text,
                "discarded: {pipeline}: {discarded} discarded by operators: relay dead list --pipeline \
                 {pipeline} --state discarded"
            );
        }
        for place in std::iter::once(&shown.broker).chain(&shown.inboxes) {
            for what in &place.not_checked {
                let _ = writeln!(text, "not checked: {} {}: {what}", shown.pipeline, place.name);
            }
            let (pipeline, name) = (&shown.pipeline, &place.name);
            for (word, count, what) in [
                ("retrying", place.retrying, "the consumer retries them"),
                ("dead letters", place.dead_letters, "an operator must decide: relay dead list"),
                ("given up", place.given_up, "operators closed their dead letters"),
            ] {
                if let Some(count) = count.filter(|count| *count > 0) {
                    let _ = writeln!(text, "{word}: {pipeline} {name}: {count}; {what}");
                }
            }
        }
    }
    for NotCompared { pipeline, reason } in &report.not_compared {
        let _ = writeln!(text, "not compared: {pipeline}: {reason}");
    }
    for FaultyMessage { id, place, kind, found, topic, .. } in &report.messages {
        let topic = topic.as_deref().map(|topic| format!(" (topic {topic})")).unwrap_or_default();
        let _ = writeln!(text, "{found}: {id}{topic}: {place}: {kind}");
    }
    if report.unnamed > 0 {
        let _ = writeln!(text, "and {} more; raise --limit to list them", report.unnamed);
    }
    let waiting = report.pipelines.iter().flat_map(|shown| &shown.inboxes).filter_map(|place| place.waiting);
    let waiting: u64 = waiting.sum();
    if waiting > 0 {
        let _ = writeln!(text, "not consumed yet: {waiting}; their consumers have not reached them");
    }
    if report.messages.iter().any(FaultyMessage::is_effectless) {
        let _ = writeln!(
            text,
            "without an effect: does verify.inbox.effects cover these event types? Combine one SELECT for \
             each with UNION ALL, or set effects_kinds = [\"...\"]"
        );
    }
    let undecided = report.undecided;
    text.push_str(&match undecided {
        _ if report.has_faults() => "problems found".to_owned(),
        _ if !report.not_compared.is_empty() => "no problems found in what was compared".to_owned(),
        0 => "no problems found in what was checked".to_owned(),
        _ => format!("no message is lost or doubled; {undecided} messages wait for an operator"),
    });
    text
}
