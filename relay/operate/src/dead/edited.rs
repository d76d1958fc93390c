//! Edits of operators: the content before and after, as far as the audit keeps it.

use message::Headers;
use outbox_log::admin::{AuditRecord, EditRecord};
use outbox_log::entries::EntryRef;
use serde::{Serialize, Serializer};
use time::OffsetDateTime;
use uuid::Uuid;

use super::decide::LOOK_BACK;
use super::edit::{named, one};
use super::filter::MessageRef;
use crate::error::OperateError;
use crate::operator::Signed;
use crate::places::{OutboxPlace, Places};
use crate::{payload, seconds};

/// One edit of a message. `Debug` prints no content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PastEdit {
    /// The number of the decision in the audit of its pipeline.
    pub number: i64,
    /// When it was recorded.
    #[serde(serialize_with = "seconds::serialize")]
    pub at: OffsetDateTime,
    /// The operator.
    pub actor: String,
    /// The reason.
    pub note: String,
    /// The content that it found.
    pub before: KeptContent,
    /// The content that it left.
    pub after: KeptContent,
}

/// The content of a message in the audit. `Debug` prints no content.
#[derive(Clone, PartialEq, Eq, Serialize)]
pub struct KeptContent {
    /// The payload as text; `None` when it is not UTF-8, or larger than 64 KiB.
    #[serde(serialize_with = "as_text")]
    pub payload: Option<Vec<u8>>,
    /// The size of the payload in bytes; `None` when it is larger than 64 KiB.
    pub payload_bytes: Option<u64>,
    /// The headers; `None` when they are larger than 64 KiB, or not those of a valid message.
    pub headers: Option<Headers>,
    /// The SHA-256 of payload and headers, in hexadecimal.
    pub digest: Option<String>,
}

impl std::fmt::Debug for KeptContent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeptContent").field("digest", &self.digest).finish_non_exhaustive()
    }
}

impl KeptContent {
    fn new(payload: Option<Vec<u8>>, headers: Option<Vec<u8>>, digest: Option<String>) -> Self {
        let payload_bytes = payload.as_ref().map(|payload| payload.len() as u64);
        let headers = headers.and_then(|json| serde_json::from_slice(&json).ok());
        Self { payload, payload_bytes, headers, digest }
    }
}

fn as_text<S: Serializer>(payload: &Option<Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
    payload.as_deref().and_then(|payload| std::str::from_utf8(payload).ok()).serialize(serializer)
}

/// Returns the edits of a message of an outbox, latest first, among its latest 1,000 decisions. A
/// message id also finds those of a message that retention has deleted. The audit records operator
/// and reason before the content is returned, and only if there is an edit.
///
/// # Errors
/// [`OperateError`] when the operator may not view payloads, gave no reason, or when no outbox or
/// more than one has the message.
pub async fn edits(
    places: &Places,
    signed: &Signed,
    asked: &MessageRef,
) -> Result<Vec<PastEdit>, OperateError> {
    signed.check("view payloads")?;
    let mut found = Vec::new();
    for (place, message) in edited_at(places, asked).await? {
        let mut is_noted = false;
        let of_place = |error: OperateError| error.about(&place.pipeline);
        let records = place.log.audit_of(&place.pipeline, message, LOOK_BACK).await;
        let records = records.map_err(|error| of_place(error.into()))?;
        for record in records.into_iter().filter(|record| record.action == "edit") {
            let kept = place.log.edit(&place.pipeline, record.number).await;
            if let Some(kept) = kept.map_err(|error| of_place(error.into()))? {
                if !std::mem::replace(&mut is_noted, true) {
                    note(place, signed, &format!("edits of {message}"), &kept).await.map_err(of_place)?;
                }
                found.push(past(record, kept));
            }
        }
    }
    Ok(found)
}

