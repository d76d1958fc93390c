//! Pausing and resuming a pipeline, a topic or a key.

use std::sync::Arc;

use axum::Form;
use axum::extract::{Query, State};
use axum::response::Redirect;
use maud::html;
use message::{OrderingKey, Topic, shield};
use operate::pause::{PauseLine, pause as set, pauses, resume as lift};
use operate::status::PipelineStatus;
use operate::{OperateError, Operator, Role};
use outbox_log::{ExceptionState, PauseScope};

use super::super::address::{to, with_query};
use super::super::again;
use super::super::answer::{Html, Problem};
use super::super::app::App;
use super::super::fields::Fields;
use super::super::gate::Asker;
use super::super::layout::{Frame, Tab, ago, cell, count, form_token, signature, whole};

const SCOPES: [(&str, &str); 3] =
    [("pipeline", "the whole pipeline"), ("topic", "a topic"), ("key", "an ordering key")];

/// `GET /pause`: the form.
pub(crate) async fn ask(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Query(query): Query<Fields>,
) -> Result<Html, Problem> {
    // A user without the right does not get the form.
    permit(&operator)?;
    query.check()?;
    let pipeline = app.pipeline(query.text("pipeline"))?;
    let is_resume = query.text("resume") == "yes";
    let (title, path) = if is_resume { ("Resume", "/resume") } else { ("Pause", "/pause") };
    // The button of a pause resumes exactly that pause.
    let is_fixed = is_resume && !query.text("since").is_empty();
    let paused = if is_fixed { in_force(&app, &operator, &query).await? } else { None };
    let picture = if is_resume { Some(app.observer.picture().await) } else { None };
    let pipelines = picture.iter().flat_map(|picture| &picture.pipelines);
    let status = pipelines.map(|(status, _)| status).find(|status| status.pipeline == pipeline.name.as_str());
    let body = html! {
        form method="post" action=(to(path)) class="card" {
            (form_token())
            input type="hidden" name="pipeline" value=(pipeline.name);
            input type="hidden" name="from" value=(query.text("from"));
            @if is_resume { input type="hidden" name="since" value=(query.text("since")); }
            p { "Pipeline " strong { (cell(pipeline.name.as_str())) } ". "
                @if is_resume { "Held messages are published in order" (status.and_then(flows).unwrap_or_default()) "." }
                @else {
                    "No message is lost: paused messages wait, and later messages with the same keys wait behind them. "
                    "Messages that the relay has already queued for its broker still go out (the metric "
                    "relay_in_flight_messages counts them); ending the relay process stops them."
                } }
            @if is_fixed {
                @for name in ["scope", "name"] { input type="hidden" name=(name) value=(query.exact(name)); }
                @match &paused {
                    Some(pause) => p {
                        strong { (cell(&pause.paused.to_string())) } " is paused by " (cell(&pause.actor)) ", "
                        (ago(pause.since)) ": " (whole(&pause.reason))
                    },
                    None => p { "This is not paused any more." },
                }
            } @else {
                label { (title) select name="scope" {
                    @for (value, name) in SCOPES { option value=(value) selected[value == query.text("scope")] { (name) } }
                } }
                label { "Name of the topic or key; empty for the pipeline"
                    input name="name" value=(query.exact("name")) maxlength="255" autocomplete="off"; }
            }
            (signature(title, !is_resume))
            " " a class="button" href=(back(&query)) { "Back" }
        }
    };
    Ok(Html(Frame::new(Tab::Overview, title).page(&body)))
}

/// Returns how many messages of a pipeline wait: `: 41 are held, and up to 1,200 are not read yet`.
fn flows(status: &PipelineStatus) -> Option<String> {
    let unread = status.waiting_max().unwrap_or_default();
    let held = status.parked(ExceptionState::Held);
    let least = if status.exceptions_are_at_least { "at least " } else { "" };
    let held = (held > 0).then(|| format!("{least}{} of the pipeline are held", count(held)));
    let unread = (unread > 0).then(|| format!("up to {} are not read yet", count(unread)));
    let told: Vec<String> = held.into_iter().chain(unread).collect();
    (!told.is_empty()).then(|| format!(": {}", told.join(", and ")))
}

