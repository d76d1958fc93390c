//! The story of a message, and its payload for an operator who gives a reason.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::Form;
use axum::extract::{Query, State};
use axum::http::Uri;
use axum::response::{IntoResponse as _, Redirect, Response};
use maud::{Markup, html};
use operate::audit::AuditLine;
use operate::dead::MessageRef;
use operate::payload::{Payload, payload as read_payload};
use operate::story::{BEHIND, InboxPart, OutboxPart, Story, story};
use operate::{MessageState, OperateError, OperateErrorKind, Operator, Role, seconds};

use super::super::address::{to, with_query};
use super::super::again;
use super::super::answer::{Html, Problem};
use super::super::app::App;
use super::super::fields::Fields;
use super::super::gate::Asker;
use super::super::layout::{
    Frame, Tab, badge, bytes, cell, copyable, count, folded, form_token, may_decide, maybe, moment,
    signature, stamp, whole,
};
use super::super::text::{capital, plain};
use super::audit;

/// Maximum number of bytes shown of a text payload.
const TEXT_BYTES_MAX: usize = 64 << 10;
/// Maximum number of bytes shown of other payloads.
const HEX_BYTES_MAX: usize = 4 << 10;

/// `GET /message`.
pub(crate) async fn show(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Query(query): Query<Fields>,
    uri: Uri,
) -> Result<Response, Problem> {
    query.check()?;
    let asked: MessageRef = query.need("id")?;
    let id = query.text("id");
    let by_key = with_query("/messages", &[("key", id), ("pipeline", query.text("pipeline"))]);
    if !asked.is_an_id() {
        return Ok(Redirect::to(&by_key).into_response());
    }
    let turn = app.turn().await?;
    let places = app.outboxes(query.text("pipeline"))?;
    let places = app.with_inboxes_of(places, query.text("pipeline")).await;
    let told = story(&places, &operator, &asked).await;
    places.close().await;
    drop(turn);
    let told = match told {
        Ok(told) => told,
        Err(error) if !error.candidates().is_empty() => {
            return Ok(Html(
                Frame::new(Tab::Messages, &format!("Messages {id}")).page(&several(&error, id, &by_key)),
            )
            .into_response());
        }
        // Keys can be numbers and UUIDs as well.
        Err(error) if error.kind() == OperateErrorKind::Refused => {
            return Ok(unknown(Problem::from(error), &by_key));
        }
        Err(error) => return Err(error.into()),
    };
    let title = title(&told, id);
    let body = page(&operator, &query, &told);
    Ok(Html(Frame::new(Tab::Messages, &title).live(&uri).page(&body)).into_response())
}

/// Returns the title of a story: the topic and the key, by which people know a message. Its id
/// follows below.
fn title(story: &Story, id: &str) -> String {
    match story.outboxes.first() {
        Some(OutboxPart { topic, key: Some(key), .. }) => format!("Message of {topic}, key {key}"),
        Some(part) => format!("Message of {}", part.topic),
        None => format!("Message {id}"),
    }
}

/// Renders the messages that an id fits: each outbox has its own positions.
fn several(error: &OperateError, id: &str, by_key: &str) -> Markup {
    let messages = error.candidates();
    html! {
        p class="lead" { (plain(id)) " fits " (count(messages.len() as u64)) " messages:" }
        ul {
            @for message in messages {
                @let story = with_query("/message", &[("id", &message.message_id), ("pipeline", &message.pipeline)]);
                li { a href=(story) { (cell(&message.message_id)) } " in " (cell(&message.pipeline)) }
            }
        }
        a class="button" href=(by_key) { "Search for it as an ordering key" }
    }
}

