//! Corrects one dead message of an outbox after an operator has seen it: its content first, then
//! the edit of exactly this content, then what the audit keeps of it.
//!
//! Topic and key cannot be edited. They decide which messages wait behind this one, and in which
//! order they leave: a message that changed its key would pass those that it was to follow.

use message::Headers;
use outbox_log::EntryId;
use outbox_log::ExceptionState;
use outbox_log::admin::{
    AuditRecord, CONTENT_KEPT_BYTES_MAX, ChosenEntry, Confirmed, DecideError, Decision, DecisionRecord,
    EditRecord, OperatorDecision, ParkedContent,
};
use outbox_log::entries::{EntryRef, FoundEntry};
use time::OffsetDateTime;
use uuid::Uuid;

use super::decide::LOOK_BACK;
use super::filter::MessageRef;
use super::outcome::outcome;
use crate::error::{OperateError, OperateErrorKind};
use crate::operator::Signed;
use crate::payload;
use crate::places::{OutboxPlace, Places};

/// A dead message with the content that is to be corrected. `Debug` prints no content.
#[derive(Clone, PartialEq, Eq)]
pub struct Editable {
    /// The message, as it was shown.
    pub seen: SeenContent,
    /// Its topic.
    pub topic: String,
    /// Its ordering key.
    pub key: Option<String>,
    /// Its media type.
    pub content_type: Option<String>,
    /// The size of its payload in bytes.
    pub payload_bytes: u64,
    /// Its payload; `None` when it has more than 64 KiB.
    pub payload: Option<Vec<u8>>,
    /// Its headers; `None` when they are larger than 64 KiB or cannot be read.
    pub headers: Option<Headers>,
    /// Whether an operator has edited it before.
    pub was_edited: bool,
    /// The last error, for which it is edited.
    pub error: Option<String>,
}

impl std::fmt::Debug for Editable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Editable").field("seen", &self.seen).finish_non_exhaustive()
    }
}

/// The message as it was shown to an operator: an edit covers only this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenContent {
    /// The pipeline.
    pub pipeline: String,
    /// The place in the log.
    pub id: i64,
    /// The message id, which an edit keeps.
    pub message_id: String,
    /// The time of its last change, by the database's clock.
    pub as_of: OffsetDateTime,
    /// The SHA-256 of payload and headers.
    pub digest: String,
}

/// The new content of a message. `Debug` prints no content.
#[derive(Clone, PartialEq, Eq)]
pub struct Corrected {
    /// The id of the decision: sent twice, it is one.
    pub decision: Uuid,
    /// The new payload; `None` keeps the old one.
    pub payload: Option<Vec<u8>>,
    /// All new headers; `None` keeps the old ones.
    pub headers: Option<Headers>,
}

impl std::fmt::Debug for Corrected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Corrected").field("decision", &self.decision).finish_non_exhaustive()
    }
}

/// The outcome of an edit, by whether it was sent before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EditSent {
    /// The content was replaced by this call.
    Now,
    /// The form had been sent before, with the same content: this call changed nothing.
    Before {
        /// Whether the message has been requeued since that edit.
        was_requeued: bool,
    },
}

