//! Waiting keys, and the message that stops each.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::Uri;
use maud::{Markup, html};
use operate::held::{HeldLine, LOOKED_AT_MAX, held};

use super::super::address::with_query;
use super::super::answer::{Html, Problem};
use super::super::app::App;
use super::super::fields::Fields;
use super::super::gate::Asker;
use super::super::layout::{Frame, Tab, away, badge, cell, count, lasting, maybe, since};
use super::pieces::piece;

/// `GET /held`.
pub(crate) async fn show(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Query(query): Query<Fields>,
    uri: Uri,
) -> Result<Html, Problem> {
    query.check()?;
    let turn = app.turn().await?;
    let found =
        held(&app.outboxes("")?, &operator).await.map_err(|e| Problem::from(e).shown_to(&operator))?;
    drop(turn);
    let piece = piece(&query, &found.keys)?;
    let body = html! {
        p class="lead" { "Messages of an ordering key wait behind its first unpublished message. A message without a key holds up its whole topic." }
        (away(&found.away))
        @if found.more {
            p class="notice" { "More messages are waiting than are examined: only the first " (count(LOOKED_AT_MAX.into())) " of each state and pipeline are counted here." }
        }
        @if found.keys.is_empty() { p class="empty" { "No keys are waiting." } } @else {
            div class="scroll" tabindex="0" role="region" aria-label="Held keys" {
                table {
                    thead { tr {
                        th scope="col" { "Key" } th scope="col" { "Pipeline" } th scope="col" { "Topic" }
                        th scope="col" { "Stopped by" } th scope="col" { "State" }
                        th scope="col" class="number" { "Behind it" } th scope="col" { "Since" } th scope="col" { "Why" }
                    } }
                    tbody { @for line in piece.rows { (row(line)) } }
                }
            }
            (piece.links("/held", &[]))
        }
    };
    Ok(Html(Frame::new(Some(&operator), Tab::Held, "Held keys").live(&uri).page(&body)))
}

fn row(line: &HeldLine) -> Markup {
    let HeldLine { pipeline, key, topic, first, state, error, since: at, due_in_seconds, behind } = line;
    html! {
        tr {
            th scope="row" { (maybe(key.as_deref())) }
            td { (cell(pipeline)) }
            td { (cell(topic)) }
            td { a href=(with_query("/message", &[("id", first), ("pipeline", pipeline)])) { (first) } }
            td { (badge(state)) }
            td class="number" { (count(*behind)) }
            td { (since(*at)) }
            td class="wide" {
                (maybe(error.as_deref()))
                @if let Some(due) = due_in_seconds { span class="faint" { " · next attempt in " (lasting(*due)) } }
            }
        }
    }
}
