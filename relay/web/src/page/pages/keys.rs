//! Idempotency keys whose holder has disappeared.

use std::num::NonZeroU32;
use std::sync::Arc;

use axum::Form;
use axum::extract::{Query, State};
use axum::http::Uri;
use axum::response::Redirect;
use futures_util::{StreamExt as _, stream};
use idempotency::{Action, KeyId};
use maud::{Markup, html};
use message::shield;
use operate::keys::{self, KeyLine};
use operate::{NamedTables, OperateError, OperateErrorKind, Operator, Role, named_tables};
use uuid::Uuid;

use super::super::address::{to, with_query};
use super::super::again;
use super::super::answer::{Html, Problem};
use super::super::app::App;
use super::super::fields::Fields;
use super::super::gate::Asker;
use super::super::layout::{
    Frame, Tab, cell, count, decided_now, denied, done, form_token, just_decided, may_decide, signature,
    since,
};
use super::super::list::{Column, Kind, column, list};
use super::tables::{self, ASKED_MAX};

/// The rights that a decision needs beyond viewing, as the documentation of the page grants them,
/// for `{user}`.
pub(super) const GRANT: &str = "GRANT UPDATE (state, lease_until, decided_by, processed_at, expires_at, \
    claimed_at) ON idempotency_key TO {user}; GRANT INSERT ON idempotency_audit TO {user}";

/// Maximum number of keys shown for each database.
const KEYS_MAX: NonZeroU32 = NonZeroU32::MIN.saturating_add(199);

/// `GET /keys`.
pub(crate) async fn show(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Query(query): Query<Fields>,
    uri: Uri,
) -> Result<Html, Problem> {
    query.check()?;
    let _turn = app.turn().await?;
    let operator = &operator;
    let ask = |NamedTables { name, tables }| async move {
        let lines = match tables {
            Ok(tables) => keys::stuck(&tables, operator, KEYS_MAX).await,
            Err(problem) => Err(OperateError::refused(problem, "")),
        };
        (name, lines)
    };
    let asked: Vec<_> = named_tables(&app.pipelines, &app.inboxes).into_iter().map(ask).collect();
    let found: Vec<_> = stream::iter(asked).buffered(ASKED_MAX).collect().await;
    let body = html! {
        (done(just_decided(query.text("done")).and_then(outcome)))
        p class="lead" { "Keys whose lease has expired and that no request has taken over, longest expired first." }
        @for (name, lines) in &found {
            section class="card" {
                div class="card-head" { h2 { (cell(&tables::heading(name))) } }
                @match lines {
                    Err(error) if error.kind() == OperateErrorKind::NoTables => {
                        p class="empty" { "No idempotency key tables here: " (cell(&error.to_string())) }
                    }
                    Err(error) if error.kind() == OperateErrorKind::NotGranted => {
                        p class="faint" { (cell(&denied(&error.to_string()))) }
                    }
                    Err(error) => p class="faint" { (cell(&error.to_string())) },
                    Ok(lines) if lines.is_empty() => p class="empty" { "No keys are stuck." },
                    Ok(lines) => {
                        (table(operator, name, lines))
                        @if lines.len() >= KEYS_MAX.get() as usize { p class="faint" { "These are the first " (count(KEYS_MAX.get().into())) "." } }
                    }
                }
            }
        }
    };
    Ok(Html(Frame::new(Tab::Keys, "Idempotency keys").live(&uri).page(&body)))
}

/// Returns early the error that `operate` would return later, before the form is checked.
fn permit(operator: &Operator) -> Result<(), Problem> {
    operator.permit(Role::Operator, "decide about idempotency keys").map_err(Problem::from)
}

/// A decision that a form describes.
struct Choice {
    action: Action,
    id: KeyId,
    /// Its last holder at the time of the form.
    holder: Uuid,
    /// The name of its database.
    database: String,
}

impl Choice {
    fn read(form: &Fields) -> Result<Self, Problem> {
        form.check()?;
        let action = Action::from_word(form.text("what"))
            .ok_or_else(|| Problem::bad("unknown action: use release or discard"))?;
        let id = KeyId::of_texts(form.exact("scope"), form.exact("operation"), form.exact("key"))
            .map_err(|error| Problem::bad(error.to_string()))?;
        Ok(Self { action, id, holder: form.need("holder")?, database: form.text("database").to_owned() })
    }
}

fn consequence(action: Action) -> &'static str {
    match action {
        Action::Release => "The next request with the key runs again and calls the other service again.",
        Action::Discard => "The request never runs again, and clients that send the key get an error.",
    }
}

/// Returns what a decision has done; `None` for a word that is none.
fn outcome(decided: &str) -> Option<String> {
    let action = Action::from_word(decided)?;
    let done = match action {
        Action::Release => "The key is released",
        Action::Discard => "The key is discarded",
    };
    Some(format!("{done}. {}", consequence(action)))
}