/// Reads the content of a dead message of an outbox, to be corrected. The audit records operator
/// and reason before the content is returned.
///
/// # Errors
/// [`OperateError`] when the operator may not edit messages, gave no reason, when no outbox or more
/// than one has the message, when it is not dead, or its content is too large to be compared.
pub async fn editable(
    places: &Places,
    signed: &Signed,
    asked: &MessageRef,
) -> Result<Editable, OperateError> {
    signed.check("edit messages")?;
    let (place, entry) = one(places, asked).await?;
    let of_place = |error: OperateError| error.about(&place.pipeline);
    let parked = entry.parked.as_ref().filter(|parked| parked.state == ExceptionState::Dead);
    let Some(parked) = parked else {
        return Err(of_place(not_dead(place, asked, &entry).await));
    };
    let chosen =
        ChosenEntry { id: entry.id, message_id: entry.message_id.clone(), edited_at: parked.edited_at };
    let found = place.log.content(&place.pipeline, &chosen).await.map_err(|error| of_place(error.into()))?;
    let Some(found) = found else { return Err(of_place(not_dead(place, asked, &entry).await)) };
    let Some(digest) = found.digest() else { return Err(of_place(too_large(&chosen, &found))) };
    let looked_at = payload::looked_at(&format!("message {}", entry.message_id), &entry.topic);
    payload::note(place, signed, &looked_at).await.map_err(of_place)?;
    Ok(Editable {
        seen: SeenContent {
            pipeline: place.pipeline.to_string(),
            id: entry.id.0,
            message_id: entry.message_id,
            as_of: parked.edited_at.map_or(parked.changed_at, |edited_at| edited_at.max(parked.changed_at)),
            digest,
        },
        topic: entry.topic,
        key: entry.key,
        content_type: entry.content_type,
        payload_bytes: found.payload_bytes,
        headers: headers(&found),
        payload: found.payload,
        was_edited: parked.edited_at.is_some(),
        error: parked.error.clone(),
    })
}

/// Replaces the content that was shown, and no other: a message that was requeued, discarded, has
/// died again or was edited since is left as it is. The message stays dead, and keeps its id, topic
/// and key. The audit keeps the content before and after. A decision that is sent again changes
/// nothing. Not cancel-safe: show the message again.
///
/// # Errors
/// [`OperateError`] when the operator may not edit messages, gave no reason, when nothing is
/// changed, when the message is not as it was shown, or when the decision was sent before with
/// another content.
pub async fn edit(
    places: &Places,
    signed: &Signed,
    seen: &SeenContent,
    corrected: Corrected,
) -> Result<EditSent, OperateError> {
    signed.check("edit messages")?;
    let place = named(places, &seen.pipeline)?;
    // Its content is compared by the digest.
    let message_id = seen.message_id.clone();
    let chosen = ChosenEntry { id: EntryId(seen.id), message_id, edited_at: None };
    let of_place = |error: OperateError| error.about(&place.pipeline);
    let mut desk = place.desk().await;
    let before = desk.decision(corrected.decision).await.map_err(|error| of_place(error.into()))?;
    if let Some(before) = before.filter(|before| before.signature.actor == signed.operator.name()) {
        return sent_before(place, &chosen, &before, &corrected).await.map_err(of_place);
    }
    let decree = OperatorDecision {
        decision: Decision::Edit {
            payload: corrected.payload.map(Into::into),
            headers: corrected.headers,
            replaces: Some(seen.digest.clone()),
        },
        signature: signed.signature(Some(format!("id={}: 1 chosen", seen.id))),
    };
    let confirmed = Confirmed { id: corrected.decision, as_of: seen.as_of };
    let done = desk.decide(std::slice::from_ref(&chosen), &decree, Some(confirmed)).await;
    let verdict = done.and_then(|verdicts| verdicts.into_iter().next().unwrap_or(Ok(())));
    match verdict {
        Ok(()) => Ok(EditSent::Now),
        Err(
            error @ (DecideError::NotDead { .. }
            | DecideError::NoSuchEntry { .. }
            | DecideError::Trying { .. }),
        ) => {
            let told = match chosen.message_id.parse::<MessageRef>() {
                Ok(asked) => outcome(place, &asked).await.ok().flatten(),
                Err(_) => None,
            };
            let told = told.unwrap_or_else(|| error.to_string());
            let changed = OperateError::new(OperateErrorKind::Conflict, told);
            Err(of_place(changed.with_help("nothing was changed: show the message again")))
        }
        Err(error) => Err(of_place(error.into())),
    }
}

