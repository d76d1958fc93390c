//! Sagas: those that need an operator, those that run, and a single one with its steps.

use std::num::NonZeroU32;
use std::sync::Arc;

use axum::Form;
use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri};
use axum::response::Redirect;
use futures_util::{StreamExt as _, stream};
use maud::{Markup, html};
use message::shield;
use operate::sagas::SagaDatabase;
use operate::tables::Tables;
use operate::{NamedTables, OperateError, OperateErrorKind, Operator, Role, Signed, named_tables};
use saga::{Action, Choice, Condition, SagaId, SagaOutline, SagaQuery, StepRecord};

use super::super::address::{to, with_query};
use super::super::again;
use super::super::answer::{Html, Problem};
use super::super::app::App;
use super::super::fields::Fields;
use super::super::gate::Asker;
use super::super::layout::{
    Frame, Tab, badge, cell, count, decided_now, denied, done, form_token, just_decided, may_decide, maybe,
    maybe_since, signature, since, whole,
};
use super::super::list::{Column, Kind, column, list};
use super::tables::{self, ASKED_MAX};

/// The rights that a decision needs beyond viewing, as the documentation of the page grants them,
/// for `{user}`.
pub(super) const GRANT: &str = "GRANT UPDATE (state, reason, cancel, error, attempts, waits_for, \
    waiting_since, wake_at, stuck_at) ON saga TO {user}; GRANT INSERT, UPDATE (state, undo, result, \
    ended_at, undone_at, error) ON saga_step TO {user}; GRANT INSERT ON saga_audit TO {user}";

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
                div class="card-head" { h2 { (cell(&tables::heading(name))) } }
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
    let (saga, steps) = found(&app, &operator, &query, &id).await?;
    let body = html! {
        (done(just_decided(query.text("done")).and_then(|action| outcome(action, saga.condition()))))
        (one(&operator, &query, &saga, &steps))
    };
    let title = format!("Saga {id}");
    Ok(Html(Frame::new(Tab::Sagas, &title).live(&uri).page(&body)))
}

/// Reads the saga that an address names, with its steps.
async fn found(
    app: &App,
    operator: &Operator,
    query: &Fields,
    id: &SagaId,
) -> Result<(SagaOutline, Vec<StepRecord>), Problem> {
    let turn = app.turn().await?;
    let tables = tables::named(app, query.text("database"))?;
    let database = SagaDatabase::open(&tables).await?;
    let found = database.show(operator, id).await;
    database.close().await;
    drop(turn);
    found?.ok_or_else(|| missing(id))
}

/// `GET /saga/decide`: the decision about a saga as it is now, with a field for its reason.
pub(crate) async fn ask(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Query(query): Query<Fields>,
) -> Result<Html, Problem> {
    // A user without the right does not get the form.
    operator.permit(Role::Operator, "decide about sagas")?;
    query.check()?;
    let id = id(&query)?;
    let action = Action::from_word(query.text("what")).ok_or_else(unknown_action)?;
    let (saga, _) = found(&app, &operator, &query, &id).await?;
    let condition = saga.condition();
    if !permitted(condition).contains(&action) {
        let text = format!("{action} is not possible: the saga {id} is {condition} now");
        return Err(Problem::conflict(text).with_help("nothing was changed: check the saga again"));
    }
    let now = Now {
        condition,
        as_of: saga.seen().to_string(),
        step: saga.waits_for.as_deref().unwrap_or_default(),
        why: saga.error.as_deref().or(saga.reason.as_deref()),
    };
    let title = format!("{}: {id}?", again::saga_verb(action));
    Ok(Html(Frame::new(Tab::Sagas, &title).page(&confirmation(&query, action, &now))))
}

/// A saga as a confirmation shows it.
struct Now<'a> {
    condition: Condition,
    /// The state that the decision compares it with.
    as_of: String,
    /// The step at which it is stuck; empty if it is stuck at none.
    step: &'a str,
    /// Its last failure, or the reason why it is undone.
    why: Option<&'a str>,
}

/// Renders a decision with its consequences, and the fields that it needs.
fn confirmation(query: &Fields, action: Action, now: &Now<'_>) -> Markup {
    let is_undoing = matches!(now.condition, Condition::Stuck(saga::State::Undoing));
    html! {
        form method="post" action=(to("/saga/decide")) class="card" {
            (form_token())
            @for (name, value) in place(query) { input type="hidden" name=(name) value=(value); }
            input type="hidden" name="as_of" value=(now.as_of);
            input type="hidden" name="what" value=(action.as_str());
            p {
                "The saga is " (badge(now.condition))
                @if !now.step.is_empty() { " at " strong { (cell(now.step)) } }
                "."
            }
            @if let Some(why) = now.why { pre class="error" { (whole(why)) } }
            p { (consequence(action, is_undoing)) }
            @if action == Action::Skip {
                label { "Step" input name="step" value=(now.step) required maxlength="255"; }
                @if !is_undoing {
                    label { "Result of the step (JSON), with which the saga continues; null if it has none"
                        input name="result" required placeholder="null" maxlength="2000"; }
                }
            }
            (signature(again::saga_verb(action), action != Action::Retry))
            " " a class="button" href=(with_query("/saga", &place(query))) { "Back" }
        }
    }
}

