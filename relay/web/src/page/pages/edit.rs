//! Corrects a dead message of an outbox: its content in a form, then the edit, then what the audit
//! keeps of it.
//!
//! A text field must give back the bytes that it was given. Browsers send line breaks as CR LF, and
//! drop or hide other characters, so only texts without them are offered in one; others are named,
//! and stay as they are.

use std::sync::Arc;

use axum::Form;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Redirect, Response};
use maud::{Markup, html};
use message::{Headers, shield};
use operate::dead::{
    Change, Corrected, EditSent, Editable, Filter, MessageRef, SeenContent, edit, editable, edited, not_json,
    plan,
};
use operate::{OperateError, OperateErrorKind, Places, Role, Signed};
use uuid::Uuid;

use super::super::address::{to, with_query};
use super::super::again::{self, Again};
use super::super::answer::{Html, Problem};
use super::super::app::App;
use super::super::fields::{self, Fields};
use super::super::gate::Asker;
use super::super::layout::{
    Frame, Tab, bytes, cell, copyable, folded, form_token, maybe, save_buttons, whole, why_field,
};
use super::super::text::plain;
use super::message::readable;

/// Maximum size in bytes of a payload in the text field: encoded, up to six times as many.
const PAYLOAD_BYTES_MAX: usize = 16 << 10;
/// Maximum size in bytes of the headers in their text field.
const HEADERS_BYTES_MAX: usize = 4 << 10;

/// The address of the form with the new content.
const DECIDE: &str = "/message/edit/decide";

/// The field that accepts a payload that is not JSON although its content type says so.
const ACCEPT: &str = "accept_invalid_json";

/// The fields that may be longer than others.
const LONG: [&str; 2] = ["payload", "headers"];

/// `POST /message/edit`. Changes nothing; the audit records that the content was viewed.
pub(crate) async fn ask(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Form(form): Form<Fields>,
) -> Result<Html, Problem> {
    // Checked first: a user without the right opens no database.
    operator.permit(Role::Operator, "edit messages")?;
    form.check()?;
    let asked: MessageRef = form.need("id")?;
    let signed = again::signed(&operator, &form, "/message/edit", "edit messages")?;
    let _turn = app.turn().await?;
    let places = app.outboxes(form.text("pipeline"))?;
    let found = editable(&places, &signed, &asked).await;
    places.close().await;
    let found = found?;
    let title = format!("Edit message {}", found.seen.id);
    Ok(Html(Frame::new(Tab::Messages, &title).page(&fields_of(&found, &signed.note))))
}

/// `POST /message/edit/decide`. Leads to the message.
pub(crate) async fn decide(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Form(form): Form<Fields>,
) -> Result<Response, Problem> {
    operator.permit(Role::Operator, "edit messages")?;
    form.check_except(&LONG)?;
    let signed = again::signed(&operator, &form, DECIDE, "edit messages")?;
    // Work that has begun is completed even if the browser disconnects.
    shield(async move { Box::pin(carry_out(&app, &form, &signed)).await }).await
}

async fn carry_out(app: &App, form: &Fields, signed: &Signed) -> Result<Response, Problem> {
    let seen = SeenContent {
        pipeline: form.exact("pipeline").to_owned(),
        id: form.need("place")?,
        message_id: form.need::<Uuid>("message")?.to_string(),
        as_of: form.moment("as_of")?.ok_or_else(|| Problem::bad("the field as_of is missing"))?,
        digest: form.text("digest").to_owned(),
    };
    let again = || again::card(DECIDE, form);
    let corrected = Corrected {
        decision: form.need("decision")?,
        payload: new_payload(form).map_err(|problem| problem.with_form(again()))?,
        headers: new_headers(form).map_err(|problem| problem.with_form(again()))?,
    };
    if corrected.payload.is_none() && corrected.headers.is_none() {
        let problem = Problem::from(OperateError::refused("neither payload nor headers were changed", ""));
        return Err(Problem {
            help: Some(String::from("change one of them, and send the form again")),
            ..problem.with_form(again())
        });
    }
    let _turn = app.turn().await?;
    let places = app.outboxes(&seen.pipeline)?;
    let warned = async {
        let Some(payload) = corrected.payload.as_deref().filter(|_| !form.has(ACCEPT)) else {
            return Ok(None);
        };
        not_json(&places, &seen.pipeline, seen.id, payload).await
    };
    let warned = warned.await;
    if !matches!(warned, Ok(None)) {
        places.close().await;
        let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, warned?.unwrap_or_default());
        let offered = Again::of(DECIDE, form.clone()).map(|form| form.offering(ACCEPT).card());
        let help = "nothing was changed: correct the payload, or tick the box to save it as it is";
        return Err(problem.with_help(help).with_form(offered));
    }
    let done = async {
        let sent = edit(&places, signed, &seen, corrected).await?;
        match sent {
            _ if form.text("then") != "requeue" => Ok(()),
            EditSent::Now => requeue(&places, signed, &seen).await,
            EditSent::Before { was_requeued: true } => Ok(()),
            // A later decision may be a reason not to send it.
            EditSent::Before { was_requeued: false } => Err(not_requeued()),
        }
    };
    let done = Box::pin(done).await;
    places.close().await;
    app.surveys.forget();
    done?;
    let id = seen.id.to_string();
    let address = with_query("/message", &[("id", &*id), ("pipeline", &*seen.pipeline)]);
    Ok(Redirect::to(&address).into_response())
}

