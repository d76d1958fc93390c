//! The doctor: checks of a pipeline's database, broker and inboxes, as `relay doctor` runs them.

use std::sync::Arc;
use std::time::Duration;

use axum::Form;
use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri};
use axum::response::Redirect;
use maud::{Markup, html};
use operate::Role;
use operate::doctor::{
    CheckState, ChecklistItem, DoctorOptions, Finding, PipelineReport, checklist, examine,
};
use uuid::Uuid;

use super::super::address::{to, with_query};
use super::super::answer::{Html, Problem};
use super::super::app::App;
use super::super::fields::Fields;
use super::super::gate::Asker;
use super::super::jobs::{Begun, End, wait_at_most};
use super::super::layout::{Frame, Tab, cell, count, form_token, may_decide, since, tone, whole};
use super::super::list::{Column, Kind, column, list};

/// The command that does the same.
const COMMAND: &str = "relay doctor";
/// How long the answer waits for the end. Most have ended by then.
const PATIENCE: Duration = Duration::from_secs(15);

/// Returns the address of a pipeline's report.
pub(crate) fn address(pipeline: &str) -> String {
    with_query("/doctor", &[("pipeline", pipeline)])
}

/// `GET /doctor`: the last report of a pipeline in this process.
pub(crate) async fn show(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Query(query): Query<Fields>,
    uri: Uri,
) -> Result<Html, Problem> {
    query.check()?;
    let name = app.configured(query.exact("pipeline"), COMMAND)?.name.as_str();
    let last = app.checkups.last(name);
    let is_running = last.as_ref().is_some_and(|last| last.job.is_running());
    let body = html! {
        p class="lead" { "Checks database, broker and inboxes, as " code { "relay doctor" } " does. Changes nothing." }
        @match &last {
            None => p class="empty" { "It has not run in this process of the relay." },
            Some(last) => {
                p { "Begun " (since(last.job.begun_at)) " by " (cell(&last.job.by)) "." }
                @match &last.job.end {
                    End::Running => p class="notice" role="status" { "It is running: reload this page." },
                    End::Failed(why) => p class="notice bad" role="alert" { "Not examined: " (whole(why)) },
                    End::Done(found) => (report(found)),
                }
            }
        }
        @if may_decide(&operator) && !is_running {
            form method="post" action=(to("/doctor")) {
                (form_token())
                input type="hidden" name="pipeline" value=(name);
                button class="primary" { @if last.is_some() { "Run it again" } @else { "Run the doctor" } }
            }
        }
        p { a class="button" href=(with_query("/pipeline", &[("name", name)])) { "Back to the pipeline" } }
    };
    let title = format!("Doctor of {name}");
    Ok(Html(Frame::new(Tab::Overview, &title).live_while(is_running, &uri).page(&body)))
}

/// `POST /doctor`: examines a pipeline. The work continues if the browser does not wait.
pub(crate) async fn run(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Form(form): Form<Fields>,
) -> Result<Redirect, Problem> {
    operator.permit(Role::Operator, "run the doctor")?;
    form.check()?;
    let pipeline = app.configured(form.exact("pipeline"), COMMAND)?.clone();
    let name = pipeline.name.to_string();
    let seen = match app.checkups.begin(&name, operator.name(), Uuid::now_v7(), app.until_end()) {
        Begun::Before(seen) | Begun::Running(seen) => seen,
        Begun::TooMany => {
            let problem = Problem::new(
                StatusCode::TOO_MANY_REQUESTS,
                "two pipelines are already being \
                                                                       checked",
            );
            return Err(problem.with_help("wait until one has ended"));
        }
        Begun::New(running) => {
            let inboxes = app.inboxes.clone();
            running.carry_out(async move {
                Ok(Box::pin(examine(&pipeline, &inboxes, &DoctorOptions::default(), None)).await)
            })
        }
    };
    wait_at_most(PATIENCE, seen).await;
    Ok(Redirect::to(&address(&name)))
}

const CHECKS: [Column; 5] = [
    column("Check", Kind::Name),
    column("State", Kind::State),
    column("Of", Kind::Text),
    column("Measured", Kind::Why),
    column("Remedy", Kind::Why),
];

const GO_LIVE: [Column; 3] =
    [column("Go-live checklist", Kind::Name), column("State", Kind::State), column("How", Kind::Why)];

fn report(found: &PipelineReport) -> Markup {
    let mut checks: Vec<&Finding> = found.checks.iter().collect();
    checks.sort_by_key(|finding| std::cmp::Reverse(finding.state));
    let number = |state| count(checks.iter().filter(|finding| finding.state == state).count() as u64);
    let items = checklist(std::slice::from_ref(found));
    html! {
        p class="lead" {
            (number(CheckState::Pass)) " passed, " (number(CheckState::Warn)) " warned, "
            (number(CheckState::Fail)) " failed, " (number(CheckState::Unknown)) " unknown"
        }
        (list("Checks", &CHECKS, checks.iter().map(|finding| check(finding))))
        details { summary { "Go-live checklist" } (list("Go-live checklist", &GO_LIVE, items.iter().map(item))) }
    }
}

fn check(finding: &Finding) -> Vec<Markup> {
    vec![
        cell(finding.check),
        state(finding.state),
        cell(&finding.subject),
        whole(&finding.measured),
        finding.remedy.as_deref().map_or_else(|| html! { span class="faint none" { "–" } }, whole),
    ]
}

fn item(item: &ChecklistItem) -> Vec<Markup> {
    let state = match item.state {
        CheckState::Unknown => tone("", "you"),
        known => state(known),
    };
    vec![whole(item.item), state, whole(item.how)]
}

fn state(state: CheckState) -> Markup {
    let colour = match state {
        CheckState::Pass => "good",
        CheckState::Unknown => "",
        CheckState::Warn => "warn",
        CheckState::Fail => "bad",
    };
    tone(colour, state.as_str())
}