/// Returns the pause of the requested scope that is in force, so that an operator sees who paused
/// it and why before ending it.
async fn in_force(app: &App, operator: &Operator, query: &Fields) -> Result<Option<PauseLine>, Problem> {
    let scope = scope(query)?;
    let turn = app.turn().await?;
    let lines = pauses(&app.outboxes(query.text("pipeline"))?, operator).await?;
    drop(turn);
    Ok(lines.into_iter().find(|line| line.paused == scope))
}

/// `POST /pause`.
pub(crate) async fn pause(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Form(form): Form<Fields>,
) -> Result<Redirect, Problem> {
    change(operator, app, form, true).await
}

/// `POST /resume`.
pub(crate) async fn resume(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Form(form): Form<Fields>,
) -> Result<Redirect, Problem> {
    change(operator, app, form, false).await
}

async fn change(
    operator: Operator,
    app: Arc<App>,
    form: Fields,
    is_paused: bool,
) -> Result<Redirect, Problem> {
    // Checked first: without the right, the form does not matter.
    permit(&operator)?;
    let scope = scope(&form)?;
    let path = if is_paused { "/pause" } else { "/resume" };
    let signed = again::signed(&operator, &form, path, "pause or resume")?;
    let back = back(&form);
    let changed = shield(async move {
        let _turn = app.turn().await?;
        let places = app.outboxes(app.pipeline(form.text("pipeline"))?.name.as_str())?;
        if is_paused {
            set(&places, &signed, &scope).await?;
        } else {
            // Refused if the form was made for an earlier pause of the same scope.
            lift(&places, &signed, &scope, form.moment("since")?).await?;
        }
        Ok::<_, Problem>(())
    });
    changed.await?;
    Ok(Redirect::to(&back))
}

/// Returns the address of the page that the form was opened from.
fn back(fields: &Fields) -> String {
    match fields.text("from") {
        "topics" => to("/topics"),
        "pipeline" => with_query("/pipeline", &[("name", fields.text("pipeline"))]),
        _ => to("/"),
    }
}

fn permit(operator: &Operator) -> Result<(), OperateError> {
    operator.permit(Role::Operator, "pause or resume")
}

fn scope(form: &Fields) -> Result<PauseScope, Problem> {
    form.check()?;
    // Keys may begin or end with spaces.
    let name = form.exact("name");
    Ok(match form.text("scope") {
        "pipeline" if name.is_empty() => PauseScope::Pipeline,
        "pipeline" => {
            return Err(Problem::bad("a name is not allowed for the whole pipeline: choose topic or key"));
        }
        "topic" => {
            let topic = Topic::new(name).map_err(|error| Problem::bad(error.to_string()))?;
            PauseScope::Topic(topic.as_str().to_owned())
        }
        "key" => {
            let key = OrderingKey::new(name).map_err(|error| Problem::bad(error.to_string()))?;
            PauseScope::Key(key.as_str().to_owned())
        }
        other => {
            return Err(Problem::bad(format!("{other:?} cannot be paused; choose pipeline, topic or key")));
        }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_resume_says_how_many_messages_flow() {
        let none = PipelineStatus::of("orders", None, None);
        assert_eq!(flows(&none), None);
        let some = PipelineStatus {
            exceptions: BTreeMap::from([(ExceptionState::Held, 41)]),
            backlog_entries_max: Some(1_200),
            oldest_pending_id: Some(7),
            ..none
        };
        let told = ": 41 of the pipeline are held, and up to 1,200 are not read yet";
        assert_eq!(flows(&some).as_deref(), Some(told));
    }
}
