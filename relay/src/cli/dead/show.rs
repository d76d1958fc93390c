//! Formats parked messages and decisions.

use std::collections::BTreeMap;
use std::time::Duration;

use operate::cause::signature;
use operate::dead::{DeadMessage, DeadSource, Report, Total};
use operate::{MessageState, seconds};
use serde::Serialize;

use super::super::exit::Exit;
use super::super::failure::Failure;
use super::super::output::{Format, Table, age, card, nothing_waits, or_dash};

/// Prints a list. `is_whole` is false when a place did not answer.
pub(super) fn list(messages: &[DeadMessage], is_whole: bool, format: Format) -> Result<Exit, Failure> {
    format.print(
        &messages,
        |messages| {
            if messages.is_empty() { nothing_waits(is_whole) } else { rows(messages) }
        },
    )?;
    Ok(Exit::Success)
}

/// The number of messages with the same place, topic, state, cause and error; or of those that are
/// in no group.
#[derive(Debug, Serialize)]
struct Count<'a> {
    source: Option<DeadSource>,
    of: Option<&'a str>,
    topic: Option<&'a str>,
    state: Option<&'a str>,
    cause: Option<&'a str>,
    /// Errors that differ only in numbers and ids are one, with # in place of these.
    error: Option<String>,
    /// One of these errors.
    example: Option<&'a str>,
    messages: u64,
    /// Whether there are more.
    is_at_least: bool,
    /// Whether these are the messages beyond the maximum that is grouped.
    not_grouped: bool,
}

/// Messages of one count.
struct Same<'a> {
    messages: u64,
    /// Their error, if it is the same text.
    error: Option<&'a str>,
    example: Option<&'a str>,
}

impl Count<'_> {
    /// Returns the error for people: with the numbers of one message where only these differ.
    fn shown(&self) -> Option<String> {
        match (&self.error, self.example) {
            (Some(error), Some(example)) if error != example => Some(format!("for example: {example}")),
            (error, _) => error.clone(),
        }
    }
}

/// Prints the number of messages of each group. `not_grouped` are the messages beyond these, if
/// there are any: they may belong to the groups, or to others that are not printed.
pub(super) fn counts(
    messages: &[DeadMessage],
    not_grouped: Option<Total>,
    is_whole: bool,
    format: Format,
) -> Result<(), Failure> {
    let counts = grouped(messages, not_grouped);
    format.print(&counts, |counts| {
        if counts.is_empty() {
            return nothing_waits(is_whole);
        }
        count_table(counts, messages.len()).shown()
    })
}

/// Returns the groups, the largest first, and then the messages that are in none.
fn grouped(messages: &[DeadMessage], not_grouped: Option<Total>) -> Vec<Count<'_>> {
    let mut counts: BTreeMap<_, Same<'_>> = BTreeMap::new();
    for message in messages {
        let of = (
            message.source,
            message.owner(),
            &*message.topic,
            message.state.as_str(),
            message.cause.as_deref(),
            message.error.as_deref().map(signature),
        );
        let error = message.error.as_deref();
        let same = counts.entry(of).or_insert(Same { messages: 0, error, example: error });
        same.messages += 1;
        same.error = same.error.filter(|error| message.error.as_deref() == Some(error));
    }
    let counts = counts.into_iter().map(|((source, of, topic, state, cause, kind), same)| Count {
        source: Some(source),
        of: Some(of),
        topic: Some(topic),
        state: Some(state),
        cause,
        error: same.error.map(str::to_owned).or(kind),
        example: same.example,
        messages: same.messages,
        is_at_least: not_grouped.is_some(),
        not_grouped: false,
    });
    let mut counts: Vec<Count<'_>> = counts.collect();
    counts.sort_by_key(|count| std::cmp::Reverse(count.messages));
    counts.extend(not_grouped.map(|rest| Count {
        source: None,
        of: None,
        topic: None,
        state: None,
        cause: None,
        error: None,
        example: None,
        messages: rest.number,
        is_at_least: rest.is_at_least,
        not_grouped: true,
    }));
    counts
}

