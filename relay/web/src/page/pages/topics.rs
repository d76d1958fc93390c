//! The lag of topics.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::Uri;
use maud::{Markup, html};
use operate::Operator;
use operate::lag::{LagLine, lag};
use operate::status::Rank;
use outbox_log::ExceptionState::{self, Dead, Held, Retrying, Scheduled};

use super::super::address::{to, with_query};
use super::super::answer::{Html, Problem};
use super::super::app::App;
use super::super::fields::Fields;
use super::super::gate::Asker;
use super::super::layout::{Frame, Tab, away, cell, count, lasting, may_decide, maybe, number, whole};
use super::super::list::{Column, Kind, column, list};
use super::card::resume;
use super::pieces::piece;

/// `GET /topics`.
pub(crate) async fn show(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Query(query): Query<Fields>,
    uri: Uri,
) -> Result<Html, Problem> {
    query.check()?;
    let turn = app.turn().await?;
    let (mut lines, errors) = lag(&app.outboxes("")?, &operator).await?;
    drop(turn);
    let part = query.text("q");
    lines.retain(|line| part.is_empty() || line.topic.contains(part));
    lines.sort_by(|one, other| Rank::of_topic(one).cmp(&Rank::of_topic(other)));
    let piece = piece(&query, &lines)?;
    let body = html! {
        p class="lead" { "Topics with unpublished messages, the worst first." }
        (away(&errors))
        form class="filter" method="get" action=(to("/topics")) role="search" aria-label="Filter topics" {
            label { "Part of the name" input name="q" type="search" value=(part) maxlength="255"; }
            button { "Filter" }
        }
        @if lines.is_empty() {
            p class="empty" { "No messages are waiting" @if !part.is_empty() { " in topics with this name" } @if !errors.is_empty() { " in the databases that answer" } "." }
        } @else {
            (list("Topics", &COLUMNS, piece.rows.iter().map(|line| row(&operator, line))))
            (piece.links("/topics", &[("q", part)]))
        }
    };
    Ok(Html(Frame::new(Tab::Topics, "Topics").live(&uri).page(&body)))
}

const COLUMNS: [Column; 9] = [
    column("Topic", Kind::Name),
    column("Pipeline", Kind::Text),
    column("Unread", Kind::Number),
    column("Held", Kind::Number),
    column("Retrying", Kind::Number),
    column("Scheduled", Kind::Number),
    column("Dead", Kind::Number),
    column("Oldest waits", Kind::Time),
    column("Actions", Kind::Act),
];

fn row(operator: &Operator, line: &LagLine) -> Vec<Markup> {
    let parked = |state: ExceptionState| line.parked.get(&state).copied().unwrap_or_default();
    let dead = with_query("/dead", &[("topic", &line.topic), ("pipeline", &line.pipeline)]);
    let pause =
        [("pipeline", &*line.pipeline), ("scope", "topic"), ("name", &*line.topic), ("from", "topics")];
    vec![
        html! {
            (cell(&line.topic))
            @if let Some(pause) = &line.paused { p class="faint paused-by" { (whole(&pause.told())) } }
        },
        cell(&line.pipeline),
        html! { @if line.unread_is_at_least { "≥ " } (number(line.unread)) },
        number(parked(Held)),
        number(parked(Retrying)),
        number(parked(Scheduled)),
        html! { @if parked(Dead) > 0 { a class="count bad" href=(dead) { (count(parked(Dead))) } } @else { (number(0)) } },
        maybe(line.oldest_age_seconds.map(lasting).as_deref()),
        html! {
            @match &line.paused {
                _ if !may_decide(operator) => {},
                Some(pause) => (resume(&line.pipeline, pause, "topics")),
                None => a class="button" href=(with_query("/pause", &pause)) { "Pause…" },
            }
        },
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use operate::Role;
    use operate::pause::PauseLine;
    use outbox_log::PauseScope;
    use time::OffsetDateTime;

    use super::*;

    /// Returns a topic whose oldest message has waited for this many seconds.
    fn line(topic: &str, unread: u64, parked: &[(ExceptionState, u64)], seconds: f64) -> LagLine {
        LagLine {
            pipeline: String::from("orders"),
            topic: topic.to_owned(),
            unread,
            unread_is_at_least: false,
            parked: parked.iter().copied().collect(),
            oldest_age_seconds: Some(seconds),
            paused: None,
        }
    }

    fn pause() -> PauseLine {
        PauseLine {
            pipeline: String::from("orders"),
            paused: PauseScope::Topic(String::from("refunds")),
            actor: String::from("bob"),
            reason: String::from("migration"),
            since: OffsetDateTime::UNIX_EPOCH,
            age: Duration::ZERO,
        }
    }

    #[test]
    fn a_paused_topic_says_so_and_offers_to_resume_it() {
        let mut line = LagLine { paused: Some(pause()), ..line("refunds", 0, &[(Held, 1)], 3.0) };
        let cells = |line: &LagLine, role| {
            row(&Operator::new("ann", role), line).into_iter().map(Markup::into_string).collect::<String>()
        };
        let text = cells(&line, Role::Operator);
        assert!(text.contains("topic refunds is paused by bob: migration"), "{text}");
        assert!(
            text.contains("Resume…") && text.contains("from=topics") && !text.contains("Pause…"),
            "{text}"
        );
        let text = cells(&line, Role::Viewer);
        assert!(text.contains("paused by bob") && !text.contains("Resume"), "{text}");
        line.paused = None;
        assert!(cells(&line, Role::Operator).contains("Pause…"));
    }
}
