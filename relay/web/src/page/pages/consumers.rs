//! Consumers, according to their inboxes.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::Uri;
use inbox::{Activity, Reason};
use maud::{Markup, html};
use operate::Places;
use operate::consumers::{ConsumerLine, consumers};

use super::super::address::with_query;
use super::super::answer::{Html, Problem};
use super::super::app::App;
use super::super::fields::Fields;
use super::super::gate::Asker;
use super::super::layout::{Frame, Tab, away, cell, count, maybe_since, number, since};
use super::super::list::{Column, Kind, column, list};
use super::pieces::piece;

/// `GET /consumers`.
pub(crate) async fn show(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Query(query): Query<Fields>,
    uri: Uri,
) -> Result<Html, Problem> {
    let turn = app.turn().await?;
    let places = app.with_inboxes(Places::new(), "").await;
    let found = consumers(&places, &operator).await;
    places.close().await;
    drop(turn);
    let (lines, errors) = found?;
    let piece = piece(&query, &lines)?;
    let body = html! {
        p class="lead" { "The configured inboxes and their contents." }
        (away(&errors))
        @if app.inboxes.is_empty() {
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
    column("Applied in 1 h", Kind::Number),
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

/// Formats the number of duplicates and their share of deliveries; a dash when none were counted.
fn duplicates(activity: &Activity) -> String {
    match activity.duplicate_rate() {
        Some(rate) => format!("{} ({:.1} %)", count(activity.counted.duplicates), rate * 100.0),
        None => "–".to_owned(),
    }
}