/// Renders the problem of an id that no place knows, with the search for a key of this text.
fn unknown(problem: Problem, by_key: &str) -> Response {
    let body = html! {
        div class="problem" role="alert" {
            p class="problem-text" { (plain(&problem.message)) }
            @if let Some(help) = &problem.help { p { (plain(help)) } }
            p {
                a class="button" href=(by_key) { "Search for it as an ordering key" } " "
                a class="button" href=(to("/messages")) { "Latest messages" }
            }
        }
    };
    let page = Html(Frame::new(Tab::Messages, "Not found").page(&body));
    (problem.status, page).into_response()
}

/// `POST /message/payload`.
pub(crate) async fn payload(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Form(form): Form<Fields>,
) -> Result<Html, Problem> {
    // Checked first: a user without the right opens no database.
    operator.permit(Role::Operator, "view payloads")?;
    form.check()?;
    let asked: MessageRef = form.need("id")?;
    let signed = again::signed(&operator, &form, "/message/payload", "view payloads")?;
    let _turn = app.turn().await?;
    let places = app.with_inboxes(app.outboxes(form.text("pipeline"))?, "").await;
    let found = read_payload(&places, &signed, &asked).await;
    places.close().await;
    let found = found?;
    let title = format!("Payload of {}", form.text("id"));
    Ok(Html(Frame::new(Tab::Messages, &title).page(&shown(&found))))
}

fn page(operator: &Operator, query: &Fields, story: &Story) -> Markup {
    let decisions: Vec<audit::Line> = story.decisions.iter().cloned().map(audit::Line::from).collect();
    html! {
        @if !story.away.is_empty() {
            div class="notice bad" role="alert" { strong { "Some data is missing: " } (whole(&story.away.join("; "))) }
        }
        @if let Some(id) = &story.message_id {
            p class="lead" { "Message id " (copyable("message id", id)) }
        }
        @if needs_operator_at_consumer(story) {
            (at_consumers(operator, story))
            (in_outboxes(operator, story))
        } @else {
            (in_outboxes(operator, story))
            (at_consumers(operator, story))
        }
        h2 id="decisions" { "Decisions" }
        @if decisions.is_empty() {
            p class="empty" { "No decisions about this message" @if !story.away.is_empty() { " in the databases that answer" } "." }
        } @else { (audit::table(&decisions, true)) }
        @if may_decide(operator) { (edits(query, &story.decisions)) }
        @if may_decide(operator) {
            h2 { "Payload" }
            form method="post" action=(to("/message/payload")) class="card" {
                (form_token())
                input type="hidden" name="id" value=(query.text("id"));
                input type="hidden" name="pipeline" value=(query.text("pipeline"));
                p { "Payloads are hidden. The audit records who viewed them, and why." }
                (signature("Show the payload", false))
            }
        }
    }
}

/// Returns whether an operator has to decide at a consumer, and in no outbox: that comes first.
fn needs_operator_at_consumer(story: &Story) -> bool {
    story.inboxes.iter().any(|part| part.state == MessageState::Dead)
        && story.outboxes.iter().all(|part| part.state == MessageState::Published)
}

fn in_outboxes(operator: &Operator, story: &Story) -> Markup {
    html! {
        @for part in &story.outboxes { (outbox(operator, part)) }
        @if story.outboxes.is_empty() {
            p class="notice" { (sentence(story.no_outbox_text())) }
        }
    }
}

fn at_consumers(operator: &Operator, story: &Story) -> Markup {
    html! {
        h2 { "At consumers" }
        @if story.inboxes.is_empty() {
            p class="empty" { (sentence(story.no_inbox_text())) }
        } @else {
            (inboxes(operator, &story.inboxes))
        }
    }
}

/// Turns a text of the commands into a sentence.
fn sentence(text: &str) -> String {
    format!("{}.", capital(text))
}

