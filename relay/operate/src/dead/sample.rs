//! A message and the report of a decision for tests, here and in interfaces.

use std::collections::BTreeSet;

use outbox_log::EntryId;
use time::OffsetDateTime;
use uuid::Uuid;

use super::bulk::BulkReport;
use super::message::{DeadMessage, DeadSource, Row};
use crate::message_state::MessageState;

/// Returns an entry of an outbox that has waited for an hour.
#[must_use]
pub fn entry(id: i64) -> DeadMessage {
    DeadMessage {
        source: DeadSource::Outbox,
        pipeline: Some("orders".into()),
        consumer: None,
        scope: None,
        id: id.to_string(),
        message_id: Some("0190aaaa-0000-7000-8000-000000000001".into()),
        state: MessageState::Dead,
        topic: "orders".into(),
        key: Some("order-7".into()),
        kind: Some("order.placed".into()),
        cause: Some("message".into()),
        error: None,
        attempts: 10,
        deliveries: None,
        due_in_seconds: None,
        origin: None,
        header_names: Vec::new(),
        payload_bytes: 2,
        edited: false,
        edited_at: None,
        requeue_requested_by: None,
        died_again: false,
        since: OffsetDateTime::UNIX_EPOCH,
        changed_at: OffsetDateTime::UNIX_EPOCH,
        row: Row::Outbox(0, EntryId(id)),
        seq: 0,
    }
}

/// Returns the report of a requeue that has chosen this many messages and has done nothing yet.
#[must_use]
pub fn report(chosen: u64) -> BulkReport {
    BulkReport {
        decision: Some(Uuid::nil()),
        action: "requeue",
        selection: format!("topic=orders: {chosen} chosen"),
        chosen,
        done: 0,
        requested_before: 0,
        refused: 0,
        changed: 0,
        following: 0,
        dry_run: false,
        unknown: 0,
        decided_by: BTreeSet::new(),
        refusals: Vec::new(),
        stopped: false,
        error: None,
    }
}
