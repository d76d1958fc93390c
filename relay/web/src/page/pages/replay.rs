//! Replay: publishes messages of a pipeline again, after a preview, as `relay replay` does.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use axum::Form;
use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri};
use axum::response::Redirect;
use maud::{Markup, html};
use message::{OrderingKey, Topic};
use operate::replay::{
    Edge, Moment, ReplayFilter, ReplayOptions, ReplayPlan, ReplayReport, deduplicated, has_begun, plan,
};
use operate::seconds::{age, text as rfc3339};
use operate::{OperateError, Operator, PipelineConfig, Places, Role};
use time::OffsetDateTime;
use uuid::Uuid;

use super::super::address::{to, with_query};
use super::super::advice;
use super::super::again;
use super::super::answer::{Html, Problem};
use super::super::app::App;
use super::super::fields::Fields;
use super::super::gate::Asker;
use super::super::jobs::{Begun, End, Last, wait_at_most};
use super::super::layout::{Frame, Tab, bytes, cell, count, form_token, may_decide, signature, since, whole};
use super::super::list::{Column, Kind, column, list};

/// How long the answer waits for the end of a short replay.
const PATIENCE: Duration = Duration::from_secs(3);
/// Maximum time of a plan: below that of a request, whose answer could not say that nothing was
/// sent.
const PLAN_MAX: Duration = Duration::from_secs(100);

/// Maximum age of a form. The audit, which knows the forms that were sent, is read back to there.
const FORM_AGE_MAX: Duration = Duration::from_secs(15 * 60);

/// Why a relay inside a service that publishes in transactions cannot replay.
const LENT: &str = "The relay of this service publishes in transactions, which a replay cannot use";

/// The fields of the filter, with their labels.
const CONDITIONS: [(&str, &str); 7] = [
    ("id", "Message id, or position in the log"),
    ("topic", "Topic or queue"),
    ("key", "Ordering key"),
    ("from_id", "From this position in the log"),
    ("to_id", "Up to this position"),
    ("since", "Enqueued since (2h, 2026-01-31T12:00:00Z)"),
    ("until", "Enqueued until"),
];

/// Returns the address of a pipeline's replays.
pub(crate) fn address(pipeline: &str) -> String {
    with_query("/replay", &[("pipeline", pipeline)])
}

fn permit(operator: &Operator) -> Result<(), OperateError> {
    operator.permit(Role::Operator, "replay messages")
}

/// Refuses a replay through the transactions of a relay that runs in this service.
fn check_broker(pipeline: &PipelineConfig) -> Result<(), Problem> {
    if !pipeline.broker.lends_transactions() {
        return Ok(());
    }
    let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, LENT);
    Err(problem.with_help("nothing was sent: use `relay replay` with a configuration"))
}

/// `GET /replay`: the last replay of a pipeline in this process, and the form for another one.
pub(crate) async fn show(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Query(query): Query<Fields>,
    uri: Uri,
) -> Result<Html, Problem> {
    query.check()?;
    let pipeline = app.pipeline(query.exact("pipeline"))?;
    let name = pipeline.name.as_str();
    let is_lent = pipeline.broker.lends_transactions();
    let last = app.replays.last(name);
    let is_running = last.as_ref().is_some_and(|last| last.job.is_running());
    let body = html! {
        p class="lead" { "Publishes messages again that were already published, with the same ids. \
                          Consumers with an inbox apply none of them twice." }
        @if let Some(last) = &last { (result(&operator, name, last)) }
        @if is_lent { p class="notice" { (LENT) ": use " code { "relay replay" } " with a configuration." } }
        @else if may_decide(&operator) && !is_running { (form(name, &query)) }
        @else if last.is_none() { p class="empty" { "This process of the relay has replayed nothing." } }
        p { a class="button" href=(with_query("/pipeline", &[("name", name)])) { "Back to the pipeline" } }
    };
    let title = format!("Replay messages of {name}");
    Ok(Html(Frame::new(Tab::Overview, &title).live_while(is_running, &uri).page(&body)))
}

