//! Waiting keys, and the message that stops each.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::Uri;
use maud::{Markup, html};
use operate::held::{HeldLine, held};

use super::super::address::with_query;
use super::super::answer::{Html, Problem};
use super::super::app::App;
use super::super::fields::Fields;
use super::super::gate::Asker;
use super::super::layout::{Frame, Tab, away, badge, cell, count, lasting, maybe, since};
use super::super::list::{Column, Kind, column, list};
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
    let piece = piece(&query, &found.keys)?;
    let body = html! {
        p class="lead" { "Messages of an ordering key wait behind its first unpublished message. A message without a key holds up its whole topic." }
        (away(&found.away))
        @if found.more {
            p class="notice" { "Not all waiting messages are counted: only the first " (count(found.examined_max.into())) " \
                                                                                                                           of \
                                                                                                                           each \
                                                                                                                           state \
                                                                                                                           and \
                                                                                                                           pipeline \
                                                                                                                           are." }
        }
        @if found.keys.is_empty() { p class="empty" { "No keys are waiting" @if !found.away.is_empty() { " in the databases that answer" } "." } } @else {
            (list("Held keys", &COLUMNS, piece.rows.iter().map(row)))
            (piece.links("/held", &[("pipeline", pipeline)]))
        }
    };
    Ok(Html(Frame::new(Tab::Held, "Held keys").live(&uri).page(&body)))
}

const COLUMNS: [Column; 8] = [
    column("Key", Kind::Name),
    column("Pipeline", Kind::Text),
    column("Topic", Kind::Text),
    column("Stopped by", Kind::Text),
    column("State", Kind::State),
    column("Behind it", Kind::Number),
    column("Since", Kind::Time),
    column("Why", Kind::Why),
];

fn row(line: &HeldLine) -> Vec<Markup> {
    let HeldLine { pipeline, key, topic, first, state, error, since: at, due_in_seconds, behind } = line;
    let story = with_query("/message", &[("id", first), ("pipeline", pipeline)]);
    vec![
        html! { @match key { Some(key) => (cell(key)), None => span class="faint" { "without a key" } } },
        cell(pipeline),
        cell(topic),
        html! { a href=(story) { (first) } },
        badge(*state),
        html! { (count(*behind)) },
        since(*at),
        html! {
            @if let Some(due) = due_in_seconds { span class="faint" { "next attempt in " (lasting(*due)) } " " }
            (maybe(error.as_deref()))
        },
    ]
}
