//! Messages: the latest ones, and those that a search finds.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::Uri;
use maud::{Markup, html};
use operate::replay::Moment;
use operate::search::{FoundMessage, HeaderIs, Search, SearchResult, search};

use super::super::address::{to, with_query};
use super::super::answer::{Html, Problem};
use super::super::app::App;
use super::super::fields::Fields;
use super::super::gate::Asker;
use super::super::layout::{Frame, Tab, away, badge, bytes, cell, find, maybe, since, whole};
use super::super::list::{Column, Kind, column, list};
use super::super::text::capital;
use super::filter_box::FilterBox;

/// Maximum number of messages from each outbox.
const ROWS: u32 = 50;

/// The fields of a search, in the order of the form.
const CONDITIONS: [&str; 6] = ["topic", "key", "header", "value", "until", "pipeline"];

/// `GET /messages`.
pub(crate) async fn show(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Query(query): Query<Fields>,
    uri: Uri,
) -> Result<Html, Problem> {
    query.check()?;
    let asked = asked(&query)?;
    let turn = app.turn().await?;
    let found = search(&app.outboxes(query.text("pipeline"))?, &operator, &asked).await?;
    drop(turn);
    let pipelines: Vec<&str> = app.pipelines.iter().map(|pipeline| pipeline.name.as_str()).collect();
    let is_latest = asked.takes_all() && asked.below.is_none() && asked.until.is_none();
    let body = html! {
        div class="card find-card" { (find("find-here", "Find any message"))
            p class="faint" { "One message by its message id, its position in the log, or the id of its dead letter; or all messages of an ordering key." }
        }
        (form(&query, &pipelines, !is_latest && found.messages.is_empty()))
        (result(&query, &found, is_latest))
    };
    let frame = Frame::new(Tab::Messages, "Messages");
    // A search goes through many messages, so it is repeated only on request.
    let frame = if is_latest { frame.live(&uri) } else { frame };
    Ok(Html(frame.page(&body)))
}

/// Returns the search that a query describes.
fn asked(query: &Fields) -> Result<Search, Problem> {
    let name = query.given("header");
    // Compared exactly, so its spaces belong to it.
    let value = query.exact("value");
    let header = match name {
        Some(name) if !value.is_empty() => Some(HeaderIs { name, value: value.to_owned() }),
        Some(name) => {
            return Err(Problem::bad(format!("the value of the header {name} is missing")));
        }
        None if !value.is_empty() => return Err(Problem::bad("the name of the header is missing")),
        None => None,
    };
    Ok(Search {
        topic: query.given("topic"),
        key: query.given("key"),
        header,
        until: query.read::<Moment>("until")?,
        below: query.read("below")?,
        limit: ROWS,
    })
}

fn form(query: &Fields, pipelines: &[&str], is_open: bool) -> Markup {
    let field = |name: &'static str, label: &str, placeholder: Option<&str>| {
        html! {
            label { (label) input name=(name) value=(query.exact(name)) maxlength="255" autocomplete="off" placeholder=[placeholder]; }
        }
    };
    let form = html! {
        form class="filter" method="get" action=(to("/messages")) role="search" aria-label="Search messages" {
            (field("topic", "Topic", None))
            (field("key", "Ordering key", None))
            (field("header", "Header", Some("tenant")))
            label { "Its exact value" input name="value" value=(query.exact("value")) autocomplete="off"; }
            (field("until", "Created before (2h, or a time)", Some("2026-01-31T12:00:00Z")))
            @if pipelines.len() > 1 {
                label { "Pipeline" select name="pipeline" {
                    option value="" { "all" }
                    @for name in pipelines {
                        option value=(name) selected[*name == query.text("pipeline")] { (name) }
                    }
                } }
            }
            button class="primary" { "Search" }
        }
    };
    FilterBox { name: "Search", told: &told(query), list: "/messages", is_open }.around(&form)
}

/// Returns the conditions of a search in words.
fn told(query: &Fields) -> Vec<String> {
    let words = CONDITIONS.into_iter().filter_map(|name| {
        let value = query.given(name)?;
        Some(match name {
            "header" => format!("header {value} is {}", query.exact("value")),
            "value" => return None,
            "until" => format!("created before {value}"),
            name => format!("{name} {value}"),
        })
    });
    let older = query.given("below").map(|below| format!("before position {below}"));
    words.chain(older).collect()
}

fn result(query: &Fields, found: &SearchResult, is_latest: bool) -> Markup {
    html! {
        h2 { @if is_latest { "Latest messages" } @else { "Found, newest first" } }
        (away(&found.away))
        @if found.messages.is_empty() {
            p class="empty" { (capital(found.none_text())) "." }
        } @else {
            (list("Messages", &COLUMNS, found.messages.iter().map(row)))
        }
        ul class="searched" {
            @for part in &found.searched {
                li {
                    (whole(&part.told()))
                    @if let Some(below) = part.below { " " a href=(further(query, &part.pipeline, below)) rel="next" {
                        @if is_latest { "Older messages" } @else { "Continue the search" }
                    } }
                }
            }
        }
        @if !is_latest {
            p class="faint" {
                "Messages that retention has deleted from the log are not found. "
                a href=(to("/dead")) { "Dead letters" } " also has older parked messages."
            }
        }
    }
}

/// Returns the address that continues a search in one outbox.
fn further(query: &Fields, pipeline: &str, below: i64) -> String {
    let below = below.to_string();
    let of = |name: &'static str| match name {
        "pipeline" => (name, pipeline),
        // The position is what counts now. An age would mean another time meanwhile.
        "until" => (name, ""),
        name => (name, query.exact(name)),
    };
    let mut pairs: Vec<(&str, &str)> = CONDITIONS.into_iter().map(of).collect();
    pairs.push(("below", &below));
    with_query("/messages", &pairs)
}

