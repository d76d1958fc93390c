//! Idempotency keys whose holder is gone.

use std::num::NonZeroU32;
use std::sync::Arc;

use axum::Form;
use axum::extract::State;
use axum::http::Uri;
use inbox::keys::{Decision, KeyId};
use maud::{Markup, html};
use message::shield;

use super::super::answer::{Html, Problem};
use super::super::app::App;
use super::super::fields::Fields;
use super::super::gate::Asker;
use super::super::layout::{Frame, Tab, cell, count, may_decide};
use super::tables::{self, NamedTables};
use crate::operate::keys::{self, KeyLine};
use crate::operate::{OperateError, Operator};

/// Keys of a database that are shown.
const KEYS_MAX: NonZeroU32 = NonZeroU32::MIN.saturating_add(199);

/// `GET /keys`.
pub(crate) async fn show(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    uri: Uri,
) -> Result<Html, Problem> {
    let _turn = app.turn().await?;
    let mut found = Vec::new();
    for NamedTables { name, tables } in tables::all(&app) {
        let lines = match tables {
            Ok(tables) => keys::stuck(&tables, &operator, KEYS_MAX).await,
            Err(problem) => Err(OperateError::refused(problem, "")),
        };
        found.push((name, lines));
    }
    let body = html! {
        p class="lead" { "Keys whose lease has expired and which nobody has taken over: the longest first." }
        @for (name, lines) in &found {
            section class="card" {
                div class="card-head" { h2 { (cell(name)) } }
                @match lines {
                    Err(error) => p class="faint" { (cell(&error.to_string())) },
                    Ok(lines) if lines.is_empty() => p class="empty" { "No key is stuck." },
                    Ok(lines) => {
                        (table(&operator, name, lines))
                        @if lines.len() >= KEYS_MAX.get() as usize { p class="faint" { "These are the first " (count(KEYS_MAX.get().into())) "." } }
                    }
                }
            }
        }
    };
    Ok(Html(Frame::new(Some(&operator), Tab::Keys, "Idempotency keys").live(&uri).page(&body)))
}

/// `POST /keys/decide`.
pub(crate) async fn decide(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Form(form): Form<Fields>,
) -> Result<Html, Problem> {
    form.check()?;
    let shown = |problem: Problem| problem.shown_to(&operator);
    let (decision, done) = match form.text("what") {
        "release" => (Decision::Release, "The next request with the key runs again."),
        "discard" => (Decision::Discard, "The request is given up: whoever sends the key is told so."),
        _ => return Err(shown(Problem::bad("a form says release or discard, and nothing else"))),
    };
    let (scope, operation, key) = (form.exact("scope"), form.exact("operation"), form.exact("key"));
    let id =
        KeyId::of_texts(scope, operation, key).map_err(|error| shown(Problem::bad(error.to_string())))?;
    let (name, by) = (form.text("database").to_owned(), operator.clone());
    let decided = shield(async move {
        let _turn = app.turn().await?;
        keys::decide(&tables::named(&app, &name)?, &by, &id, decision).await?;
        // No audit has a line for it: the row keeps the latest name alone.
        let (user, database, decision) = (by.name(), name.as_str(), form.text("what"));
        tracing::info!(user, database, key = %id, decision, "somebody decided about an idempotency key on the page");
        Ok::<_, Problem>(())
    });
    decided.await.map_err(shown)?;
    let body = html! {
        p class="lead" { (done) }
        p { a class="button" href="/keys" { "Back to the keys" } }
    };
    Ok(Html(Frame::new(Some(&operator), Tab::Keys, "Decided").page(&body)))
}

fn table(operator: &Operator, database: &str, lines: &[KeyLine]) -> Markup {
    html! {
        div class="scroll" tabindex="0" role="region" aria-label={ "Keys of " (database) } {
            table {
                thead { tr {
                    @for name in ["Scope", "Operation", "Key"] { th scope="col" { (name) } }
                    th scope="col" class="number" { "Held" }
                    th scope="col" { "Claimed" } th scope="col" { "Lease ended" }
                    th scope="col" { span class="hidden" { "Actions" } }
                } }
                tbody { @for line in lines { tr {
                    td { (cell(&line.scope)) }
                    td { (cell(&line.operation)) }
                    th scope="row" { (cell(&line.key)) }
                    td class="number" { (line.attempt) }
                    td { (cell(&line.claimed_at)) }
                    td { (cell(&line.lease_until)) }
                    td { @if may_decide(operator) {
                        form method="post" action="/keys/decide" class="actions" {
                            input type="hidden" name="database" value=(database);
                            input type="hidden" name="scope" value=(line.scope);
                            input type="hidden" name="operation" value=(line.operation);
                            input type="hidden" name="key" value=(line.key);
                            button name="what" value="release" { "Release" }
                            button name="what" value="discard" class="danger" { "Discard" }
                        }
                    } }
                } } }
            }
        }
    }
}
