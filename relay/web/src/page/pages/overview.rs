//! The overview: what is wrong, worst first, then what is fine, then the last hour.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::Uri;
use engine::{Role, Status};
use maud::{Markup, html};
use operate::Operator;
use operate::status::PipelineStatus;

use super::super::address::{to, with_query};
use super::super::answer::{Html, Problem};
use super::super::app::App;
use super::super::beside::Beside;
use super::super::fields::Fields;
use super::super::gate::Asker;
use super::super::layout::{Frame, Tab, away, cell, count, whole};
use super::super::links::Links;
use super::super::observe::Picture;
use super::super::samples::Hour;
use super::super::trouble::{Of, Subject, away_of, sort, summary};
use super::card::{card, plots, rate};
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
    let look =
        Look { links: &app.links, operator: &operator, picture: &picture, beside: &beside, has_inboxes };
    let body = look.body(&own, &query)?;
    Ok(Html(Frame::new(Tab::Overview, "Overview").taken_at(picture.at).live(&uri).page(&body)))
}

/// Content and reader of the overview.
struct Look<'a> {
    links: &'a Links,
    operator: &'a Operator,
    picture: &'a Picture,
    beside: &'a Beside,
    /// Whether inboxes are configured.
    has_inboxes: bool,
}

impl Look<'_> {
    fn body(
        &self,
        own: &dyn Fn(&PipelineStatus) -> Option<String>,
        query: &Fields,
    ) -> Result<Markup, Problem> {
        let Self { links, operator, picture, beside, has_inboxes } = *self;
        let pipelines = picture.pipelines.iter().map(|(status, _)| Subject::pipeline(status, own(status)));
        let databases_away = away_of(picture.pipelines.iter().map(|(status, _)| status));
        let consumers = beside.consumers.iter().map(|line| Subject::consumer(line, &databases_away));
        let mut subjects: Vec<_> = pipelines.chain(consumers).collect();
        sort(&mut subjects);
        let mut told = summary(&subjects, &beside.away);
        if beside.read_at.is_none() && has_inboxes {
            told.push_str(" The consumers are not known yet.");
        }
        let is_long = subjects.len() > FILTER_FROM;
        let part = query.text("q");
        subjects.retain(|subject| part.is_empty() || subject.name().contains(part));
        // Those that are fine are behind the others.
        let sick = subjects.iter().filter(|subject| subject.is_sick()).count();
        let (sick, fine) = subjects.split_at(sick);
        let fine = piece(query, fine)?;
        Ok(html! {
            p class="lead" { (told) }
            (away(&beside.away))
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
            @if !fine.rows.is_empty() {
                h2 { "Fine" }
                ul class="fine" { @for subject in fine.rows { li { (line(subject, picture)) } } }
                (fine.links("/", &[("q", part)]))
            }
            (last_hour(&subjects, picture))
        })
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
        Of::Consumer(consumer) => {
            let applied = consumer.activity.as_ref().map(|activity| activity.applied);
            html! {
                a href=(to("/consumers")) { (cell(&consumer.consumer)) }
                span { "consumer" }
                @if !consumer.has_started { span { "has not started yet" } }
                @if let Some(applied) = applied { span { (count(applied)) " applied in the last hour" } }
            }
        }
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
            h2 { "The last hour" }
            @for (status, hour) in shown {
                section class="card" {
                    h3 { (whole(&status.pipeline)) }
                    (plots(status, hour))
                }
            }
        }
    }
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
        let hour =
            || Hour { lag: vec![Some(1.5); 60], throughput: vec![Some(1.5); 60], enqueued: vec![None; 60] };
        let pipelines = (0..10_000).map(|index| (status(index), hour())).collect();
        let picture = Picture { at: OffsetDateTime::UNIX_EPOCH, pipelines };
        let operator = Operator::new("ann", Right::Operator);
        let look = Look {
            links: &Links::sample(),
            operator: &operator,
            picture: &picture,
            beside: &Beside::default(),
            has_inboxes: false,
        };
        let text = |query: &str| {
            let fields = serde_json::from_value(serde_json::json!([["q", query]])).unwrap();
            look.body(&|_| None, &fields).unwrap().into_string()
        };
        let all = text("");
        assert!(all.len() < 200_000, "{} bytes", all.len());
        assert!(all.contains("5,000 of 10,000 pipelines need you: 5,000 messages are dead."), "{all}");
        assert!(all.contains("and 4,950 more: filter by name."));
        let one = text("-00007");
        assert!(one.matches("class=\"card sick").count() == 1 && !one.contains("more: filter"), "{one}");
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
