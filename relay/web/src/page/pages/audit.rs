//! The audit: decisions about messages, keys and sagas, and other operations.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::Uri;
use axum::response::Response;
use maud::{Markup, html};
use operate::audit::{ACTIONS, AuditFilter, AuditLine, AuditQuery, AuditSource, LeftOut, read};
use operate::export::{AuditExport, ExportFormat};
use operate::replay::Moment;
use operate::seconds::text as rfc3339;
use operate::{NamedTables, Places, named_tables};
use time::OffsetDateTime;

use super::super::address::to;
use super::super::answer::{Html, Problem};
use super::super::app::App;
use super::super::exports::{self, Exporting};
use super::super::fields::Fields;
use super::super::gate::Asker;
use super::super::layout::{Frame, Tab, away, cell, count, logged, maybe, whole};
use super::super::list::{Column, Kind, column, list};
use super::super::text::{capital, plain};
use super::filter_box::FilterBox;
use super::pieces::piece;

/// Maximum number of decisions read from each place.
const LINES_MAX: NonZeroU32 = NonZeroU32::MIN.saturating_add(999);

/// The typed fields of the filter, with their labels.
const CONDITIONS: [(&str, &str); 4] = [
    ("actor", "Who"),
    ("topic", "Topic or queue"),
    ("from", "From (2h, 2026-01-31T12:00:00Z)"),
    ("to", "To"),
];

/// Returns the filter that a query describes. An age counts by the clock of this machine.
fn filter(fields: &Fields) -> Result<AuditFilter, Problem> {
    fields.check()?;
    let now = OffsetDateTime::now_utc();
    let moment = |name| Ok::<_, Problem>(fields.read::<Moment>(name)?.map(|moment| moment.at(now)));
    Ok(AuditFilter {
        actor: fields.given("actor"),
        action: fields.given("action"),
        topic: fields.given("topic"),
        from: moment("from")?,
        to: moment("to")?,
    })
}

/// Returns the conditions of a query, for links.
fn kept(fields: &Fields) -> Vec<(&'static str, String)> {
    let names = CONDITIONS.iter().map(|(name, _)| *name).chain(["action", "pipeline"]);
    names.filter_map(|name| Some((name, fields.given(name)?))).collect()
}

/// Returns the places whose audits a query asks for. Connects to inboxes.
async fn audits(app: &App, fields: &Fields) -> Result<(Places, Vec<NamedTables>), Problem> {
    let only = fields.text("pipeline");
    let places = app.with_inboxes_of(app.outboxes(only)?, only).await;
    // Neither keys nor sagas belong to a pipeline.
    let tables = if only.is_empty() { named_tables(&app.pipelines, &app.inboxes) } else { Vec::new() };
    Ok((places, tables))
}

/// `GET /audit`.
pub(crate) async fn show(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Query(query): Query<Fields>,
    uri: Uri,
) -> Result<Html, Problem> {
    let asked = AuditQuery { filter: filter(&query)?, ..AuditQuery::latest(LINES_MAX) };
    let turn = app.turn().await?;
    let (places, tables) = audits(&app, &query).await?;
    let audited = read(&places, &tables, &operator, &asked).await;
    places.close().await;
    drop(turn);
    // An unreachable database does not hide the others.
    let audited = audited?;
    let lines: Vec<Line> = audited.lines.into_iter().map(Line::from).collect();
    let piece = piece(&query, &lines)?;
    let kept = kept(&query);
    let pairs: Vec<(&str, &str)> = kept.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let body = html! {
        p class="lead" { "Who decided, paused or viewed payloads, when and why. Latest first, up to " (count(LINES_MAX.get().into())) "." }
        (conditions(&app, &query))
        (away(&audited.away))
        (without(&audited.left_out))
        @if query.given("topic").is_some() {
            p class="faint" { "Replays by id or key or of everything name no topic and are left out: ask for them by action." }
        }
        @if lines.is_empty() {
            p class="empty" {
                @if !audited.away.is_empty() { "No decisions found, but not every database answered." }
                @else if pairs.is_empty() { "No decisions yet." }
                @else { "No decision matches." }
            }
        } @else {
            @let gaps = audited.searched_back_to;
            @let whole = gaps.map_or(piece.rows.len(), |from| piece.rows.partition_point(|line| line.at >= from));
            @let (whole, rest) = piece.rows.split_at(whole);
            @if !whole.is_empty() { (table(whole, false)) }
            @if let Some(from) = gaps { (gap(from)) }
            @if !rest.is_empty() { (table(rest, false)) }
        }
        (piece.links("/audit", &pairs))
        (exports::links("/audit/export", &pairs))
    };
    let frame = Frame::new(Tab::Audit, "Audit");
    // A search reads many rows: not after each change.
    let frame = if pairs.is_empty() { frame.live(&uri) } else { frame };
    Ok(Html(frame.page(&body)))
}

