//! The story of a message, and its payload for an operator who gives a reason.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::Form;
use axum::extract::{Query, State};
use axum::http::Uri;
use maud::{Markup, html};
use operate::dead::MessageRef;
use operate::payload::{Payload, payload as read_payload};
use operate::story::{InboxPart, OutboxPart, Story, story};
use operate::{MessageState, Operator, Role, Signed};

use super::super::address::to;
use super::super::answer::{Html, Problem};
use super::super::app::App;
use super::super::fields::Fields;
use super::super::gate::Asker;
use super::super::layout::{
    Frame, Tab, badge, bytes, cell, count, form_token, may_decide, maybe, maybe_since, signature, whole,
};
use super::super::list::{Column, Kind, column, list};
use super::super::text::plain;
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
) -> Result<Html, Problem> {
    query.check()?;
    let asked: MessageRef = query.need("id")?;
    let turn = app.turn().await?;
    let places = app.with_inboxes(app.outboxes(query.text("pipeline"))?, "").await;
    let told = story(&places, &operator, &asked).await;
    places.close().await;
    drop(turn);
    let told = told?;
    let title = format!("Message {}", told.message_id.as_deref().unwrap_or(query.text("id")));
    let body = page(&operator, &query, &told);
    Ok(Html(Frame::new(Tab::Messages, &title).live(&uri).page(&body)))
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
    let signed = Signed { operator: operator.clone(), reason: form.text("reason").to_owned() };
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
            div class="notice bad" role="alert" { strong { "Some data is missing: " } (cell(&story.away.join("; "))) }
        }
        @for part in &story.outboxes { (outbox(operator, part)) }
        @if story.outboxes.is_empty() {
            p class="notice" { "In none of the outboxes: it comes from another system, or retention has deleted it." }
        }
        h2 { "At consumers" }
        @if story.inboxes.is_empty() {
            p class="empty" { "No inbox is configured, or no inbox has seen the message." }
        } @else {
            (inboxes(operator, &story.inboxes))
        }
        h2 { "Decisions" }
        @if decisions.is_empty() { p class="empty" { "No decisions about this message." } }
        @else { (audit::table(&decisions)) }
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

fn outbox(operator: &Operator, part: &OutboxPart) -> Markup {
    let number = part.attempts.map(|attempts| count(attempts.into()));
    let edited = if part.is_before_edit() {
        "by an operator; payload and headers are shown as they were before"
    } else {
        "by an operator"
    };
    html! {
        section class="card" {
            div class="card-head" { h2 { "Outbox of " (cell(&part.pipeline)) } (badge(part.state)) }
            @if let Some(because) = &part.because { p class="waits-line" { (if part.state == MessageState::LeftOut { "Excluded: " } else { "Why: " }) (whole(because)) } }
            dl class="facts" {
                (fact("Position in the log", &maybe(Some(&part.id.to_string()))))
                (fact("Topic", &cell(&part.topic)))
                (fact("Key", &maybe(part.key.as_deref())))
                (fact("Event type", &cell(&part.kind)))
                (fact("Destination", &cell(&part.destination)))
                (fact("Enqueued", &maybe_since(part.enqueued_at)))
                (fact("Transaction", &maybe(part.transaction.as_deref())))
                (fact("Not before", &maybe_since(part.deliver_at)))
                (fact("Published before", &maybe_since(part.published_by)))
                (fact("Parked since", &maybe_since(part.parked_since)))
                (fact("Failed attempts", &maybe(number.as_deref())))
                (fact("Content type", &maybe(part.content_type.as_deref())))
                (fact("Payload", &maybe(part.payload_bytes.map(bytes).as_deref())))
                (fact("Headers", &maybe(Some(part.header_names.join(", ")).filter(|it| !it.is_empty()).as_deref())))
                (fact("Trace", &maybe(part.traceparent.as_deref())))
                (fact("Edited", &maybe(part.edited.then_some(edited))))
            }
            @if let Some(error) = &part.error {
                h3 { "Last error" }
                pre class="error" { (plain(error)) }
            }
            @if part.state == MessageState::Dead && may_decide(operator) {
                (decide(&format!("outbox/{}/{}", part.id, part.pipeline)))
            }
        }
    }
}

fn decide(row: &str) -> Markup {
    html! {
        form method="post" action=(to("/dead/confirm")) class="actions" {
            (form_token())
            input type="hidden" name="row" value=(row);
            button name="what" value="requeue" { "Requeue…" }
            button name="what" value="discard" class="danger" { "Discard…" }
        }
    }
}

const COLUMNS: [Column; 9] = [
    column("Consumer", Kind::Name),
    column("Scope", Kind::Key),
    column("State", Kind::State),
    column("At", Kind::Time),
    column("Result", Kind::Number),
    column("Attempts", Kind::Number),
    column("Next attempt", Kind::Time),
    column("Error", Kind::Why),
    column("Actions", Kind::Act),
];

fn inboxes(operator: &Operator, parts: &[InboxPart]) -> Markup {
    list("Consumers", &COLUMNS, parts.iter().map(|part| inbox(operator, part)))
}

fn inbox(operator: &Operator, part: &InboxPart) -> Vec<Markup> {
    vec![
        cell(&part.consumer),
        maybe(part.scope.as_deref()),
        badge(part.state),
        maybe_since(part.at),
        maybe(part.result_bytes.map(bytes).as_deref()),
        maybe(part.attempts.map(|it| it.to_string()).as_deref()),
        maybe_since(part.next_at),
        maybe(part.error.as_deref()),
        html! {
            @if let (Some(letter), MessageState::Dead, true) = (&part.dead_letter, part.state, may_decide(operator)) {
                (decide(&format!("inbox/{letter}/{}", part.consumer)))
            }
        },
    ]
}

fn fact(name: &str, value: &Markup) -> Markup {
    html! { div { dt { (name) } dd { (value) } } }
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
fn readable(bytes: &[u8]) -> (&'static str, String, bool) {
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
    use super::*;

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