/// `POST /replay/confirm`: the messages that a replay would send. Sends nothing.
pub(crate) async fn confirm(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Form(form): Form<Fields>,
) -> Result<Html, Problem> {
    permit(&operator)?;
    form.check()?;
    let pipeline = app.pipeline(form.exact("pipeline"))?;
    check_broker(pipeline)?;
    let mut filter = filter(&form)?;
    // Read when the form is submitted; values that cannot be read are refused before a reason is
    // entered.
    form.read::<NonZeroU32>("rate")?;
    let planned = planned(&app, pipeline, &operator, &filter).await?;
    if filter.ids.is_empty() {
        // It does not include messages that are published from now on.
        filter.to_id = filter.to_id.or(planned.last.map(|last| last.id));
    }
    let body = html! {
        (preview(pipeline, &planned))
        @if planned.chosen == 0 {
            p class="notice" { "Nothing to replay." }
        } @else {
            form method="post" action=(to("/replay")) class="card" {
                (form_token())
                input type="hidden" name="pipeline" value=(pipeline.name);
                @for (name, value) in fields(&filter) { input type="hidden" name=(name) value=(value); }
                input type="hidden" name="all" value=(form.text("all"));
                input type="hidden" name="rate" value=(form.text("rate"));
                input type="hidden" name="chosen" value=(planned.chosen);
                // A form that is sent twice is one replay.
                input type="hidden" name="replay" value=(Uuid::now_v7());
                (signature(&format!("Publish {} again", messages(planned.chosen)), false))
            }
        }
        p { a class="button" href=(address(pipeline.name.as_str())) { "Back" } }
    };
    Ok(Html(Frame::new(Tab::Overview, &format!("Replay {}?", messages(planned.chosen))).page(&body)))
}

/// `POST /replay`: sends the messages that were shown. The work continues if the browser does not
/// wait.
pub(crate) async fn run(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Form(form): Form<Fields>,
) -> Result<Redirect, Problem> {
    permit(&operator)?;
    form.check()?;
    let signed = again::signed(&operator, &form, "/replay", "replay messages")?;
    let pipeline = app.pipeline(form.exact("pipeline"))?;
    check_broker(pipeline)?;
    let name = pipeline.name.as_str();
    let filter = filter(&form)?;
    let rate: Option<NonZeroU32> = form.read("rate")?;
    let shown: u64 = form.need("chosen")?;
    let id: Uuid = form.need("replay")?;
    if app.replays.has_begun(name, id) {
        return Ok(Redirect::to(&address(name)));
    }
    check_age(id, OffsetDateTime::now_utc())?;
    let places = Places::new().outbox(pipeline);
    // By another process, or by this one before another replay of the pipeline.
    match has_begun(&places, id).await {
        Ok(false) => {}
        known => {
            places.close().await;
            known.map_err(Problem::from)?;
            let help = "nothing was sent now: the audit says whether its replay was carried out";
            return Err(Problem::conflict("this form was sent before").with_help(help));
        }
    }
    let planned = planned(&app, pipeline, &operator, &filter).await?;
    if planned.chosen != shown {
        let text = format!("{} match now, and {} were shown", messages(planned.chosen), count(shown));
        return Err(Problem::conflict(text).with_help("nothing was sent: check the preview again"));
    }
    let seen = match app.replays.begin(name, operator.name(), id, app.until_end()) {
        Begun::Before(seen) => seen,
        Begun::Running(_) => {
            let problem = Problem::conflict("a replay of this pipeline is running");
            return Err(problem.with_help("nothing was sent: wait until it has ended, or stop it"));
        }
        Begun::TooMany => {
            let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "two replays are running");
            return Err(problem.with_help("nothing was sent: wait until one has ended"));
        }
        Begun::New(running) => {
            let told = Arc::clone(&running.told);
            running.carry_out_whole(|stop| async move {
                let options = ReplayOptions::default().rate(rate).stop(stop).form(Some(id));
                let progress = |published| told.count(published);
                let report = Box::pin(planned.carry_out(&places, &signed, &options, progress)).await;
                places.close().await;
                report.map_err(|error| advice::told(&error))
            })
        }
    };
    wait_at_most(PATIENCE, seen).await;
    Ok(Redirect::to(&address(name)))
}

