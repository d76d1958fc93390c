//! The audit: decisions about messages, and other operations.

use std::num::NonZeroU32;

use inbox::{DeadLetterId, Decision};
use outbox_log::LogError;
use outbox_log::admin::{AuditRecord, Operation};
use serde::Serialize;
use time::OffsetDateTime;
use uuid::Uuid;

use super::audit_lines::{Lines, Slices};
use super::message::DeadSource;
use crate::error::OperateError;
use crate::operator::{Operator, Role};
use crate::places::{InboxPlace, OutboxPlace, Places};
use crate::seconds;

/// Maximum number of rows read from each place to group decisions: a decision about several
/// messages has a row for each.
const ROWS_MAX: NonZeroU32 = NonZeroU32::MIN.saturating_add(9_999);

/// One decision about one or several messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuditLine {
    /// The time, by the database's clock.
    #[serde(serialize_with = "seconds::serialize")]
    pub at: OffsetDateTime,
    /// The author.
    pub actor: String,
    /// `requeue`, `redrive`, `discard`, `edit`, or an operation: `pause`, `resume`, `payload`,
    /// `adopt`, `give back`; `replay`, `forget`, `expire` when the work begins, and `replayed`,
    /// `forgotten`, `expired` when it is done.
    pub action: String,
    /// The kind of place of the message.
    pub source: DeadSource,
    /// The pipeline or the consumer.
    pub owner: String,
    /// Number of its messages; 0 for an operation.
    pub messages: u64,
    /// The place in the log, or the id of the dead letter; `None` for an operation and for several
    /// messages.
    pub id: Option<String>,
    /// The message id, if the audit has it.
    pub message_id: Option<String>,
    /// The filter that chose the messages, with their number; for a pause or resume, its scope.
    pub selection: Option<String>,
    /// The reason.
    pub note: String,
    /// Whether a redrive applies a message older than the inbox remembers.
    pub accept_late: bool,
    /// The outcome; `None` while a request is open, and for actions that take effect at once. For
    /// several messages, the number of each outcome.
    pub outcome: Option<String>,
    /// The time of the outcome.
    #[serde(serialize_with = "seconds::serialize_option")]
    pub done_at: Option<OffsetDateTime>,
    /// SHA-256 of payload and headers before an edit.
    pub digest_before: Option<String>,
    /// SHA-256 of payload and headers after an edit.
    pub digest_after: Option<String>,
    /// The error for which the message was dead at the time of the decision, if the audit has it.
    pub error: Option<String>,
}

/// Decisions, and the places that do not answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Audited {
    /// The decisions, latest first.
    pub lines: Vec<AuditLine>,
    /// The errors of places that do not answer; their decisions are missing.
    pub away: Vec<OperateError>,
}

/// Returns at most `limit` decisions about messages in all places, latest first. A decision is one
/// line, however many messages it concerns. Cancel-safe.
///
/// # Errors
/// [`OperateError`] when the operator may not read the audit. [`Audited::away`] has the errors of
/// unreachable databases.
pub async fn audit(places: &Places, operator: &Operator, limit: NonZeroU32) -> Result<Audited, OperateError> {
    operator.permit(Role::Viewer, "read the audit")?;
    Ok(read(places, ROWS_MAX.max(limit), limit, true).await)
}

/// Like [`audit`], with a line for each message. Cancel-safe.
///
/// # Errors
/// Those of [`audit`].
pub async fn audit_of_messages(
    places: &Places,
    operator: &Operator,
    limit: NonZeroU32,
) -> Result<Audited, OperateError> {
    operator.permit(Role::Viewer, "read the audit")?;
    Ok(read(places, limit, limit, false).await)
}

/// Maximum number of decisions about a message in one place, and about each of its dead letters.
const OF_MESSAGE_MAX: NonZeroU32 = NonZeroU32::MIN.saturating_add(999);

/// Returns the decisions about a message and about its dead letters, latest first. Reads only
/// those.
pub(crate) async fn about(places: &Places, message: Option<Uuid>, letters: &[DeadLetterId]) -> Audited {
    let (mut lines, mut away) = (Vec::new(), Vec::new());
    for place in &places.outboxes {
        let Some(message) = message else { break };
        match place.log.audit_of(&place.pipeline, message, OF_MESSAGE_MAX.get()).await {
            Ok(records) => lines.extend(records.into_iter().map(|record| of_record(place, record))),
            Err(error) => away.push(OperateError::from(error).about(&place.pipeline)),
        }
    }
    for place in places.inboxes.iter().filter(|_| !letters.is_empty()) {
        match place.database.decisions_of(letters, OF_MESSAGE_MAX).await {
            Ok(decisions) => {
                let here = decisions.into_iter().filter(|decision| is_here(place, &decision.consumer));
                lines.extend(here.map(of_decision));
            }
            Err(error) => away.push(error),
        }
    }
    keep_latest(&mut lines, Vec::new(), OF_MESSAGE_MAX);
    Audited { lines, away }
}