/// `GET /audit/export`.
pub(crate) async fn export(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Query(query): Query<Fields>,
) -> Result<Response, Problem> {
    let filter = filter(&query)?;
    let format: ExportFormat = query.need("format")?;
    let is_each = query.text("each") == "yes";
    let place = app.exports.begin()?;
    let turn = app.turn().await?;
    let (places, tables) = audits(&app, &query).await?;
    drop(turn);
    let export = AuditExport::new(places, tables, &operator, filter, is_each, format)?;
    Ok(exports::answer("audit", format, place, Exporting::Audit(Box::new(export)), app.until_end()))
}

/// Renders where a list begins to lack decisions: an audit has more rows than one query reads.
fn gap(from: OffsetDateTime) -> Markup {
    html! {
        p class="notice bad" role="alert" {
            strong { "This list has gaps before " (rfc3339(from)) ": some decisions are missing." }
            " Filter by who, topic or time, or export: an export has all of them."
        }
    }
}

/// Renders a note about audits that the database user may not read.
fn without(left_out: &LeftOut) -> Markup {
    html! { @if !left_out.is_empty() { p class="notice" { (whole(&capital(&left_out.to_string()))) "." } } }
}

fn conditions(app: &App, query: &Fields) -> Markup {
    let pipelines = app.pipelines.iter().map(|pipeline| pipeline.name.as_str());
    let told: Vec<String> = kept(query).into_iter().map(|(name, value)| told(name, &value)).collect();
    let form = html! {
        form class="filter" method="get" action=(to("/audit")) {
            label { "What" select name="action" {
                option value="" { "everything" }
                @for name in ACTIONS { option value=(name) selected[name == query.text("action")] { (name) } }
            } }
            label { "Pipeline" select name="pipeline" {
                option value="" { "all, with keys and sagas" }
                @for name in pipelines { option value=(name) selected[name == query.text("pipeline")] { (name) } }
            } }
            @for (name, label) in CONDITIONS {
                label { (label) input name=(name) value=(query.text(name)) maxlength="255" autocomplete="off"; }
            }
            button class="primary" { "Filter" }
        }
    };
    FilterBox { name: "Filter", told: &told, list: "/audit", is_open: false }.around(&form)
}

/// Returns a condition in words.
fn told(name: &str, value: &str) -> String {
    match name {
        "actor" => format!("by {value}"),
        "action" => format!("only {value}"),
        name => format!("{name} {value}"),
    }
}

/// The actions about sessions for which nobody gives a reason.
const WITHOUT_REASON: [&str; 2] = ["login", "logout"];

/// A line of an audit, from any database.
pub(crate) struct Line {
    at: OffsetDateTime,
    actor: String,
    action: String,
    owner: String,
    /// The other pipelines whose audits have the same line.
    others: BTreeSet<String>,
    subject: Option<String>,
    outcome: Option<String>,
    selection: Option<String>,
    note: String,
}

impl From<AuditLine> for Line {
    fn from(line: AuditLine) -> Self {
        let subject = match line.messages {
            2.. => {
                let least = if line.messages_is_at_least { "≥ " } else { "" };
                Some(format!("{least}{} messages", count(line.messages)))
            }
            _ => line.subject(),
        };
        let is_of_session = line.is_of_session();
        let AuditLine { at, actor, action, source, owner, also_of: others, outcome, selection, note, .. } =
            line;
        let action = match source {
            AuditSource::Keys => format!("{action} a key"),
            AuditSource::Sagas => format!("{action} a saga"),
            AuditSource::Outbox | AuditSource::Inbox => action,
        };
        let line = Self { at, actor, action, owner, others, subject, outcome, selection, note };
        if is_of_session { line.about_session() } else { line }
    }
}

impl Line {
    /// Returns the line of an action about sessions: these are its subject, not a filter.
    fn about_session(self) -> Self {
        let has_reason = !WITHOUT_REASON.contains(&self.action.as_str());
        let note = if has_reason { self.note } else { String::new() };
        Self { subject: self.selection, selection: None, note, ..self }
    }
}

const COLUMNS: [Column; 8] = [
    column("What", Kind::Name),
    column("When", Kind::Time),
    column("Who", Kind::Text),
    column("Of", Kind::Text),
    column("About", Kind::Text),
    column("Outcome", Kind::Text),
    column("Chosen by", Kind::Why),
    column("Why", Kind::Why),
];