/// Returns the table of groups, which have this many messages together.
fn count_table(counts: &[Count<'_>], grouped: usize) -> Table<7> {
    let rows = counts.iter().map(|count| {
        let error = if count.not_grouped {
            Some(format!("not grouped: only the first {grouped} messages are"))
        } else {
            count.shown()
        };
        [
            or_dash(count.source),
            or_dash(count.of),
            or_dash(count.topic),
            or_dash(count.state),
            or_dash(count.cause),
            format!("{}{}", if count.is_at_least { "≥ " } else { "" }, count.messages),
            or_dash(error),
        ]
    });
    Table::new(["source", "of", "topic", "state", "cause", "messages", "error"], rows)
        .optional(&["source", "state"])
        .below("error")
        .short_names(&["topic", "error"])
}

/// Prints all details of single messages.
pub(super) fn each(messages: &[DeadMessage], format: Format) -> Result<Exit, Failure> {
    format.print(&messages, |messages| messages.iter().map(details).collect::<Vec<_>>().join("\n\n"))?;
    Ok(Exit::Success)
}

/// Prints the outcome of a decision.
pub(super) fn report(report: &Report, format: Format) -> Result<(), Failure> {
    format.print(report, |report| {
        if report.messages.is_empty() {
            return format!("nothing to {}: {}", report.action, report.selection);
        }
        let rows = report.messages.iter().map(|message| {
            [
                message.source.to_string(),
                message.owner.clone(),
                message.id.clone(),
                message.topic.clone(),
                or_dash(message.key.as_ref()),
                message.outcome.clone(),
            ]
        });
        Table::new(["source", "of", "id", "topic", "key", "outcome"], rows)
            .optional(&["source", "of"])
            .short_names(&["topic", "key", "outcome"])
            .shown()
    })
}

fn rows(messages: &[DeadMessage]) -> String {
    let rows = messages.iter().map(|message| {
        [
            message.source.to_string(),
            message.owner().to_owned(),
            message.id.clone(),
            message.topic.clone(),
            or_dash(message.key.as_ref()),
            or_dash(message.kind.as_ref()),
            message.state_told(),
            or_dash(message.cause.as_ref()),
            message.attempts.to_string(),
            seconds::text(message.since),
            // A message that was requeued and died again has waited since its first death.
            seconds::text(message.changed_at),
            or_dash(message.error_in_list()),
        ]
    });
    let headers = [
        "source", "of", "id", "topic", "key", "kind", "state", "cause", "attempts", "since", "changed",
        "error",
    ];
    Table::new(headers, rows)
        .optional(&["source", "kind", "changed", "attempts", "cause", "state", "of"])
        .below("error")
        .short_names(&["topic", "key", "kind", "error"])
        .shown()
}

/// Returns the attempts. Failures that are not the message's own do not count.
fn attempts(message: &DeadMessage) -> String {
    match (message.attempts, message.error.is_some() && message.state == MessageState::Retrying) {
        (0, true) => String::from("0: outages and missing destinations do not count"),
        (attempts, _) => attempts.to_string(),
    }
}

/// Formats one message with a line per detail.
fn details(message: &DeadMessage) -> String {
    let due_in = message.due_in_seconds.map(|seconds| age(Duration::from_secs_f64(seconds)));
    let payload = format!("{} bytes{}", message.payload_bytes, if message.edited { ", edited" } else { "" });
    let headers = (!message.header_names.is_empty()).then(|| message.header_names.join(", "));
    let lines = [
        ("source", Some(message.source.to_string())),
        ("pipeline", message.pipeline.clone()),
        ("consumer", message.consumer.clone()),
        ("scope", message.scope.clone().filter(|scope| !scope.is_empty())),
        ("id", Some(message.id.clone())),
        ("message id", Some(or_dash(message.message_id.as_ref()))),
        ("state", Some(message.state_told())),
        ("topic", Some(message.topic.clone())),
        ("key", Some(or_dash(message.key.as_ref()))),
        ("kind", message.kind.clone()),
        ("cause", Some(or_dash(message.cause.as_ref()))),
        ("error", Some(or_dash(message.error.as_ref()))),
        ("attempts", Some(attempts(message))),
        ("deliveries", message.deliveries.map(|deliveries| deliveries.to_string())),
        ("origin", message.origin.clone()),
        ("due in", due_in),
        ("headers", headers),
        ("payload", Some(payload)),
        ("since", Some(seconds::text(message.since))),
        ("changed at", Some(seconds::text(message.changed_at))),
    ];
    card(0, lines)
}

#[cfg(test)]
mod tests {
    use operate::dead::sample::entry;
    use serde_json::json;

    use super::*;

    /// Goal: groups of the first messages do not look like all there are, in a pipe either. Oracle:
    /// the last row and the last element, of counts that are complete, that leave a known number
    /// out, and that leave an unknown number out; the sum of all numbers.
    #[test]
    fn messages_beyond_the_groups_are_counted_apart() {
        let mut other = entry(3);
        other.topic = String::from("bills");
        let messages = [entry(1), entry(2), other];
        let table_of = |rest| count_table(&grouped(&messages, rest), messages.len()).drawn(None);
        let json_of = |rest| serde_json::to_value(grouped(&messages, rest)).unwrap();

        let table = table_of(None);
        assert!(table.lines().count() == 3 && !table.contains("not grouped"), "{table}");
        assert!(!table.contains('≥'), "{table}");
        let found = json_of(None);
        assert_eq!((&found[0]["of"], &found[0]["messages"]), (&json!("orders"), &json!(2)), "{found}");
        assert_eq!(found[0]["not_grouped"], json!(false), "{found}");

        let rest = Some(Total { number: 52_009, is_at_least: false });
        let table = table_of(rest);
        let last = table.lines().last().unwrap();
        let words: Vec<&str> = last.split_whitespace().collect();
        assert_eq!(words[..6], ["-", "-", "-", "-", "-", "52009"]);
        assert!(last.ends_with("not grouped: only the first 3 messages are"), "{last}");
        assert!(table.contains("≥ 2 "), "{table}");
        let found = json_of(rest);
        let sum: u64 = found.as_array().unwrap().iter().filter_map(|of| of["messages"].as_u64()).sum();
        assert_eq!(sum, 52_012, "{found}");
        assert_eq!((&found[2]["source"], &found[2]["not_grouped"]), (&json!(null), &json!(true)), "{found}");
        assert_eq!(found[2]["is_at_least"], json!(false), "{found}");

        let rest = Some(Total { number: 1, is_at_least: true });
        let table = table_of(rest);
        assert!(table.lines().last().unwrap().contains("≥ 1 "), "{table}");
        assert_eq!(json_of(rest)[2]["is_at_least"], json!(true));
    }
}