/// Returns the decisions that a saga in this condition permits.
fn permitted(condition: Condition) -> &'static [Action] {
    match condition {
        Condition::Stuck(saga::State::Running) => &[Action::Retry, Action::Skip, Action::Cancel],
        Condition::Stuck(_) => &[Action::Retry, Action::Skip],
        Condition::Usual(saga::State::Running) => &[Action::Cancel],
        _ => &[],
    }
}

fn consequence(action: Action, is_undoing: bool) -> &'static str {
    match action {
        Action::Retry => "It continues where it stopped, with its attempts counted from zero.",
        Action::Cancel => {
            "Its finished steps are undone. If a worker is running a step, this begins after that step."
        }
        _ if is_undoing => {
            "The step is not undone, and the saga continues with the one before it. First undo by hand what \
             has to be undone."
        }
        _ => {
            "The step does not run, and the saga continues with the result below. First do by hand what the \
             step would have done."
        }
    }
}

/// Returns what a decision has done, and what comes next for a saga in this condition; `None` if
/// the condition says otherwise: the saga may be stuck again, or another operator was faster.
fn outcome(decided: &str, condition: Condition) -> Option<String> {
    let action = Action::from_word(decided)?;
    let done = match (action, condition) {
        (_, Condition::Stuck(_)) | (Action::Cancel, Condition::Usual(saga::State::Running)) => return None,
        (Action::Retry, _) => "The saga is retried",
        (Action::Cancel, _) => "The saga is cancelled",
        _ => "The step is skipped",
    };
    let next = match condition {
        Condition::ToBeCancelled(_) => {
            ": its finished steps are undone once its worker has ended the step that it is running"
        }
        Condition::Usual(state) if state.has_ended() => "",
        _ => ": a worker picks the saga up within seconds",
    };
    Some(format!("{done}{next}."))
}

/// `POST /saga/decide`. Leads to the saga, which says what was done.
pub(crate) async fn decide(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Form(form): Form<Fields>,
) -> Result<Redirect, Problem> {
    // Checked first: a user without the right opens no database.
    operator.permit(Role::Operator, "decide about sagas")?;
    form.check()?;
    let id = id(&form)?;
    let signed = again::signed(&operator, &form, "/saga/decide", "decide about sagas")?;
    let news = decided_now(form.text("what"));
    let result = with_query("/saga", &[&place(&form)[..], &[("done", news.as_str())]].concat());
    let grants = tables::grants(GRANT, tables::named(&app, form.text("database"))?.user().as_deref());
    let sent = form.clone();
    let decided = shield(async move {
        let _turn = app.turn().await?;
        let database = SagaDatabase::open(&tables::named(&app, form.text("database"))?).await?;
        let decided = carry_out(&database, &signed, &id, &form).await;
        database.close().await;
        decided
    });
    match decided.await? {
        Ok(()) => Ok(Redirect::to(&result)),
        Err(error) => Err(tables::refused(error, &grants, again::card("/saga/decide", &sent))),
    }
}

/// Carries out the decision of a form. Refuses if the saga has advanced, got stuck elsewhere or
/// been cancelled since: the decision would then mean something else.
async fn carry_out(
    database: &SagaDatabase,
    signed: &Signed,
    id: &SagaId,
    form: &Fields,
) -> Result<Result<(), OperateError>, Problem> {
    let choice = choice(form)?;
    let Some((saga, _)) = database.show(&signed.operator, id).await? else { return Err(missing(id)) };
    let seen = saga.seen();
    if seen.to_string() != form.exact("as_of") {
        let text =
            format!("the saga {id} is {} now, and has changed since the form was shown", saga.condition());
        return Err(Problem::conflict(text).with_help("nothing was changed: check the saga again"));
    }
    Ok(database.decide(signed, id, choice, Some(seen)).await)
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
        _ => Err(unknown_action()),
    }
}

fn unknown_action() -> Problem {
    Problem::bad("unknown action: use retry, cancel or skip")
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
            (decisions(query, saga.condition()))
        }
    }
}