/// Returns the error of a form that was sent before without a requeue, and now asks for one.
fn not_requeued() -> OperateError {
    let text = "this form was sent before, and its edit is stored, but the message has not been requeued";
    OperateError::new(OperateErrorKind::Conflict, text).with_help("requeue it on its own page")
}

/// Requeues the message that was edited.
async fn requeue(places: &Places, signed: &Signed, seen: &SeenContent) -> Result<(), OperateError> {
    let edited = "it was edited, and is still dead: requeue it on its own page";
    let ids = seen.message_id.parse().into_iter().collect();
    let filter = Filter { ids, ..Filter::default() };
    let change = Change::Requeue { accept_late: false };
    let done = async {
        let plan = plan(places, &signed.operator, &filter, &change).await?;
        plan.carry_out(places, signed, &change, |_| ()).await
    };
    let report = done.await.map_err(|error: OperateError| error.with_help(edited))?;
    match report.error {
        Some(error) => Err(error.with_help(edited)),
        None => Ok(()),
    }
}

/// `POST /message/edit/content`. Shows what an edit has changed; the audit records who viewed it.
pub(crate) async fn changed(
    Asker(operator): Asker,
    State(app): State<Arc<App>>,
    Form(form): Form<Fields>,
) -> Result<Html, Problem> {
    operator.permit(Role::Operator, "view payloads")?;
    form.check()?;
    let number: i64 = form.need("number")?;
    let pipeline = form.exact("pipeline");
    let signed = again::signed(&operator, &form, "/message/edit/content", "view payloads")?;
    let _turn = app.turn().await?;
    let places = app.outboxes(pipeline)?;
    let found = edited(&places, &signed, pipeline, number).await;
    places.close().await;
    let found = found?;
    let body = html! {
        @for (title, payload, headers) in [
            ("Before", &found.payload_before, &found.headers_before),
            ("After", &found.payload_after, &found.headers_after),
        ] {
            section class="card" {
                h2 { (title) }
                h3 { "Headers" }
                (kept_headers(headers.as_deref()))
                h3 { "Payload" }
                (kept_payload(payload.as_deref()))
            }
        }
        p { a class="button" href=(with_query("/message", &[("id", form.text("id")), ("pipeline", pipeline)])) { "Back to the message" } }
    };
    Ok(Html(Frame::new(Tab::Messages, &format!("Edit {number}")).page(&body)))
}

const NOT_KEPT: &str = "Not kept: larger than 64 KiB. The audit has only its SHA-256.";

fn kept_payload(payload: Option<&[u8]>) -> Markup {
    let Some(payload) = payload else { return html! { p class="notice" { (NOT_KEPT) } } };
    let (kind, text, is_whole) = readable(payload);
    html! {
        p { (bytes(payload.len() as u64)) ", shown as " (kind) "." }
        @if !is_whole { p class="notice" { "Only the beginning is shown." } }
        pre class="payload" tabindex="0" { (text) }
    }
}

fn kept_headers(headers: Option<&[u8]>) -> Markup {
    let Some(json) = headers else { return html! { p class="notice" { (NOT_KEPT) } } };
    match serde_json::from_slice::<Headers>(json) {
        Ok(headers) if headers.is_empty() => html! { p { "None." } },
        Ok(headers) => html! { pre class="payload" tabindex="0" { (plain(&lines(&headers))) } },
        Err(_) => html! { pre class="payload" tabindex="0" { (plain(&String::from_utf8_lossy(json))) } },
    }
}