fn outbox(operator: &Operator, part: &OutboxPart) -> Markup {
    let before = if part.is_before_edit() { " before the edit" } else { "" };
    let pipeline = with_query("/pipeline", &[("name", &part.pipeline)]);
    let headers = Some(part.header_names.join(", ")).filter(|names| !names.is_empty());
    let of_key = |key: &String| {
        let others = with_query("/messages", &[("key", key), ("pipeline", &part.pipeline)]);
        html! { (copyable("key", key)) " " a href=(others) { "all of this key" } }
    };
    html! {
        section class="card" {
            div class="card-head" { h2 { "Outbox of " a href=(pipeline) { (plain(&part.pipeline)) } } (badge(part.state)) }
            (why(part))
            (errors(part))
            @if may_decide(operator) { (decisions(part)) }
            dl class="facts" {
                (fact("Topic", Some(copyable("topic", &part.topic))))
                (fact("Key", part.key.as_ref().map(of_key)))
                (fact("Enqueued", part.enqueued_at.map(moment)))
                (fact("Parked since", part.parked_since.map(moment)))
                // It is the time of a checkpoint, so an age would say too little.
                (fact("Published", part.published_by.map(|at| html! { "before " (stamp(at)) })))
                (fact("Failed attempts", part.attempts.map(|attempts| html! { (count(attempts.into())) })))
                (fact(&format!("Payload{before}"), part.payload_bytes.map(|size| html! { (bytes(size)) })))
                (fact("Edited", part.edited.then(|| html! { "by an operator: " a href="#decisions" { "see what it changed" } })))
                (fact("Not before", part.deliver_at.map(moment)))
                (fact("Event type", Some(whole(&part.kind)).filter(|_| part.kind != part.topic)))
                (fact("Content type", part.content_type.as_deref().map(whole)))
                (fact(&format!("Headers{before}"), headers.as_deref().map(whole)))
                (fact("Destination", Some(whole(&part.destination))))
                (fact("Position in the log", Some(copyable("position", &part.id.to_string()))))
                (fact("Transaction", part.transaction.as_deref().map(whole)))
                (fact("Trace", part.traceparent.as_deref().map(|trace| copyable("trace", trace))))
                (fact("Replay", (!part.in_log).then(|| whole("not possible: its row is no longer in the log"))))
            }
        }
    }
}

/// Renders the last ten errors, latest first, or the one for which a discarded message was dead.
fn errors(part: &OutboxPart) -> Markup {
    let id = format!("error-{}-{}", part.pipeline, part.id);
    html! {
        @if part.failures.len() > 1 { h3 { "Last errors" } } @else if part.error.is_some() { h3 { "Last error" } }
        @for (number, failure) in part.failures.iter().enumerate() {
            p {
                @if failure.last == 0 { "An attempt that is not counted" }
                @else if failure.first.is_some_and(|first| first < failure.last) { "Attempts " (failure.numbers()) }
                @else { "Attempt " (failure.numbers()) }
                @if let Some(at) = failure.at { ", failed " (moment(at)) }
            }
            (folded(&format!("{id}-{number}"), "error", &failure.error))
        }
        @if let (true, Some(error)) = (part.failures.is_empty(), &part.error) { (folded(&id, "error", error)) }
    }
}

/// Renders why a message waits, with a link to the message that it waits behind.
fn why(part: &OutboxPart) -> Markup {
    let Some(because) = &part.because else { return html! {} };
    let title = if part.state == MessageState::LeftOut { "Excluded: " } else { "Why: " };
    let Some(behind) = &part.behind else {
        return html! { p class="waits-line" { (title) (whole(because)) } };
    };
    let place = behind.id.to_string();
    let link = html! {
        a href=(with_query("/message", &[("id", &place), ("pipeline", &part.pipeline)])) { (place) }
    };
    let rest = |begin: &str| because.strip_prefix(begin)?.strip_prefix(&place);
    let named = BEHIND.into_iter().find_map(|begin| rest(begin).map(|rest| (begin, rest)));
    html! {
        p class="waits-line" {
            (title)
            // A pause names another reason.
            @match named {
                Some((begin, rest)) => { (begin) (link) (whole(rest)) }
                None => { (whole(because)) " It also waits behind " (link) ", which is " (plain(&behind.state)) "." }
            }
        }
    }
}

