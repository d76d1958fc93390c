//! The overview: what is wrong, worst first, then what is fine, then the last hour.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::Uri;
use engine::{Role, Status};
use maud::{Markup, html};
use operate::consumers::ConsumerLine;
use operate::status::PipelineStatus;
use operate::{OperateError, Operator};

use super::super::address::{to, with_query};
use super::super::answer::{Html, Problem};
use super::super::app::App;
use super::super::beside::Beside;
use super::super::fields::Fields;
use super::super::gate::Asker;
use super::super::layout::{Frame, Tab, away, cell, count, since, whole};
use super::super::links::Links;
use super::super::observe::{OwnConsumers, Picture};
use super::super::samples::Hour;
use super::super::trouble::{Of, Subject, away_of, consumers, in_title, is_partial, is_told, sort, summary};
use super::card::{card, plots, rate, written};
use super::pieces::piece;

/// Maximum number of cards; more are found by their name.
const CARDS_MAX: usize = 50;
/// Number of pipelines with plots.
const PLOTS_MAX: usize = 6;
/// With at least this many pipelines and consumers, there is a filter for their names.
const FILTER_FROM: usize = 20;

/// `GET /`.
pub(crate) async fn show(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Query(query): Query<Fields>,
    uri: Uri,
) -> Result<Html, Problem> {
    query.check()?;
    let (picture, beside) = tokio::join!(app.observer.picture(), app.observer.beside());
    let own = |status: &PipelineStatus| own(&app, status);
    let has_inboxes = !app.inboxes.is_empty();
    let look = Look {
        links: &app.links,
        operator: &operator,
        picture: &picture,
        beside: &beside,
        own_consumers: &app.observer.own_consumers(),
        has_inboxes,
    };
    let Body { body, worst } = look.body(&own, &query)?;
    let title = worst.map_or_else(|| String::from("Overview"), |worst| format!("({worst}) Overview"));
    let frame = Frame::new(Tab::Overview, &title).headed_by_its_lead().taken_at(picture.at);
    Ok(Html(frame.live(&uri).page(&body)))
}

/// The overview as markup.
struct Body {
    body: Markup,
    /// The worst, for the title.
    worst: Option<String>,
}

/// Content and reader of the overview.
struct Look<'a> {
    links: &'a Links,
    operator: &'a Operator,
    picture: &'a Picture,
    beside: &'a Beside,
    own_consumers: &'a OwnConsumers,
    /// Whether inboxes are configured.
    has_inboxes: bool,
}

impl Look<'_> {
    fn body(&self, own: &dyn Fn(&PipelineStatus) -> Option<String>, query: &Fields) -> Result<Body, Problem> {
        let Self { links, operator, picture, beside, own_consumers, has_inboxes } = *self;
        let pipelines = picture.pipelines.iter().map(|(status, _)| Subject::pipeline(status, own(status)));
        let databases_away = away_of(picture.pipelines.iter().map(|(status, _)| status));
        let consumers = consumers(&beside.consumers, own_consumers, &databases_away);
        let mut subjects: Vec<_> = pipelines.chain(consumers).collect();
        sort(&mut subjects);
        let mut told = summary(&subjects, &beside.away);
        let is_early = beside.read_at.is_none() && has_inboxes;
        if is_early {
            told.push_str(" The consumers are not known yet.");
        }
        let worst = in_title(&subjects, is_early || is_partial(&subjects, &beside.away));
        // A card names the database of its pipeline: an inbox in it says nothing more.
        let away_beside: Vec<OperateError> =
            beside.away.iter().filter(|error| !is_told(error, &databases_away)).cloned().collect();
        let is_long = subjects.len() > FILTER_FROM;
        let part = query.text("q");
        subjects.retain(|subject| part.is_empty() || subject.name().contains(part));
        // Those that are fine are behind the others.
        let sick = subjects.iter().filter(|subject| subject.is_sick()).count();
        let (sick, fine) = subjects.split_at(sick);
        let fine = piece(query, fine)?;
        let body = html! {
            p class="lead" { (told) }
            @if is_long {
                form class="filter" method="get" action=(to("/")) role="search" aria-label="Filter by name" {
                    label { "Part of the name" input name="q" type="search" value=(part) maxlength="255"; }
                    button { "Filter" }
                }
            }
            @for subject in sick.iter().take(CARDS_MAX) { (card(links, operator, subject, picture.at)) }
            @if sick.len() > CARDS_MAX {
                p class="notice" { "and " (count((sick.len() - CARDS_MAX) as u64)) " more: filter by name." }
            }
            (away(&away_beside))
            @if !fine.rows.is_empty() {
                h2 { "Fine" }
                ul class="fine" { @for subject in fine.rows { li { (line(subject, picture)) } } }
                (fine.links("/", &[("q", part)]))
            }
            (last_hour(&subjects, picture))
        };
        Ok(Body { body, worst })
    }
}

