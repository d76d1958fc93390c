//! The audit: decisions about messages, and other operations.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use outbox_log::LogError;
use serde::Serialize;
use time::OffsetDateTime;

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
    let mut audited = read(places, ROWS_MAX.max(limit), grouped).await;
    audited.lines.truncate(limit.get() as usize);
    Ok(audited)
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
    let mut audited = read(places, limit, |lines| lines).await;
    audited.lines.truncate(limit.get() as usize);
    Ok(audited)
}

/// Reads at most `rows_max` rows of each place, and combines them with `group`.
async fn read(places: &Places, rows_max: NonZeroU32, group: fn(Vec<AuditLine>) -> Vec<AuditLine>) -> Audited {
    let (mut lines, mut away) = (Vec::new(), places.away.clone());
    for place in &places.outboxes {
        match of_outbox(place, rows_max).await {
            Ok((decisions, operations)) => {
                lines.extend(group(decisions));
                lines.extend(operations);
            }
            Err(error) => away.push(OperateError::from(error).about(&place.pipeline)),
        }
    }
    for place in &places.inboxes {
        match of_inbox(place, rows_max).await {
            Ok(found) => lines.extend(group(found)),
            Err(error) => away.push(error),
        }
    }
    // Each place returns the latest first; the sort is stable.
    lines.sort_by_key(|line| std::cmp::Reverse(line.at));
    lines.dedup();
    Audited { lines, away }
}

/// Returns decisions about messages, and other operations.
async fn of_outbox(
    place: &OutboxPlace,
    limit: NonZeroU32,
) -> Result<(Vec<AuditLine>, Vec<AuditLine>), LogError> {
    let records = place.log.audit(&place.pipeline, limit.get()).await?;
    let operations = place.log.operations(&place.pipeline, limit.get()).await?;
    let decisions = records.into_iter().map(|record| AuditLine {
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
    });
    let operations = operations.into_iter().map(|operation| AuditLine {
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
    });
    Ok((decisions.collect(), operations.collect()))
}

async fn of_inbox(place: &InboxPlace, limit: NonZeroU32) -> Result<Vec<AuditLine>, OperateError> {
    let decisions = place.database.decisions(limit).await?;
    let is_here = |consumer: &str| place.consumer.as_ref().is_none_or(|name| name.as_str() == consumer);
    let decisions = decisions.into_iter().filter(|line| is_here(&line.consumer));
    Ok(decisions
        .map(|decision| AuditLine {
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
        })
        .collect())
}

/// Combines consecutive lines with the same operator, filter and reason into one decision.
fn grouped(lines: Vec<AuditLine>) -> Vec<AuditLine> {
    let is_of_one = |one: &AuditLine, other: &AuditLine| {
        let of = |line: &AuditLine| {
            (line.source, line.owner.clone(), line.actor.clone(), line.action.clone(), line.accept_late)
        };
        // Without a filter, each message was decided about individually.
        one.selection.is_some()
            && of(one) == of(other)
            && (&one.selection, &one.note) == (&other.selection, &other.note)
    };
    lines.chunk_by(is_of_one).map(together).collect()
}

/// Combines the lines of a decision's messages into one.
fn together(lines: &[AuditLine]) -> AuditLine {
    let mut line = lines[0].clone();
    if lines.len() == 1 {
        return line;
    }
    let mut outcomes: BTreeMap<&str, usize> = BTreeMap::new();
    for outcome in lines.iter().filter_map(|line| line.outcome.as_deref()) {
        *outcomes.entry(outcome).or_default() += 1;
    }
    let told: Vec<String> = outcomes.iter().map(|(outcome, count)| format!("{count} {outcome}")).collect();
    line.messages = lines.len() as u64;
    line.outcome = (!told.is_empty()).then(|| told.join(", "));
    line.done_at = lines.iter().filter_map(|line| line.done_at).max();
    AuditLine { id: None, message_id: None, digest_before: None, digest_after: None, error: None, ..line }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(actor: &str, id: i64, selection: Option<&str>) -> AuditLine {
        AuditLine {
            at: OffsetDateTime::UNIX_EPOCH,
            actor: actor.to_owned(),
            action: String::from("requeue"),
            source: DeadSource::Outbox,
            owner: String::from("orders"),
            messages: 1,
            id: Some(id.to_string()),
            message_id: Some(String::from("m")),
            selection: selection.map(str::to_owned),
            note: String::from("a test"),
            accept_late: false,
            outcome: None,
            done_at: None,
            digest_before: None,
            digest_after: None,
            error: None,
        }
    }

    #[test]
    fn a_decision_is_one_line_however_many_messages_it_is_about() {
        let chosen = Some("topic=orders: 3 chosen");
        let applied = |line: AuditLine| AuditLine { outcome: Some(String::from("applied")), ..line };
        let lines = grouped(vec![
            applied(line("ann", 3, chosen)),
            line("ann", 2, chosen),
            applied(line("ann", 1, chosen)),
            line("bob", 1, chosen),
            line("bob", 7, None),
            line("bob", 6, None),
        ]);
        let counts: Vec<_> = lines.iter().map(|line| (line.messages, line.id.as_deref())).collect();
        assert_eq!(counts, [(3, None), (1, Some("1")), (1, Some("7")), (1, Some("6"))]);
        assert_eq!(lines[0].outcome.as_deref(), Some("2 applied"));
    }
}
