//! Requeueing and discarding: the affected messages first, then the decision.

use std::sync::Arc;
use std::time::Duration;

use axum::Form;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Redirect;
use maud::{Markup, html};
use message::shield;
use operate::dead::{
    self, AsOf, Change, DeadMessage, DeadSource, Moment, Progress, Selected, SelectedPart, States, decision,
    select,
};
use operate::{OperateError, Operator, Places, Role, Signed};
use uuid::Uuid;

use super::super::address::{to, with_query};
use super::super::again;
use super::super::answer::{Html, Problem};
use super::super::app::App;
use super::super::bulks::{Begun, Running};
use super::super::fields::Fields;
use super::super::gate::Asker;
use super::super::layout::{self, Frame, Tab, cell, count, form_token, maybe, maybe_since, signature, whole};
use super::super::list::{Column, Kind, column, list};
use super::super::text::capital;
use super::choice::{Choice, choice, named};
use super::dead::{back_to_list, kept, scope_of, short_id, told};

/// Maximum number of messages shown before a decision.
const SHOWN_MAX: usize = 10;
/// Maximum number of places of one decision: the form has a time for each.
const PLACES_MAX: usize = 100;
/// How long the answer waits for the end of a decision. Most have ended by then.
const PATIENCE: Duration = Duration::from_secs(2);

/// `POST /dead/confirm`. Changes nothing.
pub(crate) async fn confirm(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Form(form): Form<Fields>,
) -> Result<Html, Problem> {
    permit(&operator)?;
    let _turn = app.turn().await?;
    let Choice { change, parts, is_all } = choice(&app, &form).await?;
    let (mut selected, mut shown) = (Vec::new(), Vec::new());
    for (places, filter) in parts {
        let found = Box::pin(select(&places, &operator, &filter, &change, None)).await;
        // A message that is retried is taken only by its id.
        let states = if is_all { States::Dead } else { States::Any };
        let first = dead::list(&places, &operator, &filter, states, SHOWN_MAX).await;
        places.close().await;
        selected.push(found?);
        shown.extend(first?.messages);
    }
    shown.truncate(SHOWN_MAX);
    let parts: Vec<&SelectedPart> = selected.iter().flat_map(|it| &it.parts).collect();
    if parts.len() > PLACES_MAX {
        let text = format!("these messages belong to {} pipelines and consumers", parts.len());
        let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, text);
        return Err(problem.with_help(format!("choose a pipeline: one step covers {PLACES_MAX} of them")));
    }
    let total: u64 = parts.iter().map(|part| part.count()).sum();
    let step = messages(change.as_str(), total);
    let title = format!("{step}?");
    let away: Vec<OperateError> = selected.iter().flat_map(|it| it.away.clone()).collect();
    let body = html! {
        @if total == 0 {
            (layout::away(&away))
            p class="empty" { "No dead message matches anymore." }
            p { (back_to_list(&form)) }
        } @else {
            form method="post" action=(to("/dead/decide")) class="card" {
                (form_token())
                input type="hidden" name="what" value=(form.text("what"));
                input type="hidden" name="decision" value=(Uuid::now_v7());
                @for part in &parts { input type="hidden" name="at" value=(part.moment()); }
                @for (name, value) in kept(&form) { input type="hidden" name=(name) value=(value); }
                @if !is_all { @for row in form.all("row") { input type="hidden" name="row" value=(row); } }
                p { "Which: " (whole(&which(&form, is_all))) "." }
                (meaning(&change, &parts.iter().map(|it| it.source()).collect::<Vec<_>>()))
                (left_out(&selected, &away))
                @if matches!(change, Change::Requeue { .. }) && parts.iter().any(|it| it.source() == DeadSource::Inbox) {
                    label class="check" { input type="checkbox" name="accept_late" value="yes"; " Also apply messages older than the inbox's retention" }
                }
                (signature(&step, change == Change::Discard))
                " " (back_to_list(&form))
            }
            @if parts.len() > 1 { (list("Places", &PLACES, parts.iter().map(|part| place(part)))) }
            (subjects(&shown, total))
        }
    };
    Ok(Html(Frame::new(Tab::Dead, &title).page(&body)))
}