/// Compares a form with the edit that it made before.
async fn sent_before(
    place: &OutboxPlace,
    chosen: &ChosenEntry,
    before: &DecisionRecord,
    corrected: &Corrected,
) -> Result<EditSent, OperateError> {
    let message = Uuid::parse_str(&chosen.message_id).unwrap_or_default();
    let records = place.log.audit_of(&place.pipeline, message, LOOK_BACK).await?;
    let is_same = |record: &&AuditRecord| {
        (record.action.as_str(), &record.signature.actor, record.at)
            == ("edit", &before.signature.actor, before.first)
    };
    if let Some(made) = records.iter().find(is_same)
        && let Some(kept) = place.log.edit(&place.pipeline, made.number).await?
        && has_made(corrected, &kept)
    {
        let is_later = |record: &AuditRecord| record.number > made.number && record.action == "requeue";
        return Ok(EditSent::Before { was_requeued: records.iter().any(is_later) });
    }
    let text = "this form was sent before, with another content, and that edit is stored";
    let refused = OperateError::new(OperateErrorKind::Conflict, text);
    Err(refused.with_help("nothing was changed now: show the message again"))
}

/// Returns whether an edit has produced the content that a form requests.
fn has_made(corrected: &Corrected, kept: &EditRecord) -> bool {
    let payload = match &corrected.payload {
        Some(payload) => kept.payload_after.as_ref() == Some(payload),
        None => kept.payload_after == kept.payload_before,
    };
    let parsed = |json: &Option<Vec<u8>>| serde_json::from_slice::<Headers>(json.as_deref()?).ok();
    let headers = match &corrected.headers {
        Some(headers) => parsed(&kept.headers_after).as_ref() == Some(headers),
        None => kept.headers_after == kept.headers_before,
    };
    payload && headers
}

pub(super) fn named<'a>(places: &'a Places, pipeline: &str) -> Result<&'a OutboxPlace, OperateError> {
    let found = places.outboxes.iter().find(|place| place.pipeline.as_str() == pipeline);
    found.ok_or_else(|| {
        OperateError::new(OperateErrorKind::Refused, format_args!("no pipeline is called {pipeline:?}"))
    })
}

/// Finds a message that one outbox has. A message id belongs to one log, so an outbox that does not
/// answer does not matter once another one has it; any outbox may have a place in the log.
pub(super) async fn one<'a>(
    places: &'a Places,
    asked: &MessageRef,
) -> Result<(&'a OutboxPlace, FoundEntry), OperateError> {
    let which = asked.place().map(|id| EntryRef::Id(EntryId(id))).or(asked.uuid().map(EntryRef::MessageId));
    let mut found = Vec::new();
    let mut away = None;
    if let Some(which) = which {
        for place in &places.outboxes {
            match place.entries.find(&place.pipeline, which).await {
                Ok(entries) => found.extend(entries.into_iter().map(|entry| (place, entry))),
                Err(error) => {
                    away.get_or_insert_with(|| OperateError::from(error).about(&place.pipeline));
                }
            }
        }
    }
    let is_sure = matches!(which, Some(EntryRef::MessageId(_))) && !found.is_empty();
    if let Some(error) = away.filter(|_| !is_sure) {
        return Err(error);
    }
    if found.len() > 1 {
        let text = format_args!("{} messages of the outboxes match {asked}", found.len());
        return Err(OperateError::refused(text, "name the pipeline"));
    }
    found.pop().ok_or_else(|| {
        let text = format_args!("no outbox has the message {asked}");
        OperateError::refused(text, "an inbox keeps messages as they arrived: they cannot be edited")
    })
}

async fn not_dead(place: &OutboxPlace, asked: &MessageRef, entry: &FoundEntry) -> OperateError {
    let told = outcome(place, asked).await.ok().flatten();
    let told = told.unwrap_or_else(|| match &entry.parked {
        Some(parked) if parked.state == ExceptionState::Dead => {
            format!(
                "the content of message {asked} cannot be read: it left meanwhile, or the log lacks its row"
            )
        }
        Some(parked) => format!("message {asked} is {}; only dead messages can be edited here", parked.state),
        None => format!("message {asked} is not parked: only dead messages can be edited"),
    });
    OperateError::new(OperateErrorKind::Conflict, told).with_help("show the message again")
}

