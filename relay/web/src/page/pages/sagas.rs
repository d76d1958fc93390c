//! Sagas: those that need an operator, those that run, and a single one with its steps.

use std::num::NonZeroU32;
use std::sync::Arc;

use axum::Form;
use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri};
use futures_util::{StreamExt as _, stream};
use maud::{Markup, html};
use message::shield;
use operate::sagas::SagaDatabase;
use operate::tables::Tables;
use operate::{NamedTables, OperateError, OperateErrorKind, Operator, Role, Signed, named_tables};
use saga::{Choice, SagaId, SagaOutline, SagaQuery, StepRecord};

use super::super::address::{to, with_query};
use super::super::again;
use super::super::answer::{Html, Problem};
use super::super::app::App;
use super::super::fields::Fields;
use super::super::gate::Asker;
use super::super::layout::{
    Frame, Tab, badge, cell, count, denied, form_token, may_decide, maybe, maybe_since, signature, since,
};
use super::super::list::{Column, Kind, column, list};
use super::tables::{self, ASKED_MAX};

/// Maximum number of sagas shown for each database.
const SAGAS_MAX: NonZeroU32 = NonZeroU32::MIN.saturating_add(199);

/// `GET /sagas`.
pub(crate) async fn show_all(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Query(query): Query<Fields>,
    uri: Uri,
) -> Result<Html, Problem> {
    query.check()?;
    let _turn = app.turn().await?;
    let mut wanted = SagaQuery::open(SAGAS_MAX);
    wanted.is_stuck = query.text("show") == "stuck";
    wanted.with_ended = query.text("show") == "all";
    let operator = &operator;
    let wanted = &wanted;
    let ask = |NamedTables { name, tables }| async move {
        let sagas = match tables {
            Ok(tables) => listed(&tables, operator, wanted).await,
            Err(problem) => Err(OperateError::refused(problem, "")),
        };
        (name, sagas)
    };
    let asked: Vec<_> = named_tables(&app.pipelines, &app.inboxes).into_iter().map(ask).collect();
    let found: Vec<_> = stream::iter(asked).buffered(ASKED_MAX).collect().await;
    let body = html! {
        nav class="choices" aria-label="Which sagas" {
            @for (value, name) in [("", "open"), ("stuck", "stuck"), ("all", "including ended")] {
                a href=(with_query("/sagas", &[("show", value)])) aria-current=[(query.text("show") == value).then_some("true")] { (name) }
            }
        }
        @for (name, sagas) in &found {
            section class="card" {
                div class="card-head" { h2 { (cell(name)) } }
                @match sagas {
                    Err(error) if error.kind() == OperateErrorKind::NoTables => {
                        p class="empty" { "No saga tables here: " (cell(&error.to_string())) }
                    }
                    Err(error) if error.kind() == OperateErrorKind::NotGranted => {
                        p class="faint" { (cell(&denied(&error.to_string()))) }
                    }
                    Err(error) => p class="faint" { (cell(&error.to_string())) },
                    Ok(sagas) if sagas.is_empty() => p class="empty" { "No sagas." },
                    Ok(sagas) => {
                        (table(name, sagas))
                        @if sagas.len() >= SAGAS_MAX.get() as usize { p class="faint" { "These are the oldest " (count(SAGAS_MAX.get().into())) "." } }
                    }
                }
            }
        }
    };
    Ok(Html(Frame::new(Tab::Sagas, "Sagas").live(&uri).page(&body)))
}

async fn listed(
    tables: &Tables,
    operator: &Operator,
    query: &SagaQuery,
) -> Result<Vec<SagaOutline>, OperateError> {
    let database = SagaDatabase::open(tables).await?;
    let sagas = database.list(operator, query).await;
    database.close().await;
    sagas
}

/// `GET /saga`.
pub(crate) async fn show(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Query(query): Query<Fields>,
    uri: Uri,
) -> Result<Html, Problem> {
    query.check()?;
    let id = id(&query)?;
    let turn = app.turn().await?;
    let tables = tables::named(&app, query.text("database"))?;
    let database = SagaDatabase::open(&tables).await?;
    let found = database.show(&operator, &id).await;
    database.close().await;
    drop(turn);
    let found = found?;
    let (saga, steps) = found.ok_or_else(|| missing(&id))?;
    let body = one(&operator, &query, &saga, &steps);
    let title = format!("Saga {id}");
    Ok(Html(Frame::new(Tab::Sagas, &title).live(&uri).page(&body)))
}

/// `POST /saga/decide`.
pub(crate) async fn decide(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Form(form): Form<Fields>,
) -> Result<Html, Problem> {
    // Checked first: a user without the right opens no database.
    operator.permit(Role::Operator, "decide about sagas")?;
    form.check()?;
    let id = id(&form)?;
    let signed = again::signed(&operator, &form, "/saga/decide", "decide about sagas")?;
    let back = with_query("/saga", &place(&form));
    let decided = shield(async move {
        let _turn = app.turn().await?;
        let database = SagaDatabase::open(&tables::named(&app, form.text("database"))?).await?;
        let decided = carry_out(&database, &signed, &id, &form).await;
        database.close().await;
        decided
    });
    decided.await?;
    let body = html! {
        p class="lead" { "A worker picks the saga up within seconds." }
        p { a class="button" href=(back) { "Back to the saga" } }
    };
    Ok(Html(Frame::new(Tab::Sagas, "Decided").page(&body)))
}

