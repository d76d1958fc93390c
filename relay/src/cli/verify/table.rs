//! The result, for people.

use std::collections::BTreeSet;

use operate::seconds;
use operate::verify::{COLUMNS, ComparedPipeline, ComparedPlace, FaultyMessage, NotCompared, Report};
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use super::super::hint;
use super::super::output::{Table, one_line, or_dash};

/// Maximum number of messages that a suggested replay names.
const NAMED_MAX: usize = 5;

/// A suggested replay starts this long before the time in the oldest id. That time comes from a
/// producer's clock, but a replay selects by the database's: if the producer's clock is ahead, the
/// id looks too late.
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
            "publish again every message enqueued since an hour before the oldest id, because its clock may \
             be ahead; inboxes skip messages that they know",
        )
    };
    words.extend(["--note", "WHY"].map(str::to_owned));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Some(format!("{what}: {}", hint::command(&words)))
}

/// Returns a row for each place, then the lines that explain them, then the messages and the
/// conclusion. `flags` are the inboxes of the command line, each `CONSUMER=URL`.
pub(super) fn shown(report: &Report, flags: &[String]) -> String {
    let mut lines = vec![places(&report.pipelines)];
    for pipeline in &report.pipelines {
        lines.extend(discarded(pipeline));
        lines.extend(of_pipeline(pipeline).flat_map(|place| apart(&pipeline.pipeline, place, flags)));
    }
    lines.extend(
        report
            .not_compared
            .iter()
            .map(|NotCompared { pipeline, reason }| format!("not compared: {pipeline}: {reason}")),
    );
    lines.extend(report.messages.iter().map(message));
    lines.extend(report.pipelines.iter().filter_map(|compared| {
        let replay = replay(&compared.pipeline, &report.messages)?;
        Some(format!("missing: {}: {replay}", compared.pipeline))
    }));
    lines.extend(unfinished(report));
    lines.push(report.conclusion());
    lines.join("\n")
}

/// Returns the places of a pipeline, the broker first.
fn of_pipeline(pipeline: &ComparedPipeline) -> impl Iterator<Item = &ComparedPlace> {
    std::iter::once(&pipeline.broker).chain(&pipeline.inboxes)
}

/// Returns the table of all places.
fn places(pipelines: &[ComparedPipeline]) -> String {
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
    let rows =
        pipelines.iter().flat_map(|pipeline| of_pipeline(pipeline).map(move |place| row(pipeline, place)));
    Table::new(headers, rows).optional(&["parked", "pending", "there", "waiting", "enqueued"]).shown()
}

fn row(pipeline: &ComparedPipeline, place: &ComparedPlace) -> [String; 12] {
    let found = |column| or_dash(place.found.get(column).copied());
    [
        pipeline.pipeline.clone(),
        place.name.clone(),
        pipeline.enqueued.to_string(),
        pipeline.published.to_string(),
        pipeline.pending.to_string(),
        pipeline.parked.to_string(),
        or_dash(place.applied.or(place.records)),
        or_dash(place.waiting),
        found(COLUMNS[0]),
        found(COLUMNS[1]),
        found(COLUMNS[2]),
        found(COLUMNS[3]),
    ]
}

/// Returns the number of messages that operators discarded in an outbox, if there are any.
fn discarded(compared: &ComparedPipeline) -> Option<String> {
    let ComparedPipeline { pipeline, discarded, .. } = compared;
    let list = hint::command(&["dead", "list", "--pipeline", pipeline, "--state", "discarded"]);
    (*discarded > 0).then(|| format!("discarded: {pipeline}: {discarded} discarded by operators: {list}"))
}

/// Returns the skipped checks of a place, and its messages that have no effect for a known reason.
fn apart(pipeline: &str, place: &ComparedPlace, flags: &[String]) -> Vec<String> {
    let name = &place.name;
    let skipped = place.not_checked.iter().map(|what| format!("not checked: {pipeline} {name}: {what}"));
    let decide = format!("an operator must decide: {}", letters(name, flags));
    let reasons = [
        ("retrying", place.retrying, "the consumer retries them"),
        ("dead letters", place.dead_letters, &*decide),
        ("given up", place.given_up, "operators closed their dead letters"),
    ];
    let explained = reasons.into_iter().filter_map(|(word, count, what)| {
        let count = count.filter(|count| *count > 0)?;
        Some(format!("{word}: {pipeline} {name}: {count}; {what}"))
    });
    skipped.chain(explained).collect()
}

/// Returns the command that lists the dead letters of a consumer. It repeats an inbox of the
/// command line, which no configuration has.
fn letters(consumer: &str, flags: &[String]) -> String {
    let mut named = flags.iter().filter_map(|flag| flag.split_once('='));
    match named.find(|(name, _)| *name == consumer) {
        Some((_, url)) => hint::command(&["dead", "list", "--inbox", url, "--consumer", consumer]),
        None => hint::command(&["dead", "list", "--source", "inbox", "--consumer", consumer]),
    }
}

fn message(message: &FaultyMessage) -> String {
    let FaultyMessage { id, place, kind, found, topic, .. } = message;
    let topic = topic.as_deref().map(|topic| format!(" (topic {})", one_line(topic))).unwrap_or_default();
    format!("{found}: {id}{topic}: {place}: {kind}")
}

/// Returns what the list of messages leaves out, and what to check before trusting it.
fn unfinished(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    if report.unnamed > 0 {
        lines.push(format!("and {} more; raise --limit to list them", report.unnamed));
    }
    let waiting = report.pipelines.iter().flat_map(|compared| &compared.inboxes);
    let waiting: u64 = waiting.filter_map(|place| place.waiting).sum();
    if waiting > 0 {
        lines.push(format!("not consumed yet: {waiting}; the consumers have not reached them"));
    }
    if report.messages.iter().any(FaultyMessage::is_effectless) {
        lines.push(String::from(
            "without an effect: does verify.inbox.effects cover these event types? Combine one SELECT for \
             each with UNION ALL, or set effects_kinds = [\"...\"]",
        ));
    }
    lines
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
        assert!(since.starts_with("publish again every message enqueued since"), "{since}");
        // An hour before the oldest.
        let command = "relay replay --pipeline orders --since 2026-09-21T13:13:20Z --note WHY";
        assert!(since.ends_with(&format!(": {command}")), "{since}");
    }

    /// Goal: the command below a comparison finds the dead letters that it counts. Oracle: the
    /// lines about an inbox of the command line, and about one of the configuration.
    #[test]
    fn dead_letters_come_with_the_command_that_lists_them() {
        let flags = [String::from("billing=sqlite:in.db")];
        let told = |consumer: &str| {
            let name = consumer.to_owned();
            let place = ComparedPlace { name, dead_letters: Some(7), ..ComparedPlace::default() };
            apart("orders", &place, &flags).join("|")
        };
        let line = "dead letters: orders billing: 7; an operator must decide: relay dead list";
        assert_eq!(told("billing"), format!("{line} --inbox sqlite:in.db --consumer billing"));
        assert!(told("shipping").ends_with(": relay dead list --source inbox --consumer shipping"));
    }
}
