//! Waiting keys, and the message that stops each.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::Uri;
use maud::{Markup, html};
use operate::MessageState;
use operate::held::{HeldLine, Stop, TopicStop, held};

use super::super::address::with_query;
use super::super::answer::{Html, Problem};
use super::super::app::App;
use super::super::fields::Fields;
use super::super::gate::Asker;
use super::super::layout::{Frame, Tab, away, badge, cell, count, lasting, maybe, since};
use super::super::list::{Column, Kind, column, list};
use super::super::text::plain;
use super::pieces::piece;

/// `GET /held`.
pub(crate) async fn show(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Query(query): Query<Fields>,
    uri: Uri,
) -> Result<Html, Problem> {
    query.check()?;
    let pipeline = query.text("pipeline");
    let turn = app.turn().await?;
    let found = held(&app.outboxes(pipeline)?, &operator).await?;
    drop(turn);
    let keys: Vec<HeldLine> = found.keys.into_iter().filter(waits).collect();
    let messages: u64 = keys.iter().map(waiting).sum();
    let piece = piece(&query, &keys)?;
    let body = html! {
        @if !keys.is_empty() {
            p class="lead" id="total" { (total(keys.len(), messages, found.more || !found.away.is_empty())) }
        }
        p { "Messages of an ordering key wait behind its first unpublished message. A topic that takes no messages \
             holds up all of its own, with or without a key." }
        (away(&found.away))
        @if found.more {
            p class="notice" {
                "Not all waiting messages are counted: only the first " (count(found.examined_max.into()))
                " of each state and pipeline are."
            }
        }
        @if keys.is_empty() { p class="empty" { "No keys are waiting" @if !found.away.is_empty() { " in the databases that answer" } "." } } @else {
            (list("Held keys", &COLUMNS, rows(piece.rows)))
            (piece.links("/held", &[("pipeline", pipeline)]))
        }
    };
    Ok(Html(Frame::new(Tab::Held, "Held keys").live(&uri).page(&body)))
}

/// Returns how many keys and messages wait.
fn total(keys: usize, messages: u64, is_at_least: bool) -> String {
    let least = if is_at_least { "At least " } else { "" };
    let of_keys = if keys == 1 { "key" } else { "keys" };
    let of_messages = if messages == 1 { "waiting message" } else { "waiting messages" };
    format!("{least}{} {of_keys}, {} {of_messages}", count(keys as u64), count(messages))
}

/// Returns whether something waits: a dead or retrying message with nothing behind it is in the
/// list of its state.
fn waits(line: &HeldLine) -> bool {
    waiting(line) > 0
}

/// Returns the number of waiting messages. A held message waits as well.
fn waiting(line: &HeldLine) -> u64 {
    line.behind + u64::from(line.state == MessageState::Held)
}

const COLUMNS: [Column; 8] = [
    column("Key", Kind::Name),
    column("Pipeline", Kind::Text),
    column("Topic", Kind::Text),
    column("Stopped by", Kind::Text),
    column("State", Kind::State),
    column("Waiting", Kind::Number),
    column("Since", Kind::Time),
    column("Why", Kind::Why),
];

/// Renders keys. The error of a message that may stop a topic is told once: many keys may wait for
/// it.
fn rows(lines: &[HeldLine]) -> Vec<Vec<Markup>> {
    let mut told = BTreeSet::new();
    let is_told = |line: &HeldLine| match &line.stopped_by {
        Some(Stop::Topic(stop)) => {
            !told.insert((line.pipeline.clone(), line.topic.clone(), stop.first.clone()))
        }
        _ => false,
    };
    let told: Vec<bool> = lines.iter().map(is_told).collect();
    lines.iter().zip(told).map(|(line, is_told)| row(line, is_told)).collect()
}

