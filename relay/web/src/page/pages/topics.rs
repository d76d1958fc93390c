//! The lag of topics.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::Uri;
use maud::{Markup, html};
use operate::Operator;
use operate::lag::{LagLine, lag};

use super::super::address::with_query;
use super::super::answer::{Html, Problem};
use super::super::app::App;
use super::super::fields::Fields;
use super::super::gate::Asker;
use super::super::layout::{Frame, Tab, away, cell, count, lasting, may_decide, maybe};
use super::pieces::piece;

/// `GET /topics`.
pub(crate) async fn show(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Query(query): Query<Fields>,
    uri: Uri,
) -> Result<Html, Problem> {
    query.check()?;
    let turn = app.turn().await?;
    let (mut lines, errors) =
        lag(&app.outboxes("")?, &operator).await.map_err(|e| Problem::from(e).shown_to(&operator))?;
    drop(turn);
    let part = query.text("q");
    lines.retain(|line| part.is_empty() || line.topic.contains(part));
    let oldest = |line: &LagLine| line.oldest_age_seconds.unwrap_or(-1.0);
    lines.sort_by(|one, other| {
        oldest(other).total_cmp(&oldest(one)).then_with(|| one.topic.cmp(&other.topic))
    });
    let piece = piece(&query, &lines)?;
    let body = html! {
        p class="lead" { "Topics with unpublished messages, longest wait first." }
        (away(&errors))
        form class="filter" method="get" action="/topics" role="search" aria-label="Filter topics" {
            label { "Part of the name" input name="q" type="search" value=(part) maxlength="255"; }
            button { "Filter" }
        }
        @if lines.is_empty() {
            p class="empty" { "No messages are waiting" @if !part.is_empty() { " in topics with this name" } "." }
        } @else {
            div class="scroll" tabindex="0" role="region" aria-label="Topics" {
                table {
                    thead { tr {
                        th scope="col" { "Topic" } th scope="col" { "Pipeline" }
                        @for name in ["Unread", "Held", "Retrying", "Scheduled", "Dead"] { th scope="col" class="number" { (name) } }
                        th scope="col" class="number" { "Oldest waiting for" }
                        th scope="col" { span class="hidden" { "Actions" } }
                    } }
                    tbody { @for line in piece.rows { (row(&operator, line)) } }
                }
            }
            (piece.links("/topics", &[("q", part)]))
        }
    };
    Ok(Html(Frame::new(Some(&operator), Tab::Topics, "Topics").live(&uri).page(&body)))
}

fn row(operator: &Operator, line: &LagLine) -> Markup {
    let parked = |state: &str| line.parked.get(state).copied().unwrap_or_default();
    let dead = with_query("/dead", &[("topic", &line.topic), ("pipeline", &line.pipeline)]);
    html! {
        tr {
            th scope="row" { (cell(&line.topic)) }
            td { (cell(&line.pipeline)) }
            td class="number" { @if line.unread_is_at_least { "≥ " } (count(line.unread)) }
            @for state in ["held", "retrying", "scheduled"] { td class="number" { (count(parked(state))) } }
            td class="number" { @if parked("dead") > 0 { a href=(dead) { (count(parked("dead"))) } } @else { "0" } }
            td class="number" { (maybe(line.oldest_age_seconds.map(lasting).as_deref())) }
            td { @if may_decide(operator) {
                a href=(with_query("/pause", &[("pipeline", &line.pipeline), ("scope", "topic"), ("name", &line.topic)])) { "Pause…" }
            } }
        }
    }
}