fn too_large(chosen: &ChosenEntry, found: &ParkedContent) -> OperateError {
    let part = if found.payload.is_none() {
        format!("a payload of {} bytes", found.payload_bytes)
    } else {
        String::from("large headers")
    };
    let text = format!(
        "message {} has {part}; the maximum that is edited here is {CONTENT_KEPT_BYTES_MAX} bytes",
        chosen.message_id
    );
    OperateError::refused(text, format_args!("use `relay dead edit --id {} --payload-file FILE`", chosen.id))
}

/// Checks the new payload of a message of an outbox by the message's content type. Returns the
/// warning for one that has to be JSON and is not: the relay would publish it, and consumers would
/// fail. Changes nothing. Cancel-safe.
///
/// # Errors
/// [`OperateError`] when the pipeline is not one of `places`, or its database does not answer.
pub async fn not_json(
    places: &Places,
    pipeline: &str,
    id: i64,
    payload: &[u8],
) -> Result<Option<String>, OperateError> {
    let place = named(places, pipeline)?;
    let found = place.entries.find(&place.pipeline, EntryRef::Id(EntryId(id))).await;
    let found = found.map_err(|error| OperateError::from(error).about(&place.pipeline))?;
    // A message that is not there is an error of the edit.
    let content_type = found.first().and_then(|entry| entry.content_type.as_deref());
    Ok(content_type.and_then(|content_type| invalid_json(content_type, payload)))
}

/// Returns the warning for a payload that has to be JSON by its content type and is not.
fn invalid_json(content_type: &str, payload: &[u8]) -> Option<String> {
    let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if !(kind.ends_with("/json") || kind.ends_with("+json")) {
        return None;
    }
    let problem = match std::str::from_utf8(payload) {
        Ok(text) => serde_json::from_str::<serde::de::IgnoredAny>(text).err()?.to_string(),
        Err(error) => format!("byte {} is not UTF-8", error.valid_up_to()),
    };
    Some(format!("the content type is {content_type}, and the new payload is not JSON: {problem}"))
}