/// Returns which messages are decided about, in words. The title has their number.
pub(super) fn which(form: &Fields, is_all: bool) -> String {
    if !is_all {
        return String::from("chosen one by one");
    }
    let told = told(form, "dead");
    if told.is_empty() { String::from("all dead messages") } else { told.join(" · ") }
}

/// Renders what the decision does not cover.
fn left_out(selected: &[Selected], away: &[OperateError]) -> Markup {
    let following: u64 = selected.iter().map(|it| it.following).sum();
    html! {
        @if selected.iter().any(|it| it.more) {
            p class="notice" { "More messages match: these are the first " (count(dead::CHOSEN_MAX as u64)) ". The others are not changed: decide about them afterwards." }
        }
        @if following > 0 {
            p { (count(following)) " held messages are left out: they follow automatically after the ones \
                                    before them." }
        }
        @if !away.is_empty() {
            (layout::away(away))
            p { "Messages in these databases are not included." }
        }
    }
}

/// `POST /dead/decide`. Leads to the result. The same form sent twice is one decision.
pub(crate) async fn carry_out(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Form(form): Form<Fields>,
) -> Result<Redirect, Problem> {
    permit(&operator)?;
    let id: Uuid = form.need("decision")?;
    let signed = again::signed(&operator, &form, "/dead/decide", "decide about dead messages")?;
    // Work that has begun is completed even if the browser disconnects.
    shield(async move { Box::pin(begin(&app, &form, signed, id)).await }).await
}

async fn begin(app: &Arc<App>, form: &Fields, signed: Signed, id: Uuid) -> Result<Redirect, Problem> {
    let turn = app.turn().await?;
    let Choice { change, parts, .. } = choice(app, form).await?;
    let moments: Result<Vec<Moment>, _> = form.all("at").map(str::parse::<Moment>).collect();
    let moments = moments.map_err(Problem::bad)?;
    let as_of: AsOf = moments.iter().cloned().collect();
    let names = named(moments.iter().map(|moment| (moment.source(), moment.owner())));
    let mut jobs = Vec::new();
    for (places, filter) in parts {
        if let Some(before) = decision(&places, &signed.operator, id).await?.decision {
            if before.actor != signed.operator.name() {
                let problem = Problem::conflict(format!("{} has already sent this form", before.actor));
                return Err(problem.with_form(Some(ways(form, false))));
            }
            return Ok(Redirect::to(&result(id, form, &names)));
        }
        let selected = Box::pin(select(&places, &signed.operator, &filter, &change, Some(&as_of))).await;
        let selected = selected.map_err(|error| with_ways(error.into(), form))?;
        jobs.push(Job { places, selected });
    }
    drop(turn);
    join(&mut jobs);
    if jobs.iter().all(|job| job.selected.count() == 0) {
        let text = "every message has changed since the form was shown";
        let help = "nothing was changed: another decision may have come first";
        return Err(Problem::conflict(text).with_help(help).with_form(Some(ways(form, false))));
    }
    let running = match app.bulks.begin(id) {
        Begun::New(running) => running,
        Begun::Before => return Ok(Redirect::to(&result(id, form, &names))),
        Begun::TooMany => {
            let text = "two decisions about many messages are running: wait until one has ended";
            return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, text));
        }
    };
    running.state.send_modify(|bulk| bulk.signed = Some(signed.clone()));
    let mut state = running.state.subscribe();
    let address = result(id, form, &names);
    let told = Arc::clone(app);
    let of_work = Arc::clone(&running);
    let work = tokio::spawn(async move { Box::pin(run(&of_work, jobs, &signed, &change, id)).await });
    tokio::spawn(async move {
        if work.await.is_err() {
            let why = String::from("it ended unexpectedly: the relay's log has the reason");
            running.state.send_modify(|bulk| bulk.end(Err(why)));
        }
        told.surveys.forget();
        told.observer.tell_after_decision().await;
    });
    // Only a decision that takes longer shows its progress.
    drop(tokio::time::timeout(PATIENCE, state.wait_for(|bulk| bulk.ended.is_some())).await);
    Ok(Redirect::to(&address))
}

