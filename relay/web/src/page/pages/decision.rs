//! The result of a decision about many messages, at its own address: the same in every process, and
//! after a restart.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::Form;
use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri};
use axum::response::Redirect;
use maud::{Markup, html};
use operate::cause::signature;
use operate::dead::{
    BulkReport, Decision, DecisionFound, Filter, Listed, REMOVE_THE_CAUSE, Refusal, Standing, States,
    decision, page,
};
use operate::{OperateError, Operator, Role};
use outbox_log::ExceptionState;
use time::OffsetDateTime;
use uuid::Uuid;

use super::super::address::{to, with_query};
use super::super::answer::{Html, Problem};
use super::super::app::App;
use super::super::bulks::Bulk;
use super::super::fields::Fields;
use super::super::gate::Asker;
use super::super::layout::{self, Frame, Tab, cell, count, form_token, may_decide, since, tone, whole};
use super::super::list::{Column, Kind, column, list};
use super::super::text::capital;
use super::super::toned::class_of;
use super::choice::places_of;
use super::dead::{back_to_list, filter, kept};
use super::decide::{result, which};

/// A decision of another process that has changed something this recently may be running.
const RECENT: time::Duration = time::Duration::seconds(10);
/// How long the page follows messages that have not left yet.
const FOLLOWED: time::Duration = time::Duration::HOUR;
/// Maximum number of messages that are examined for new failures.
const FAILING_MAX: usize = 50;

/// `GET /decision`.
pub(crate) async fn show(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Query(query): Query<Fields>,
    uri: Uri,
) -> Result<Html, Problem> {
    query.check()?;
    let id: Uuid = query.need("id")?;
    let turn = app.turn().await?;
    let matching = Filter { error: None, error_like: None, ..filter(&query)? };
    let places = places_of(&app, &query).await?;
    let found = decision(&places, &operator, id).await;
    let failing = match &found {
        Ok(DecisionFound { decision: Some(decision), .. }) if is_on_its_way(decision) => {
            let retrying = States::Parked(ExceptionState::Retrying);
            let listed = Box::pin(page(&places, &operator, &matching, retrying, None, FAILING_MAX)).await;
            listed.ok().and_then(|listed| failing(decision, &listed))
        }
        _ => None,
    };
    places.close().await;
    drop(turn);
    let found = found?;
    let own = app.bulks.get(id);
    let is_own = own.is_some();
    if found.decision.is_none() && !is_own {
        let problem = Problem::new(StatusCode::NOT_FOUND, "there is no decision with this id");
        return Err(
            problem.with_help("a database that does not answer may have it; the audit lists all decisions")
        );
    }
    let is_whole = found.away.is_empty();
    let view = View { id, own: own.unwrap_or_default(), decision: found.decision, is_whole, query: &query };
    let is_running = is_own && view.own.ended.is_none();
    let may_run_elsewhere = !is_own && view.is_recent() && view.left() > 0;
    let body = html! {
        (layout::away(&found.away))
        (view.signature())
        @if is_running { (view.running(&operator)) } @else { (view.ended(may_run_elsewhere)) }
        (view.standing())
        @if let Some(failing) = &failing { (view.failing(failing)) }
        (view.refusals())
        div class="actions" {
            @if !is_running && !may_run_elsewhere && may_decide(&operator) { (view.rest()) }
            (back_to_list(&query))
        }
    };
    let title = view.title(is_running);
    let frame = Frame::new(Tab::Dead, &title);
    let changes = is_running || may_run_elsewhere || view.is_recent() || view.is_followed();
    let frame = if changes { frame.live(&uri) } else { frame };
    Ok(Html(frame.page(&body)))
}

/// Returns whether messages of a decision have not left yet.
fn is_on_its_way(decision: &Decision) -> bool {
    decision.standing.iter().any(|it| it.is_on_its_way() && it.count > 0)
}