/// Renders decisions as a list without columns that are empty in every row. With `is_of_one` they
/// are about one message, so columns that would repeat its place are left out as well.
pub(crate) fn table(lines: &[Line], is_of_one: bool) -> Markup {
    let owners: BTreeSet<&str> = lines.iter().map(|line| line.owner.as_str()).collect();
    let is_filled = |name: &str| match name {
        "Of" => !is_of_one || owners.len() > 1,
        "About" => !is_of_one && lines.iter().any(|line| line.subject.is_some()),
        "Outcome" => lines.iter().any(|line| line.outcome.is_some()),
        "Chosen by" => lines.iter().any(|line| line.selection.is_some()),
        _ => true,
    };
    let columns: Vec<Column> = COLUMNS.into_iter().filter(|column| is_filled(column.name)).collect();
    let row = |line| {
        let cells = COLUMNS.iter().zip(row(line)).filter(|(column, _)| is_filled(column.name));
        cells.map(|(_, cell)| cell).collect()
    };
    list("Decisions", &columns, lines.iter().map(row))
}

fn row(line: &Line) -> Vec<Markup> {
    vec![
        cell(&line.action),
        logged(line.at),
        cell(&line.actor),
        owner(line),
        maybe(line.subject.as_deref()),
        maybe(line.outcome.as_deref()),
        maybe(line.selection.as_deref()),
        maybe(Some(line.note.as_str()).filter(|note| !note.is_empty())),
    ]
}

/// Renders the owner of a line, or the number of pipelines that have it, which its title names.
fn owner(line: &Line) -> Markup {
    if line.others.is_empty() {
        return cell(&line.owner);
    }
    let all: BTreeSet<&str> = line.others.iter().chain([&line.owner]).map(String::as_str).collect();
    let names: Vec<&str> = all.iter().copied().collect();
    html! { span class="text" title=(plain(&names.join(", "))) { (count(all.len() as u64)) " pipelines" } }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(outcome: Option<&str>) -> Line {
        Line {
            at: OffsetDateTime::UNIX_EPOCH,
            actor: String::from("ann"),
            action: String::from("requeue"),
            owner: String::from("orders"),
            others: BTreeSet::new(),
            subject: Some(String::from("1,000 messages")),
            outcome: outcome.map(String::from),
            selection: None,
            note: String::from("prices are back"),
        }
    }

    /// Goal: useful columns get the room of empty ones. Oracle: the headers of lists.
    #[test]
    fn empty_columns_are_left_out() {
        let of = |lines: &[Line], is_of_one| table(lines, is_of_one).into_string();
        let text = of(&[line(None)], false);
        assert!(text.contains(">About<") && text.contains(">Of<"), "{text}");
        assert!(!text.contains(">Outcome<") && !text.contains(">Chosen by<"), "{text}");
        let text = of(&[line(None), line(Some("applied"))], true);
        assert!(text.contains(">Outcome<") && text.contains("applied"), "{text}");
        assert!(!text.contains(">Of<") && !text.contains("1,000 messages"), "{text}");
    }

    /// Returns a line about a session, of the audit of a pipeline.
    fn of_session(action: &str) -> Line {
        let line = Line {
            action: action.to_owned(),
            subject: None,
            selection: Some(String::from("session AAAA as operator")),
            note: String::from("the page"),
            ..line(None)
        };
        line.about_session()
    }

    #[test]
    fn a_line_names_all_pipelines_that_have_it() {
        let others = ["billing", "shipping"].map(String::from).into();
        let text = table(&[Line { others, ..of_session("login") }], false).into_string();
        assert!(text.contains("title=\"billing, orders, shipping\">3 pipelines<"), "{text}");
    }

    /// Goal: a session is not shown as a filter, and a login has no reason that nobody gave.
    /// Oracle: the parts of the lines.
    #[test]
    fn a_session_is_the_subject_of_its_lines() {
        let login = of_session("login");
        assert_eq!(login.subject.as_deref(), Some("session AAAA as operator"));
        assert_eq!((login.selection, login.note.as_str()), (None, ""));
        assert_eq!(of_session("revoke").note, "the page", "its operator gave a reason");
    }

    #[test]
    fn a_gap_is_named_with_its_time() {
        let text = gap(OffsetDateTime::UNIX_EPOCH).into_string();
        assert!(text.contains("has gaps before 1970-01-01T00:00:00Z: some decisions are missing"), "{text}");
    }
}