/// Returns the headers of a message, if they are those of a valid one.
fn headers(found: &ParkedContent) -> Option<Headers> {
    match &found.headers {
        None => (!found.has_headers).then(Headers::new),
        Some(json) => serde_json::from_slice(json).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::{Operator, Role};
    use crate::sample::Sample;

    fn signed(role: Role, reason: &str) -> Signed {
        Signed { operator: Operator::new("eve", role), note: reason.into() }
    }

    /// Goal: a message can be corrected while the database of another pipeline is away, if its id
    /// names it. Oracle: what is found of two outboxes, of which one has no file.
    #[tokio::test]
    async fn another_outbox_that_is_away_matters_only_for_places_in_the_log() {
        let (sample, mut away) = (Sample::open().await, Sample::open().await);
        let id = "019f0000-0000-7000-8000-000000000001";
        let row =
            format!("INSERT INTO outbox_message (message_id, topic, payload) VALUES ('{id}', 't', x'')");
        sample.run(&row).await;
        away.pipeline.name = outbox_log::RelayName::new("mails").unwrap();
        std::fs::remove_file(away.path()).unwrap();
        let places = Places::new().outbox(&sample.pipeline).outbox(&away.pipeline);
        let found = one(&places, &id.parse().unwrap()).await.unwrap();
        assert_eq!((found.0.pipeline.as_str(), found.1.id), ("orders", EntryId(1)));
        let other = "019f0000-0000-7000-8000-000000000002".parse().unwrap();
        for asked in [other, "1".parse().unwrap()] {
            let error = one(&places, &asked).await.map(drop).unwrap_err().to_string();
            assert!(error.contains("mails"), "{error}");
        }
    }

    fn seen() -> SeenContent {
        SeenContent {
            pipeline: String::from("orders"),
            id: 7,
            message_id: String::from("019f0000-0000-7000-8000-000000000001"),
            as_of: OffsetDateTime::UNIX_EPOCH,
            digest: String::new(),
        }
    }

    /// Goal: a typing error does not reach consumers unnoticed, and other formats are not judged.
    /// Oracle: warnings for payloads of both kinds.
    #[test]
    fn a_payload_that_has_to_be_json_and_is_not_is_warned_about() {
        let deep = "[".repeat(10_000) + &"]".repeat(10_000);
        for (content_type, payload) in [
            ("application/json", "{\"n\": 2}"),
            ("application/json", &*deep),
            ("text/json; charset=utf-8", " [1]\n"),
            ("text/plain", "{\"n\": 2"),
            ("application/jsonl", "{}\n{}"),
            ("", "{"),
        ] {
            assert_eq!(invalid_json(content_type, payload.as_bytes()), None, "{content_type}");
        }
        for (content_type, payload, told) in [
            ("application/json", &b"{\"n\":2"[..], "EOF while parsing an object at line 1 column 6"),
            ("Application/Problem+JSON;v=1", b"{} {}", "trailing characters"),
            ("application/json", b"", "EOF while parsing a value"),
            ("application/json", b"\"caf\xe9\"", "byte 4 is not UTF-8"),
        ] {
            let warned = invalid_json(content_type, payload).unwrap();
            assert!(warned.contains(told) && warned.contains(content_type), "{warned}");
        }
    }

    #[tokio::test]
    async fn nobody_edits_without_the_right_and_a_reason() {
        let asked = "7".parse().unwrap();
        let places = Places::new();
        for (role, reason, kind) in [
            (Role::Viewer, "curious", OperateErrorKind::Forbidden),
            (Role::Operator, " ", OperateErrorKind::Refused),
        ] {
            let signed = signed(role, reason);
            let corrected = Corrected { decision: Uuid::nil(), payload: Some(vec![1]), headers: None };
            let refused = [
                editable(&places, &signed, &asked).await.err().unwrap(),
                edit(&places, &signed, &seen(), corrected).await.err().unwrap(),
            ];
            assert_eq!(refused.map(|error| error.kind()), [kind; 2]);
        }
    }

    #[test]
    fn a_form_has_made_an_edit_only_with_the_same_content() {
        let mut tenant = Headers::new();
        tenant.insert("tenant", "acme").unwrap();
        let json = |headers: &Headers| Some(serde_json::to_vec(headers).unwrap());
        let form = |payload: Option<&str>, headers: Option<&Headers>| Corrected {
            decision: Uuid::nil(),
            payload: payload.map(|text| text.as_bytes().to_vec()),
            headers: headers.cloned(),
        };
        let of_payload = EditRecord {
            message_id: String::new(),
            payload_before: Some(b"1".to_vec()),
            payload_after: Some(b"2".to_vec()),
            headers_before: json(&tenant),
            headers_after: json(&tenant),
        };
        assert!(has_made(&form(Some("2"), None), &of_payload));
        assert!(has_made(&form(Some("2"), Some(&tenant)), &of_payload));
        for other in
            [form(Some("3"), None), form(None, Some(&tenant)), form(Some("2"), Some(&Headers::new()))]
        {
            assert!(!has_made(&other, &of_payload), "{:?} {:?}", other.payload, other.headers);
        }
        let of_headers =
            EditRecord { payload_after: Some(b"1".to_vec()), headers_before: None, ..of_payload };
        assert!(has_made(&form(None, Some(&tenant)), &of_headers));
        assert!(!has_made(&form(Some("2"), Some(&tenant)), &of_headers));
    }

    #[test]
    fn content_that_is_too_large_names_the_command() {
        let found = ParkedContent { payload_bytes: 70_000, payload: None, headers: None, has_headers: false };
        let chosen = ChosenEntry { id: EntryId(7), message_id: String::from("m"), edited_at: None };
        let refused = too_large(&chosen, &found);
        assert!(
            refused.to_string().contains("70000 bytes; the maximum that is edited here is 65536"),
            "{refused}"
        );
        assert!(refused.help().unwrap().contains("relay dead edit --id 7 --payload-file"), "{refused:?}");
    }
}
