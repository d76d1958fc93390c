//! Dead letters, one page at a time, for selection.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::Uri;
use axum::response::Response;
use inbox::Tenant;
use maud::{Markup, html};
use operate::Places;
use operate::dead::{Bookmark, DeadMessage, DeadSource, Filter, Listed, States, Total, page, survey};
use operate::export::{DeadExport, ExportFormat};
use operate::units::Time;
use outbox_log::ExceptionState;

use super::super::address::{to, with_query};
use super::super::answer::{Html, Problem};
use super::super::app::App;
use super::super::exports::{self, Exporting};
use super::super::fields::Fields;
use super::super::gate::Asker;
use super::super::layout::{
    Frame, Tab, away, badge, cell, count, form_token, may_decide, maybe, since, tone,
};
use super::super::list::{Column, Kind, column, list};
use super::super::text::capital;
use super::causes::{causes, total_text};
use super::filter_box::FilterBox;

/// Messages per page.
const ROWS: usize = 50;

/// The fields of the filter, with their labels.
const CONDITIONS: [(&str, &str); 10] = [
    ("topic", "Topic or queue"),
    ("key", "Ordering key"),
    ("kind", "Event type"),
    ("cause", "Cause"),
    ("error", "Error contains"),
    ("error_like", "Same error except for numbers"),
    ("pipeline", "Pipeline"),
    ("consumer", "Consumer"),
    ("scope", "Scope of the consumer"),
    ("older_than", "Older than (1h)"),
];

/// The conditions that are names of messages, which are compared exactly.
const NAMES: [&str; 4] = ["topic", "key", "kind", "scope"];

/// The states that can be selected.
const STATES: [&str; 6] = ["dead", "held", "retrying", "scheduled", "discarded", "closed"];

/// Returns the filter that a query or a form describes.
pub(crate) fn filter(fields: &Fields) -> Result<Filter, Problem> {
    fields.check()?;
    let pipeline = fields.given("pipeline");
    let source = fields.read::<DeadSource>("source")?;
    Ok(Filter {
        // A pipeline selects its outbox.
        source: source.or(pipeline.as_ref().map(|_| DeadSource::Outbox)),
        ids: Vec::new(),
        topic: fields.name("topic"),
        key: fields.name("key"),
        kind: fields.name("kind"),
        cause: fields.given("cause"),
        error: fields.given("error"),
        error_like: fields.given("error_like"),
        consumer: fields.read("consumer")?,
        scope: named(fields, "scope", Tenant::new)?,
        older_than: fields.read::<Time>("older_than")?.map(|time| time.0),
        newer_than: fields.read::<Time>("newer_than")?.map(|time| time.0),
    })
}

/// Parses a name, if it is not empty.
fn named<T, E: ToString>(
    fields: &Fields,
    name: &str,
    parse: impl Fn(String) -> Result<T, E>,
) -> Result<Option<T>, Problem> {
    let parsed = fields.name(name).map(parse).transpose();
    parsed.map_err(|error| Problem::bad(format!("{name}: {}", error.to_string())))
}

/// Returns the places of a filter. Connects to inboxes.
pub(crate) async fn places(app: &App, fields: &Fields, filter: &Filter) -> Result<Places, Problem> {
    let only = fields.text("pipeline");
    let outboxes = if filter.takes_outboxes() { app.outboxes(only)? } else { Places::new() };
    if !filter.takes_inboxes() {
        return Ok(outboxes);
    }
    Ok(app.with_inboxes(outboxes, fields.text("consumer")).await)
}

/// Returns the conditions of a query, for a link or a form.
pub(crate) fn kept(fields: &Fields) -> Vec<(&'static str, String)> {
    let names = CONDITIONS.iter().map(|(name, _)| *name).chain(["source", "newer_than"]);
    let value = |name| if NAMES.contains(&name) { fields.name(name) } else { fields.given(name) };
    names.filter_map(|name| Some((name, value(name)?))).collect()
}