/// Renders the message and the fields for its new content.
fn fields_of(found: &Editable, reason: &str) -> Markup {
    let seen = &found.seen;
    let payload = match &found.payload {
        Some(payload) => payload_text(payload),
        None => Err(format!(
            "It has {} bytes; the maximum in a text field is {PAYLOAD_BYTES_MAX}",
            found.payload_bytes
        )),
    };
    let headers = match &found.headers {
        Some(headers) => headers_text(headers),
        None => Err(String::from("They are not those of a valid message, or larger than 64 KiB")),
    };
    let command = format!("relay dead edit --pipeline {} --id {}", seen.pipeline, seen.id);
    html! {
        details class="notice" id="keeps" {
            summary { "The message keeps its id, topic and key. What that means…" }
            p {
                "A consumer that has applied an earlier attempt does not apply it twice: it refuses another payload under this id, and ignores a change of headers alone. "
                "Do not change the header that names the tenant: the message of another tenant takes effect once more. "
                "To send it with another topic or key, discard it and enqueue it again with a new id."
            }
        }
        form method="post" action=(to(DECIDE)) class="card" {
            (form_token())
            input type="hidden" name="decision" value=(Uuid::now_v7());
            input type="hidden" name="pipeline" value=(seen.pipeline);
            input type="hidden" name="place" value=(seen.id);
            input type="hidden" name="message" value=(seen.message_id);
            input type="hidden" name="as_of" value=(fields::moment(seen.as_of));
            input type="hidden" name="digest" value=(seen.digest);
            dl class="facts" {
                div { dt { "Message id" } dd { (copyable("message id", &seen.message_id)) } }
                div { dt { "Topic" } dd { (cell(&found.topic)) } }
                div { dt { "Key" } dd { (maybe(found.key.as_deref())) } }
                div { dt { "Content type" } dd { (maybe(found.content_type.as_deref())) } }
                div { dt { "Payload" } dd { (bytes(found.payload_bytes)) } }
                @if found.was_edited { div { dt { "Edited" } dd { "before, by an operator" } } }
            }
            @if let Some(error) = &found.error {
                h3 { "Last error" }
                (folded("error", "error", error))
            }
            @match &headers {
                Ok(text) => {
                    label { "Headers, one name=value in each line"
                        // The first line break after the tag belongs to the markup.
                        textarea name="headers" rows="5" maxlength=(HEADERS_BYTES_MAX) spellcheck="false" autocomplete="off" { "\n" (text) }
                    }
                    input type="hidden" name="headers_before" value=(sum(text));
                }
                Err(why) => { p class="notice" { "Headers: " (whole(why)) ", so they stay as they are. " (other(&command, "--header NAME=VALUE")) } }
            }
            @match &payload {
                Ok(text) => {
                    label { "Payload"
                        textarea name="payload" rows="20" maxlength=(PAYLOAD_BYTES_MAX) spellcheck="false" autocomplete="off" { "\n" (text) }
                    }
                    input type="hidden" name="payload_before" value=(sum(text));
                }
                Err(why) => { p class="notice" { "Payload: " (whole(why)) ", so it stays as it is. " (other(&command, "--payload-file FILE")) } }
            }
            @if payload.is_ok() || headers.is_ok() {
                p class="faint" { "You gave this reason to see it: " (cell(reason)) }
                (why_field(""))
                (save_buttons())
            }
            p { a class="button" href=(with_query("/message", &[("id", &*seen.id.to_string()), ("pipeline", &*seen.pipeline)])) { "Back to the message" } }
        }
    }
}

fn other(command: &str, option: &str) -> Markup {
    html! { "In a terminal: " code { (plain(command)) " " (option) } }
}

/// Returns a payload as a text that a browser sends back unchanged, or the reason why there is
/// none.
fn payload_text(payload: &[u8]) -> Result<&str, String> {
    if payload.len() > PAYLOAD_BYTES_MAX {
        return Err(format!(
            "It has {} bytes; the maximum in a text field is {PAYLOAD_BYTES_MAX}",
            payload.len()
        ));
    }
    let text = std::str::from_utf8(payload)
        .map_err(|error| format!("It is not text: byte {} is not UTF-8", error.valid_up_to()))?;
    if text.contains('\r') {
        return Err(String::from("It has carriage returns, which a browser changes"));
    }
    if plain(text) != text {
        return Err(String::from("It has characters that a text field hides or drops"));
    }
    Ok(text)
}