const COLUMNS: [Column; 8] = [
    column("Message", Kind::Name),
    column("Key", Kind::Key),
    column("Topic", Kind::Text),
    column("Event type", Kind::Text),
    column("Pipeline", Kind::Text),
    column("State", Kind::State),
    column("Enqueued", Kind::Time),
    column("Payload", Kind::Number),
];

fn row(message: &FoundMessage) -> Vec<Markup> {
    vec![
        html! { a href=(story(message)) { (message.message_id) } },
        maybe(message.key.as_deref()),
        cell(&message.topic),
        cell(&message.kind),
        cell(&message.pipeline),
        badge(message.state),
        since(message.enqueued_at),
        html! { (bytes(message.payload_bytes)) },
    ]
}

/// Returns the address of a message's story. The position in the log names a row without a valid
/// message id as well, and several rows may share one.
fn story(message: &FoundMessage) -> String {
    let id = if message.message_id == uuid::Uuid::nil().to_string() {
        message.id.to_string()
    } else {
        message.message_id.clone()
    };
    with_query("/message", &[("id", &id), ("pipeline", &message.pipeline)])
}

#[cfg(test)]
mod tests {
    use operate::search::SearchedPart;
    use operate::{MessageState, OperateError};
    use time::OffsetDateTime;

    use super::*;

    const HOSTILE: &str = "\"><script>alert(1)</script>\u{202e}\u{1b}[2J";

    fn fields(pairs: &[[&str; 2]]) -> Fields {
        serde_json::from_value(serde_json::json!(pairs)).unwrap()
    }

    fn part(below: Option<i64>) -> SearchedPart {
        SearchedPart {
            pipeline: String::from("orders"),
            searched: 100_000,
            of_about: 9_999_999,
            back_to: Some(OffsetDateTime::UNIX_EPOCH),
            below,
        }
    }

    #[test]
    fn a_search_that_stops_says_how_far_it_came_and_goes_on() {
        let query = fields(&[["header", "tenant"], ["value", "a&b "], ["until", "2h"]]);
        let found = SearchResult { searched: vec![part(Some(77))], ..SearchResult::default() };
        let text = result(&query, &found, false).into_string();
        assert!(text.contains("Nothing found so far: continue the search for older messages."), "{text}");
        assert!(text.contains("searched 100000 of about 9999999 messages"), "{text}");
        let next = "/messages?header=tenant&amp;value=a%26b+&amp;pipeline=orders&amp;below=77";
        assert!(text.contains(next), "{text}");
        let whole = SearchResult { searched: vec![part(None)], ..SearchResult::default() };
        let text = result(&query, &whole, false).into_string();
        assert!(text.contains("No messages found") && !text.contains("rel=\"next\""), "{text}");
    }

    #[test]
    fn a_database_that_is_away_is_not_an_empty_one() {
        let away = vec![OperateError::refused("bills: connection refused", "")];
        let found = SearchResult { searched: vec![part(None)], away, ..SearchResult::default() };
        let text = result(&fields(&[]), &found, true).into_string();
        assert!(text.contains("bills: connection refused"), "{text}");
        assert!(text.contains("Nothing was found, but not every database answered."), "{text}");
        assert!(!text.contains("No messages found"), "{text}");
    }

    #[test]
    fn a_search_is_told_in_words() {
        let query =
            fields(&[["topic", "invoices"], ["header", "tenant"], ["value", "acme"], ["until", "2h"]]);
        assert_eq!(told(&query), ["topic invoices", "header tenant is acme", "created before 2h"]);
        assert!(told(&fields(&[])).is_empty());
    }

    #[test]
    fn hostile_texts_are_text() {
        let message = FoundMessage {
            pipeline: String::from("orders"),
            id: 7,
            message_id: uuid::Uuid::nil().to_string(),
            topic: HOSTILE.to_owned(),
            key: Some(HOSTILE.to_owned()),
            kind: HOSTILE.to_owned(),
            state: MessageState::Published,
            payload_bytes: 1,
            enqueued_at: OffsetDateTime::UNIX_EPOCH,
        };
        let found = SearchResult {
            messages: vec![message],
            searched: vec![part(Some(1))],
            ..SearchResult::default()
        };
        let query = fields(&[["topic", HOSTILE], ["key", HOSTILE], ["header", "h"], ["value", HOSTILE]]);
        let text = html! { (form(&query, &["a", "b"], true)) (result(&query, &found, false)) }.into_string();
        assert!(!text.contains("<script>"), "{text}");
        assert!(
            text.contains("/message?id=7&amp;pipeline=orders"),
            "a row without an id has its position: {text}"
        );
        let shown = result(&query, &found, false).into_string();
        assert!(!shown.contains('\u{202e}') && !shown.contains('\u{1b}'), "{shown}");
    }

    #[test]
    fn a_header_is_asked_for_with_its_exact_value() {
        let header = |pairs: &[[&str; 2]]| asked(&fields(pairs)).map(|search| search.header);
        let is = HeaderIs { name: String::from("tenant"), value: String::from(" acme ") };
        assert_eq!(header(&[["header", " tenant"], ["value", " acme "]]).ok(), Some(Some(is)));
        assert_eq!(header(&[["header", ""], ["value", ""]]).ok(), Some(None));
        assert!(header(&[["header", "tenant"]]).is_err());
        assert!(header(&[["value", "acme"]]).is_err());
        assert!(asked(&fields(&[["until", "yesterday"]])).is_err());
        assert!(asked(&fields(&[["below", "x"]])).is_err());
    }
}
