//! The audit: decisions about messages, keys and sagas, and other operations.

use std::cmp::Reverse;
use std::num::NonZeroU32;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::Uri;
use maud::{Markup, html};
use operate::dead::{AuditLine, Audited, audit};
use operate::keys::{self, DecidedLine};
use operate::sagas::SagaDatabase;
use operate::tables::Tables;
use operate::{OperateError, OperateErrorKind, Operator};
use saga::Decision;
use time::OffsetDateTime;

use super::super::answer::{Html, Problem};
use super::super::app::App;
use super::super::fields::Fields;
use super::super::gate::Asker;
use super::super::layout::{Frame, Tab, away, cell, count, maybe, since};
use super::super::list::{Column, Kind, column, list};
use super::pieces::piece;
use super::tables::{self, NamedTables};

/// Maximum number of decisions read from each place.
const LINES_MAX: NonZeroU32 = NonZeroU32::MIN.saturating_add(999);

/// `GET /audit`.
pub(crate) async fn show(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Query(query): Query<Fields>,
    uri: Uri,
) -> Result<Html, Problem> {
    query.check()?;
    let turn = app.turn().await?;
    let places = app.with_inboxes(app.outboxes("")?, "").await;
    let audited = audit(&places, &operator, LINES_MAX).await;
    places.close().await;
    // An unreachable database does not hide the others.
    let Audited { lines, away: mut errors } = audited?;
    let mut lines: Vec<Line> = lines.into_iter().map(Line::from).collect();
    for NamedTables { tables, .. } in tables::all(&app.pipelines, &app.inboxes) {
        // The pages of that database report a missing address.
        let Ok(tables) = tables else { continue };
        for decided in [of_keys(&tables, &operator).await, of_sagas(&tables, &operator).await] {
            match decided {
                Ok(decided) => {
                    lines.extend(decided);
                    keep_latest(&mut lines);
                }
                // The database has no such tables.
                Err(error) if error.kind() == OperateErrorKind::NoTables => {}
                Err(error) => errors.push(error),
            }
        }
    }
    drop(turn);
    let piece = piece(&query, &lines)?;
    let body = html! {
        p class="lead" { "Who decided, paused or viewed payloads, when and why. Latest first, up to " (count(LINES_MAX.get().into())) "." }
        (away(&errors))
        @if lines.is_empty() { p class="empty" { "No decisions yet." } } @else { (table(piece.rows)) }
        (piece.links("/audit", &[]))
    };
    Ok(Html(Frame::new(Tab::Audit, "Audit").live(&uri).page(&body)))
}

/// Keeps what the page shows, however many databases there are.
fn keep_latest(lines: &mut Vec<Line>) {
    lines.sort_by_key(|line| Reverse(line.at));
    lines.truncate(LINES_MAX.get() as usize);
}

async fn of_keys(tables: &Tables, operator: &Operator) -> Result<Vec<Line>, OperateError> {
    Ok(keys::decisions(tables, operator, LINES_MAX).await?.into_iter().map(Line::from).collect())
}

async fn of_sagas(tables: &Tables, operator: &Operator) -> Result<Vec<Line>, OperateError> {
    let database = SagaDatabase::open(tables).await?;
    let decisions = database.decisions(operator, LINES_MAX).await;
    database.close().await;
    Ok(decisions?.into_iter().map(Line::from).collect())
}

/// A line of an audit, from any database.
pub(crate) struct Line {
    at: OffsetDateTime,
    actor: String,
    action: String,
    owner: String,
    subject: Option<String>,
    outcome: Option<String>,
    selection: Option<String>,
    note: String,
}

impl From<AuditLine> for Line {
    fn from(line: AuditLine) -> Self {
        let AuditLine { at, actor, action, owner, messages, id, outcome, selection, note, .. } = line;
        let subject = id.or_else(|| (messages > 1).then(|| format!("{} messages", count(messages))));
        Self { at, actor, action, owner, subject, outcome, selection, note }
    }
}

impl From<DecidedLine> for Line {
    fn from(line: DecidedLine) -> Self {
        let DecidedLine { at, actor, action, scope, operation, key, note } = line;
        let (action, owner) = (format!("{action} a key"), format!("{scope}, {operation}"));
        Self { at, actor, action, owner, subject: Some(key), outcome: None, selection: None, note }
    }
}

impl From<Decision> for Line {
    fn from(decision: Decision) -> Self {
        let Decision { at, actor, note, action, id, step, .. } = decision;
        let (action, owner) = (format!("{action} a saga"), id.saga_type().to_owned());
        let selection = step.map(|step| format!("step {step}"));
        Self { at, actor, action, owner, subject: Some(id.id().to_owned()), outcome: None, selection, note }
    }
}

const COLUMNS: [Column; 8] = [
    column("What", Kind::Name),
    column("When", Kind::Time),
    column("Who", Kind::Text),
    column("Of", Kind::Text),
    column("About", Kind::Text),
    column("Outcome", Kind::Text),
    column("Chosen by", Kind::Text),
    column("Why", Kind::Why),
];

/// Renders decisions as a list.
pub(crate) fn table(lines: &[Line]) -> Markup {
    list("Decisions", &COLUMNS, lines.iter().map(row))
}

fn row(line: &Line) -> Vec<Markup> {
    vec![
        cell(&line.action),
        since(line.at),
        cell(&line.actor),
        cell(&line.owner),
        maybe(line.subject.as_deref()),
        maybe(line.outcome.as_deref()),
        maybe(line.selection.as_deref()),
        cell(&line.note),
    ]
}
