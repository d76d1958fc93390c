//! The state of an entry after an operator's decision.

use outbox_log::EntryId;
use outbox_log::admin::AuditRecord;
use outbox_log::entries::{EntryRef, FoundEntry};
use time::OffsetDateTime;
use uuid::Uuid;

use super::decide::LOOK_BACK;
use super::filter::MessageRef;
use super::message::DEAD_AGAIN;
use crate::error::OperateError;
use crate::message_state::MessageState;
use crate::places::OutboxPlace;
use crate::seconds;

/// The last decision about an entry.
pub(super) struct LastDecision {
    pub(super) actor: String,
    pub(super) at: OffsetDateTime,
    /// Author, time and result.
    pub(super) text: String,
}

/// Returns author, time and result of the last decision about an entry; `None` without a decision.
pub(super) async fn outcome(place: &OutboxPlace, id: &MessageRef) -> Result<Option<String>, OperateError> {
    Ok(last_decision(place, id).await?.map(|last| last.text))
}

/// Returns the last decision about an entry; `None` without one. A decision about a position whose
/// row no longer exists is found only as far back as the audit is read.
pub(super) async fn last_decision(
    place: &OutboxPlace,
    id: &MessageRef,
) -> Result<Option<LastDecision>, OperateError> {
    let which = id.place().map(|id| EntryRef::Id(EntryId(id))).or(id.uuid().map(EntryRef::MessageId));
    let entries = match which {
        Some(which) => place.entries.find(&place.pipeline, which).await?,
        None => Vec::new(),
    };
    // After a sequence was set back, a position in the log is used again; a message id is not.
    let mut messages: Vec<Uuid> =
        entries.iter().filter_map(|entry| Uuid::parse_str(&entry.message_id).ok()).collect();
    if entries.is_empty() {
        messages.extend(id.uuid());
    }
    let mut last: Option<AuditRecord> = None;
    for message in &messages {
        let records = place.log.audit_of(&place.pipeline, *message, 1).await?;
        last = last.into_iter().chain(records).max_by_key(|record| record.number);
    }
    if messages.is_empty() {
        let audit = place.log.audit(&place.pipeline, LOOK_BACK).await?;
        last = audit
            .into_iter()
            .find(|record| id.is(&record.subject.id.to_string(), &record.subject.message_id));
    }
    let Some(record) = last else { return Ok(None) };
    let entry = entries.iter().find(|entry| entry.message_id == record.subject.message_id);
    let state = match entry {
        Some(entry) if record.action != "discard" => Some(state(place, entry).await?),
        _ => None,
    };
    let text = told(&record, state);
    Ok(Some(LastDecision { actor: record.signature.actor, at: record.at, text }))
}

/// Returns the state of an entry. The cursor is read only for one that it decides about: neither
/// parked nor discarded.
pub(super) async fn state(place: &OutboxPlace, entry: &FoundEntry) -> Result<MessageState, OperateError> {
    let extent = if entry.parked.is_none() && !entry.is_discarded {
        Some(place.entries.extent(&place.pipeline).await?)
    } else {
        None
    };
    Ok(crate::story::state(place, entry, extent.as_ref()))
}

/// Describes the state of an entry that is not parked.
pub(super) fn described(state: MessageState) -> &'static str {
    match state {
        MessageState::Waiting => "the relay has not read it yet",
        MessageState::LeftOut => "the pipeline's filter leaves it to others",
        MessageState::Unknown => "unknown: the cursor belongs to another server's history",
        other => other.as_str(),
    }
}

/// Describes a decision and the entry's current state; `None` if its row no longer exists.
fn told(record: &AuditRecord, state: Option<MessageState>) -> String {
    let by = format!("by {} at {}", record.signature.actor, seconds::text(record.at));
    let verb = match record.action.as_str() {
        "discard" => return format!("discarded {by}: it is not sent again"),
        "requeue" => "requeued",
        "edit" => "edited",
        other => other,
    };
    let now = match state {
        None => "its row is no longer in the outbox",
        Some(MessageState::Dead) => DEAD_AGAIN,
        Some(MessageState::Retrying) => "the relay retries it automatically",
        Some(MessageState::Held | MessageState::Scheduled) => {
            "still parked: the relay publishes it automatically"
        }
        Some(MessageState::Published) => "published since",
        Some(state) => described(state),
    };
    format!("{verb} {by}, {now}")
}

#[cfg(test)]
mod tests {
    use outbox::Signature;
    use outbox_log::admin::DecidedEntry;

    use super::*;

    fn record(action: &str) -> AuditRecord {
        AuditRecord {
            number: 1,
            at: OffsetDateTime::UNIX_EPOCH,
            signature: Signature { actor: String::from("ann"), note: String::new(), selection: None },
            action: action.to_owned(),
            subject: DecidedEntry {
                id: EntryId(9),
                message_id: String::from("m"),
                digest_before: None,
                digest_after: None,
                error: None,
            },
        }
    }

    #[test]
    fn only_what_was_published_is_said_to_be() {
        use MessageState::{Dead, LeftOut, Published, Retrying, Scheduled, Unknown, Waiting};
        let cases = [
            ("discard", Some(Published), "discarded by ann", "not sent again"),
            ("discard", None, "discarded by ann", "not sent again"),
            ("requeue", Some(Published), "requeued by ann", "published since"),
            ("requeue", Some(Dead), "requeued by ann", "dead again"),
            ("requeue", Some(Retrying), "requeued by ann", "automatically"),
            ("requeue", Some(Scheduled), "requeued by ann", "automatically"),
            ("requeue", Some(Waiting), "requeued by ann", "not read it yet"),
            ("requeue", Some(LeftOut), "requeued by ann", "leaves it to others"),
            ("requeue", Some(Unknown), "requeued by ann", "another server's history"),
            ("requeue", None, "requeued by ann", "no longer in the outbox"),
            ("edit", Some(Dead), "edited by ann", "dead again"),
        ];
        for (action, state, by, now) in cases {
            let told = told(&record(action), state);
            assert!(told.starts_with(by) && told.contains(now), "{action}: {told}");
        }
    }
}