/// Refuses a form that was shown long ago, as a browser sends it again with "back" or after a
/// restart. Its id has the time, which may be of another process.
fn check_age(form: Uuid, now: OffsetDateTime) -> Result<(), Problem> {
    let Some(made_at) = form.get_timestamp().filter(|_| form.get_version_num() == 7) else {
        return Err(Problem::bad("replay: it is not the id of a form"));
    };
    let made_at = i64::try_from(made_at.to_unix().0).unwrap_or(i64::MAX);
    if now.unix_timestamp().abs_diff(made_at) <= FORM_AGE_MAX.as_secs() {
        return Ok(());
    }
    let problem = Problem::conflict(format!("the preview was shown more than {} ago", age(FORM_AGE_MAX)));
    Err(problem.with_help("nothing was sent: look at the preview again"))
}

/// `POST /replay/stop`.
pub(crate) async fn stop(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Form(form): Form<Fields>,
) -> Result<Redirect, Problem> {
    permit(&operator)?;
    form.check()?;
    let name = app.pipeline(form.exact("pipeline"))?.name.as_str();
    if !app.replays.stop(name) {
        return Err(Problem::conflict("no replay of this pipeline is running in this process of the relay"));
    }
    Ok(Redirect::to(&address(name)))
}

/// Reads the filter of a form. An age becomes a time, so that the same form means the same messages
/// later.
fn filter(form: &Fields) -> Result<ReplayFilter, Problem> {
    let now = OffsetDateTime::now_utc();
    let moment = |name| {
        let found = form.read::<Moment>(name)?.map(|moment| moment.at(now));
        let seconds = |at: OffsetDateTime| at.replace_nanosecond(0).unwrap_or(at);
        Ok::<_, Problem>(found.map(|at| Moment::At(seconds(at))))
    };
    let filter = ReplayFilter {
        ids: form.read("id")?.into_iter().collect(),
        topic: named(form, "topic", |text| Topic::new(text).map_err(|error| error.to_string()))?,
        key: named(form, "key", |text| OrderingKey::new(text).map_err(|error| error.to_string()))?,
        from_id: form.read("from_id")?,
        to_id: form.read("to_id")?,
        since: moment("since")?,
        until: moment("until")?,
    };
    let is_set = !fields(&filter).is_empty();
    let is_all = form.text("all") == "yes";
    if !filter.ids.is_empty() && (is_all || fields(&filter).len() > 1) {
        return Err(Problem::bad("a message id cannot be combined with other conditions"));
    }
    if !is_set && !is_all {
        let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "no message is selected");
        return Err(problem.with_help("give a condition, or tick all published messages"));
    }
    Ok(filter)
}

/// Parses a name, if it is not empty.
fn named<T>(
    form: &Fields,
    name: &str,
    parse: impl Fn(String) -> Result<T, String>,
) -> Result<Option<T>, Problem> {
    form.given(name).map(parse).transpose().map_err(|error| Problem::bad(format!("{name}: {error}")))
}