/// Returns the address of the audit of the pipeline that a form names, or of all.
fn audit_of(form: &Fields) -> String {
    with_query("/audit", &[("pipeline", form.text("pipeline"))])
}

/// Adds the ways on to the refusal of a decision because its messages have changed.
fn with_ways(problem: Problem, form: &Fields) -> Problem {
    if problem.status != StatusCode::CONFLICT {
        return problem;
    }
    problem.with_form(Some(ways(form, true)))
}

/// Renders the ways on after a decision that came too late: who decided, and back to the list; with
/// `may_match` also to a new confirmation, because messages may still match.
fn ways(form: &Fields, may_match: bool) -> Markup {
    html! {
        div class="actions" {
            @if may_match { (confirm_again(form)) }
            a class="button" href=(audit_of(form)) { "Who decided: the audit" }
            (back_to_list(form))
        }
    }
}

/// Renders the form that shows what the decision of a form would be about now.
fn confirm_again(form: &Fields) -> Markup {
    html! {
        form method="post" action=(to("/dead/confirm")) {
            (form_token())
            input type="hidden" name="what" value=(form.text("what"));
            @for (name, value) in kept(form) { input type="hidden" name=(name) value=(value); }
            @for row in form.all("row") { input type="hidden" name="row" value=(row); }
            button class="primary" { "Show what matches now…" }
        }
    }
}

/// The messages of one choice, and their places.
struct Job {
    places: Places,
    selected: Selected,
}

/// Gives the choices of one decision one selection: the filters, and the number of all messages.
fn join(jobs: &mut [Job]) {
    if jobs.len() < 2 {
        return;
    }
    let total: u64 = jobs.iter().map(|job| job.selected.count()).sum();
    let filter = |job: &Job| job.selected.selection.rsplit_once(": ").map(|(filter, _)| filter.to_owned());
    let filters: Vec<String> = jobs.iter().filter_map(filter).collect();
    let selection = format!("{}: {total} chosen", filters.join("; "));
    for job in jobs {
        job.selected.selection.clone_from(&selection);
    }
}

/// Carries out a decision, and records its progress.
async fn run(running: &Running, jobs: Vec<Job>, signed: &Signed, change: &Change, id: Uuid) {
    let chosen: u64 = jobs.iter().map(|job| job.selected.count()).sum();
    running.state.send_modify(|bulk| bulk.progress.chosen = chosen);
    let (mut reports, mut before, mut refused) = (Vec::new(), 0, None);
    for Job { places, selected } in jobs {
        let of_job = selected.count();
        let bulk = dead::Bulk { places: &places, signed, change, id, stop: &running.stop };
        let told = |progress: Progress| {
            let processed = before + progress.processed;
            running.state.send_modify(|bulk| bulk.progress = Progress { processed, chosen });
        };
        let done = Box::pin(selected.carry_out(&bulk, told)).await;
        places.close().await;
        before += of_job;
        match done {
            Ok(report) => {
                let is_over = report.stopped || report.error.is_some();
                reports.push(report);
                if is_over {
                    break;
                }
            }
            Err(error) => {
                refused = Some(error.to_string());
                break;
            }
        }
    }
    running.state.send_modify(|bulk| bulk.end(refused.map_or(Ok(reports), Err)));
}

