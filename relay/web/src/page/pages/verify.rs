//! Comparisons of outbox, broker and inboxes, as `relay verify` makes them.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use axum::Form;
use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri};
use axum::response::Redirect;
use maud::{Markup, html};
use operate::units::Time;
use operate::verify::{COLUMNS, ComparedPlace, Comparison, FaultyMessage, Range, Reading, Report};
use operate::{InboxConfig, Operator, PipelineConfig, Role};
use time::OffsetDateTime;
use uuid::Uuid;

use super::super::address::{to, with_query};
use super::super::advice;
use super::super::answer::{Html, Problem};
use super::super::app::App;
use super::super::fields::Fields;
use super::super::gate::Asker;
use super::super::jobs::{Begun, End, Last, Telling, wait_at_most};
use super::super::layout::{Frame, Tab, cell, count, form_token, may_decide, maybe, since, tone, whole};
use super::super::list::{Column, Kind, column, list};

/// The command that does the same.
const COMMAND: &str = "relay verify";
/// How long the answer waits for the end of a short comparison.
const PATIENCE: Duration = Duration::from_secs(3);
/// Published messages that are in no inbox count as missing when none arrives for this long, as
/// with `relay verify`.
const GRACE: Duration = Duration::from_secs(30);
/// Rows read per second, as with `relay verify`.
const ROWS_PER_SECOND: NonZeroU32 = NonZeroU32::MIN.saturating_add(4_999);
/// Time limit of a statement, as with `relay verify`.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of messages listed.
const FINDINGS_MAX: usize = 100;

/// Returns the address of a pipeline's comparison.
pub(crate) fn address(pipeline: &str) -> String {
    with_query("/verify", &[("pipeline", pipeline)])
}

/// `GET /verify`: the last comparison of a pipeline in this process.
pub(crate) async fn show(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Query(query): Query<Fields>,
    uri: Uri,
) -> Result<Html, Problem> {
    query.check()?;
    let name = app.configured(query.exact("pipeline"), COMMAND)?.name.as_str();
    let last = app.comparisons.last(name);
    let is_running = last.as_ref().is_some_and(|last| last.job.is_running());
    let body = html! {
        p class="lead" { "Compares outbox, broker and inboxes, as " code { "relay verify" } " does. Only reads." }
        @match &last {
            None => p class="empty" { "It has not run in this process of the relay." },
            Some(last) => (result(&operator, name, last)),
        }
        @if may_decide(&operator) && !is_running { (form(name, &query)) }
        p { a class="button" href=(with_query("/pipeline", &[("name", name)])) { "Back to the pipeline" } }
    };
    let title = format!("Verify {name}");
    Ok(Html(Frame::new(Tab::Overview, &title).live_while(is_running, &uri).page(&body)))
}

/// `POST /verify`: begins a comparison. It continues if the browser does not wait.
pub(crate) async fn run(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Form(form): Form<Fields>,
) -> Result<Redirect, Problem> {
    operator.permit(Role::Operator, "run a comparison")?;
    form.check()?;
    let pipeline = app.configured(form.exact("pipeline"), COMMAND)?.clone();
    let name = pipeline.name.to_string();
    let span = Span::read(&form)?;
    let inboxes = app.inboxes.iter().filter(|inbox| inbox.is_of(&name)).cloned().collect();
    let seen = match app.comparisons.begin(&name, operator.name(), Uuid::now_v7(), app.until_end()) {
        Begun::Before(seen) => seen,
        Begun::Running(_) => {
            let problem = Problem::conflict("a comparison of this pipeline is running");
            return Err(problem.with_help("wait until it has ended, or stop it"));
        }
        Begun::TooMany => {
            let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "two pipelines are being compared");
            return Err(problem.with_help("wait until one has ended"));
        }
        Begun::New(running) => {
            let telling = Telling(Arc::clone(&running.told));
            running
                .carry_out(async move { Box::pin(compare(pipeline, inboxes, span, telling, operator)).await })
        }
    };
    wait_at_most(PATIENCE, seen).await;
    Ok(Redirect::to(&address(&name)))
}

/// `POST /verify/stop`.
pub(crate) async fn stop(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Form(form): Form<Fields>,
) -> Result<Redirect, Problem> {
    operator.permit(Role::Operator, "stop a comparison")?;
    form.check()?;
    let name = app.pipeline(form.exact("pipeline"))?.name.as_str();
    if !app.comparisons.stop(name) {
        return Err(Problem::conflict(
            "no comparison of this pipeline is running in this process of the relay",
        ));
    }
    Ok(Redirect::to(&address(name)))
}

/// The messages to compare.
struct Span {
    range: Range,
    topics: BTreeSet<String>,
}

impl Span {
    fn read(form: &Fields) -> Result<Self, Problem> {
        let ago = |name| Ok::<_, Problem>(form.read::<Time>(name)?.map(|time| time.0));
        let (since, until) = (ago("since")?, ago("until")?);
        if since.zip(until).is_some_and(|(since, until)| since <= until) {
            return Err(Problem::bad("the beginning must be longer ago than the end"));
        }
        let range = Range::new(OffsetDateTime::now_utc(), since, until);
        Ok(Self { range, topics: form.given("topic").into_iter().collect() })
    }
}