/// Reads at most `rows_max` rows of each place. Keeps `limit` lines, however many rows there are.
async fn read(places: &Places, rows_max: NonZeroU32, limit: NonZeroU32, is_grouped: bool) -> Audited {
    let (mut lines, mut away) = (Vec::new(), places.away.clone());
    let gathering = || Lines::new(limit, is_grouped);
    for place in &places.outboxes {
        match of_outbox(place, rows_max, gathering()).await {
            Ok(found) => keep_latest(&mut lines, found, limit),
            Err(error) => away.push(OperateError::from(error).about(&place.pipeline)),
        }
    }
    for place in &places.inboxes {
        match of_inbox(place, rows_max, gathering()).await {
            Ok(found) => keep_latest(&mut lines, found, limit),
            Err(error) => away.push(error),
        }
    }
    Audited { lines, away }
}

/// Adds the lines of a place, and keeps the latest ones.
fn keep_latest(lines: &mut Vec<AuditLine>, found: Vec<AuditLine>, limit: NonZeroU32) {
    lines.extend(found);
    // Each place returns the latest first; the sort is stable.
    lines.sort_by_key(|line| std::cmp::Reverse(line.at));
    lines.dedup();
    lines.truncate(limit.get() as usize);
}

/// Returns decisions about messages, and other operations.
async fn of_outbox(
    place: &OutboxPlace,
    rows_max: NonZeroU32,
    mut lines: Lines,
) -> Result<Vec<AuditLine>, LogError> {
    let operations = place.log.operations(&place.pipeline, lines.limit.get()).await?;
    let mut slices = Slices::new(rows_max);
    while let Some(rows) = slices.next().filter(|_| !lines.is_full()) {
        let records = place.log.audit_before(&place.pipeline, slices.before, rows.get()).await?;
        slices.read(records.len(), records.last().map(|record| record.number));
        for record in records {
            lines.add(of_record(place, record));
        }
    }
    let mut lines = lines.end();
    lines.extend(operations.into_iter().map(|operation| of_operation(place, operation)));
    Ok(lines)
}

/// Returns whether a place lists the decisions about this consumer's dead letters.
fn is_here(place: &InboxPlace, consumer: &str) -> bool {
    place.consumer.as_ref().is_none_or(|name| name.as_str() == consumer)
}

async fn of_inbox(
    place: &InboxPlace,
    rows_max: NonZeroU32,
    mut lines: Lines,
) -> Result<Vec<AuditLine>, OperateError> {
    let mut slices = Slices::new(rows_max);
    while let Some(rows) = slices.next().filter(|_| !lines.is_full()) {
        let decisions = place.database.decisions_before(slices.before, rows).await?;
        slices.read(decisions.len(), decisions.last().map(|decision| decision.number));
        for decision in decisions.into_iter().filter(|decision| is_here(place, &decision.consumer)) {
            lines.add(of_decision(decision));
        }
    }
    Ok(lines.end())
}

fn of_record(place: &OutboxPlace, record: AuditRecord) -> AuditLine {
    AuditLine {
        at: record.at,
        actor: record.actor,
        action: record.action,
        source: DeadSource::Outbox,
        owner: place.pipeline.to_string(),
        messages: 1,
        id: Some(record.id.to_string()),
        message_id: Some(record.message_id),
        selection: record.selection,
        note: record.note,
        accept_late: false,
        outcome: None,
        done_at: None,
        digest_before: record.digest_before,
        digest_after: record.digest_after,
        error: record.error,
    }
}

fn of_operation(place: &OutboxPlace, operation: Operation) -> AuditLine {
    AuditLine {
        at: operation.at,
        actor: operation.actor,
        action: operation.action,
        source: DeadSource::Outbox,
        owner: place.pipeline.to_string(),
        messages: 0,
        id: None,
        message_id: None,
        selection: Some(operation.selection),
        note: operation.note,
        accept_late: false,
        outcome: None,
        done_at: None,
        digest_before: None,
        digest_after: None,
        error: None,
    }
}

fn of_decision(decision: Decision) -> AuditLine {
    AuditLine {
        at: decision.at,
        actor: decision.signature.actor,
        action: decision.action.as_str().to_owned(),
        source: DeadSource::Inbox,
        owner: decision.consumer,
        messages: 1,
        id: Some(decision.dead_letter.to_string()),
        message_id: None,
        selection: decision.signature.selection,
        note: decision.signature.note,
        accept_late: decision.accept_late,
        outcome: decision.outcome,
        done_at: decision.done_at,
        digest_before: None,
        digest_after: None,
        error: None,
    }
}