/// Messages like those of a decision that have failed since.
#[derive(Debug, PartialEq, Eq)]
struct Failing {
    /// Those that were parked before the decision ended: it may have requeued them.
    again: u64,
    /// Those that were parked only afterwards, for example because an outage began.
    anew: u64,
    /// Whether there may be more: not all were examined.
    is_at_least: bool,
    /// The most failed attempts of one; 0 if none counts, because others are at fault.
    attempts: u32,
    /// The error of the first one.
    error: Option<String>,
}

/// Returns the messages among retrying ones that have failed since a decision, if there are any. A
/// requeue resets the attempts, and is itself a change.
fn failing(decision: &Decision, listed: &Listed) -> Option<Failing> {
    let failed = listed.messages.iter().filter(|message| {
        let is_later = message.changed_at - decision.last > time::Duration::SECOND;
        message.changed_at >= decision.first && (message.attempts > 0 || is_later)
    });
    let failed: Vec<_> = failed.collect();
    let first = failed.first()?;
    let again = failed.iter().filter(|message| message.since <= decision.last).count();
    Some(Failing {
        again: again as u64,
        anew: (failed.len() - again) as u64,
        is_at_least: listed.more,
        attempts: failed.iter().map(|message| message.attempts).max().unwrap_or_default(),
        error: first.error.clone(),
    })
}

/// `POST /decision/stop`.
pub(crate) async fn stop(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Form(form): Form<Fields>,
) -> Result<Redirect, Problem> {
    permit(&operator)?;
    let id: Uuid = form.need("id")?;
    if !app.bulks.stop(id) {
        let text = "this process of the relay is not running the decision, or it has ended";
        return Err(Problem::conflict(text).with_help("nothing was changed: see its result"));
    }
    let names: Vec<&str> = form.all("in").collect();
    Ok(Redirect::to(&result(id, &form, &names)))
}

fn permit(operator: &Operator) -> Result<(), OperateError> {
    operator.permit(Role::Operator, "stop a decision")
}

/// The known parts of a decision.
struct View<'a> {
    id: Uuid,
    own: Bulk,
    decision: Option<Decision>,
    /// Whether every database has answered. One that is away may know of more messages.
    is_whole: bool,
    query: &'a Fields,
}