/// Renders the way to the content of a dead message, to be corrected.
fn edit(part: &OutboxPart) -> Markup {
    html! {
        details class="folded-form" id=(format!("edit-{}-{}", part.pipeline, part.id)) {
            summary class="button" { "Edit…" }
            form method="post" action=(to("/message/edit")) {
                (form_token())
                input type="hidden" name="id" value=(part.id);
                input type="hidden" name="pipeline" value=(part.pipeline);
                p { "Shows payload and headers in a form. The audit records who viewed them, and why." }
                (signature("Show the form", false))
            }
        }
    }
}

/// Renders the way to what each edit has changed.
fn edits(query: &Fields, decisions: &[AuditLine]) -> Markup {
    let of_edit = |line: &&AuditLine| line.action == "edit" && line.number.is_some();
    html! {
        @for line in decisions.iter().filter(of_edit) {
            @let number = line.number.unwrap_or_default();
            details class="filter-box" id=(format!("edit-{number}")) {
                summary { "What the edit by " (plain(&line.actor)) " at " (seconds::text(line.at)) " changed…" }
                form method="post" action=(to("/message/edit/content")) {
                    (form_token())
                    input type="hidden" name="id" value=(query.text("id"));
                    input type="hidden" name="pipeline" value=(line.owner);
                    input type="hidden" name="number" value=(number);
                    p { "The audit keeps payload and headers before and after, up to 64 KiB each. It records who views them, and why." }
                    (signature("Show the edit", false))
                }
            }
        }
    }
}

/// Renders what can be decided about a message in an outbox. One that is retried can only be
/// discarded: the relay sends it again by itself.
fn decisions(part: &OutboxPart) -> Markup {
    let row = format!("outbox/{}/{}", part.id, part.pipeline);
    match part.state {
        MessageState::Dead => html! { div class="actions" { (decide(&row, true)) (edit(part)) } },
        MessageState::Retrying => decide(&row, false),
        _ => html! {},
    }
}

/// Renders the buttons of a decision, each of which leads to its confirmation.
fn decide(row: &str, with_requeue: bool) -> Markup {
    html! {
        form method="post" action=(to("/dead/confirm")) class="actions" {
            (form_token())
            input type="hidden" name="row" value=(row);
            @if with_requeue { button name="what" value="requeue" { "Requeue…" } }
            button name="what" value="discard" class="danger" { "Discard…" }
        }
    }
}

/// Renders a card for each consumer that knows the message, and one line for the others.
fn inboxes(operator: &Operator, parts: &[InboxPart]) -> Markup {
    let is_unseen = |part: &&InboxPart| part.state == MessageState::NotSeen;
    let unseen: Vec<&str> = parts.iter().filter(is_unseen).map(|part| part.consumer.as_str()).collect();
    html! {
        @for (number, part) in parts.iter().enumerate().filter(|(_, part)| !is_unseen(part)) {
            (inbox(operator, number, part))
        }
        @if !unseen.is_empty() {
            p class="card" { "Not seen by: " (whole(&unseen.join(", "))) }
        }
    }
}