/// Returns the conditions of a query in words; empty for all dead messages.
pub(super) fn told(fields: &Fields, state: &str) -> Vec<String> {
    let state = Some(format!("state {state}")).filter(|_| state != "dead");
    let source = match fields.text("source") {
        "outbox" => Some(String::from("in outboxes")),
        "inbox" => Some(String::from("in inboxes")),
        _ => None,
    };
    let words = kept(fields).into_iter().filter_map(|(name, value)| {
        Some(match name {
            "kind" => format!("event type {value}"),
            "error" => format!("error contains “{value}”"),
            "error_like" => format!("error like “{value}”"),
            "older_than" => format!("older than {value}"),
            "newer_than" => format!("newer than {value}"),
            "source" => return None,
            name => format!("{name} {value}"),
        })
    });
    state.into_iter().chain(source).chain(words).collect()
}

/// Returns what a list with messages in this state is called.
fn title_of(state: &str) -> String {
    match state {
        "dead" => String::from("Dead letters"),
        "closed" => String::from("Closed dead letters"),
        state => format!("{} messages", capital(state)),
    }
}

/// Renders the way back to the list, with the filter that it had.
pub(super) fn back_to_list(fields: &Fields) -> Markup {
    let kept = kept(fields);
    let pairs: Vec<(&str, &str)> = kept.iter().map(|(name, value)| (*name, value.as_str())).collect();
    html! { a class="button" href=(with_query("/dead", &pairs)) { "Back to the list" } }
}

/// Returns the states with this name.
fn states_of(state: &str) -> Result<States, Problem> {
    match (state, state.parse::<ExceptionState>()) {
        ("dead", _) => Ok(States::Dead),
        ("closed", _) => Ok(States::Closed),
        (_, Ok(state)) => Ok(States::Parked(state)),
        _ => Err(Problem::bad(format!("{state:?} is not a state; use one of {}", STATES.join(", ")))),
    }
}

/// `GET /dead/export`.
pub(crate) async fn export(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Query(query): Query<Fields>,
) -> Result<Response, Problem> {
    let states = states_of(&query.given("state").unwrap_or_else(|| String::from("dead")))?;
    let format: ExportFormat = query.need("format")?;
    let filter = filter(&query)?;
    let place = app.exports.begin()?;
    let turn = app.turn().await?;
    let places = places(&app, &query, &filter).await?;
    drop(turn);
    let export = DeadExport::new(places, &operator, filter, vec![states], format)?;
    Ok(exports::answer("messages", format, place, Exporting::Dead(Box::new(export)), app.until_end()))
}

/// `GET /dead`.
pub(crate) async fn show(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Query(query): Query<Fields>,
    uri: Uri,
) -> Result<Html, Problem> {
    let state = query.given("state").unwrap_or_else(|| String::from("dead"));
    let states = states_of(&state)?;
    let from = query.read::<Bookmark>("from")?;
    let filter = filter(&query)?;
    let turn = app.turn().await?;
    let places = places(&app, &query, &filter).await?;
    let listed = page(&places, &operator, &filter, states, from, ROWS).await;
    let surveyed = match state.parse::<ExceptionState>() {
        Ok(state @ (ExceptionState::Dead | ExceptionState::Retrying)) => {
            let asked = format!("{state} {} {filter}", query.text("pipeline"));
            let counting = Box::pin(survey(&places, &operator, &filter, state));
            Some(app.surveys.get(asked, counting).await)
        }
        _ => None,
    };
    places.close().await;
    drop(turn);
    let listed = listed?;
    let surveyed = surveyed.transpose()?;
    let names_owner = ["pipeline", "consumer"].iter().any(|name| !query.text(name).is_empty());
    let with_owner = !names_owner && app.pipelines.len() + app.inboxes.len() > 1;
    let of_survey = surveyed.as_ref().map_or(&[][..], |found| &found.away[..]);
    let missing = if listed.away.is_empty() { of_survey } else { &listed.away[..] };
    let body = html! {
        (conditions(&query, &state))
        (away(missing))
        @if let Some(found) = &surveyed {
            (causes(&query, &state, found, listed.messages.first().and_then(|first| first.error.as_deref())))
        }
        @if listed.messages.is_empty() {
            @if listed.more {
                p class="notice" { "No match yet: the list continues." }
            } @else {
                p class="empty" { "No messages are waiting here" @if !listed.away.is_empty() { ", in the databases that answer" } "." }
            }
        } @else if states == States::Dead && may_decide(&operator) {
            form method="post" action=(to("/dead/confirm")) id="choice" {
                (form_token())
                @for (name, value) in kept(&query) { input type="hidden" name=(name) value=(value); }
                (actions(surveyed.as_ref().map(|found| found.total), !missing.is_empty()))
                (table(&listed, true, with_owner))
            }
        } @else {
            (table(&listed, false, with_owner))
        }
        (links(&query, &state, from, &listed))
        (export_links(&query, &state))
    };
    Ok(Html(Frame::new(Tab::Dead, &title_of(&state)).live(&uri).page(&body)))
}

