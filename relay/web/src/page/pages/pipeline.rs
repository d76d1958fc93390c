//! One pipeline: what is wrong with it, its leader and its numbers, its pauses and the last hour.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::Uri;
use maud::{Markup, html};
use operate::Operator;
use operate::pause::PauseLine;
use operate::status::{PipelineState, PipelineStatus};
use outbox_log::ExceptionState;
use outbox_log::admin::Process;

use super::super::address::with_query;
use super::super::answer::{Html, Problem};
use super::super::app::App;
use super::super::fields::Fields;
use super::super::gate::Asker;
use super::super::layout::{
    Frame, Tab, ago, badge, bytes, cell, count, lasting, may_decide, maybe, maybe_since, whole,
};
use super::super::list::{Column, Kind, column, list};
use super::super::trouble::Subject;
use super::card::{card, plots, resume};
use super::overview::{hour, own};
use super::{doctor, replay, verify};

/// Maximum number of pauses shown.
const PAUSES_MAX: usize = 50;

/// `GET /pipeline`.
pub(crate) async fn show(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Query(query): Query<Fields>,
    uri: Uri,
) -> Result<Html, Problem> {
    query.check()?;
    let pipeline = app.pipeline(query.exact("name"))?;
    let name = pipeline.name.as_str();
    let picture = app.observer.picture().await;
    let found = picture.pipelines.iter().find(|(status, _)| status.pipeline == name);
    // A picture has every pipeline.
    let Some((status, _)) = found else { return Err(Problem::bad("the pipeline is not known yet")) };
    let subject = Subject::pipeline(status, own(&app, status));
    let body = html! {
        p class="actions" {
            (badge(status.state))
            @if may_decide(&operator) && status.state.is_known() {
                a class="button" href=(with_query("/pause", &[("pipeline", name), ("from", "pipeline")])) { "Pause…" }
            }
            @if pipeline.database.lent_address().is_none() {
                a class="button" href=(doctor::address(name)) { "Doctor" }
                a class="button" href=(verify::address(name)) { "Verify" }
            }
            @if !pipeline.broker.lends_transactions() {
                a class="button" href=(replay::address(name)) {
                    @if may_decide(&operator) { "Replay…" } @else { "Last replay" }
                }
            }
            @if let Some(dashboard) = app.links.dashboard(name) { (dashboard) }
            (app.links.runbook())
        }
        @if subject.is_sick() { (card(&app.links, &operator, &subject, picture.at)) }
        @else if status.oldest_pending_id.is_some() {
            p class="faint" { "Messages are being published; the oldest has waited for less than a minute." }
        } @else {
            p class="good-line" { "Nothing blocks publishing." }
        }
        @if !status.paused.is_empty() { (pauses(&operator, status)) }
        @if let Some(processes) = &status.processes { (processes_of(status, processes)) }
        section class="card" { (facts(status)) }
        @if let Some(hour) = hour(&picture, name) {
            h2 { "The last hour" }
            section class="card" { (plots(status, hour, true)) }
        }
    };
    Ok(Html(Frame::new(Tab::Overview, name).taken_at(picture.at).live(&uri).page(&body)))
}

fn pauses(operator: &Operator, status: &PipelineStatus) -> Markup {
    html! {
        h2 { "Paused" }
        ul class="paused card" {
            @for pause @ PauseLine { paused, actor, reason, since, .. } in status.paused.iter().take(PAUSES_MAX) {
                li {
                    span { (cell(&paused.to_string())) " by " (cell(actor)) ", " (ago(*since)) ": " (whole(reason)) }
                    @if may_decide(operator) { (resume(&status.pipeline, pause, "pipeline")) }
                }
            }
        }
        @if status.paused.len() > PAUSES_MAX {
            p class="faint" { "and " (count((status.paused.len() - PAUSES_MAX) as u64)) " more" }
        }
    }
}

const PROCESSES: [Column; 5] = [
    column("Role", Kind::Name),
    column("Version", Kind::Text),
    column("Address", Kind::Text),
    column("Connected", Kind::Time),
    column("Process", Kind::Why),
];

fn processes_of(status: &PipelineStatus, processes: &[Process]) -> Markup {
    html! {
        h2 { "Processes" }
        @if processes.is_empty() { p class="empty" { "No relay runs this pipeline." } }
        @else { (list("Processes", &PROCESSES, processes.iter().map(|process| process_row(status, process)))) }
    }
}

fn process_row(status: &PipelineStatus, process: &Process) -> Vec<Markup> {
    let address = match (&process.address, process.since) {
        (Some(address), _) => address.as_str(),
        (None, Some(_)) => "same machine",
        (None, None) => "hidden (needs pg_read_all_stats)",
    };
    vec![
        html! { (if process.is_leader { "leads" } else { "standby" }) },
        cell(&process.version),
        cell(address),
        maybe_since(process.since),
        maybe(status.holder.as_deref().filter(|_| process.is_leader)),
    ]
}

fn facts(status: &PipelineStatus) -> Markup {
    let name = status.pipeline.as_str();
    let is_known = status.state.is_known();
    html! {
        dl class="facts" {
            (fact("Leader", &maybe(status.holder.as_deref())))
            (fact("Standbys", &html! {
                @match status.standbys {
                    Some(standbys) => { (standbys) }
                    None if !is_known || status.state == PipelineState::New => { (maybe(None)) }
                    None => { "not available with SQLite" }
                }
            }))
            (fact("Epoch", &maybe(status.epoch.map(|epoch| epoch.to_string()).as_deref())))
            (fact("Lease ends in", &maybe(status.lease_remaining_seconds.map(lasting).as_deref())))
            (fact("Waiting", &maybe(waiting(status).as_deref())))
            (fact("Oldest waiting for", &maybe(status.oldest_pending_age_seconds.map(lasting).as_deref())))
            @for (label, state, path) in PARKED {
                (fact(label, &html! {
                    @if is_known {
                        a href=(with_query(path, &[("pipeline", name), ("state", if path == "/dead" { state.as_str() } else { "" })])) {
                            @if status.exceptions_are_at_least { "≥ " }
                            (count(status.parked(state)))
                        }
                    } @else { (maybe(None)) }
                }))
            }
            (fact("Outbox size", &maybe(status.history_bytes.map(bytes).as_deref())))
            (fact("Oldest message from", &maybe(status.history_age_seconds.map(lasting).map(|age| format!("{age} ago")).as_deref())))
            @if status.cursor_is_of_this_server == Some(false) {
                (fact("Cursor of server", &maybe(status.cursor_system_identifier.as_deref())))
            }
        }
    }
}

/// The states of parked messages, with their labels and lists.
const PARKED: [(&str, ExceptionState, &str); 4] = [
    ("Held", ExceptionState::Held, "/held"),
    ("Retrying", ExceptionState::Retrying, "/dead"),
    ("Dead", ExceptionState::Dead, "/dead"),
    ("Scheduled", ExceptionState::Scheduled, "/dead"),
];

/// Returns the number of waiting messages. Without an oldest one nothing waits, even if ids have
/// gaps.
fn waiting(status: &PipelineStatus) -> Option<String> {
    let max = status.backlog_entries_max?;
    Some(match status.oldest_pending_id {
        Some(_) => format!("≤ {}", count(max)),
        None => String::from("0"),
    })
}

fn fact(name: &str, value: &Markup) -> Markup {
    html! { div { dt { (name) } dd { (value) } } }
}