/// Returns the outboxes that may have decisions about a message, and its message id.
async fn edited_at<'a>(
    places: &'a Places,
    asked: &MessageRef,
) -> Result<Vec<(&'a OutboxPlace, Uuid)>, OperateError> {
    if let Some(message) = asked.uuid() {
        return Ok(places.outboxes.iter().map(|place| (place, message)).collect());
    }
    let (place, entry) = one(places, asked).await?;
    let message = Uuid::parse_str(&entry.message_id).map_err(|_| {
        let text = format_args!("message {asked} has the invalid id {:?}", entry.message_id);
        OperateError::refused(text, "the audit is searched by message id").about(&place.pipeline)
    })?;
    Ok(vec![(place, message)])
}

fn past(record: AuditRecord, kept: EditRecord) -> PastEdit {
    PastEdit {
        number: record.number,
        at: record.at,
        actor: record.signature.actor,
        note: record.signature.note,
        before: KeptContent::new(kept.payload_before, kept.headers_before, record.subject.digest_before),
        after: KeptContent::new(kept.payload_after, kept.headers_after, record.subject.digest_after),
    }
}

/// Returns what an edit found and left, by the number of the decision in the audit of a pipeline.
/// The audit records operator and reason before the content is returned.
///
/// # Errors
/// [`OperateError`] when the operator may not view payloads, gave no reason, or when the audit has
/// no such edit.
pub async fn edited(
    places: &Places,
    signed: &Signed,
    pipeline: &str,
    number: i64,
) -> Result<EditRecord, OperateError> {
    signed.check("view payloads")?;
    let place = named(places, pipeline)?;
    let of_place = |error: OperateError| error.about(&place.pipeline);
    let found = place.log.edit(&place.pipeline, number).await.map_err(|error| of_place(error.into()))?;
    let Some(found) = found else {
        let text = format_args!("the audit has no edit {number}");
        return Err(of_place(OperateError::refused(
            text,
            "retention may have removed it: show the message again",
        )));
    };
    note(place, signed, &format!("edit {number}"), &found).await.map_err(of_place)?;
    Ok(found)
}

/// Records that an operator looks at what was edited, with the topic of the message if the log
/// still has it.
async fn note(
    place: &OutboxPlace,
    signed: &Signed,
    what: &str,
    edit: &EditRecord,
) -> Result<(), OperateError> {
    let entries = match Uuid::parse_str(&edit.message_id) {
        Ok(message) => place.entries.find(&place.pipeline, EntryRef::MessageId(message)).await?,
        Err(_) => Vec::new(),
    };
    let topic = entries.first().map_or("", |entry| entry.topic.as_str());
    payload::note(place, signed, &payload::looked_at(what, topic)).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::OperateErrorKind;
    use crate::operator::{Operator, Role};

    #[tokio::test]
    async fn nobody_sees_what_was_edited_without_the_right_and_a_reason() {
        let (asked, places) = ("7".parse().unwrap(), Places::new());
        for (role, reason, kind) in [
            (Role::Viewer, "curious", OperateErrorKind::Forbidden),
            (Role::Operator, " ", OperateErrorKind::Refused),
        ] {
            let signed = Signed { operator: Operator::new("eve", role), note: reason.into() };
            let refused = [
                edits(&places, &signed, &asked).await.err().unwrap(),
                edited(&places, &signed, "orders", 1).await.err().unwrap(),
            ];
            assert_eq!(refused.map(|error| error.kind()), [kind; 2]);
        }
    }

    #[test]
    fn content_in_json_is_text_or_absent() {
        let json = |payload: &[u8]| {
            let kept = KeptContent::new(Some(payload.to_vec()), Some(b"{}".to_vec()), None);
            serde_json::to_value(kept).unwrap()
        };
        assert_eq!(json(b"{\"a\":1}")["payload"], "{\"a\":1}");
        assert_eq!(json(b"\xff\xff")["payload"], serde_json::Value::Null);
        assert_eq!(json(b"\xff\xff")["payload_bytes"], 2);
    }
}