async fn compare(
    pipeline: PipelineConfig,
    inboxes: Vec<InboxConfig>,
    span: Span,
    telling: Telling,
    operator: Operator,
) -> Result<Report, String> {
    let Span { range, topics } = span;
    let reading = Reading::new(ROWS_PER_SECOND, STATEMENT_TIMEOUT, Box::new(telling));
    let comparison = Comparison {
        pipeline: &pipeline,
        inboxes,
        topics,
        range,
        grace: GRACE,
        findings_max: FINDINGS_MAX,
        reading,
    };
    let compared = Box::pin(comparison.run(&operator)).await.map_err(|error| advice::told(&error))?;
    let mut report = Report::new(range, FINDINGS_MAX);
    report.add(compared);
    Ok(report)
}

fn form(name: &str, query: &Fields) -> Markup {
    html! {
        form method="post" action=(to("/verify")) class="card" {
            (form_token())
            input type="hidden" name="pipeline" value=(name);
            label { "Only messages newer than (2h, 7d); empty for all"
                input name="since" value=(query.given("since").unwrap_or_else(|| String::from("1h"))) maxlength="40" autocomplete="off"; }
            label { "Only messages older than" input name="until" maxlength="40" autocomplete="off"; }
            label { "Only this topic" input name="topic" maxlength="255" autocomplete="off"; }
            p { "It reads at most " (count(ROWS_PER_SECOND.get().into())) " rows a second, and disturbs no consumer." }
            button class="primary" { "Compare" }
        }
    }
}

fn result(operator: &Operator, name: &str, last: &Last<Report>) -> Markup {
    html! {
        p { "Begun " (since(last.job.begun_at)) " by " (cell(&last.job.by)) "." }
        @match &last.job.end {
            End::Running => {
                p class="notice" role="status" {
                    @if last.is_stopping { "Stopping. " } @else { "It is running: reload this page. " }
                    (whole(&last.told.what())) ", " (count(last.told.rows())) " rows so far."
                }
                @if may_decide(operator) && !last.is_stopping {
                    form method="post" action=(to("/verify/stop")) {
                        (form_token())
                        input type="hidden" name="pipeline" value=(name);
                        button { "Stop" }
                    }
                }
            },
            End::Failed(why) => p class="notice bad" role="alert" { "Not compared: " (whole(why)) },
            End::Done(report) => (shown(report)),
        }
    }
}

fn shown(report: &Report) -> Markup {
    let colour = match report {
        report if report.has_faults() => "bad",
        report if report.undecided > 0 => "warn",
        _ => "good",
    };
    html! {
        p class="lead verdict" { (tone(colour, &report.conclusion())) }
        @for pipeline in &report.pipelines {
            p {
                (count(pipeline.enqueued)) " enqueued, " (count(pipeline.published)) " published, "
                (count(pipeline.pending)) " pending, " (count(pipeline.parked)) " parked, "
                (count(pipeline.discarded)) " discarded by operators"
            }
            (list("Places", &PLACES, std::iter::once(&pipeline.broker).chain(&pipeline.inboxes).map(place)))
            @for place in std::iter::once(&pipeline.broker).chain(&pipeline.inboxes) {
                @for what in &place.not_checked { p class="faint" { "Not checked: " (cell(&place.name)) ": " (whole(what)) } }
            }
        }
        @if !report.messages.is_empty() { h2 { "Messages" } (list("Messages", &MESSAGES, report.messages.iter().map(message))) }
        @if report.unnamed > 0 { p class="notice" { "and " (count(report.unnamed as u64)) " more" } }
    }
}

const PLACES: [Column; 7] = [
    column("Place", Kind::Name),
    column("There", Kind::Number),
    column("Waiting", Kind::Number),
    column("Missing", Kind::Number),
    column("Doubled", Kind::Number),
    column("Phantom", Kind::Number),
    column("Altered", Kind::Number),
];

fn place(place: &ComparedPlace) -> Vec<Markup> {
    let number = |number: Option<u64>| maybe(number.map(count).as_deref());
    let there = [number(place.applied.or(place.records)), number(place.waiting)];
    let found = COLUMNS.map(|column| number(place.found.get(column).copied()));
    [cell(&place.name)].into_iter().chain(there).chain(found).collect()
}

const MESSAGES: [Column; 5] = [
    column("Message", Kind::Name),
    column("Found", Kind::State),
    column("Topic", Kind::Text),
    column("Place", Kind::Text),
    column("Fault", Kind::Why),
];

fn message(message: &FaultyMessage) -> Vec<Markup> {
    let id = message.id.to_string();
    vec![
        html! { a href=(with_query("/message", &[("id", &id), ("pipeline", &message.pipeline)])) { (id) } },
        tone("bad", message.found),
        maybe(message.topic.as_deref()),
        cell(&message.place),
        whole(message.kind),
    ]
}
