//! Consumers: according to their inboxes, and those of this process according to their status.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::Uri;
use inbox::{Activity, Reason};
use maud::{Markup, html};
use operate::consumers::{ConsumerLine, OwnConsumer, OwnState, OwnWait, Untaken, consumers, waits_for};

use super::super::address::with_query;
use super::super::answer::{Html, Problem};
use super::super::app::App;
use super::super::fields::Fields;
use super::super::gate::Asker;
use super::super::layout::{
    Frame, Tab, away, cell, count, lasting, maybe, maybe_since, number, since, tone, whole,
};
use super::super::list::{Column, Kind, column, list};
use super::super::observe::OwnConsumers;
use super::pieces::piece;

/// `GET /consumers`.
pub(crate) async fn show(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Query(query): Query<Fields>,
    uri: Uri,
) -> Result<Html, Problem> {
    let turn = app.turn().await?;
    let places = app.with_inboxes(app.outboxes("")?, "").await;
    let found = consumers(&places, &operator, app.observer.searches()).await;
    places.close().await;
    drop(turn);
    let (lines, errors) = found?;
    let piece = piece(&query, &lines)?;
    let body = html! {
        p class="lead" { "The configured inboxes and their contents, from all processes." }
        (away(&errors))
        @if app.inboxes.is_empty() && app.is_embedded() {
            p class="empty" { "No inbox is shown: add " code { "PageOptions::inbox" } " with its consumer and database." }
        } @else if app.inboxes.is_empty() {
            p class="empty" { "No inbox is configured: add " code { "[[verify.inbox]]" } " with its consumer and database." }
        } @else {
            (list("Consumers", &COLUMNS, piece.rows.iter().map(|line| row(line, &lines))))
            (piece.links("/consumers", &[]))
            p class="faint" {
                "Duplicates in the last hour: suppressed deliveries and their share of all deliveries, as counted by the \
                 consumers. "
                "Consumers store their counts every 15 seconds; consumers that call the inbox directly do \
                 not count."
            }
        }
        @if app.is_embedded() { (of_this_process(&app.observer.own_consumers())) }
    };
    Ok(Html(Frame::new(Tab::Consumers, "Consumers").live(&uri).page(&body)))
}

const COLUMNS: [Column; 10] = [
    column("Consumer", Kind::Name),
    column("Dead", Kind::Number),
    column("Dead since", Kind::Time),
    column("Held", Kind::Number),
    column("Retrying", Kind::Number),
    column("Failing since", Kind::Time),
    column("Applied in 1\u{a0}h", Kind::Number),
    column("Last applied", Kind::Time),
    column("Duplicates", Kind::Number),
    column("Remembers from", Kind::Time),
];

/// Renders a consumer, with the location of its inbox if another inbox has the same consumer.
fn row(line: &ConsumerLine, all: &[ConsumerLine]) -> Vec<Markup> {
    let is_shared =
        all.iter().any(|other| other.consumer == line.consumer && other.location != line.location);
    let activity = line.activity.clone().unwrap_or_default();
    let consumer = line.consumer.as_str();
    let dead = with_query("/dead", &[("consumer", consumer), ("source", "inbox")]);
    let held =
        with_query("/dead", &[("consumer", consumer), ("source", "inbox"), ("cause", Reason::Held.as_str())]);
    vec![
        html! {
            (cell(&line.consumer))
            @if is_shared { p class="faint" { "at " (cell(&line.location)) } }
            @if !line.has_started { p class="faint" { "has not started yet" } }
            @if let Some(untaken) = &line.untaken { (of_untaken(untaken)) }
        },
        html! { @if activity.dead > 0 { a class="count bad" href=(dead) { (count(activity.dead)) } } @else { (number(0)) } },
        maybe_since(activity.dead_since),
        html! { @if activity.held > 0 { a class="count warn" href=(held) { (count(activity.held)) } } @else { (number(0)) } },
        number(activity.retrying),
        maybe_since(activity.failing_since),
        number(activity.applied),
        maybe_since(activity.last_applied_at),
        html! { (duplicates(&activity)) },
        since(line.remembers_from),
    ]
}

/// Renders the message that a consumer should know.
fn of_untaken(untaken: &Untaken) -> Markup {
    let id = untaken.message_id.to_string();
    html! {
        p class="warn" {
            "applies nothing, for " (lasting(untaken.quiet.as_secs_f64())) ": "
            a href=(with_query("/message", &[("id", &id)])) { "a published message" }
            " has not arrived"
            @if let Some(age) = searched(untaken.age) { ", as of " (age) " ago" }
        }
    }
}

/// Formats the age of a search; `None` if it has just been made.
fn searched(age: Duration) -> Option<String> {
    (age >= Duration::from_secs(1)).then(|| lasting(age.as_secs_f64()))
}

/// Formats the number of duplicates and their share of deliveries; a dash when none were counted.
fn duplicates(activity: &Activity) -> String {
    match activity.duplicate_rate() {
        Some(rate) => format!("{} ({:.1}\u{a0}%)", count(activity.counted.duplicates), rate * 100.0),
        None => "–".to_owned(),
    }
}

const OWN_COLUMNS: [Column; 7] = [
    column("Consumer", Kind::Name),
    column("Reads", Kind::Key),
    column("State", Kind::State),
    column("Waits for", Kind::Why),
    column("In hand", Kind::Number),
    column("At the broker", Kind::Number),
    column("Keys held", Kind::Number),
];