/// Returns the address of the result in these places, with the filter of the list.
pub(super) fn result<S: AsRef<str>>(id: Uuid, form: &Fields, names: &[S]) -> String {
    let (id, kept) = (id.to_string(), kept(form));
    let mut pairs: Vec<(&str, &str)> = vec![("id", id.as_str()), ("what", form.text("what"))];
    pairs.extend(names.iter().map(|name| ("in", name.as_ref())));
    pairs.extend(kept.iter().map(|(name, value)| (*name, value.as_str())));
    with_query("/decision", &pairs)
}

/// Returns early the error that `operate` would return later for each message.
fn permit(operator: &Operator) -> Result<(), OperateError> {
    operator.permit(Role::Operator, "decide about dead messages")
}

/// Renders what the decision does to messages of these kinds of places. Others may wait behind
/// them, in an inbox those of a consumer that holds the keys of dead letters.
fn meaning(change: &Change, of: &[DeadSource]) -> Markup {
    html! {
        p {
            @match change {
                Change::Discard => { (discarded(of)) " " strong { "This cannot be undone." }
                    @if of.contains(&DeadSource::Outbox) { " Messages that are held behind them are published without them." }
                    @if of.contains(&DeadSource::Inbox) { " Messages that their consumer holds behind them take effect without them." }
                },
                _ => "They are retried: the relay publishes them, or their consumer runs its handler again.",
            }
            " Messages that become dead from now on are not included."
        }
    }
}

/// Returns what a discard prevents. The attempts of a relay may have arrived although they have no
/// answer, above all the last one of a message that is retried.
fn discarded(of: &[DeadSource]) -> &'static str {
    let is_of = |source| of.contains(&source);
    match (is_of(DeadSource::Outbox), is_of(DeadSource::Inbox)) {
        (true, false) => "They are not sent again; an earlier attempt may have arrived.",
        (true, true) => {
            "Those of pipelines are not sent again; an earlier attempt may have arrived. Those of consumers \
             never take effect."
        }
        _ => "They never take effect.",
    }
}

const PLACES: [Column; 3] =
    [column("Of", Kind::Name), column("Messages", Kind::Number), column("Oldest", Kind::Time)];

fn place(part: &SelectedPart) -> Vec<Markup> {
    let owner = format!("{} {}", part.source(), part.owner());
    vec![cell(&owner), html! { (count(part.count())) }, maybe_since(part.oldest)]
}

fn subjects(messages: &[DeadMessage], total: u64) -> Markup {
    let shown = messages.len() as u64;
    let with_scope = messages.iter().any(|message| !scope_of(message).is_empty());
    let is_shown = |index: usize| index != SCOPE || with_scope;
    let columns: Vec<Column> =
        (0..).zip(SUBJECTS).filter(|(index, _)| is_shown(*index)).map(|(_, it)| it).collect();
    let row = |message| {
        let cells = (0..).zip(subject(message)).filter(|(index, _)| is_shown(*index));
        cells.map(|(_, cell)| cell).collect()
    };
    html! {
        (list("Messages", &columns, messages.iter().map(row)))
        @if total > shown { p class="faint" { "and " (count(total - shown)) " more" } }
    }
}

const SUBJECTS: [Column; 6] = [
    column("Topic", Kind::Name),
    column("Key", Kind::Key),
    column("Error", Kind::Why),
    column("Of", Kind::Text),
    column("Scope", Kind::Text),
    column("Message", Kind::Text),
];

/// The index of the column with the tenant.
const SCOPE: usize = 4;

fn subject(message: &DeadMessage) -> Vec<Markup> {
    let (key, error) = (message.key.as_deref(), message.error_in_list());
    let scope = scope_of(message);
    vec![
        cell(&message.topic),
        maybe(key),
        maybe(error),
        cell(message.owner()),
        cell(scope),
        html! { span title=(message.id) { (short_id(message)) } },
    ]
}

