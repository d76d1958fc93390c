//! The payload of one message, for an operator who gives a reason. The audit records the operator
//! before a payload is shown, and only if there is one.

use inbox::DeadLetterId;
use message::{SizeLimit, Topic};
use outbox_log::entries::{EntryRef, FoundEntry};
use outbox_log::{EntryId, RowLimit};

use super::dead::MessageRef;
use super::error::OperateError;
use super::operator::Signed;
use super::places::{OutboxPlace, Places};
use super::story::check_unique;
use super::turns::in_turns;

/// Maximum size of a shown payload in bytes: larger ones are for programs.
pub(crate) const SHOWN_BYTES_MAX: u64 = 1 << 20;

/// Maximum size of a row that is read for display.
pub(super) const SHOWN: RowLimit = {
    let shown =
        SizeLimit { destination: "an operator's screen", message_bytes_max: SHOWN_BYTES_MAX as usize };
    // Headers are not shown, so their limit is that of any message.
    RowLimit { payload: shown, headers: SizeLimit { message_bytes_max: 2 << 20, ..shown } }
};

/// A payload.
#[derive(Clone, PartialEq, Eq)]
pub struct Payload {
    /// The pipeline or the consumer where it was found.
    pub owner: String,
    /// Its media type.
    pub content_type: Option<String>,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Reads a payload from an outbox, as it was enqueued, or from the copy of a parked entry whose row
/// no longer exists, or from a dead letter of an inbox. The audit of an outbox records operator and
/// reason before the payload is returned. Without a payload, nothing is recorded.
///
/// # Errors
/// [`OperateError`] when the operator may not view payloads, gave no reason, when no place has the
/// payload, or when it is too large to be shown.
pub async fn payload(places: &Places, signed: &Signed, asked: &MessageRef) -> Result<Payload, OperateError> {
    signed.check("view payloads")?;
    let mut away = places.away.clone();
    let mut found = Vec::new();
    let looks = places.outboxes.iter().map(|place| entries_of(place, asked)).collect();
    for (place, entries) in places.outboxes.iter().zip(in_turns(looks).await) {
        match entries {
            Ok(entries) => found.extend(entries.into_iter().map(|entry| (place, entry))),
            Err(error) => away.push(error.about(&place.pipeline)),
        }
    }
    // A position in the log names a different message in each outbox, including one that does not
    // answer.
    check_unique(asked, &found)?;
    if let (Some(_), true, Some(error)) = (asked.place(), places.outboxes.len() > 1, away.first()) {
        return Err(error.clone().with_help("add the pipeline, or give the message id"));
    }
    for (place, entry) in found {
        match of_entry(place, signed, &entry).await {
            Ok(Some(payload)) => return Ok(payload),
            Ok(None) => {}
            Err(error) => return Err(error.about(&place.pipeline)),
        }
    }
    if let Some(payload) = of_letter(places, signed, asked).await? {
        return Ok(payload);
    }
    Err(away.into_iter().next().unwrap_or_else(|| {
        let help = "retention has deleted it, or it was never here: `relay show` shows its history";
        OperateError::refused(format_args!("payload of {asked} not found"), help)
    }))
}

async fn entries_of(place: &OutboxPlace, asked: &MessageRef) -> Result<Vec<FoundEntry>, OperateError> {
    let which = match (asked.place(), asked.uuid()) {
        (Some(id), _) => EntryRef::Id(EntryId(id)),
        (None, Some(id)) => EntryRef::MessageId(id),
        (None, None) => return Ok(Vec::new()),
    };
    Ok(place.entries.find(&place.pipeline, which).await?)
}

/// Returns the payload of an entry even if its topic or key is invalid; `None` if it no longer
/// exists.
async fn of_entry(
    place: &OutboxPlace,
    signed: &Signed,
    entry: &FoundEntry,
) -> Result<Option<Payload>, OperateError> {
    let read = place.entries.payload(&place.pipeline, entry.id, &entry.message_id, SHOWN_BYTES_MAX);
    let Some(stored) = read.await? else { return Ok(None) };
    check_size(stored.bytes)?;
    let Some(bytes) = stored.payload else { return Ok(None) };
    note(place, signed, &looked_at(&format!("message {}", entry.message_id), &entry.topic)).await?;
    let (owner, content_type) = (place.pipeline.to_string(), Some(stored.content_type));
    Ok(Some(Payload { owner, content_type, bytes }))
}

async fn of_letter(
    places: &Places,
    signed: &Signed,
    asked: &MessageRef,
) -> Result<Option<Payload>, OperateError> {
    let Some(id) = asked.uuid() else { return Ok(None) };
    let looks = places.inboxes.iter().map(|place| place.database.letter(DeadLetterId(id))).collect();
    for (place, letter) in places.inboxes.iter().zip(in_turns(looks).await) {
        // The size is checked first, so that a payload that is too large is not read.
        let Some(letter) = letter? else { continue };
        // A database may also hold dead letters of consumers outside this place.
        if !place.holds(&letter.consumer, &letter.tenant) {
            continue;
        }
        check_size(letter.payload_bytes)?;
        // Inboxes record only decisions, so the outbox of origin records the view.
        let Some(outbox) = places.outboxes.first() else {
            let text = "there is no outbox whose audit could record the access";
            return Err(OperateError::refused(text, "also name a pipeline"));
        };
        let Some(letter) = place.database.dead_letter(letter.id).await? else { continue };
        let what = format!("dead letter {} of {}", letter.id, letter.consumer);
        note(outbox, signed, &looked_at(&what, &letter.topic)).await?;
        let owner = letter.consumer.clone();
        return Ok(Some(Payload {
            owner,
            content_type: letter.content_type,
            bytes: letter.payload.to_vec(),
        }));
    }
    Ok(None)
}

/// Returns the text of the audit for a payload that was shown, with its topic: the audit is
/// searched by topic. A text that is not a topic could name another one, and is left out.
pub(super) fn looked_at(what: &str, topic: &str) -> String {
    if Topic::new(topic).is_ok() { format!("{what} topic={topic}") } else { what.to_owned() }
}

pub(super) async fn note(place: &OutboxPlace, signed: &Signed, selection: &str) -> Result<(), OperateError> {
    let by = signed.signature(Some(selection.to_owned()));
    Ok(place.entries.note_operation(&place.pipeline, "payload", &by).await?)
}

fn check_size(bytes: u64) -> Result<(), OperateError> {
    if bytes <= SHOWN_BYTES_MAX {
        return Ok(());
    }
    let text = format!("the payload has {bytes} bytes; the limit for display is {SHOWN_BYTES_MAX}");
    Err(OperateError::refused(text, "read it with your own program"))
}

#[cfg(test)]
mod tests {
    use super::super::{OperateErrorKind, Operator, Role};
    use super::*;

    #[tokio::test]
    async fn nobody_sees_a_payload_without_the_right_and_a_reason() {
        let id = "7".parse().unwrap();
        for (role, reason, kind) in [
            (Role::Viewer, "curious", OperateErrorKind::Forbidden),
            (Role::Operator, " ", OperateErrorKind::Refused),
        ] {
            let signed = Signed { operator: Operator::new("eve", role), note: reason.into() };
            let refused = payload(&Places::new(), &signed, &id).await.err().unwrap();
            assert_eq!(refused.kind(), kind, "{refused}");
        }
    }

    #[test]
    fn the_audit_names_the_topic_of_a_payload() {
        assert_eq!(looked_at("message 7", "orders"), "message 7 topic=orders");
        assert_eq!(looked_at("message 7", "a topic=orders"), "message 7");
    }

    #[test]
    fn a_large_payload_is_not_read() {
        assert!(check_size(SHOWN_BYTES_MAX).is_ok());
        assert!(check_size(64 << 20).unwrap_err().to_string().contains("67108864 bytes"));
    }
}
