//! The result, for people.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use operate::seconds;
use operate::verify::{COLUMNS, ComparedPipeline, ComparedPlace, FaultyMessage, NotCompared, Report};
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use super::super::hint;
use super::super::output::{Table, one_line, or_dash};

/// Maximum number of messages that a suggested replay names.
const NAMED_MAX: usize = 5;

/// A suggested replay starts this long before the time in the oldest id. That time comes from a
/// producer's clock, and a replay selects by the database's: a clock that is ahead makes the id
/// look too late.
const CLOCK_SKEW_MAX: Duration = Duration::hours(1);

/// Returns what to publish again for the missing messages of a pipeline, with the command, if there
/// are any. If there are many, that is everything since the oldest.
fn replay(pipeline: &str, messages: &[FaultyMessage]) -> Option<String> {
    let is_meant = |it: &&FaultyMessage| it.pipeline == pipeline && it.found == COLUMNS[0];
    // One message may be missing in several places.
    let ids: BTreeSet<Uuid> = messages.iter().filter(is_meant).map(|message| message.id).collect();
    let oldest = *ids.first()?;
    let mut words = ["replay", "--pipeline", pipeline].map(str::to_owned).to_vec();
    let what = if ids.len() <= NAMED_MAX {
        words.extend(ids.iter().flat_map(|id| [String::from("--id"), id.to_string()]));
        if ids.len() == 1 {
            String::from("publish it again")
        } else {
            format!("publish these {} again", ids.len())
        }
    } else {
        let (seconds, _) = oldest.get_timestamp()?.to_unix();
        let oldest = OffsetDateTime::from_unix_timestamp(seconds.try_into().ok()?).ok()?;
        let since = oldest.saturating_sub(CLOCK_SKEW_MAX).max(OffsetDateTime::UNIX_EPOCH);
        words.extend([String::from("--since"), seconds::text(since)]);
        String::from(
            "publish every message again that was enqueued since an hour before the oldest id, whose clock may \
             be ahead; inboxes skip what they know",
        )
    };
    words.extend(["--note", "WHY"].map(str::to_owned));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Some(format!("{what}: {}", hint::command(&words)))
}

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
    let optional = &["parked", "pending", "there", "waiting", "enqueued"];
    let mut text = Table::new(headers, report.pipelines.iter().flat_map(places)).optional(optional).shown();
    text.push('\n');
    // Writing to a String cannot fail.
    for shown in &report.pipelines {
        if shown.discarded > 0 {
            let ComparedPipeline { pipeline, discarded, .. } = shown;
            let list = hint::command(&["dead", "list", "--pipeline", pipeline, "--state", "discarded"]);
            let _ = writeln!(text, "discarded: {pipeline}: {discarded} discarded by operators: {list}");
        }
        for place in std::iter::once(&shown.broker).chain(&shown.inboxes) {
            for what in &place.not_checked {
                let _ = writeln!(text, "not checked: {} {}: {what}", shown.pipeline, place.name);
            }
            let (pipeline, name) = (&shown.pipeline, &place.name);
            let list = hint::command(&["dead", "list", "--source", "inbox"]);
            let decide = format!("an operator must decide: {list}");
            for (word, count, what) in [
                ("retrying", place.retrying, "the consumer retries them"),
                ("dead letters", place.dead_letters, &*decide),
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
        let topic = topic.as_deref().map(|topic| format!(" (topic {})", one_line(topic))).unwrap_or_default();
        let _ = writeln!(text, "{found}: {id}{topic}: {place}: {kind}");
    }
    for shown in &report.pipelines {
        if let Some(replay) = replay(&shown.pipeline, &report.messages) {
            let _ = writeln!(text, "missing: {}: {replay}", shown.pipeline);
        }
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
        1 => "no message is lost or doubled; 1 message waits for an operator".to_owned(),
        _ => format!("no message is lost or doubled; {undecided} messages wait for an operator"),
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(pipeline: &str, number: u64) -> FaultyMessage {
        let timestamp = uuid::Timestamp::from_unix(uuid::NoContext, 1_790_000_000 + number, 0);
        FaultyMessage {
            id: Uuid::new_v7(timestamp),
            pipeline: pipeline.to_owned(),
            place: String::from("billing"),
            found: COLUMNS[0],
            kind: "published, and not in the inbox",
            topic: None,
        }
    }

    #[test]
    fn what_is_missing_comes_with_the_command_that_repairs_it() {
        assert_eq!(replay("orders", &[]), None);
        let (ours, other) = (missing("orders", 1), missing("bills", 1));
        let twice = FaultyMessage { place: String::from("(broker)"), ..missing("orders", 1) };
        let few = [FaultyMessage { id: ours.id, ..twice }, ours, other];
        let id = few[0].id;
        assert_eq!(
            replay("orders", &few).unwrap(),
            format!("publish it again: relay replay --pipeline orders --id {id} --note WHY")
        );
        let mut many: Vec<FaultyMessage> = (0..5).map(|number| missing("orders", number)).collect();
        let named = replay("orders", &many).unwrap();
        assert!(named.starts_with("publish these 5 again: ") && named.contains("--id"), "{named}");
        many.push(missing("orders", 5));
        let since = replay("orders", &many).unwrap();
        assert!(since.starts_with("publish every message again that was enqueued since"), "{since}");
        // An hour before the oldest.
        let command = "relay replay --pipeline orders --since 2026-09-21T13:13:20Z --note WHY";
        assert!(since.ends_with(&format!(": {command}")), "{since}");
    }
}