/// Carries out the decision of a form. Refuses if the saga has advanced, got stuck elsewhere or
/// been cancelled since: the decision would then mean something else.
async fn carry_out(
    database: &SagaDatabase,
    signed: &Signed,
    id: &SagaId,
    form: &Fields,
) -> Result<(), Problem> {
    let choice = choice(form)?;
    let Some((saga, _)) = database.show(&signed.operator, id).await? else { return Err(missing(id)) };
    let seen = saga.seen();
    if seen.to_string() != form.exact("as_of") {
        let text =
            format!("the saga {id} is {} now, and has changed since the form was shown", saga.condition());
        return Err(Problem::conflict(text).with_help("nothing was changed: check the saga again"));
    }
    Ok(database.decide(signed, id, choice, Some(seen)).await?)
}

fn missing(id: &SagaId) -> Problem {
    let problem = Problem::new(StatusCode::NOT_FOUND, format!("there is no saga {id}"));
    problem.with_help("an ended saga is deleted after its retention")
}

fn choice(form: &Fields) -> Result<Choice, Problem> {
    match form.text("what") {
        "retry" => Ok(Choice::Retry),
        "cancel" => Ok(Choice::Cancel),
        "skip" => Ok(Choice::Skip { step: form.exact("step").to_owned(), result: result(form)? }),
        _ => Err(Problem::bad("unknown action: use retry, cancel or skip")),
    }
}

fn result(form: &Fields) -> Result<Option<serde_json::Value>, Problem> {
    let read = |text: String| {
        serde_json::from_str(&text).map_err(|error| Problem::bad(format!("the result is not JSON: {error}")))
    };
    form.given("result").map(read).transpose()
}

fn id(fields: &Fields) -> Result<SagaId, Problem> {
    SagaId::new(fields.exact("type"), fields.exact("id")).map_err(|error| Problem::bad(error.to_string()))
}

fn place(fields: &Fields) -> [(&str, &str); 3] {
    ["database", "type", "id"].map(|name| (name, fields.exact(name)))
}

const COLUMNS: [Column; 7] = [
    column("Saga", Kind::Name),
    column("Type", Kind::Text),
    column("State", Kind::State),
    column("Waiting for", Kind::Text),
    column("Since", Kind::Time),
    column("Started", Kind::Time),
    column("Why", Kind::Why),
];

fn table(database: &str, sagas: &[SagaOutline]) -> Markup {
    list(&format!("Sagas of {database}"), &COLUMNS, sagas.iter().map(|saga| row(database, saga)))
}

fn row(database: &str, saga: &SagaOutline) -> Vec<Markup> {
    let place = [("database", database), ("type", saga.id.saga_type()), ("id", saga.id.id())];
    vec![
        html! { a href=(with_query("/saga", &place)) { (cell(saga.id.id())) } },
        cell(saga.id.saga_type()),
        badge(saga.condition()),
        maybe(saga.waits_for.as_deref()),
        maybe_since(saga.stuck_at.or(saga.waiting_since)),
        since(saga.started_at),
        maybe(saga.error.as_deref().or(saga.reason.as_deref())),
    ]
}

const STEPS: [Column; 8] = [
    column("Step", Kind::Name),
    column("Kind", Kind::Text),
    column("State", Kind::State),
    column("Undo", Kind::Text),
    column("Begun", Kind::Time),
    column("Ended", Kind::Time),
    column("Undone", Kind::Time),
    column("Why", Kind::Why),
];

fn step(step: &StepRecord) -> Vec<Markup> {
    vec![
        cell(&step.name),
        html! { (step.kind.as_str()) },
        badge(step.state),
        html! { (step.undo.as_str()) },
        since(step.begun_at),
        maybe_since(step.ended_at),
        maybe_since(step.undone_at),
        maybe(step.error.as_deref()),
    ]
}

fn one(operator: &Operator, query: &Fields, saga: &SagaOutline, steps: &[StepRecord]) -> Markup {
    let is_open = saga.ended_at.is_none();
    html! {
        section class="card" {
            div class="card-head" { h2 { (cell(saga.id.id())) } (badge(saga.condition())) }
            @if let Some(why) = saga.error.as_deref().or(saga.reason.as_deref()) { pre class="error" { (cell(why)) } }
            dl class="facts" {
                @for (name, value) in [
                    ("Version", cell(&saga.version.to_string())),
                    ("Waiting for", maybe(saga.waits_for.as_deref())),
                    ("Since", maybe_since(saga.stuck_at.or(saga.waiting_since))),
                    ("Next run", maybe_since(saga.wake_at)),
                    ("Worker", maybe(saga.worker.as_deref())),
                    ("Attempts", cell(&saga.attempts.to_string())),
                    ("Started", since(saga.started_at)),
                    ("Ended", maybe_since(saga.ended_at)),
                ] { div { dt { (name) } dd { (value) } } }
            }
        }
        h2 { "Steps" }
        (list("Steps", &STEPS, steps.iter().take(1_000).map(step)))
        @if may_decide(operator) && is_open {
            form method="post" action=(to("/saga/decide")) class="card" {
                (form_token())
                h2 { "Decide" }
                @for (name, value) in place(query) { input type="hidden" name=(name) value=(value); }
                input type="hidden" name="as_of" value=(saga.seen());
                label { "What" select name="what" {
                    option value="retry" { "retry: continue where it stopped" }
                    option value="cancel" { "cancel: undo the finished steps" }
                    option value="skip" { "skip: skip a step" }
                } }
                label { "Step (for skip)" input name="step" value=(saga.waits_for.as_deref().unwrap_or_default()) maxlength="255"; }
                label { "Result of the step (JSON; for skip, unless the step is being undone)" input name="result" placeholder="null" maxlength="2000"; }
                (signature("Decide", true))
            }
        }
    }
}