fn export_links(query: &Fields, state: &str) -> Markup {
    let kept = kept(query);
    let pairs: Vec<(&str, &str)> = kept.iter().map(|(name, value)| (*name, value.as_str())).collect();
    exports::links("/dead/export", &[&pairs[..], &[("state", state)]].concat())
}

fn conditions(query: &Fields, state: &str) -> Markup {
    let form = html! {
        form class="filter" method="get" action=(to("/dead")) {
            label { "State" select name="state" {
                @for name in STATES { option value=(name) selected[name == state] { (name) } }
            } }
            label { "Where" select name="source" {
                @for (value, name) in [("", "everywhere"), ("outbox", "outboxes"), ("inbox", "inboxes")] {
                    option value=(value) selected[value == query.text("source")] { (name) }
                }
            } }
            @for (name, label) in CONDITIONS {
                @let value = if NAMES.contains(&name) { query.exact(name) } else { query.text(name) };
                label { (label) input name=(name) value=(value) maxlength="255" autocomplete="off"; }
            }
            button class="primary" { "Filter" }
        }
    };
    FilterBox { name: "Filter", told: &told(query, state), list: "/dead", is_open: false }.around(&form)
}

/// Renders the buttons of a decision. A decision leaves out the messages of databases that do not
/// answer, so with `is_partial` the buttons do not say `all`.
fn actions(total: Option<Total>, is_partial: bool) -> Markup {
    let all = match total {
        None => String::from("all matching"),
        Some(total) if is_partial => format!("the {} found", total_text(total)),
        Some(total) => format!("all {}", total_text(total)),
    };
    html! {
        div class="bulk" role="group" aria-label="Requeue or discard messages" {
            div class="pair" {
                label class="check" id="choose-all-name" hidden { input type="checkbox" id="choose-all"; " All on this page" }
                button name="what" value="requeue" data-selected { "Requeue selected…" }
                button name="what" value="discard" class="danger" data-selected { "Discard selected…" }
            }
            div class="pair" {
                button name="what" value="requeue-all" { "Requeue " (all) "…" }
                button name="what" value="discard-all" class="danger" { "Discard " (all) "…" }
            }
            @if is_partial {
                p class="faint" { "Messages in the databases above, which do not answer, are left out." }
            }
        }
    }
}

/// Returns the name of a message in forms: source, id, owner.
pub(crate) fn row_name(message: &DeadMessage) -> String {
    format!("{}/{}/{}", message.source, message.id, message.owner())
}

const COLUMNS: [Column; 10] = [
    column("Choose", Kind::Choice),
    column("Topic", Kind::Name),
    column("Key", Kind::Key),
    column("Error", Kind::Why),
    column("State", Kind::State),
    column("Failed attempts", Kind::Number),
    column("Since", Kind::Time),
    column("Of", Kind::Text),
    column("Scope", Kind::Text),
    column("Message", Kind::Text),
];

/// The indexes of the columns with the state, the owner and the tenant.
const STATE: usize = 4;
const OF: usize = 7;
const SCOPE: usize = 8;

/// Returns the tenant of a message; empty without one.
pub(super) fn scope_of(message: &DeadMessage) -> &str {
    message.scope.as_deref().unwrap_or_default()
}