impl View<'_> {
    /// Returns how many messages are known to be changed: by the databases that answer, or by this
    /// process, which carried the decision out.
    fn done(&self) -> u64 {
        let stored = self.decision.as_ref().map_or(0, |decision| decision.done);
        stored.max(self.sum(|report| report.done))
    }

    fn chosen(&self) -> u64 {
        let told = self.decision.as_ref().and_then(Decision::chosen);
        let own = self.own.progress.chosen.max(self.sum(|report| report.chosen));
        told.unwrap_or_default().max(own).max(self.done())
    }

    /// Returns the number of messages that were left unchanged, or were not reached.
    fn left(&self) -> u64 {
        self.chosen() - self.done()
    }

    fn is_recent(&self) -> bool {
        self.decision.as_ref().is_some_and(|it| OffsetDateTime::now_utc() - it.last < RECENT)
    }

    /// Returns whether something may still become of its messages that an operator waits for.
    fn is_followed(&self) -> bool {
        self.decision
            .as_ref()
            .is_some_and(|it| is_on_its_way(it) && OffsetDateTime::now_utc() - it.last < FOLLOWED)
    }

    fn action(&self) -> &'static str {
        match self.decision.as_ref().map(|decision| decision.action) {
            Some("discard") => "discard",
            Some(_) => "requeue",
            None if self.query.text("what").starts_with("discard") => "discard",
            None => "requeue",
        }
    }

    fn reports(&self) -> &[BulkReport] {
        match &self.own.ended {
            Some(Ok(reports)) => reports,
            _ => &[],
        }
    }

    /// Returns the sum of a number over the parts of the decision.
    fn sum(&self, number: fn(&BulkReport) -> u64) -> u64 {
        self.reports().iter().map(number).sum()
    }

    /// Returns the title: `Requeueing 92,999 messages`, or `10,500 of 20,000 messages requeued`.
    fn title(&self, is_running: bool) -> String {
        let chosen = self.chosen();
        let messages = if chosen == 1 { "message" } else { "messages" };
        if is_running {
            let verb = if self.action() == "discard" { "Discarding" } else { "Requeueing" };
            return format!("{verb} {} {messages}", count(chosen));
        }
        let at_least = if self.is_whole || self.left() == 0 { "" } else { "At least " };
        format!("{at_least}{} of {} {messages} {}", count(self.done()), count(chosen), self.verb())
    }

    /// Renders who decided, when and why.
    fn signature(&self) -> Markup {
        html! {
            @if let Some(it) = &self.decision {
                p class="lead" { "By " (cell(&it.actor)) ", " (since(it.last)) ": " (whole(&it.note)) }
                p { "Which: " (whole(&self.which(it))) "." }
            } @else if let Some(signed) = &self.own.signed {
                p class="lead" { "By " (cell(signed.operator.name())) ": " (whole(&signed.note)) }
            }
        }
    }

    /// Returns which messages were decided about: by the filter of the address, or as the audit has
    /// it.
    fn which(&self, decision: &Decision) -> String {
        if self.query.text("what").ends_with("-all") {
            return which(self.query, true);
        }
        let selection = decision.selection.as_deref().unwrap_or_default();
        selection.rsplit_once(": ").map_or(selection, |(which, _)| which).to_owned()
    }

    fn running(&self, operator: &Operator) -> Markup {
        let progress = self.own.progress;
        html! {
            p {
                @if self.own.is_stopping { "Stopping after this part: " }
                (count(progress.processed)) " of " (count(progress.chosen)) " messages are processed"
            }
            progress max=(progress.chosen) value=(progress.processed) aria-label="Messages decided about" {}
            @if may_decide(operator) && !self.own.is_stopping {
                form method="post" action=(to("/decision/stop")) class="actions" {
                    (form_token())
                    input type="hidden" name="id" value=(self.id);
                    input type="hidden" name="what" value=(self.query.text("what"));
                    @for name in self.query.all("in") { input type="hidden" name="in" value=(name); }
                    @for (name, value) in kept(self.query) { input type="hidden" name=(name) value=(value); }
                    button { "Stop after this part" }
                }
            }
        }
    }

    fn ended(&self, may_run_elsewhere: bool) -> Markup {
        let reports = self.reports();
        let is_stopped = reports.iter().any(|report| report.stopped);
        let refused = self.sum(|report| report.refused);
        let before = self.sum(|report| report.requested_before);
        let unknown = self.sum(|report| report.unknown);
        let not_reached =
            if reports.is_empty() { 0 } else { self.left().saturating_sub(refused + before + unknown) };
        html! {
            @if let Some(Err(why)) = &self.own.ended { p class="notice bad" role="alert" { (whole(why)) } }
            @for error in reports.iter().filter_map(|report| report.error.as_ref()) {
                p class="notice bad" role="alert" { "It ended early: " (whole(&error.to_string())) }
            }
            (self.left_alone())
            @if before > 0 { p { (count(before)) " were requested before, and their consumer has not carried it out yet." } }
            @if unknown > 0 {
                p class="notice" {
                    "For " (count(unknown)) " the outcome is unknown: the database's answer was lost. The messages "
                    "counted above were changed."
                }
            }
            @if not_reached > 0 || is_stopped {
                p class="notice" {
                    @if is_stopped { "It was stopped. " }
                    @if self.is_whole { (count(not_reached)) } @else { "At most " (count(not_reached)) }
                    " messages were not reached."
                }
            }
            @if may_run_elsewhere {
                p class="notice" { "It may be running in another process of the relay." }
            } @else if reports.is_empty() && self.left() > 0 {
                p class="notice" {
                    (count(self.left())) " were left unchanged, or not reached: it has ended, or was interrupted."
                }
            }
        }
    }

    /// Renders how many messages were left unchanged, and who decided about them first.
    fn left_alone(&self) -> Markup {
        let refused = self.sum(|report| report.refused);
        let changed = self.sum(|report| report.changed);
        let others: BTreeSet<&str> =
            self.reports().iter().flat_map(|report| &report.decided_by).map(String::as_str).collect();
        let others: Vec<&str> = others.into_iter().collect();
        let kind = if self.done() == 0 { "notice bad" } else { "notice" };
        html! {
            @if refused + changed > 0 {
                p class=(kind) role="status" {
                    @if self.done() == 0 { strong { "Nothing was " (self.verb()) "." } " " }
                    @if !others.is_empty() { strong { (cell(&others.join(" and "))) " decided about these messages first." } " " }
                    @if changed > 0 { (count(changed)) " had changed after the confirmation. " }
                    @if refused > 0 { (count(refused)) " were left unchanged, for the reasons below. " }
                    a href=(self.audit()) { "Who decided: the audit" }
                }
            }
        }
    }

    /// Returns the address of the audit, of the only outbox if there is one.
    fn audit(&self) -> String {
        let places: Vec<&str> = self.query.all("in").collect();
        let pipeline = match places[..] {
            [place] => place.strip_prefix("outbox/").unwrap_or_default(),
            _ => "",
        };
        with_query("/audit", &[("pipeline", pipeline)])
    }

    fn verb(&self) -> &'static str {
        match self.action() {
            "discard" => "discarded",
            _ => "requeued",
        }
    }

    /// Renders the form that asks about the messages that still match the filter: those that were
    /// not reached, and those that are dead again or have become dead. Messages that were chosen
    /// one by one have to be chosen in the list.
    fn rest(&self) -> Markup {
        let asked = self.sum(|report| report.refused) + self.sum(|report| report.requested_before);
        let is_all = self.query.text("what").ends_with("-all") && self.left() > asked;
        let Some(action) = self.decision.as_ref().map(|decision| decision.action).filter(|_| is_all) else {
            return html! {};
        };
        html! {
            form method="post" action=(to("/dead/confirm")) {
                (form_token())
                @for (name, value) in kept(self.query) { input type="hidden" name=(name) value=(value); }
                button name="what" value={ (action) "-all" } class=[(action == "discard").then_some("danger")] {
                    (capital(action)) " all that still match…"
                }
            }
        }
    }

    fn standing(&self) -> Markup {
        let standing = self.decision.as_ref().map_or(&[][..], |decision| &decision.standing);
        let again = self.decision.as_ref().and_then(|decision| decision.dead_again(count));
        html! {
            @if !standing.is_empty() {
                h2 { "Where they are now" }
                @if let Some(again) = &again {
                    p class="notice bad" role="status" { strong { (again) } " " (REMOVE_THE_CAUSE) }
                }
                (list("Where they are now", &STANDING, standing.iter().map(|it| self.where_now(it))))
            }
        }
    }

    /// Renders what has failed since, of the messages in the same places and with the same
    /// conditions except for the error, which may be another one now.
    fn failing(&self, failing: &Failing) -> Markup {
        let kept = kept(self.query);
        let kept = kept.iter().filter(|(name, _)| !matches!(*name, "error" | "error_like"));
        let mut pairs: Vec<(&str, &str)> = kept.map(|(name, value)| (*name, value.as_str())).collect();
        pairs.push(("state", "retrying"));
        html! {
            p class="notice bad" role="status" {
                strong {
                    (have_failed(failing))
                    @if failing.attempts > 0 { ", " (attempts(failing)) }
                    "."
                }
                @if let Some(error) = &failing.error { " " (whole(error)) }
                " "
                a href=(with_query("/dead", &pairs)) { "Show what is retrying" }
            }
        }
    }

    fn where_now(&self, standing: &Standing) -> Vec<Markup> {
        let least = if standing.is_at_least { "≥ " } else { "" };
        let is_bad = standing.is_dead_again();
        let kept = kept(self.query);
        let pairs: Vec<(&str, &str)> = kept.iter().map(|(name, value)| (*name, value.as_str())).collect();
        vec![
            of_standing(standing),
            html! { (least) (count(standing.count)) },
            html! { @if is_bad { a href=(with_query("/dead", &pairs)) { "Show all that match" } } },
        ]
    }

    /// Renders why messages were left unchanged, each reason with the number of its messages.
    fn refusals(&self) -> Markup {
        let mut reasons: BTreeMap<String, Vec<&Refusal>> = BTreeMap::new();
        let refusals: Vec<&Refusal> = self.reports().iter().flat_map(|report| &report.refusals).collect();
        let is_sample = (refusals.len() as u64) < self.sum(|report| report.refused);
        for refusal in refusals {
            reasons.entry(signature(&refusal.why)).or_default().push(refusal);
        }
        html! {
            @if !reasons.is_empty() {
                // A single reason is shown at once.
                details id="refusals" open[reasons.len() == 1] {
                    summary { "Messages that were left unchanged, and why" }
                    (list("Refusals", &REFUSALS, reasons.values().map(|of_reason| refused(of_reason, is_sample))))
                }
            }
        }
    }
}