/// Returns a verb with the number of its messages: `Requeue 2,009 messages`.
pub(super) fn messages(verb: &str, number: u64) -> String {
    let noun = if number == 1 { "message" } else { "messages" };
    format!("{} {} {noun}", capital(verb), count(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_button_says_what_it_does() {
        assert_eq!(messages("requeue", 1), "Requeue 1 message");
        assert_eq!(messages("discard", 200_000), "Discard 200,000 messages");
    }

    /// Goal: nobody learns only afterwards what a discard lets through. Oracle: the text above the
    /// button for messages of an outbox and of inboxes.
    #[test]
    fn a_discard_says_what_it_lets_through() {
        let (outbox, inbox) = (DeadSource::Outbox, DeadSource::Inbox);
        let published = "Messages that are held behind them are published without them.";
        let applied = "Messages that their consumer holds behind them take effect without them.";
        let cases: [(&[DeadSource], &[&str]); 3] =
            [(&[outbox], &[published]), (&[inbox], &[applied]), (&[inbox, outbox], &[published, applied])];
        for (of, through) in cases {
            for text in [published, applied] {
                let has = |change: &Change| meaning(change, of).into_string().contains(text);
                assert_eq!(has(&Change::Discard), through.contains(&text), "{of:?}: {text}");
                assert!(!has(&Change::Requeue { accept_late: false }));
            }
        }
    }

    /// Goal: nobody repairs by hand what a receiver may have applied already. Oracle: the text
    /// above the button; only messages of inboxes never take effect.
    #[test]
    fn a_discard_says_that_an_attempt_may_have_arrived() {
        let (outbox, inbox) = (DeadSource::Outbox, DeadSource::Inbox);
        let cases: [(&[DeadSource], bool, bool); 3] =
            [(&[outbox], true, false), (&[inbox], false, true), (&[inbox, outbox], true, true)];
        for (of, may_have_arrived, never_takes_effect) in cases {
            let text = meaning(&Change::Discard, of).into_string();
            assert_eq!(text.contains("an earlier attempt may have arrived"), may_have_arrived, "{text}");
            assert_eq!(text.contains("never take effect"), never_takes_effect, "{text}");
            assert!(text.contains("<strong>This cannot be undone.</strong>"), "{text}");
        }
    }

    /// Goal: an operator whose decision came too late is not left without a way on, whatever it
    /// was. Oracle: the links and the form below the refusal of a discard; other errors have none.
    #[test]
    fn a_decision_that_came_too_late_leads_on() {
        let fields = Fields::of(&[("what", "discard-all"), ("pipeline", "orders"), ("topic", "parcels")]);
        let refused = with_ways(Problem::conflict("5 were confirmed, 0 match now"), &fields);
        let ways = refused.form.map(Markup::into_string).unwrap_or_default();
        for part in [
            "href=\"/audit?pipeline=orders\"",
            "href=\"/dead?topic=parcels&amp;pipeline=orders\"",
            "action=\"/dead/confirm\"",
            "name=\"what\" value=\"discard-all\"",
            "name=\"topic\" value=\"parcels\"",
        ] {
            assert!(ways.contains(part), "{part}: {ways}");
        }
        let chosen = Fields::of(&[("what", "discard"), ("row", "outbox/7/orders")]);
        assert!(ways_of(&chosen, true).contains("name=\"row\" value=\"outbox/7/orders\""));
        assert!(!ways_of(&chosen, false).contains("<form"), "nothing matches");
        assert!(with_ways(Problem::bad("no decision"), &fields).form.is_none());
    }

    fn ways_of(form: &Fields, may_match: bool) -> String {
        ways(form, may_match).into_string()
    }

    #[test]
    fn a_confirmation_says_which_messages() {
        let fields = Fields::of(&[("pipeline", "orders"), ("error", &"x".repeat(200))]);
        let told = which(&fields, true);
        assert!(told.contains("pipeline orders") && told.contains(&"x".repeat(200)), "{told}");
        assert_eq!(which(&Fields::default(), true), "all dead messages");
        assert_eq!(which(&fields, false), "chosen one by one");
    }
}