/// Returns headers as lines that a browser sends back unchanged, or the reason why there are none.
fn headers_text(headers: &Headers) -> Result<String, String> {
    let text = lines(headers);
    if text.len() > HEADERS_BYTES_MAX {
        return Err(format!(
            "They have {} bytes; the maximum in a text field is {HEADERS_BYTES_MAX}",
            text.len()
        ));
    }
    if plain(&text) != text || read_lines(&text).is_none_or(|read| read != *headers) {
        return Err(String::from("They have characters that a text field hides or drops"));
    }
    Ok(text)
}

fn lines(headers: &Headers) -> String {
    headers.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("\n")
}

fn read_lines(text: &str) -> Option<Headers> {
    parse_headers(text).ok()
}

/// Parses lines of headers. An empty line is none.
fn parse_headers(text: &str) -> Result<Headers, String> {
    let mut headers = Headers::new();
    for (number, line) in text.split('\n').enumerate().filter(|(_, line)| !line.is_empty()) {
        let number = number + 1;
        let Some((name, value)) = line.split_once('=') else {
            return Err(format!("line {number} of the headers has no =: write NAME=VALUE"));
        };
        if headers.get(name).is_some() {
            return Err(format!("line {number} of the headers: {name} is given twice"));
        }
        headers.insert(name, value).map_err(|error| format!("line {number} of the headers: {error}"))?;
    }
    Ok(headers)
}

