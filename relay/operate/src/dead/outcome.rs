//! The state of an entry after an operator's decision.

use outbox_log::admin::AuditRecord;
use outbox_log::entries::{EntryRef, FoundEntry};
use outbox_log::{EntryId, ExceptionState};
use time::OffsetDateTime;
use uuid::Uuid;

use super::decide::LOOK_BACK;
use super::filter::MessageRef;
use crate::error::OperateError;
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
        last = audit.into_iter().find(|record| id.is(&record.id.to_string(), &record.message_id));
    }
    let entry_of = |record: &AuditRecord| entries.iter().find(|entry| entry.message_id == record.message_id);
    Ok(last.map(|record| {
        let text = told(&record, entry_of(&record));
        LastDecision { actor: record.actor, at: record.at, text }
    }))
}

/// Describes a decision and the entry's current state.
fn told(record: &AuditRecord, entry: Option<&FoundEntry>) -> String {
    let by = format!("by {} at {}", record.actor, seconds::text(record.at));
    let verb = match record.action.as_str() {
        "discard" => return format!("discarded {by}: it is not sent again"),
        "requeue" => "requeued",
        "edit" => "edited",
        other => other,
    };
    let now = match entry {
        None => "its row is no longer in the outbox",
        Some(entry) => match entry.parked.as_ref().map(|parked| parked.state) {
            Some(ExceptionState::Dead) => "dead again",
            Some(ExceptionState::Retrying) => "the relay retries it automatically",
            Some(_) => "still parked: the relay publishes it automatically",
            None if entry.is_passed => "published since",
            None => "the relay has not read it yet",
        },
    };
    format!("{verb} {by}, {now}")
}

#[cfg(test)]
mod tests {
    use outbox_log::entries::{Labels, ParkedState};

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

    fn entry(state: Option<ExceptionState>) -> FoundEntry {
        let at = OffsetDateTime::UNIX_EPOCH;
        FoundEntry {
            id: EntryId(9),
            message_id: String::from("m"),
            topic: String::from("orders"),
            key: None,
            labels: Labels::default(),
            content_type: None,
            traceparent: None,
            payload_bytes: None,
            enqueued_at: None,
            transaction: None,
            deliver_at: None,
            is_in_log: true,
            is_passed: true,
            is_discarded: false,
            discarded_error: None,
            is_edited: false,
            parked: state.map(|state| ParkedState {
                state,
                attempts: 1,
                due_at: None,
                fault: None,
                error: None,
                earlier_errors: Vec::new(),
                since: at,
                changed_at: at,
                is_edited: false,
                behind: None,
            }),
        }
    }

    #[test]
    fn only_what_was_published_is_said_to_be() {
        let cases = [
            ("discard", Some(entry(None)), "discarded by ann", "not sent again"),
            ("discard", None, "discarded by ann", "not sent again"),
            ("requeue", Some(entry(None)), "requeued by ann", "published since"),
            ("requeue", Some(entry(Some(ExceptionState::Dead))), "requeued by ann", "dead again"),
            ("requeue", Some(entry(Some(ExceptionState::Retrying))), "requeued by ann", "automatically"),
            ("requeue", Some(FoundEntry { is_passed: false, ..entry(None) }), "requeued", "not read it yet"),
            ("requeue", None, "requeued by ann", "no longer in the outbox"),
            ("edit", Some(entry(Some(ExceptionState::Dead))), "edited by ann", "dead again"),
        ];
        for (action, entry, by, now) in cases {
            let told = told(&record(action), entry.as_ref());
            assert!(told.starts_with(by) && told.contains(now), "{action}: {told}");
        }
    }
}