/// Returns how many messages have failed, and which of them not for the first time.
fn have_failed(failing: &Failing) -> String {
    let least = if failing.is_at_least { "At least " } else { "" };
    let like_these = |number: u64| {
        let noun = if number == 1 { "message like these has" } else { "messages like these have" };
        format!("{least}{} {noun} failed", count(number))
    };
    match (failing.again, failing.anew) {
        (again, 0) => format!("{} again", like_these(again)),
        (0, anew) => format!("{} for the first time since", like_these(anew)),
        (again, 1) => format!("{} again, and 1 other for the first time", like_these(again)),
        (again, anew) => {
            format!("{} again, and {} others for the first time", like_these(again), count(anew))
        }
    }
}

/// Returns the number of attempts: `8 attempts`, `up to 8 attempts`.
fn attempts(failing: &Failing) -> String {
    let most = if failing.again + failing.anew == 1 { "" } else { "up to " };
    let noun = if failing.attempts == 1 { "attempt" } else { "attempts" };
    format!("{most}{} {noun}", count(failing.attempts.into()))
}

/// Renders what became of messages, in a colour that shows whether this is a success.
fn of_standing(standing: &Standing) -> Markup {
    let kind = class_of(standing.tone());
    html! {
        @if standing.is_no_longer_dead() {
            (tone(kind, "no longer dead")) " " span class="faint" { (standing.what) }
        } @else {
            (tone(kind, standing.what))
        }
    }
}