/// Returns the conditions of a filter, for a form.
fn fields(filter: &ReplayFilter) -> Vec<(&'static str, String)> {
    let ReplayFilter { ids, topic, key, from_id, to_id, since, until } = filter;
    let parts = [
        ("id", ids.first().map(ToString::to_string)),
        ("topic", topic.as_ref().map(|topic| topic.as_str().to_owned())),
        ("key", key.as_ref().map(|key| key.as_str().to_owned())),
        ("from_id", from_id.map(|id| id.to_string())),
        ("to_id", to_id.map(|id| id.to_string())),
        ("since", since.map(|since| since.to_string())),
        ("until", until.map(|until| until.to_string())),
    ];
    parts.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// Plans a replay, which ends with its request.
async fn planned(
    app: &App,
    pipeline: &PipelineConfig,
    operator: &Operator,
    filter: &ReplayFilter,
) -> Result<ReplayPlan, Problem> {
    let counting = counted(app, pipeline, operator, filter);
    tokio::time::timeout(PLAN_MAX, counting).await.unwrap_or_else(|_| {
        let text = format!("the messages could not be counted within {}", age(PLAN_MAX));
        let problem = Problem::new(StatusCode::GATEWAY_TIMEOUT, text);
        Err(problem.with_help("nothing was sent: narrow the range"))
    })
}

async fn counted(
    app: &App,
    pipeline: &PipelineConfig,
    operator: &Operator,
    filter: &ReplayFilter,
) -> Result<ReplayPlan, Problem> {
    let _turn = app.turn().await?;
    let places = Places::new().outbox(pipeline);
    let planned = Box::pin(plan(&places, operator, filter)).await;
    places.close().await;
    Ok(planned?)
}

fn messages(number: u64) -> String {
    if number == 1 { String::from("1 message") } else { format!("{} messages", count(number)) }
}

const TOPICS: [Column; 2] = [column("Topic", Kind::Name), column("Messages", Kind::Number)];

fn preview(pipeline: &PipelineConfig, planned: &ReplayPlan) -> Markup {
    let edge = |edge: Edge| html! { (edge.id) ", enqueued " (since(edge.enqueued_at)) };
    let fifo = deduplicated(&pipeline.broker, &planned.topics);
    html! {
        p class="lead" { (messages(planned.chosen)) ", " (bytes(planned.bytes)) " of " (cell(&planned.pipeline)) "." }
        @if let (Some(first), Some(last)) = (planned.first, planned.last) {
            p { "First " (edge(first)) "; last " (edge(last)) "." }
        }
        @if !planned.topics.is_empty() {
            (list("Topics", &TOPICS, planned.topics.iter().map(|(topic, number)| vec![cell(topic), html! { (count(*number)) }])))
        }
        @for (reason, number) in &planned.skipped { p class="faint" { "Not sent: " (count(*number)) " " (reason) } }
        @if let Some(removed) = planned.removed_until {
            p class="faint" { "Retention has deleted messages created until " (rfc3339(removed)) "." }
        }
        @for topic in fifo {
            p class="notice" { (cell(topic)) " goes to a FIFO queue, which drops a message if it was published or replayed within the last 5 minutes: replay such messages again later." }
        }
    }
}

fn form(name: &str, query: &Fields) -> Markup {
    html! {
        form method="post" action=(to("/replay/confirm")) class="card" {
            (form_token())
            input type="hidden" name="pipeline" value=(name);
            @for (name, label) in CONDITIONS {
                label { (label) input name=(name) value=(query.text(name)) maxlength="255" autocomplete="off"; }
            }
            label class="check" { input type="checkbox" name="all" value="yes"; "All published messages that are still in the outbox" }
            label { "Maximum messages per second; empty for as fast as the broker confirms"
                input name="rate" maxlength="9" autocomplete="off"; }
            button class="primary" { "Preview…" }
        }
    }
}

fn result(operator: &Operator, name: &str, last: &Last<ReplayReport>) -> Markup {
    html! {
        p { "Begun " (since(last.job.begun_at)) " by " (cell(&last.job.by)) "." }
        @match &last.job.end {
            End::Running => {
                p class="notice" role="status" {
                    @if last.is_stopping { "Stopping after this batch. " } @else { "It is running: reload this page. " }
                    (count(last.told.rows())) " published so far."
                }
                @if may_decide(operator) && !last.is_stopping {
                    form method="post" action=(to("/replay/stop")) {
                        (form_token())
                        input type="hidden" name="pipeline" value=(name);
                        button { "Stop" }
                    }
                }
            },
            End::Failed(why) => p class="notice bad" role="alert" {
                @match last.told.rows() {
                    0 => "Nothing was sent: ",
                    // It failed after that, but messages already sent are published.
                    rows => { "It ended early after " (count(rows)) " published: " },
                }
                (whole(why))
            },
            End::Done(report) => {
                p class="lead" { (count(report.published)) " of " (messages(report.chosen)) " published again: " (cell(&report.selection)) }
                @if let Some(error) = &report.error {
                    p class="notice bad" role="alert" {
                        "It ended early: " (whole(&advice::told(error)))
                    }
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::{NoContext, Timestamp};

    use super::*;

    /// Goal: a form that a browser sends again long after its preview replays nothing. Oracle: the
    /// answer for forms of several ages.
    #[test]
    fn an_old_form_is_refused() {
        let now = OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap();
        let made = |at: i64| Uuid::new_v7(Timestamp::from_unix(NoContext, at.unsigned_abs(), 0));
        for age in [0, 1, 899, -60] {
            assert!(check_age(made(now.unix_timestamp() - age), now).is_ok(), "{age}");
        }
        for age in [901, 86_400, -901] {
            let refused = check_age(made(now.unix_timestamp() - age), now).unwrap_err();
            assert_eq!(refused.status, StatusCode::CONFLICT, "{age}");
        }
        assert_eq!(check_age(Uuid::nil(), now).unwrap_err().status, StatusCode::BAD_REQUEST);
    }
}
