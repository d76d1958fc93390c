//! The result of a decision about many messages, at its own address: the same in every process, and
//! after a restart.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Form;
use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri};
use axum::response::Redirect;
use maud::{Markup, html};
use operate::dead::{BulkReport, Decision, Refusal, Standing, decision};
use operate::{OperateError, Operator, Role};
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
use super::choice::places_of;
use super::dead::{back_to_list, kept};
use super::decide::{capital, result};

/// A decision of another process that has changed something this recently may be running.
const RECENT: time::Duration = time::Duration::seconds(10);

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
    let places = places_of(&app, &query).await?;
    let found = decision(&places, &operator, id).await;
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
    let view = View { id, own: own.unwrap_or_default(), decision: found.decision, query: &query };
    let is_running = is_own && view.own.ended.is_none();
    let may_run_elsewhere = !is_own && view.is_recent() && view.left() > 0;
    let body = html! {
        (layout::away(&found.away))
        @if is_running { (view.running(&operator)) } @else { (view.ended(&operator, may_run_elsewhere)) }
        (view.standing())
        p { (back_to_list(&query)) }
    };
    let frame = Frame::new(Tab::Dead, "Decision");
    let frame = if is_running || may_run_elsewhere || view.is_recent() { frame.live(&uri) } else { frame };
    Ok(Html(frame.page(&body)))
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
    query: &'a Fields,
}

