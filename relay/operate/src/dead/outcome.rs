//! The state of an entry after an operator's decision.

use outbox_log::EntryId;
use outbox_log::admin::AuditRecord;
use outbox_log::entries::{EntryRef, FoundEntry};
use uuid::Uuid;

use super::decide::LOOK_BACK;
use super::filter::MessageRef;
use crate::error::OperateError;
use crate::message_state::MessageState;
use crate::places::OutboxPlace;
use crate::seconds;

/// Returns author, time and result of the last decision about an entry; `None` without a decision.
/// A decision about a position whose row no longer exists is found only as far back as the audit is
/// read.
pub(super) async fn outcome(place: &OutboxPlace, id: &MessageRef) -> Result<Option<String>, OperateError> {
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
        last = audit.into_iter().find(|record| id.is(&record.id.to_string(), &record.message_id));
    }
    let Some(record) = last else { return Ok(None) };
    let entry = entries.iter().find(|entry| entry.message_id == record.message_id);
    let state = match entry {
        Some(entry) if record.action != "discard" => Some(state(place, entry).await?),
        _ => None,
    };
    Ok(Some(told(&record, state)))
}

/// Returns the state of an entry. One that is neither parked nor discarded is published only by a
/// cursor of this server, and only if the pipeline does not leave it to others.
pub(super) async fn state(place: &OutboxPlace, entry: &FoundEntry) -> Result<MessageState, OperateError> {
    if let Some(parked) = &entry.parked {
        return Ok(parked.state.into());
    }
    if entry.is_discarded {
        return Ok(MessageState::Discarded);
    }
    let extent = place.entries.extent(&place.pipeline).await?;
    let is_left_out = place.leaves_out(&entry.topic, &entry.labels);
    Ok(by_cursor(extent.is_of_this_server, is_left_out, entry.is_passed))
}

fn by_cursor(is_of_this_server: bool, is_left_out: bool, is_passed: bool) -> MessageState {
    if !is_of_this_server {
        return MessageState::Unknown;
    }
    if is_left_out {
        return MessageState::LeftOut;
    }
    if is_passed { MessageState::Published } else { MessageState::Waiting }
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
    let by = format!("by {} at {}", record.actor, seconds::text(record.at));
    let verb = match record.action.as_str() {
        "discard" => return format!("discarded {by}: it is not sent again"),
        "requeue" => "requeued",
        "edit" => "edited",
        other => other,
    };
    let now = match state {
        None => "its row is no longer in the outbox",
        Some(MessageState::Dead) => "dead again",
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
    use time::OffsetDateTime;

    use super::*;

    fn record(action: &str) -> AuditRecord {
        AuditRecord {
            number: 1,
            at: OffsetDateTime::UNIX_EPOCH,
            actor: String::from("ann"),
            id: EntryId(9),
            message_id: String::from("m"),
            action: action.to_owned(),
            note: String::new(),
            selection: None,
            digest_before: None,
            digest_after: None,
            error: None,
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
        assert_eq!([true, false].map(|passed| by_cursor(true, false, passed)), [Published, Waiting]);
        assert_eq!([true, false].map(|passed| by_cursor(true, true, passed)), [LeftOut; 2]);
        assert_eq!([true, false].map(|left_out| by_cursor(false, left_out, true)), [Unknown; 2]);
    }
}
