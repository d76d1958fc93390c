//! The pipelines: leader, lag and throughput of the last hour, and why messages wait.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use maud::{Markup, html};
use operate::Operator;
use operate::pause::PauseLine;
use operate::status::PipelineStatus;

use super::super::address::with_query;
use super::super::answer::Html;
use super::super::app::App;
use super::super::fields::moment;
use super::super::gate::Asker;
use super::super::layout::{Frame, Tab, ago, badge, bytes, cell, count, lasting, may_decide, maybe, whole};
use super::super::plot::plot;
use super::super::samples::Hour;
use engine::{Role, Status};

/// Maximum number of pipelines shown expanded; the others are collapsed.
const OPEN_MAX: usize = 12;

/// `GET /`.
pub(crate) async fn show(Asker(operator): Asker, State(app): State<Arc<App>>, uri: Uri) -> Html {
    let picture = app.observer.picture().await;
    let all = &picture.pipelines;
    let statuses: Vec<&PipelineStatus> = all.iter().map(|(status, _)| status).collect();
    let sum = |of: fn(&PipelineStatus) -> u64| statuses.iter().map(|status| of(status)).sum::<u64>();
    let told = |of: fn(&PipelineStatus) -> u64| total(&statuses, of);
    let leading = all.iter().filter(|(status, _)| status.state == "leading").count();
    let oldest = all.iter().filter_map(|(status, _)| status.oldest_pending_age_seconds);
    let oldest = oldest.fold(None, |max: Option<f64>, age| Some(max.map_or(age, |max| max.max(age))));
    let own = |status: &PipelineStatus| {
        app.own.get(&status.pipeline).and_then(|own| of_this_process(&own.borrow()))
    };
    let body = html! {
        section class="tiles" aria-label="Summary" {
            (tile("Leading", &format!("{leading} of {}", all.len()), leading < all.len(), "/"))
            (tile("Waiting (max)", &told(|it| it.backlog_entries_max.unwrap_or_default()), false, "/topics"))
            (tile("Oldest waiting for", &oldest.map_or(String::from("–"), lasting), oldest.is_some_and(|age| age > 60.0), "/topics"))
            (tile("Held", &told(|it| it.parked("held")), sum(|it| it.parked("held")) > 0, "/held"))
            (tile("Dead", &told(|it| it.parked("dead")), sum(|it| it.parked("dead")) > 0, "/dead"))
        }
        @for (index, (status, hour)) in all.iter().enumerate() {
            @if index < OPEN_MAX {
                section class="card" { (head(status)) (card(&operator, status, own(status), hour)) }
            } @else {
                details class="card" id={ "pipeline-" (status.pipeline) } {
                    summary { (head(status)) }
                    (card(&operator, status, own(status), hour))
                }
            }
        }
        p class="faint" { "As of " (ago(picture.at)) "." }
    };
    Html(Frame::new(Some(&operator), Tab::Overview, "Pipelines").live(&uri).page(&body))
}

/// Formats a sum over all pipelines, with a mark if a database is unreachable and its pipelines are
/// missing from the sum.
fn total(all: &[&PipelineStatus], of: fn(&PipelineStatus) -> u64) -> String {
    let known: Vec<u64> = all.iter().filter(|it| it.state != "unknown").map(|it| of(it)).collect();
    match known.iter().sum::<u64>() {
        sum if known.len() == all.len() => count(sum),
        0 => String::from("–"),
        sum => format!("{} + ?", count(sum)),
    }
}

fn tile(name: &str, value: &str, is_bad: bool, path: &str) -> Markup {
    html! {
        a class={ "tile " (if is_bad { "attention" } else { "" }) } href=(path) {
            span class="tile-name" { (name) }
            span class="tile-value" { (value) }
        }
    }
}

fn head(status: &PipelineStatus) -> Markup {
    html! {
        div class="card-head" {
            h2 { (cell(&status.pipeline)) }
            (badge(status.state))
            @if status.paused.iter().any(|pause| pause.paused == "pipeline") { (badge("paused")) }
        }
    }
}

/// Returns why this process does not publish, if its database does not show it.
fn of_this_process(Status { role, faults }: &Status) -> Option<String> {
    let reason = match role {
        Role::Refused { reason } => {
            return Some(format!(
                "this process does not run the pipeline, because the pipeline was refused: {reason}"
            ));
        }
        Role::Waiting { reason, .. } => reason.as_str(),
        _ => "see the log",
    };
    (*faults > 1).then(|| {
        format!("internal errors have ended the pipeline {faults} times in a row in this process: {reason}")
    })
}