fn inbox(operator: &Operator, number: usize, part: &InboxPart) -> Markup {
    let since = match part.state {
        MessageState::Applied | MessageState::AppliedLate | MessageState::Duplicate => "Applied",
        MessageState::Retrying => "First failed",
        MessageState::Dead => "Dead since",
        _ => "Since",
    };
    let letters = |key: &String| {
        let scope = part.scope.as_deref().unwrap_or_default();
        let topic = part.topic.as_deref().unwrap_or_default();
        let query = [
            ("source", "inbox"),
            ("consumer", &*part.consumer),
            ("scope", scope),
            ("topic", topic),
            ("key", key.as_str()),
        ];
        html! { "behind the " a href=(with_query("/dead", &query)) { "dead letters of key " (plain(key)) } }
    };
    html! {
        section class="card" {
            div class="card-head" { h3 { "Consumer " (plain(&part.consumer)) } (badge(part.state)) }
            dl class="facts" {
                (fact("Scope", part.scope.as_deref().map(whole)))
                (fact(since, part.at.map(moment)))
                (fact("Result", part.result_bytes.map(|size| html! { (bytes(size)) })))
                (fact("Failed attempts", part.attempts.map(|attempts| html! { (count(attempts.into())) })))
                (fact("Next attempt", part.next_at.map(moment)))
                (fact("Waits", part.held_by_key.as_ref().map(letters)))
                (fact("Dead letter", part.dead_letter.as_deref().map(|id| copyable("id of the dead letter", id))))
            }
            @if let Some(error) = &part.error {
                h4 { @if part.state == MessageState::Forgotten { "Why" } @else { "Last error" } }
                (folded(&format!("error-of-consumer-{number}"), "error", error))
            }
            @if let (Some(letter), MessageState::Dead, true) = (&part.dead_letter, part.state, may_decide(operator)) {
                (decide(&format!("inbox/{letter}/{}", part.consumer), true))
            }
        }
    }
}

/// Renders a value with its name, if there is one.
fn fact(name: &str, value: Option<Markup>) -> Markup {
    html! { @if let Some(value) = value { div { dt { (name) } dd { (value) } } } }
}

fn shown(payload: &Payload) -> Markup {
    let (kind, text, is_whole) = readable(&payload.bytes);
    html! {
        p class="lead" {
            (bytes(payload.bytes.len() as u64)) " from " (cell(&payload.owner)) ", "
            (maybe(payload.content_type.as_deref())) ", shown as " (kind) "."
        }
        @if !is_whole { p class="notice" { "Only the beginning is shown." } }
        pre class="payload" tabindex="0" { (text) }
        p { a class="button" href=(to("/audit")) { "The audit" } }
    }
}

/// Returns a readable form of a payload: its kind, its text, and whether it is complete.
pub(super) fn readable(bytes: &[u8]) -> (&'static str, String, bool) {
    let head = bytes.get(..TEXT_BYTES_MAX).unwrap_or(bytes);
    let valid = match std::str::from_utf8(head) {
        Ok(text) => Some(text),
        // The limit may cut a character.
        Err(error) if head.len() < bytes.len() && head.len() - error.valid_up_to() < 4 => {
            head.get(..error.valid_up_to()).and_then(|head| std::str::from_utf8(head).ok())
        }
        Err(_) => None,
    };
    if let Some(text) = valid.filter(|text| !text.contains('\0')) {
        return ("text", plain(text), text.len() == bytes.len());
    }
    let head = bytes.get(..HEX_BYTES_MAX).unwrap_or(bytes);
    let mut text = String::new();
    for (line, chunk) in head.chunks(16).enumerate() {
        let _ = write!(text, "{:08x} ", line * 16);
        chunk.iter().for_each(|byte| {
            let _ = write!(text, " {byte:02x}");
        });
        text.push('\n');
    }
    ("bytes", text, head.len() == bytes.len())
}

#[cfg(test)]
mod tests {
    use operate::failures::FailedAttempts;
    use operate::story::Blocker;
    use time::OffsetDateTime;

    use super::*;

    const HOSTILE: &str = "\"><script>alert(1)</script>\u{202e}";

    fn held() -> OutboxPart {
        OutboxPart {
            pipeline: String::from("orders"),
            id: 12,
            topic: String::from("orders.placed"),
            key: Some(HOSTILE.to_owned()),
            kind: String::from("orders.placed"),
            content_type: None,
            payload_bytes: None,
            header_names: Vec::new(),
            traceparent: None,
            enqueued_at: Some(OffsetDateTime::UNIX_EPOCH),
            transaction: None,
            deliver_at: None,
            state: MessageState::Held,
            destination: String::from("kafka a:9092"),
            published_by: None,
            because: Some(format!("it waits behind 7, which is dead: {HOSTILE}")),
            behind: Some(Blocker { id: 7, state: String::from("dead"), error: Some(HOSTILE.to_owned()) }),
            attempts: None,
            error: None,
            failures: Vec::new(),
            parked_since: Some(OffsetDateTime::UNIX_EPOCH),
            edited: false,
            in_log: true,
        }
    }