/// Renders the consumers of this process.
fn of_this_process(own: &OwnConsumers) -> Markup {
    html! {
        h2 { "In this process" }
        @if own.is_empty() {
            p class="empty" {
                "No consumer of this process is shown: add " code { "PageOptions::consumer" } " with its status."
            }
        } @else {
            (list("Consumers of this process", &OWN_COLUMNS, own.values().flatten().map(own_row)))
            p class="faint" {
                "From memory. Other processes that run the same consumer show their own on their pages."
            }
        }
    }
}

fn own_row(own: &OwnConsumer) -> Vec<Markup> {
    vec![
        html! { (cell(&own.consumer)) },
        maybe(own.reads.as_deref()),
        state(own),
        html! {
            @if let OwnState::Ended(ago) = own.state { p { "It ended " (lasting(ago.as_secs_f64())) " ago." } }
            @for wait in &own.waits_for { (waiting(wait)) }
        },
        number(own.in_hand as u64),
        own.lag.map_or_else(|| maybe(None), number),
        own.held_keys.map_or_else(|| maybe(None), |keys| number(keys as u64)),
    ]
}

/// Renders what a consumer does: red if an operator has to act, amber if it is stalled.
fn state(own: &OwnConsumer) -> Markup {
    let text = match own.state {
        OwnState::NotStarted => "not started",
        OwnState::Connected => "reads",
        OwnState::NotConnected => "no session",
        OwnState::Blocked => "blocked",
        OwnState::Ended(_) => "ended",
    };
    match (own.wait(), &own.state) {
        (Some(wait), OwnState::Connected) => {
            tone(if wait.needs_operator() { "bad" } else { "warn" }, "stalled")
        }
        (Some(_), _) => tone("bad", text),
        (None, OwnState::NotConnected) => tone("warn", text),
        (None, OwnState::Connected) => tone("good", text),
        (None, _) => tone("", text),
    }
}

/// Renders one thing that a consumer waits for, since when, and the error.
fn waiting(wait: &OwnWait) -> Markup {
    html! {
        p {
            (whole(waits_for(wait.reason))) " · " (lasting(wait.waited.as_secs_f64()))
            @if wait.messages > 1 { " · " (count(wait.messages as u64)) " messages, first " }
            @else if wait.message.is_some() { " · " }
            @if let Some(id) = wait.message {
                a href=(with_query("/message", &[("id", &id.to_string())])) { (cell(&id.to_string())) }
            }
            @if let Some(error) = &wait.error { ": " (whole(error)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use inbox::WaitReason;
    use message::MessageId;

    use super::*;

    fn own(state: OwnState, waits_for: Vec<OwnWait>) -> OwnConsumer {
        OwnConsumer {
            consumer: String::from("billing"),
            state,
            reads: Some(String::from("orders (group billing)")),
            in_hand: 3,
            lag: Some(1_207),
            held_keys: None,
            stalled_for: Duration::from_secs(42),
            waits_for,
        }
    }

    fn wait(reason: WaitReason, error: &str) -> OwnWait {
        let error = Some(error.to_owned()).filter(|error| !error.is_empty());
        OwnWait { reason, waited: Duration::from_secs(42), message: None, messages: 0, error }
    }

    fn rendered(all: Vec<OwnConsumer>) -> String {
        of_this_process(&OwnConsumers::from([(String::from("billing"), all)])).into_string()
    }

    #[test]
    fn a_message_that_was_searched_for_earlier_says_so() {
        let rendered = |age| {
            let untaken = Untaken {
                pipeline: String::from("orders"),
                topic: String::from("orders"),
                message_id: MessageId::new().into(),
                quiet: Duration::from_secs(420),
                age: Duration::from_millis(age),
            };
            of_untaken(&untaken).into_string()
        };
        assert!(rendered(999).ends_with("has not arrived</p>"), "{}", rendered(999));
        let old = rendered(42_000);
        assert!(old.contains("for 7m: ") && old.ends_with("has not arrived, as of 42s ago</p>"), "{old}");
    }

    /// Goal: an operator sees what a consumer of this process reads, what it waits for and since
    /// when. Oracle: the row of each state.
    #[test]
    fn a_consumer_of_this_process_says_what_it_waits_for() {
        let id = MessageId::new();
        let message = OwnWait { message: Some(id), messages: 3, ..wait(WaitReason::Retry, "<no price>") };
        let text = rendered(vec![own(OwnState::Connected, vec![message])]);
        for part in [
            "orders (group billing)",
            "class=\"badge warn\">stalled",
            "the next attempt</span> · 42s · 3 messages, first ",
            &format!("href=\"/message?id={id}\""),
            "&lt;no price&gt;",
            "1,207",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        for (state, waits, badge) in [
            (OwnState::Connected, Vec::new(), "good\">reads"),
            (OwnState::Connected, vec![wait(WaitReason::Outage, "")], "bad\">stalled"),
            (OwnState::NotConnected, vec![wait(WaitReason::Broker, "refused")], "bad\">no session"),
            (OwnState::Blocked, Vec::new(), "bad\">blocked"),
            (OwnState::Ended(Duration::from_secs(9)), Vec::new(), "bad\">ended"),
            (OwnState::NotStarted, Vec::new(), "\">not started"),
        ] {
            let text = rendered(vec![own(state, waits)]);
            assert!(text.contains(badge), "{badge}: {text}");
        }
        let none = of_this_process(&OwnConsumers::new()).into_string();
        assert!(none.contains("PageOptions::consumer") && !none.contains("<table"), "{none}");
    }
}