/// Returns a number by which a text is recognised as unchanged.
fn sum(text: &str) -> String {
    use sha2::{Digest as _, Sha256};
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the text of a field as it was before the browser sent it; `None` if the form has no such
/// field or the text was not changed.
fn typed(form: &Fields, name: &str, bytes_max: usize) -> Result<Option<String>, Problem> {
    let Some(sent) = form.all(name).next() else { return Ok(None) };
    let text = sent.replace("\r\n", "\n");
    if sum(&text) == form.text(&format!("{name}_before")) {
        return Ok(None);
    }
    if text.len() > bytes_max {
        let problem =
            format!("the {name} have {} bytes; the maximum in this form is {bytes_max}", text.len());
        let problem = if name == "payload" { problem.replace(" have ", " has ") } else { problem };
        let help = "nothing was changed: use `relay dead edit` for more";
        return Err(Problem::bad(problem).with_help(help));
    }
    Ok(Some(text))
}

fn new_payload(form: &Fields) -> Result<Option<Vec<u8>>, Problem> {
    Ok(typed(form, "payload", PAYLOAD_BYTES_MAX)?.map(String::into_bytes))
}

fn new_headers(form: &Fields) -> Result<Option<Headers>, Problem> {
    let Some(text) = typed(form, "headers", HEADERS_BYTES_MAX)? else { return Ok(None) };
    parse_headers(&text).map(Some).map_err(|problem| Problem::bad(problem).with_help("nothing was changed"))
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;

    use super::*;

    const HOSTILE: &str = "</textarea><script>alert(1)</script>\"'";

    fn found(payload: Option<&[u8]>) -> Editable {
        let mut headers = Headers::new();
        headers.insert("tenant", HOSTILE).unwrap();
        Editable {
            seen: SeenContent {
                pipeline: String::from("orders"),
                id: 7,
                message_id: String::from("019f0000-0000-7000-8000-000000000001"),
                as_of: OffsetDateTime::UNIX_EPOCH,
                digest: String::from("d1"),
            },
            topic: HOSTILE.to_owned(),
            key: Some(HOSTILE.to_owned()),
            content_type: Some(HOSTILE.to_owned()),
            payload_bytes: payload.map_or(70_000, |payload| payload.len() as u64),
            payload: payload.map(<[u8]>::to_vec),
            headers: Some(headers),
            was_edited: true,
            error: Some(format!("2017 bytes; at most 1000{HOSTILE}")),
        }
    }

    fn form(pairs: &[(&str, &str)]) -> Fields {
        Fields::of(pairs)
    }

    #[test]
    fn content_cannot_be_markup_and_says_what_the_id_means() {
        let text = fields_of(&found(Some(HOSTILE.as_bytes())), HOSTILE).into_string();
        assert!(!text.contains("<script>"), "{text}");
        assert_eq!(text.matches("</textarea>").count(), 2, "{text}");
        for told in ["keeps its id, topic and key", "does not apply it twice", "name=\"digest\" value=\"d1\""]
        {
            assert!(text.contains(told), "{told}: {text}");
        }
    }

    /// Goal: the limit that an edit has to keep is beside the payload, and each button says whether
    /// the message is sent. Oracle: the order of the form.
    #[test]
    fn the_error_is_above_the_payload() {
        let text = fields_of(&found(Some(b"{}")), "why").into_string();
        let order = [
            "at most 1000",
            "name=\"payload\"",
            "name=\"reason\"",
            "Save and requeue",
            "Save, leave it dead",
        ];
        let places: Vec<usize> = order.iter().map(|told| text.find(told).expect(told)).collect();
        assert!(places.is_sorted(), "{text}");
    }

    /// Goal: no byte changes that the operator has not changed. Oracle: payloads that a browser
    /// would send back otherwise are named, and have no field; the others come back as they were.
    #[test]
    fn what_a_text_field_would_change_is_not_in_one() {
        let long = vec![b'x'; PAYLOAD_BYTES_MAX + 1];
        for (payload, why) in [
            (&b"caf\xe9"[..], "byte 3 is not UTF-8"),
            (b"a\r\nb", "carriage returns"),
            (b"a\rb", "carriage returns"),
            (b"a\0b", "hides or drops"),
            ("a\u{202e}b".as_bytes(), "hides or drops"),
            (&long, "It has 16385 bytes; the maximum in a text field is 16384"),
        ] {
            let text = fields_of(&found(Some(payload)), "why").into_string();
            assert!(text.contains(why) && !text.contains("name=\"payload\""), "{why}: {text}");
            assert!(text.contains("relay dead edit --pipeline orders --id 7 --payload-file FILE"), "{text}");
            assert!(text.contains("name=\"headers\""), "headers alone can be edited: {text}");
        }
        let too_large = fields_of(&found(None), "why").into_string();
        assert!(too_large.contains("It has 70000 bytes"), "{too_large}");
        for payload in ["", "\n\nfirst line breaks", "{\"a\": \"ä\"}\n", " spaces "] {
            let text = payload_text(payload.as_bytes()).unwrap();
            let sent = text.replace('\n', "\r\n");
            let back = form(&[("payload", &*sent), ("payload_before", &*sum(text))]);
            assert_eq!(new_payload(&back).unwrap(), None, "{payload:?} was not changed");
            let changed = form(&[("payload", &*format!("{sent}!")), ("payload_before", &*sum(text))]);
            assert_eq!(new_payload(&changed).unwrap(), Some(format!("{payload}!").into_bytes()));
        }
    }

    #[test]
    fn headers_are_lines_and_their_limits_are_named() {
        let text = "tenant=a=b\nempty=\n\nspaces= x ";
        let headers = parse_headers(text).unwrap();
        assert_eq!(
            (headers.len(), headers.get("tenant"), headers.get("spaces")),
            (3, Some("a=b"), Some(" x "))
        );
        assert_eq!(headers_text(&headers).unwrap(), "empty=\nspaces= x \ntenant=a=b");
        for (wrong, why) in [
            ("tenant", "line 1 of the headers has no ="),
            ("a=1\na=2", "line 2 of the headers: a is given twice"),
            ("ce_type=x", "line 1 of the headers:"),
        ] {
            let refused = new_headers(&form(&[("headers", wrong)])).unwrap_err();
            assert!(refused.message.contains(why), "{why}: {refused:?}");
        }
        let long = format!("a={}", "x".repeat(HEADERS_BYTES_MAX));
        let refused = new_headers(&form(&[("headers", &*long)])).unwrap_err();
        assert!(
            refused.message.contains("the headers have 4098 bytes; the maximum in this form is 4096"),
            "{refused:?}"
        );
        let long = "x".repeat(PAYLOAD_BYTES_MAX + 1);
        let refused = new_payload(&form(&[("payload", &*long)])).unwrap_err();
        assert!(refused.message.contains("the payload has 16385 bytes"), "{refused:?}");
        // A form without the field keeps what there is.
        assert!(new_headers(&form(&[])).unwrap().is_none() && new_payload(&form(&[])).unwrap().is_none());
    }

    #[test]
    fn what_the_audit_keeps_cannot_be_markup() {
        let json = format!("{{\"tenant\":{}}}", serde_json::to_string(HOSTILE).unwrap());
        let text = format!(
            "{}{}",
            kept_headers(Some(json.as_bytes())).into_string(),
            kept_payload(Some(HOSTILE.as_bytes())).into_string()
        );
        assert!(text.contains("tenant=") && !text.contains("<script>"), "{text}");
        assert!(kept_payload(None).into_string().contains("Not kept"));
        assert!(kept_headers(Some(b"{}")).into_string().contains("None."));
        assert!(kept_payload(Some(&[0xff])).into_string().contains("shown as bytes"));
    }
}