    fn at(consumer: &str, state: MessageState) -> InboxPart {
        InboxPart {
            consumer: consumer.to_owned(),
            scope: None,
            state,
            at: None,
            result_bytes: None,
            attempts: None,
            next_at: None,
            error: None,
            dead_letter: None,
            held_by_key: None,
            topic: None,
        }
    }

    fn shown_to_ann(story: &Story) -> String {
        page(&Operator::new("ann", Role::Operator), &Fields::default(), story).into_string()
    }

    #[test]
    fn a_story_has_no_empty_fields_and_links_what_it_waits_behind() {
        let inboxes = vec![at("billing", MessageState::NotSeen), at("audit", MessageState::NotSeen)];
        let mut story =
            Story { message_id: None, outboxes: vec![held()], inboxes, decisions: vec![], away: vec![] };
        let text = shown_to_ann(&story);
        assert!(
            text.contains("it waits behind <a href=\"/message?id=7&amp;pipeline=orders\">7</a>"),
            "{text}"
        );
        let of_topic = Some(format!("its topic may be stopped by 7, which is retrying: {HOSTILE}"));
        let stopped = Story {
            message_id: None,
            outboxes: vec![OutboxPart { because: of_topic, ..held() }],
            inboxes: vec![],
            decisions: vec![],
            away: vec![],
        };
        let stopped = shown_to_ann(&stopped);
        let linked = "its topic may be stopped by <a href=\"/message?id=7&amp;pipeline=orders\">7</a>";
        assert!(stopped.contains(linked) && !stopped.contains("also waits"), "{stopped}");
        assert!(text.contains("Not seen by: <span class=\"text\">billing, audit</span>"), "{text}");
        for absent in ["Failed attempts", "Event type", "Payload</dt>", "Last error", "Replay", "none\">–"]
        {
            assert!(!text.contains(absent), "{absent}: {text}");
        }
        assert!(text.contains("<dt>Parked since</dt>"), "{text}");
        assert!(text.contains("<span>1970-01-01</span> <span>00:00:00Z</span>"), "{text}");
        assert_eq!(title(&story, "12"), format!("Message of orders.placed, key {HOSTILE}"));
        assert!(!text.contains("<script>") && !text.contains('\u{202e}'), "{text}");
        // A pause is another reason, and does not hide the message in front.
        story.outboxes[0].because = Some(String::from("topic orders is paused by ann since then: moves"));
        let text = shown_to_ann(&story);
        assert!(text.contains("paused by ann") && text.contains("It also waits behind <a href="), "{text}");
    }

    /// Goal: an operator sees how a message failed before its last error. Oracle: each error with
    /// its numbers and its time, a long one folded, in their order; markup in them is text.
    #[test]
    fn a_story_has_the_last_errors_latest_first() {
        let failed = |first, last, error: &str| FailedAttempts {
            first: Some(first),
            last,
            at: Some(OffsetDateTime::UNIX_EPOCH),
            error: error.to_owned(),
        };
        let long = format!("{HOSTILE}{}", "x".repeat(3_000));
        let failures = vec![failed(4, 9, &long), failed(1, 3, "no route")];
        let part = OutboxPart { error: Some(long), failures, ..held() };
        let text = errors(&part).into_string();
        let order =
            ["Last errors", "Attempts 4 to 9, failed", "<details", "Attempts 1 to 3, failed", "no route"];
        let places: Vec<usize> = order.iter().map(|told| text.find(told).expect(told)).collect();
        assert!(places.is_sorted(), "{text}");
        assert!(text.contains(">1970-01-01<") && text.matches("<details").count() == 1, "{text}");
        assert!(!text.contains("<script>") && !text.contains('\u{202e}'), "{text}");
        let one =
            OutboxPart { error: Some("no route".into()), failures: vec![failed(1, 3, "no route")], ..held() };
        let text = errors(&one).into_string();
        assert!(
            text.contains("Last error<") && text.matches("no route").count() == 2,
            "shown, and copied: {text}"
        );
        // The audit has the error of a message that was discarded, and nothing about its attempts.
        let text = errors(&OutboxPart { error: Some("no route".into()), ..held() }).into_string();
        assert!(text.contains("no route") && !text.contains("Attempt"), "{text}");
    }