impl View<'_> {
    fn done(&self) -> u64 {
        self.decision.as_ref().map_or(0, |decision| decision.done)
    }

    fn chosen(&self) -> u64 {
        let told = self.decision.as_ref().and_then(Decision::chosen);
        told.unwrap_or_default().max(self.own.progress.chosen).max(self.done())
    }

    /// Returns the number of messages that were left unchanged, or were not reached.
    fn left(&self) -> u64 {
        self.chosen() - self.done()
    }

    fn is_recent(&self) -> bool {
        self.decision.as_ref().is_some_and(|it| OffsetDateTime::now_utc() - it.last < RECENT)
    }

    fn action(&self) -> &'static str {
        match self.decision.as_ref().map(|decision| decision.action) {
            Some("discard") => "discard",
            Some(_) => "requeue",
            None if self.query.text("what").starts_with("discard") => "discard",
            None => "requeue",
        }
    }

    fn running(&self, operator: &Operator) -> Markup {
        let progress = self.own.progress;
        html! {
            p class="lead" {
                @if self.own.is_stopping { "Stopping after this part: " } @else { "Running: " }
                (count(progress.processed)) " of " (count(progress.chosen)) " messages are processed"
            }
            progress max=(progress.chosen) value=(progress.processed) aria-label="Messages decided about" {}
            @if may_decide(operator) && !self.own.is_stopping {
                form method="post" action=(to("/decision/stop")) {
                    (form_token())
                    input type="hidden" name="id" value=(self.id);
                    input type="hidden" name="what" value=(self.query.text("what"));
                    @for name in self.query.all("in") { input type="hidden" name="in" value=(name); }
                    @for (name, value) in kept(self.query) { input type="hidden" name=(name) value=(value); }
                    button { "Stop" }
                }
            }
        }
    }

    fn ended(&self, operator: &Operator, may_run_elsewhere: bool) -> Markup {
        let reports = match &self.own.ended {
            Some(Ok(reports)) => &reports[..],
            _ => &[],
        };
        let sum = |number: fn(&BulkReport) -> u64| reports.iter().map(number).sum::<u64>();
        let is_stopped = reports.iter().any(|report| report.stopped);
        let refused = sum(|report| report.refused);
        let before = sum(|report| report.requested_before);
        let changed = sum(|report| report.changed);
        let unknown = sum(|report| report.unknown);
        let others: BTreeSet<&str> =
            reports.iter().flat_map(|report| &report.decided_by).map(String::as_str).collect();
        let others: Vec<&str> = others.into_iter().collect();
        let not_reached =
            if reports.is_empty() { 0 } else { self.left().saturating_sub(refused + before + unknown) };
        html! {
            p class="lead" {
                (count(self.done())) " of " (count(self.chosen())) (if self.chosen() == 1 { " message " } else { " messages " }) (self.verb())
                @if let Some(it) = &self.decision { " by " (cell(&it.actor)) " " (since(it.last)) ": " (whole(&it.note)) }
            }
            @if let Some(it) = &self.decision { @if let Some(selection) = &it.selection {
                p { "Messages: " (cell(selection)) }
            } }
            @if let Some(Err(why)) = &self.own.ended { p class="notice bad" role="alert" { (whole(why)) } }
            @for error in reports.iter().filter_map(|report| report.error.as_ref()) {
                p class="notice bad" role="alert" { "It ended early: " (whole(&error.to_string())) }
            }
            @if changed > 0 { p { "Left out, because they had changed after the confirmation: " (count(changed)) "." } }
            @if refused > 0 { p { (count(refused)) " were left unchanged: they had changed since." } }
            @if !others.is_empty() { p class="notice" { (cell(&others.join(" and "))) " decided about these messages first." } }
            @if before > 0 { p { (count(before)) " were requested before, and their consumer has not carried it out yet." } }
            @if unknown > 0 { p class="notice" { "For " (count(unknown)) " the outcome is unknown: the \
                                                                          database's answer was lost. The \
                                                                          messages counted above were \
                                                                          changed." } }
            @if is_stopped { p class="notice" { "It was stopped. " (count(not_reached)) " messages were not reached." } }
            @else if not_reached > 0 { p class="notice" { (count(not_reached)) " messages were not reached." } }
            @if may_run_elsewhere {
                p class="notice" { "It may be running in another process of the relay." }
            } @else if reports.is_empty() && self.left() > 0 {
                p class="notice" { (count(self.left())) " were left unchanged, or not reached: it has \
                                                         ended, or was interrupted." }
            }
            @if self.left() > refused + before && !may_run_elsewhere && may_decide(operator) { (self.rest()) }
            (refusals(reports))
        }
    }

    fn verb(&self) -> &'static str {
        match self.action() {
            "discard" => "discarded",
            _ => "requeued",
        }
    }

    /// Renders the form that asks about the remaining messages that a filter matches. Messages that
    /// were chosen one by one have to be chosen in the list.
    fn rest(&self) -> Markup {
        let is_all = self.query.text("what").ends_with("-all");
        let Some(action) = self.decision.as_ref().map(|decision| decision.action).filter(|_| is_all) else {
            return html! {};
        };
        html! {
            form method="post" action=(to("/dead/confirm")) {
                (form_token())
                @for (name, value) in kept(self.query) { input type="hidden" name=(name) value=(value); }
                button name="what" value={ (action) "-all" } { (capital(action)) " the rest…" }
            }
        }
    }

    fn standing(&self) -> Markup {
        let standing = self.decision.as_ref().map_or(&[][..], |decision| &decision.standing);
        html! {
            @if !standing.is_empty() {
                h2 { "Where they are now" }
                (list("Where they are now", &STANDING, standing.iter().map(|it| self.where_now(it))))
            }
        }
    }

    fn where_now(&self, standing: &Standing) -> Vec<Markup> {
        let least = if standing.is_at_least { "≥ " } else { "" };
        let is_bad = matches!(standing.what, "dead again" | "failed again");
        let what = tone(if is_bad { "bad" } else { "" }, standing.what);
        let kept = kept(self.query);
        let pairs: Vec<(&str, &str)> = kept.iter().map(|(name, value)| (*name, value.as_str())).collect();
        vec![
            what,
            html! { (least) (count(standing.count)) },
            html! { @if is_bad { a href=(with_query("/dead", &pairs)) { "Show" } } },
        ]
    }
}

const STANDING: [Column; 3] =
    [column("Now", Kind::Name), column("Messages", Kind::Number), column("Show", Kind::Act)];

const REFUSALS: [Column; 3] =
    [column("Message", Kind::Name), column("Reason", Kind::Why), column("Of", Kind::Text)];

fn refusals(reports: &[BulkReport]) -> Markup {
    let refused: Vec<&Refusal> = reports.iter().flat_map(|report| &report.refusals).collect();
    html! {
        @if !refused.is_empty() {
            details {
                summary { "Messages that were left unchanged" }
                (list("Refusals", &REFUSALS, refused.iter().map(|it| vec![cell(&it.id), cell(&it.why), cell(&it.owner)])))
            }
        }
    }
}