/// Renders messages: with boxes to choose them, with their states if these differ or one was
/// requeued before, with their owners if these differ or the whole list may have several, and with
/// their tenants if they have any. The title has the state that all have.
fn table(listed: &Listed, with_choice: bool, with_owner: bool) -> Markup {
    let owners: BTreeSet<&str> = listed.messages.iter().map(DeadMessage::owner).collect();
    let states: BTreeSet<&str> = listed.messages.iter().map(|message| message.state.as_str()).collect();
    let is_of_requeue =
        |message: &DeadMessage| message.requeue_requested_by.is_some() || is_dead_again(message);
    let with_state = states.len() > 1 || listed.messages.iter().any(is_of_requeue);
    let is_shown = |index: usize| match index {
        0 => with_choice,
        STATE => with_state,
        OF => with_owner || owners.len() > 1,
        SCOPE => listed.messages.iter().any(|message| !scope_of(message).is_empty()),
        _ => true,
    };
    let columns: Vec<Column> =
        (0..).zip(COLUMNS).filter(|(index, _)| is_shown(*index)).map(|(_, it)| it).collect();
    let row = |message| {
        let cells = (0..).zip(row(message)).filter(|(index, _)| is_shown(*index));
        cells.map(|(_, cell)| cell).collect()
    };
    list("Messages", &columns, listed.messages.iter().map(row))
}

fn row(message: &DeadMessage) -> Vec<Markup> {
    let pipeline = message.pipeline.as_deref().unwrap_or_default();
    let story = with_query("/message", &[("id", &message.id), ("pipeline", pipeline)]);
    vec![
        html! { input type="checkbox" name="row" value=(row_name(message)) aria-label={ "Choose " (message.id) }; },
        cell(&message.topic),
        html! { @match message.key.as_deref() { Some(key) => a href=(story) { (cell(key)) }, None => (maybe(None)) } },
        maybe(message.error_in_list()),
        html! {
            @if is_dead_again(message) { (tone("bad", "dead again")) } @else { (badge(message.state)) }
            @if let Some(actor) = &message.requeue_requested_by { " requeue requested by " (cell(actor)) }
        },
        // Attempts for which others are at fault do not count.
        html! { @if message.attempts == 0 { (maybe(None)) } @else { (count(message.attempts.into())) } },
        html! { (since(message.since)) @if died_later(message) { span class="faint age" { " last " (since(message.changed_at)) } } },
        cell(message.owner()),
        cell(scope_of(message)),
        html! {
            a href=(story) title=(message.message_id.as_deref().unwrap_or(&message.id)) {
                (short_id(message))
            }
        },
    ]
}

/// The part of an id that a column has room for.
const END_BYTES: usize = 8;

/// Returns the position of a message in its log, or the end of the id of its dead letter: the
/// beginnings of ids are alike.
pub(super) fn short_id(message: &DeadMessage) -> String {
    match &message.pipeline {
        Some(_) => message.id.clone(),
        None => {
            let end = message.id.len().saturating_sub(END_BYTES);
            format!("…{}", message.id.get(end..).unwrap_or(&message.id))
        }
    }
}

/// Returns whether it is dead although an operator has requeued it.
fn is_dead_again(message: &DeadMessage) -> bool {
    message.is_dead() && message.died_again
}

/// Returns whether it was parked long before it died: it was requeued and failed again, or retried
/// for a long time. The state tells the two apart.
fn died_later(message: &DeadMessage) -> bool {
    message.is_dead() && message.changed_at - message.since > time::Duration::MINUTE
}