    /// Goal: what an operator is woken up for is on the first screen. Oracle: the order of a dead
    /// message: the error, then what can be done, then the facts.
    #[test]
    fn the_error_and_the_decision_are_above_the_facts() {
        let dead = OutboxPart {
            state: MessageState::Dead,
            error: Some("no route".into()),
            because: None,
            behind: None,
            ..held()
        };
        let text = outbox(&Operator::new("ann", Role::Operator), &dead).into_string();
        let order =
            ["no route", "Requeue…", "Discard…", "Edit…", "<dt>Topic", "<dt>Enqueued", "<dt>Destination"];
        let places: Vec<usize> = order.iter().map(|told| text.find(told).expect(told)).collect();
        assert!(places.is_sorted(), "{text}");
    }

    /// Goal: of a message that is retried, an operator finds what can be done, and only that.
    /// Oracle: its buttons, and those of a viewer and of a held message.
    #[test]
    fn a_message_that_is_retried_can_be_discarded() {
        let retried = OutboxPart { state: MessageState::Retrying, because: None, behind: None, ..held() };
        let ann = Operator::new("ann", Role::Operator);
        let text = outbox(&ann, &retried).into_string();
        assert!(text.contains("action=\"/dead/confirm\"") && text.contains("Discard…"), "{text}");
        assert!(text.contains("name=\"row\" value=\"outbox/12/orders\""), "{text}");
        assert!(!text.contains("Requeue…") && !text.contains("Edit…"), "{text}");
        let eve = Operator::new("eve", Role::Viewer);
        for text in [outbox(&eve, &retried), outbox(&ann, &held())].map(Markup::into_string) {
            assert!(!text.contains("Discard…"), "{text}");
        }
    }

    /// Goal: the time of a checkpoint is not read as the time of the message. Oracle: the fact,
    /// which has no age.
    #[test]
    fn a_message_was_published_before_a_time() {
        let at = Some(OffsetDateTime::UNIX_EPOCH);
        let published = OutboxPart { state: MessageState::Published, published_by: at, ..held() };
        let text = outbox(&Operator::new("eve", Role::Viewer), &published).into_string();
        assert!(text.contains("<dt>Published</dt><dd>before <time"), "{text}");
        let fact = text.split("<dt>Published</dt>").nth(1).and_then(|rest| rest.split("</dd>").next());
        assert!(fact.is_some_and(|fact| !fact.contains("ago")), "{text}");
    }

    /// Goal: the same for a dead letter of a consumer, whose message has left the outbox. Oracle:
    /// the order of its page.
    #[test]
    fn a_dead_letter_is_above_the_message_that_was_published() {
        let published = OutboxPart {
            state: MessageState::Published,
            because: None,
            behind: None,
            parked_since: None,
            ..held()
        };
        let dead = InboxPart {
            error: Some("the amount is negative".into()),
            dead_letter: Some("01a21987-9bca-7af8-8184-ba681445d351".into()),
            ..at("billing", MessageState::Dead)
        };
        let story = |outbox: OutboxPart| Story {
            message_id: None,
            outboxes: vec![outbox],
            inboxes: vec![dead.clone()],
            decisions: vec![],
            away: vec![],
        };
        let text = shown_to_ann(&story(published));
        let order = ["the amount is negative", "Requeue…", "Outbox of", "<dt>Destination"];
        let places: Vec<usize> = order.iter().map(|told| text.find(told).expect(told)).collect();
        assert!(places.is_sorted(), "{text}");
        let text = shown_to_ann(&story(held()));
        assert!(text.find("Outbox of") < text.find("the amount is negative"), "it waits there: {text}");
    }