fn card(operator: &Operator, status: &PipelineStatus, own: Option<String>, hour: &Hour) -> Markup {
    let waits = status.waits();
    let is_known = status.state != "unknown";
    html! {
        div class="plots" {
            (plot("lag", "Lag of the oldest message", &hour.lag, is_known, lasting))
            (plot("in", "Enqueued per second", &hour.enqueued, is_known, rate))
            (plot("rate", "Passed on per second", &hour.throughput, is_known, rate))
        }
        dl class="facts" {
            div { dt { "Leader" } dd { (maybe(status.holder.as_deref())) } }
            div { dt { "Standbys" } dd {
                @match status.standbys {
                    Some(standbys) => { (standbys) }
                    None if status.state == "unknown" || status.state == "new" => { (maybe(None)) }
                    None => { "not available with SQLite" }
                }
            } }
            div { dt { "Lease expires in" } dd { (maybe(status.lease_remaining_seconds.map(lasting).as_deref())) } }
            div { dt { "Term" } dd { (maybe(status.epoch.map(|epoch| epoch.to_string()).as_deref())) } }
            div { dt { "Waiting" } dd {
                (maybe(status.backlog_entries_max.map(|max| match (max, status.oldest_pending_id) {
                    (0, _) => String::from("0"),
                    (max, _) => format!("≤ {}", count(max)),
                }).as_deref()))
            } }
            div { dt { "Oldest waiting for" } dd { (maybe(status.oldest_pending_age_seconds.map(lasting).as_deref())) } }
            @for (state, path) in [("held", "/held"), ("retrying", "/held"), ("dead", "/dead"), ("scheduled", "/topics")] {
                div { dt { (state) } dd {
                    @if status.state == "unknown" { (maybe(None)) }
                    @else { a href=(path) { (count(status.parked(state))) } }
                } }
            }
            div { dt { "Outbox" } dd { (maybe(status.history_bytes.map(bytes).as_deref())) } }
        }
        @if let Some(own) = &own {
            p class="bad-line" { (cell(own)) }
        }
        @if waits.is_empty() && status.oldest_pending_id.is_some() {
            p class="faint" { "Messages are being published; the oldest has waited for less than a minute." }
        } @else if waits.is_empty() {
            p class="good-line" { "Nothing blocks publishing." }
        } @else {
            h3 { "What is waiting, why, and since when" }
            ul class="waits" {
                @for wait in &waits {
                    li class=(if wait.passes { "warn" } else { "bad" }) { (whole(&wait.told())) }
                }
            }
        }
        @if !status.paused.is_empty() { (pauses(operator, status)) }
        @if may_decide(operator) && status.state != "unknown" {
            p class="actions" {
                a class="button" href=(with_query("/pause", &[("pipeline", &status.pipeline)])) { "Pause…" }
            }
        }
    }
}

fn pauses(operator: &Operator, status: &PipelineStatus) -> Markup {
    html! {
        h3 { "Paused" }
        ul class="paused" {
            @for pause @ PauseLine { paused, actor, reason, since, .. } in status.paused.iter().take(50) {
                li {
                    span { (cell(paused)) " by " (cell(actor)) ", " (ago(*since)) ": " (cell(reason)) }
                    @if may_decide(operator) { (resume(&status.pipeline, pause)) }
                }
            }
        }
    }
}

fn resume(pipeline: &str, PauseLine { paused, since, .. }: &PauseLine) -> Markup {
    let (kind, name) = paused.split_once(' ').unwrap_or((paused, ""));
    let since = moment(*since);
    let pairs =
        [("pipeline", pipeline), ("scope", kind), ("name", name), ("resume", "yes"), ("since", &since)];
    html! { a class="button" href=(with_query("/pause", &pairs)) { "Resume…" } }
}

fn rate(value: f64) -> String {
    match value {
        0.0 => String::from("0/s"),
        value if value < 10.0 => format!("{value:.1}/s"),
        value => format!("{}/s", count(value.round() as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipeline_that_ends_again_and_again_is_told() {
        let waiting = || Role::Waiting { fault: message::Fault::Operator, reason: String::from("index 7") };
        let told = |role, faults| of_this_process(&Status { role, faults });
        for (role, faults) in
            [(Role::Starting, 0), (waiting(), 0), (waiting(), 1), (Role::Leading { epoch: 1 }, 1)]
        {
            assert_eq!(told(role, faults), None);
        }
        assert!(
            told(waiting(), 3)
                .is_some_and(|text| text.contains("3 times in a row") && text.ends_with("index 7"))
        );
        assert!(told(Role::Leading { epoch: 1 }, 2).is_some_and(|text| text.ends_with("see the log")));
        let refused = Role::Refused { reason: String::from("too new") };
        assert!(told(refused, 0).is_some_and(|text| text.ends_with("was refused: too new")));
    }

    #[test]
    fn what_is_not_known_is_no_zero() {
        let status = |state, dead| PipelineStatus {
            state,
            exceptions: std::collections::BTreeMap::from([("dead", dead)]),
            ..PipelineStatus::of("orders", None, None)
        };
        let told = |all: &[&PipelineStatus]| total(all, |it| it.parked("dead"));
        let (quiet, some, away) = (status("leading", 0), status("leading", 2), status("unknown", 0));
        assert_eq!(told(&[&quiet]), "0");
        assert_eq!(told(&[&away]), "–");
        assert_eq!(told(&[&quiet, &away]), "–");
        assert_eq!(told(&[&some, &away]), "2 + ?");
    }
}