/// Returns why this process does not publish, if its database does not show it.
pub(crate) fn own(app: &App, status: &PipelineStatus) -> Option<String> {
    app.own.get(&status.pipeline).and_then(|own| of_this_process(&own.borrow()))
}

fn of_this_process(Status { role, faults }: &Status) -> Option<String> {
    let reason = match role {
        Role::Refused { reason, .. } => {
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

/// Returns the last hour of a pipeline.
pub(crate) fn hour<'a>(picture: &'a Picture, name: &str) -> Option<&'a Hour> {
    picture.pipelines.iter().find(|(status, _)| status.pipeline == name).map(|(_, hour)| hour)
}

/// Renders what is fine in one line.
fn line(subject: &Subject<'_>, picture: &Picture) -> Markup {
    match subject.of {
        Of::Pipeline(status) => {
            let name = &status.pipeline;
            let latest = hour(picture, name).and_then(|hour| hour.throughput.iter().rev().flatten().next());
            html! {
                a href=(with_query("/pipeline", &[("name", name)])) { (cell(name)) }
                @if let Some(holder) = &status.holder { span { "leads: " (cell(holder)) } }
                span {
                    @match (status.backlog_entries_max.unwrap_or_default(), status.oldest_pending_id) {
                        (waiting, Some(_)) => { "≤ " (count(waiting)) " waiting" }
                        (_, None) => { "0 waiting" }
                    }
                }
                @if let Some(latest) = latest { span { (rate(*latest)) } }
            }
        }
        Of::Consumer(consumer) => html! {
            a href=(to("/consumers")) { (cell(consumer.name)) }
            span { "consumer" }
            @if let Some(line) = consumer.line { (applied(line)) }
            @for own in consumer.own {
                @match &own.reads {
                    Some(reads) => { span { "reads " (cell(reads)) } }
                    None => { span { "has not started in this process" } }
                }
            }
        },
    }
}

/// Renders what a consumer has applied, and when it last did.
fn applied(line: &ConsumerLine) -> Markup {
    let activity = line.activity.as_ref();
    let last = activity.and_then(|activity| activity.last_applied_at);
    html! {
        @match activity.map_or(0, |activity| activity.applied) {
            _ if !line.has_started => { span { "has not started yet" } }
            0 => { span { "nothing applied in the last hour" } }
            applied => { span { (count(applied)) " applied in the last hour" } }
        }
        @if let Some(last) = last { span { "last " (since(last)) } }
    }
}

/// Renders the plots of the first pipelines.
fn last_hour(subjects: &[Subject<'_>], picture: &Picture) -> Markup {
    let pipelines = subjects.iter().filter_map(|subject| match subject.of {
        Of::Pipeline(status) => Some((status, hour(picture, &status.pipeline)?)),
        Of::Consumer(_) => None,
    });
    let shown: Vec<(&PipelineStatus, &Hour)> = pipelines.take(PLOTS_MAX).collect();
    html! {
        @if !shown.is_empty() {
            // The script folds it on a phone, where it would be most of the page.
            details class="hour" id="last-hour" open {
                summary { h2 { "The last hour" } }
                @for of_log in by_log(&shown) {
                    section class="card" {
                        @if let [(status, hour)] = of_log[..] {
                            h3 { (whole(&status.pipeline)) }
                            (plots(status, hour, true))
                        } @else if let Some((first, hour)) = of_log.first() {
                            h3 { "Log of " (whole(first.location.as_deref().unwrap_or_default())) }
                            div class="plots" { (written(first, hour)) }
                            @for (status, hour) in &of_log {
                                h3 { (whole(&status.pipeline)) }
                                (plots(status, hour, false))
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Returns pipelines with those that read the same log, in the order of the first ones.
fn by_log<'a>(shown: &[(&'a PipelineStatus, &'a Hour)]) -> Vec<Vec<(&'a PipelineStatus, &'a Hour)>> {
    let mut logs: Vec<Vec<(&PipelineStatus, &Hour)>> = Vec::new();
    for one in shown {
        let location = one.0.location.as_deref();
        let is_same = |log: &&mut Vec<(&PipelineStatus, &Hour)>| {
            location.is_some() && log.first().is_some_and(|first| first.0.location.as_deref() == location)
        };
        match logs.iter_mut().find(is_same) {
            Some(log) => log.push(*one),
            None => logs.push(vec![*one]),
        }
    }
    logs
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use operate::Role as Right;
    use operate::status::PipelineState;
    use outbox_log::ExceptionState;
    use time::OffsetDateTime;

    #[test]
    fn ten_thousand_pipelines_are_a_page_of_bounded_size() {
        let long = "n".repeat(50);
        let status = |index: usize| PipelineStatus {
            state: PipelineState::Leading,
            exceptions: BTreeMap::from([(ExceptionState::Dead, (index % 2) as u64)]),
            ..PipelineStatus::of(&format!("{long}-{index:05}"), None, None)
        };
        let hour = || Hour { lag: vec![Some(1.5); 60], throughput: vec![Some(1.5); 60], ..Hour::none() };
        let pipelines = (0..10_000).map(|index| (status(index), hour())).collect();
        let picture = Picture { at: OffsetDateTime::UNIX_EPOCH, pipelines };
        let operator = Operator::new("ann", Right::Operator);
        let look = Look {
            links: &Links::sample(),
            operator: &operator,
            picture: &picture,
            beside: &Beside::default(),
            own_consumers: &OwnConsumers::new(),
            has_inboxes: false,
        };
        let text = |query: &str| {
            let fields = serde_json::from_value(serde_json::json!([["q", query]])).unwrap();
            let Body { body, worst } = look.body(&|_| None, &fields).unwrap();
            assert_eq!(worst.as_deref(), Some("5,000 dead"), "of all, whatever the filter is");
            body.into_string()
        };
        let all = text("");
        assert!(all.len() < 200_000, "{} bytes", all.len());
        assert!(all.contains("5,000 of 10,000 pipelines need you: 5,000 messages are dead."), "{all}");
        assert!(all.contains("and 4,950 more: filter by name."));
        let one = text("-00007");
        assert!(one.matches("class=\"card sick").count() == 1 && !one.contains("more: filter"), "{one}");
    }

    /// Goal: pipelines of one database do not seem to have the same messages each. Oracle: the
    /// plots: one of the log, and those of each pipeline.
    #[test]
    fn a_log_that_pipelines_share_has_one_plot() {
        let at = |name: &str, location: Option<&str>| PipelineStatus {
            location: location.map(String::from),
            ..PipelineStatus::of(name, None, None)
        };
        let all = [at("orders", Some("db/a")), at("invoices", Some("db/a")), at("alone", Some("db/b"))];
        let pipelines = all.iter().map(|status| (status.clone(), Hour::none())).collect();
        let picture = Picture { at: OffsetDateTime::UNIX_EPOCH, pipelines };
        let subjects: Vec<_> = all.iter().map(|status| Subject::pipeline(status, None)).collect();
        let text = last_hour(&subjects, &picture).into_string();
        assert_eq!(text.matches(">Written to the log<").count(), 2, "{text}");
        assert_eq!(text.matches(">Read, also dead ones<").count(), 3, "{text}");
        assert!(text.contains("Log of <span class=\"text\">db/a") && !text.contains("db/b"), "{text}");
        assert_eq!(by_log(&[(&at("a", None), &Hour::none()), (&at("b", None), &Hour::none())]).len(), 2);
    }

    #[test]
    fn a_pipeline_that_ends_again_and_again_is_told() {
        let waiting = || Role::Waiting {
            fault: message::Fault::Operator,
            reason: String::from("index 7"),
            remedy: None,
        };
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
        let refused = Role::Refused { reason: String::from("too new"), remedy: None };
        assert!(told(refused, 0).is_some_and(|text| text.ends_with("was refused: too new")));
    }
}