/// Renders a key. `is_told` is whether an earlier row has the error of the message that may stop
/// its topic.
fn row(line: &HeldLine, is_told: bool) -> Vec<Markup> {
    let HeldLine { pipeline, key, topic, first, state, since: at, due_in_seconds, .. } = line;
    let story = with_query("/message", &[("id", first), ("pipeline", pipeline)]);
    vec![
        html! { @match key { Some(key) => (cell(key)), None => span class="faint" { "none" } } },
        cell(pipeline),
        cell(topic),
        html! {
            @match &line.stopped_by {
                None => a href=(story) { (first) },
                Some(Stop::Pause(_)) => "a pause",
                Some(Stop::Topic(TopicStop { first, others: 0, .. })) => {
                    "perhaps " a href=(with_query("/message", &[("id", first), ("pipeline", pipeline)])) { (first) }
                }
                Some(Stop::Topic(TopicStop { others, .. })) => {
                    "perhaps " a href=(with_query("/dead", &[("pipeline", pipeline), ("topic", topic), ("state", "retrying")])) {
                        "one of " (count(others + 1))
                    }
                }
                Some(Stop::NotExamined) => span class="faint" { "unknown" },
            }
        },
        badge(*state),
        html! { (count(waiting(line))) },
        since(*at),
        html! {
            @if let Some(due) = *due_in_seconds { span class="faint" { "next attempt in " (lasting(due)) } " " }
            @match &line.stopped_by {
                None if line.state == MessageState::Held && line.error.is_none() => {
                    span class="text" { "nothing known stops it: it may leave at any moment" }
                },
                None => (maybe(line.error.as_deref())),
                Some(Stop::Pause(pause)) => (cell(&pause.told())),
                Some(Stop::Topic(TopicStop { first, error, due_in_seconds, others })) => {
                    span class="text" {
                        "its topic may be stopped by "
                        @if *others > 0 { "one of " (count(others + 1)) " messages that are retried, for example " }
                        (first)
                        @if let Some(due) = due_in_seconds { " (next attempt in " (lasting(*due)) ")" }
                        @if is_told { ", as above" } @else if let Some(error) = error { ": " (plain(error)) }
                        @if !is_told { "; if not, it leaves in its turn" }
                    }
                }
                Some(Stop::NotExamined) => {
                    span class="text" {
                        "what stops it is not among the messages that were examined: "
                        a href=(story) { "see the message" }
                    }
                }
            }
        },
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use operate::pause::PauseLine;
    use outbox_log::PauseScope;
    use time::OffsetDateTime;

    use super::*;

    #[test]
    fn the_number_of_waiting_messages_may_be_a_lower_bound() {
        assert_eq!(total(1, 1, false), "1 key, 1 waiting message");
        assert_eq!(total(41, 2_000, true), "At least 41 keys, 2,000 waiting messages");
    }

    #[test]
    fn a_paused_message_is_stopped_by_the_pause() {
        let since = OffsetDateTime::UNIX_EPOCH;
        let pause = PauseLine {
            pipeline: String::from("orders"),
            paused: PauseScope::Topic(String::from("refunds")),
            actor: String::from("bob"),
            reason: String::from("migration"),
            since,
            age: Duration::ZERO,
        };
        let line = HeldLine {
            pipeline: String::from("orders"),
            key: Some(String::from("order-7")),
            topic: String::from("refunds"),
            first: String::from("122101"),
            state: MessageState::Held,
            error: None,
            since,
            due_in_seconds: None,
            behind: 2,
            stopped_by: Some(Stop::Pause(pause)),
        };
        let cells: Vec<String> = row(&line, false).into_iter().map(Markup::into_string).collect();
        assert_eq!((cells[3].as_str(), cells[5].as_str()), ("a pause", "3"));
        assert!(cells[7].contains("topic refunds is paused by bob: migration"), "{cells:?}");
        let stop = TopicStop {
            first: String::from("5"),
            error: Some(String::from("no topic")),
            due_in_seconds: Some(12.0),
            others: 0,
        };
        let line = HeldLine { stopped_by: Some(Stop::Topic(stop.clone())), ..line };
        let cells: Vec<String> = row(&line, false).into_iter().map(Markup::into_string).collect();
        assert!(cells[3].contains("perhaps <a") && cells[3].contains("id=5&amp;"), "{cells:?}");
        let told =
            "its topic may be stopped by 5 (next attempt in 12s): no topic; if not, it leaves in its turn";
        assert!(cells[7].contains(told), "{cells:?}");
        let other = HeldLine { key: Some(String::from("order-8")), ..line.clone() };
        let both: Vec<String> =
            rows(&[line.clone(), other]).concat().into_iter().map(Markup::into_string).collect();
        assert!(both[7].contains("): no topic") && !both[7].contains("as above"), "{both:?}");
        assert!(
            both[15].contains("stopped by 5 (next attempt in 12s), as above")
                && !both[15].contains("no topic"),
            "{both:?}"
        );
        let line = HeldLine { stopped_by: Some(Stop::Topic(TopicStop { others: 2, ..stop })), ..line };
        let cells: Vec<String> = row(&line, false).into_iter().map(Markup::into_string).collect();
        assert!(cells[3].contains("topic=refunds&amp;state=retrying\">one of 3<"), "{cells:?}");
        assert!(
            cells[7].contains(
                "one of 3 messages that are retried, for example 5 (next attempt in 12s): no topic"
            ),
            "{cells:?}"
        );
        let line = HeldLine { stopped_by: Some(Stop::NotExamined), ..line };
        let cells: Vec<String> = row(&line, false).into_iter().map(Markup::into_string).collect();
        assert!(cells[3].contains("unknown") && !cells[3].contains("id=5"), "{cells:?}");
        assert!(cells[7].contains("not among the messages that were examined"), "{cells:?}");
        let line = HeldLine { stopped_by: None, ..line };
        let cells: Vec<String> = row(&line, false).into_iter().map(Markup::into_string).collect();
        assert!(cells[7].contains("nothing known stops it"), "{cells:?}");
        assert_eq!((waiting(&line), waits(&line)), (3, true));
        let alone = HeldLine { state: MessageState::Dead, behind: 0, ..line };
        assert!(!waits(&alone), "nothing waits behind it");
    }
}