/// Renders messages that were left unchanged for the same reason.
fn refused(of_reason: &[&Refusal], is_sample: bool) -> Vec<Markup> {
    let why = of_reason.first().map_or("", |first| first.why.as_str());
    let ids: Vec<&str> = of_reason.iter().take(NAMED_MAX).map(|refusal| refusal.id.as_str()).collect();
    let more = if of_reason.len() > NAMED_MAX { ", …" } else { "" };
    vec![
        whole(why),
        html! { @if is_sample { "≥ " } (count(of_reason.len() as u64)) },
        cell(&format!("{}{more}", ids.join(", "))),
    ]
}

/// Maximum messages that are named for each reason.
const NAMED_MAX: usize = 3;

const STANDING: [Column; 3] =
    [column("Now", Kind::Name), column("Messages", Kind::Number), column("Show", Kind::Act)];

const REFUSALS: [Column; 3] =
    [column("Reason", Kind::Why), column("Messages", Kind::Number), column("Which", Kind::Name)];

#[cfg(test)]
mod tests {
    use operate::dead::sample::report;

    use super::*;

    fn decided(done: u64, standing: Vec<Standing>) -> Decision {
        let at = OffsetDateTime::UNIX_EPOCH;
        Decision {
            id: Uuid::nil(),
            action: "requeue",
            actor: String::from("ann"),
            note: String::from("prices are back"),
            selection: Some(String::from("topic=orders: 20 chosen")),
            done,
            first: at,
            last: at,
            standing,
            owners: Vec::new(),
        }
    }