/// Renders the ways to the decisions that a saga permits. Each asks for a reason first.
fn decisions(query: &Fields, condition: Condition) -> Markup {
    let way = |action: Action| {
        let pairs = [&place(query)[..], &[("what", action.as_str())]].concat();
        let class = if action == Action::Retry { "button" } else { "button danger" };
        html! { a class=(class) href=(with_query("/saga/decide", &pairs)) { (again::saga_verb(action)) "…" } }
    };
    let actions = permitted(condition);
    html! {
        @if !actions.is_empty() {
            div class="actions" { @for action in actions { (way(*action)) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use saga::State;

    use super::*;

    fn fields() -> Fields {
        Fields::of(&[("database", "pipeline:orders"), ("type", "checkout"), ("id", "a&b"), ("done", "retry")])
    }

    /// Goal: a saga offers only what can be decided about it. Oracle: the links for its conditions,
    /// none of which decides.
    #[test]
    fn a_saga_offers_what_its_condition_permits() {
        let cases: [(Condition, &[Action]); 6] = [
            (Condition::Stuck(State::Running), &[Action::Retry, Action::Skip, Action::Cancel]),
            (Condition::Stuck(State::Undoing), &[Action::Retry, Action::Skip]),
            (Condition::Usual(State::Running), &[Action::Cancel]),
            (Condition::Usual(State::Undoing), &[]),
            (Condition::ToBeCancelled(State::Running), &[]),
            (Condition::Usual(State::Finished), &[]),
        ];
        let path = "/saga/decide?database=pipeline%3Aorders&amp;type=checkout&amp;id=a%26b";
        for (condition, offered) in cases {
            let text = decisions(&fields(), condition).into_string();
            for action in Action::ALL {
                let link = format!("href=\"{path}&amp;what={action}\"");
                assert_eq!(text.contains(&link), offered.contains(&action), "{condition}: {text}");
            }
            assert!(!text.contains("<form"), "{text}");
        }
    }

    /// Goal: each decision says what it does before it asks for a reason. Oracle: the
    /// confirmations; only the skip of a step that runs needs a result.
    #[test]
    fn a_confirmation_says_what_follows() {
        let shown = |action, state| {
            let now = Now {
                condition: Condition::Stuck(state),
                as_of: String::from("12.3"),
                step: "ship",
                why: Some("ship: no lorry"),
            };
            confirmation(&fields(), action, &now).into_string()
        };
        for (action, told) in [
            (Action::Retry, "continues where it stopped"),
            (Action::Cancel, "finished steps are undone"),
            (Action::Skip, "continues with the result below"),
        ] {
            let text = shown(action, State::Running);
            for part in [told, "ship: no lorry", "name=\"as_of\" value=\"12.3\"", "name=\"reason\""] {
                assert!(text.contains(part), "{part}: {text}");
            }
            assert!(text.contains(&format!("name=\"what\" value=\"{action}\"")), "{text}");
            assert_eq!(text.contains("name=\"result\""), action == Action::Skip, "{text}");
        }
        let text = shown(Action::Skip, State::Undoing);
        assert!(text.contains("The step is not undone") && !text.contains("name=\"result\""), "{text}");
    }

    #[test]
    fn the_page_of_a_saga_says_what_was_decided() {
        let told = |word, condition| done(outcome(word, condition)).into_string();
        let runs = Condition::Usual(State::Running);
        let text = told("retry", runs);
        assert!(text.contains("The saga is retried: a worker picks the saga up within seconds."), "{text}");
        assert!(told("skip", runs).contains("The step is skipped"));
        let text = told("cancel", Condition::Usual(State::Undoing));
        assert!(text.contains("The saga is cancelled: a worker picks the saga up within seconds."), "{text}");
        let text = told("retry", Condition::Usual(State::Finished));
        assert!(text.contains("The saga is retried."), "{text}");
        assert_eq!([told("", runs), told("<script>", runs)], ["", ""]);
    }

    /// Goal: help is not said to be on its way where it is not. Oracle: the sentence for a saga
    /// that is stuck again, for one whose worker is busy, and for one about which nobody has
    /// decided.
    #[test]
    fn what_was_decided_does_not_contradict_the_state() {
        for action in Action::ALL {
            for state in [State::Running, State::Undoing] {
                assert_eq!(outcome(action.as_str(), Condition::Stuck(state)), None, "{action}: {state}");
            }
        }
        assert_eq!(outcome("cancel", Condition::Usual(State::Running)), None);
        let text = outcome("cancel", Condition::ToBeCancelled(State::Running)).unwrap();
        assert!(text.contains("once its worker has ended the step") && !text.contains("seconds"), "{text}");
    }
}
