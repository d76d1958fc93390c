//! The decisions taken so far, and what operators did besides.

use std::num::NonZeroU32;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::Uri;
use maud::{Markup, html};

use super::super::answer::{Html, Problem};
use super::super::app::App;
use super::super::fields::Fields;
use super::super::gate::Asker;
use super::super::layout::{Frame, Tab, away, cell, count, maybe, since};
use super::pieces::piece;
use crate::operate::dead::{AuditLine, audit};

/// Decisions of each place that are looked at.
const LINES_MAX: NonZeroU32 = NonZeroU32::MIN.saturating_add(999);

/// `GET /audit`.
pub(crate) async fn show(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Query(query): Query<Fields>,
    uri: Uri,
) -> Result<Html, Problem> {
    query.check()?;
    let turn = app.turn().await?;
    let mut places = app.with_inboxes(app.outboxes("")?, "").await;
    // A place that is away does not hide the others.
    let errors = std::mem::take(&mut places.away);
    let lines = audit(&places, &operator, LINES_MAX).await;
    places.close().await;
    drop(turn);
    let lines = lines.map_err(|error| Problem::from(error).shown_to(&operator))?;
    let piece = piece(&query, &lines)?;
    let body = html! {
        p class="lead" { "Who decided what, when and why; who paused; who looked at payloads. The latest first, at most " (count(LINES_MAX.get().into())) "." }
        (away(&errors))
        @if lines.is_empty() { p class="empty" { "Nothing was decided so far." } } @else { (table(piece.rows)) }
        (piece.links("/audit", &[]))
    };
    Ok(Html(Frame::new(Some(&operator), Tab::Audit, "Audit").live(&uri).page(&body)))
}

/// Decisions as a table.
pub(crate) fn table(lines: &[AuditLine]) -> Markup {
    html! {
        div class="scroll" tabindex="0" role="region" aria-label="Decisions" {
            table {
                thead { tr { @for name in ["When", "Who", "What", "Of", "Message", "Outcome", "Chosen by", "Why"] { th scope="col" { (name) } } } }
                tbody { @for line in lines { tr {
                    td { (since(line.at)) }
                    td { (cell(&line.actor)) }
                    th scope="row" { (cell(&line.action)) }
                    td { (cell(&line.owner)) }
                    td { (maybe(line.id.as_deref())) }
                    td { (maybe(line.outcome.as_deref())) }
                    td class="wide" { (maybe(line.selection.as_deref())) }
                    td class="wide" { (cell(&line.note)) }
                } } }
            }
        }
    }
}