/// `POST /keys/confirm`: the decision, with a field for its reason. It is a form instead of a link,
/// because keys do not belong in addresses.
pub(crate) async fn confirm(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Form(form): Form<Fields>,
) -> Result<Html, Problem> {
    permit(&operator)?;
    let choice = Choice::read(&form)?;
    tables::named(&app, &choice.database)?;
    let verb = match choice.action {
        Action::Release => "Release",
        Action::Discard => "Discard",
    };
    let title = format!("{verb} the key {}?", choice.id.key());
    let body = html! {
        form method="post" action=(to("/keys/decide")) class="card" {
            (form_token())
            @for name in ["database", "scope", "operation", "key", "holder", "what"] {
                input type="hidden" name=(name) value=(form.exact(name));
            }
            p { "Of " strong { (cell(choice.id.tenant().as_str())) } ", for " strong { (cell(choice.id.operation().as_str())) } "." }
            p { (consequence(choice.action)) " First find out whether its holder took effect." }
            (signature(verb, choice.action == Action::Discard))
            a class="button" href=(to("/keys")) { "Back" }
        }
    };
    Ok(Html(Frame::new(Tab::Keys, &title).page(&body)))
}

/// `POST /keys/decide`. Leads to the list, which says what was done: the key itself does not belong
/// in an address.
pub(crate) async fn decide(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Form(form): Form<Fields>,
) -> Result<Redirect, Problem> {
    permit(&operator)?;
    let choice = Choice::read(&form)?;
    let signed = again::signed(&operator, &form, "/keys/decide", "decide about keys")?;
    let news = decided_now(choice.action.as_str());
    let result = with_query("/keys", &[("done", news.as_str())]);
    let grants = tables::grants(GRANT, tables::named(&app, &choice.database)?.user().as_deref());
    let decided = shield(async move {
        let _turn = app.turn().await?;
        let tables = tables::named(&app, &choice.database)?;
        let holder = Some(choice.holder);
        Ok::<_, Problem>(keys::decide(&tables, &signed, &choice.id, holder, choice.action).await)
    });
    match decided.await? {
        Ok(()) => Ok(Redirect::to(&result)),
        Err(error) => Err(tables::refused(error, &grants, again::card("/keys/decide", &form))),
    }
}

const COLUMNS: [Column; 7] = [
    column("Key", Kind::Name),
    column("Operation", Kind::Text),
    column("Scope", Kind::Text),
    column("Claims", Kind::Number),
    column("Claimed", Kind::Time),
    column("Lease ended", Kind::Time),
    column("Actions", Kind::Act),
];

fn table(operator: &Operator, database: &str, lines: &[KeyLine]) -> Markup {
    let label = format!("Keys of {database}");
    list(&label, &COLUMNS, lines.iter().map(|line| row(operator, database, line)))
}

fn row(operator: &Operator, database: &str, line: &KeyLine) -> Vec<Markup> {
    vec![
        cell(&line.key),
        cell(&line.operation),
        cell(&line.scope),
        html! { (line.attempt) },
        since(line.claimed_at),
        since(line.lease_until),
        html! { @if may_decide(operator) {
            form method="post" action=(to("/keys/confirm")) class="actions" {
                (form_token())
                input type="hidden" name="database" value=(database);
                input type="hidden" name="scope" value=(line.scope);
                input type="hidden" name="operation" value=(line.operation);
                input type="hidden" name="key" value=(line.key);
                input type="hidden" name="holder" value=(line.holder);
                button name="what" value="release" { "Release…" }
                button name="what" value="discard" class="danger" { "Discard…" }
            }
        } },
    ]
}

#[cfg(test)]
mod tests {
    use time::{Duration, OffsetDateTime};

    use super::*;

    #[test]
    fn the_list_of_keys_says_what_was_decided() {
        let told = |word| done(outcome(word)).into_string();
        assert!(told("release").contains("The key is released. The next request with the key runs again"));
        assert!(told("discard").contains("The key is discarded. The request never runs again"));
        assert_eq!([told(""), told("<script>")], ["", ""]);
    }

    #[test]
    fn a_key_has_its_ages() {
        let now = OffsetDateTime::now_utc();
        let line = KeyLine {
            scope: String::from("tenant-1"),
            operation: String::from("POST /charges"),
            key: String::from("8e03978e"),
            attempt: 1,
            claimed_at: now - Duration::minutes(2),
            lease_until: now - Duration::minutes(1),
            holder: Uuid::nil(),
        };
        let text = table(&Operator::new("eve", Role::Viewer), "pipeline:orders", &[line]).into_string();
        assert!(text.contains(">2m") && text.contains(">1m"), "{text}");
        assert!(!text.contains("<form"), "{text}");
    }
}