    fn all() -> Fields {
        Fields::of(&[("what", "requeue-all"), ("topic", "orders"), ("in", "outbox/shop")])
    }

    fn view<'a>(query: &'a Fields, decision: Option<Decision>, report: BulkReport) -> View<'a> {
        let mut own = Bulk::default();
        own.end(Ok(vec![report]));
        View { id: Uuid::nil(), own, decision, is_whole: true, query }
    }

    /// Goal: an operator who sees that requeueing failed does not first requeue more. Oracle: the
    /// warning, the words of the button, and the colours.
    #[test]
    fn a_requeue_that_did_not_help_says_so() {
        let again = Standing { what: "dead again", count: 10, is_at_least: false };
        let query = all();
        let report = BulkReport { done: 10, stopped: true, ..report(20) };
        let view = view(&query, Some(decided(10, vec![again])), report);
        assert_eq!(view.title(false), "10 of 20 messages requeued");
        let standing = view.standing().into_string();
        assert!(standing.contains("All 10 requeued messages are dead again."), "{standing}");
        assert!(standing.contains("badge bad\">dead again"), "{standing}");
        let rest = view.rest().into_string();
        assert!(
            rest.contains("Requeue all that still match…") && rest.contains("value=\"orders\""),
            "{rest}"
        );
        let ended = view.ended(false).into_string();
        assert!(ended.contains("It was stopped. 10 messages were not reached."), "{ended}");
    }

    /// Goal: a database that is away does not look as if it had changed nothing. Oracle: the title
    /// and the text, of a decision that this process carried out.
    #[test]
    fn a_decision_whose_database_is_away_counts_what_is_known() {
        let query = all();
        let report = BulkReport { done: 6, stopped: true, ..report(20) };
        let view = View { is_whole: false, ..view(&query, None, BulkReport { chosen: 20, ..report }) };
        let ended = view.ended(false).into_string();
        assert!(view.title(false).starts_with("At least 6 of "), "{}", view.title(false));
        assert!(ended.contains("At most ") && ended.contains(" messages were not reached."), "{ended}");
    }

    /// Goal: a message that fails again and again after a requeue is not only on its way. Oracle:
    /// the notice, for messages that have failed since, have not been tried, or failed before.
    #[test]
    fn what_failed_again_is_told() {
        let way = Standing { what: "on its way", count: 5, is_at_least: false };
        let decision = decided(5, vec![way]);
        let retrying = |attempts, seconds: i64| {
            let mut message = operate::dead::sample::entry(7);
            message.attempts = attempts;
            message.error = Some(String::from("refused with status 422"));
            message.changed_at = OffsetDateTime::UNIX_EPOCH + time::Duration::seconds(seconds);
            message
        };
        let of = |messages: &[operate::dead::DeadMessage], more| {
            let messages = messages.to_vec();
            failing(&decision, &Listed { messages, more, next: None, away: Vec::new() })
        };
        assert_eq!(of(&[retrying(0, 0), retrying(9, -60)], false), None);
        let found = of(&[retrying(8, 100), retrying(3, 90), retrying(0, 0), retrying(0, 80)], true).unwrap();
        let error = Some(String::from("refused with status 422"));
        assert_eq!(found, Failing { again: 3, anew: 0, is_at_least: true, attempts: 8, error });

        let query = all();
        let view = view(&query, Some(decision.clone()), BulkReport { done: 5, chosen: 5, ..report(20) });
        let text = view.failing(&found).into_string();
        let told = "At least 3 messages like these have failed again, up to 8 attempts.";
        assert!(text.contains(told), "{text}");
        assert!(text.contains("status 422") && text.contains("topic=orders&amp;state=retrying"), "{text}");
        let one = of(&[retrying(1, 100)], false).unwrap();
        let text = view.failing(&one).into_string();
        assert!(text.contains("1 message like these has failed again, 1 attempt."), "{text}");
    }

    /// Goal: a message that fails for the first time, because an outage began after the requeue,
    /// does not make the requeue look useless. Oracle: the notice, for messages that were parked
    /// before the decision ended, afterwards, and both.
    #[test]
    fn only_what_was_parked_before_a_requeue_failed_again() {
        let decision = decided(5, vec![Standing { what: "on its way", count: 5, is_at_least: false }]);
        let failed = |since: i64| {
            let mut message = operate::dead::sample::entry(7);
            message.since = OffsetDateTime::UNIX_EPOCH + time::Duration::seconds(since);
            message.changed_at = OffsetDateTime::UNIX_EPOCH + time::Duration::seconds(100);
            message
        };
        let told = |since: &[i64]| {
            let messages = since.iter().map(|since| failed(*since)).collect();
            let listed = Listed { messages, more: false, next: None, away: Vec::new() };
            have_failed(&failing(&decision, &listed).unwrap())
        };
        assert_eq!(told(&[-60, 0]), "2 messages like these have failed again");
        assert_eq!(told(&[90]), "1 message like these has failed for the first time since");
        assert_eq!(told(&[-60, 90]), "1 message like these has failed again, and 1 other for the first time");
        let most = told(&[90, 91, -60, 92]);
        assert_eq!(most, "1 message like these has failed again, and 3 others for the first time");
    }

    /// Goal: the page of a decision follows its messages until they have left. Oracle: whether it
    /// follows, by their state and by its age.
    #[test]
    fn a_result_is_followed_while_messages_are_on_their_way() {
        let query = all();
        let is_followed = |what: &'static str, minutes: i64| {
            let last = OffsetDateTime::now_utc() - time::Duration::minutes(minutes);
            let decided = decided(5, vec![Standing { what, count: 5, is_at_least: false }]);
            view(&query, Some(Decision { last, ..decided }), report(20)).is_followed()
        };
        assert!(is_followed("on its way", 3) && is_followed("waiting for its consumer", 3));
        assert!(!is_followed("on its way", 61) && !is_followed("dead again", 3));
    }

    #[test]
    fn success_has_a_colour() {
        for (what, badge) in [
            ("published, or decided about again", "badge good\">no longer dead"),
            ("took effect", "badge good\">took effect"),
            ("waiting for its consumer", "badge warn\">waiting"),
            ("failed again", "badge bad\">failed again"),
            ("discarded", "badge \">discarded"),
        ] {
            let text = of_standing(&Standing { what, count: 5, is_at_least: false }).into_string();
            assert!(text.contains(badge), "{what}: {text}");
        }
    }

    /// Goal: of two operators who decide at once, the second one reads each fact once, and who was
    /// first. Oracle: the notice, and the refusals, grouped.
    #[test]
    fn the_loser_of_two_operators_learns_who_won() {
        let refusal = |id: &str, why: &str| Refusal {
            source: operate::dead::DeadSource::Outbox,
            owner: String::from("shop"),
            id: id.to_owned(),
            why: why.to_owned(),
        };
        let lost = BulkReport {
            refused: 20,
            changed: 4,
            decided_by: BTreeSet::from([String::from("bob")]),
            refusals: (1..=5).map(|id| refusal(&id.to_string(), "requeued by bob at 10:0")).collect(),
            ..report(20)
        };
        let query = all();
        let text = view(&query, None, lost.clone()).left_alone().into_string();
        assert!(text.contains("Nothing was requeued.") && text.contains("notice bad"), "{text}");
        assert!(text.contains("4 had changed after the confirmation. 20 were left unchanged"), "{text}");
        assert!(text.contains("bob</span> decided about these messages first."), "{text}");
        assert!(text.contains("href=\"/audit?pipeline=shop\""), "{text}");
        let text = view(&query, None, lost).refusals().into_string();
        assert!(text.contains("≥ 5") && text.contains("1, 2, 3, …"), "{text}");
    }
}