    /// Goal: the size before an edit is not taken for what was sent. Oracle: the names of the facts
    /// of a published message that was edited.
    #[test]
    fn the_size_before_an_edit_says_so() {
        let published = OutboxPart {
            state: MessageState::Published,
            edited: true,
            payload_bytes: Some(2_048),
            header_names: vec![String::from("tenant")],
            because: None,
            behind: None,
            parked_since: None,
            ..held()
        };
        assert!(published.is_before_edit());
        let text = outbox(&Operator::new("ann", Role::Operator), &published).into_string();
        for told in
            ["<dt>Payload before the edit</dt>", "<dt>Headers before the edit</dt>", "href=\"#decisions\""]
        {
            assert!(text.contains(told), "{told}: {text}");
        }
    }

    #[test]
    fn a_story_does_not_take_what_is_away_for_empty() {
        let away = vec![String::from("bills: connection refused")];
        let story = Story { message_id: None, outboxes: vec![], inboxes: vec![], decisions: vec![], away };
        let text = shown_to_ann(&story);
        for told in [
            "bills: connection refused",
            "In none of the outboxes that answer.",
            "None of the inboxes that answer has seen the message.",
            "No decisions about this message in the databases that answer.",
        ] {
            assert!(text.contains(told), "{told}: {text}");
        }
        let whole = shown_to_ann(&Story { away: vec![], ..story });
        assert!(whole.contains("retention has deleted it.") && !whole.contains("that answer"), "{whole}");
    }

    #[test]
    fn a_held_letter_leads_to_the_dead_letters_of_its_key() {
        let letter = InboxPart {
            error: Some(HOSTILE.to_owned()),
            dead_letter: Some(String::from("019f0000-0000-7000-8000-000000000001")),
            held_by_key: Some(String::from("a&b")),
            scope: Some(String::from("acme")),
            topic: Some(String::from("invoices")),
            ..at("billing", MessageState::Dead)
        };
        let text = inboxes(&Operator::new("eve", Role::Viewer), &[letter]).into_string();
        let link = "/dead?source=inbox&amp;consumer=billing&amp;scope=acme&amp;topic=invoices&amp;key=a%26b";
        assert!(text.contains(link), "not those of other tenants and topics: {text}");
        assert!(!text.contains("<script>") && !text.contains("Requeue"), "{text}");
    }

    #[test]
    fn text_is_read_and_bytes_are_numbers() {
        assert_eq!(readable("{\"a\":\"ä\"}".as_bytes()), ("text", "{\"a\":\"ä\"}".into(), true));
        let (kind, text, is_whole) = readable(&[0, 255, 1]);
        assert_eq!((kind, text.as_str(), is_whole), ("bytes", "00000000  00 ff 01\n", true));
        let long = "ä".repeat(TEXT_BYTES_MAX);
        let (kind, text, is_whole) = readable(format!("x{long}").as_bytes());
        assert!(kind == "text" && !is_whole && text.len() <= TEXT_BYTES_MAX);
        let (kind, _, is_whole) = readable(&vec![0xff; HEX_BYTES_MAX + 1]);
        assert_eq!((kind, is_whole), ("bytes", false));
    }

    #[test]
    fn a_payload_cannot_be_markup() {
        let bytes = b"</pre><script>alert(1)</script>".to_vec();
        let text = shown(&Payload { owner: "orders".into(), content_type: None, bytes }).into_string();
        assert!(!text.contains("<script>"), "{text}");
    }
}