fn links(query: &Fields, state: &str, from: Option<Bookmark>, listed: &Listed) -> Markup {
    let kept = kept(query);
    let pairs: Vec<(&str, &str)> = kept.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let first = with_query("/dead", &[&pairs[..], &[("state", state)]].concat());
    html! {
        @if from.is_some() || listed.next.is_some() {
            nav class="pieces" aria-label="Pages of the list" {
                @if from.is_some() { a href=(first) { "← First page" } }
                @if let Some(next) = listed.next {
                    a rel="next" href=(with_query("/dead", &[&pairs[..], &[("state", state), ("from", &next.to_string())]].concat())) { "Next →" }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use operate::dead::sample::entry;

    use super::*;

    /// Goal: a link to the messages of a key is about exactly this key. Oracle: the filter, and the
    /// conditions that forms and links keep, for names with spaces at their ends.
    #[test]
    fn names_of_messages_are_taken_as_they_are() {
        let fields = Fields::of(&[("key", " a"), ("topic", "t "), ("scope", " "), ("error", " gone ")]);
        let found = filter(&fields).unwrap();
        assert_eq!((found.key.as_deref(), found.topic.as_deref()), (Some(" a"), Some("t ")));
        assert_eq!(found.scope, Some(Tenant::new(" ").unwrap()));
        assert_eq!(found.error.as_deref(), Some("gone"));
        let kept: Vec<_> = kept(&fields);
        let kept: Vec<(&str, &str)> = kept.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(kept, [("topic", "t "), ("key", " a"), ("error", "gone"), ("scope", " ")]);
        let form = conditions(&fields, "dead").into_string();
        assert!(form.contains("name=\"key\" value=\" a\""), "{form}");
        assert!(filter(&Fields::of(&[("scope", "a\u{7}")])).is_err());
    }

    /// Goal: two tenants with the same key are not taken for one. Oracle: the columns of a list
    /// with and without tenants.
    #[test]
    fn a_list_says_whose_messages_they_are() {
        let message = |scope: Option<&str>| {
            let mut message = entry(7);
            message.scope = scope.map(str::to_owned);
            message
        };
        let shown = |scopes: &[Option<&str>]| {
            let messages = scopes.iter().map(|scope| message(*scope)).collect();
            let listed = Listed { messages, more: false, next: None, away: Vec::new() };
            table(&listed, false, false).into_string()
        };
        let text = shown(&[Some("acme"), Some("globex")]);
        assert!(text.contains("Scope") && text.contains("acme") && text.contains("globex"), "{text}");
        assert!(!shown(&[Some(""), None]).contains("Scope"));
    }

    /// Goal: nobody takes a decision for one about everything while a database does not answer.
    /// Oracle: the words of the buttons with and without one.
    #[test]
    fn a_button_says_all_only_if_every_database_answers() {
        let total = Some(Total { number: 8, is_at_least: false });
        let text = actions(total, false).into_string();
        assert!(text.contains(">Discard all 8…<") && !text.contains("left out"), "{text}");
        let text = actions(total, true).into_string();
        assert!(text.contains(">Discard the 8 found…<") && text.contains(">Requeue the 8 found…<"), "{text}");
        assert!(text.contains("which do not answer, are left out") && !text.contains(" all 8"), "{text}");
    }

    /// Goal: ten ids on a page can be told apart. Oracle: the id of a dead letter, whose beginning
    /// is the time, and the position of a message in a log.
    #[test]
    fn a_short_id_is_the_end_of_a_long_one() {
        let mut letter = entry(7);
        letter.pipeline = None;
        letter.id = String::from("01a22bbe-f6b2-73ce-906c-a738c11e3449");
        assert_eq!(short_id(&letter), "…c11e3449");
        let entry = entry(7);
        assert_eq!(short_id(&entry), entry.id);
    }

    /// Goal: a list says which messages an operator has requeued in vain. Oracle: the states in
    /// lists with and without one.
    #[test]
    fn a_message_that_was_requeued_in_vain_is_dead_again() {
        let shown = |died_again| {
            let mut message = entry(7);
            message.died_again = died_again;
            let listed = Listed { messages: vec![message], more: false, next: None, away: Vec::new() };
            table(&listed, false, false).into_string()
        };
        assert!(shown(true).contains("<span class=\"badge bad\">dead again</span>"), "{}", shown(true));
        assert!(!shown(false).contains("dead again") && !shown(false).contains(">State<"));
    }

    /// Goal: a list that may have messages of several owners names them, also where those of one
    /// fill the page. Oracle: the columns of a list.
    #[test]
    fn a_list_names_owners_where_there_may_be_several() {
        let listed = Listed { messages: vec![entry(7)], more: false, next: None, away: Vec::new() };
        let has_owner = |with_owner| table(&listed, false, with_owner).into_string().contains(">Of<");
        assert!(has_owner(true) && !has_owner(false));
    }

    #[test]
    fn a_filter_is_told_in_words() {
        let fields =
            Fields::of(&[("pipeline", "invoices"), ("error_like", "no queue #"), ("source", "outbox")]);
        assert_eq!(told(&fields, "dead"), ["in outboxes", "error like “no queue #”", "pipeline invoices"]);
        assert_eq!(told(&Fields::default(), "retrying"), ["state retrying"]);
        assert!(told(&Fields::default(), "dead").is_empty());
        assert_eq!(title_of("retrying"), "Retrying messages");
    }
}
