//! The decisions taken so far, and what operators did besides.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use outbox::log::LogError;
use serde::Serialize;
use time::OffsetDateTime;

use super::message::DeadSource;
use crate::operate::error::OperateError;
use crate::operate::operator::{Operator, Role};
use crate::operate::places::{InboxPlace, OutboxPlace, Places};
use crate::operate::seconds;

/// Lines of each place that are read to tell decisions apart: a decision about several messages has
/// one for each.
const ROWS_MAX: NonZeroU32 = NonZeroU32::MIN.saturating_add(9_999);

/// One decision, about one message or about several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuditLine {
    /// When it was taken, by the database's clock.
    #[serde(serialize_with = "seconds::serialize")]
    pub at: OffsetDateTime,
    /// Who took it.
    pub actor: String,
    /// `requeue`, `redrive`, `discard`, `edit`, or an operation: `pause`, `resume`, `replay`,
    /// `replayed`.
    pub action: String,
    /// Where the message waited.
    pub source: DeadSource,
    /// The pipeline or the consumer.
    pub owner: String,
    /// The number of messages that it is about; 0 for an operation.
    pub messages: u64,
    /// Its place in the log, or the id of the dead letter; `None` for an operation, and of several
    /// messages.
    pub id: Option<String>,
    /// Its message id, where the audit has it.
    pub message_id: Option<String>,
    /// The filter by which it was chosen, and how many it chose; of a pause or resume, its scope.
    pub selection: Option<String>,
    /// Why.
    pub note: String,
    /// Whether a redrive applies what is older than the inbox remembers.
    pub accept_late: bool,
    /// Its outcome; nothing while a request is open, and for what takes effect at once. Of several
    /// messages, how many have which.
    pub outcome: Option<String>,
    /// When that was.
    #[serde(serialize_with = "seconds::serialize_option")]
    pub done_at: Option<OffsetDateTime>,
    /// SHA-256 of payload and headers before an edit.
    pub digest_before: Option<String>,
    /// SHA-256 of payload and headers after an edit.
    pub digest_after: Option<String>,
    /// Why the message was dead when the decision was made, where the audit has it.
    pub error: Option<String>,
}

/// Decisions, and the places that could not be asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Audited {
    /// The decisions, the latest first.
    pub lines: Vec<AuditLine>,
    /// Why places could not be asked; their decisions are missing.
    pub away: Vec<OperateError>,
}

/// The decisions about messages in all places, the latest first, at most `limit`: one line for
/// each, however many messages it is about. Cancel-safe.
///
/// # Errors
/// [`OperateError`] when the operator may not look. [`Audited::away`] tells which places are away.
pub async fn audit(places: &Places, operator: &Operator, limit: NonZeroU32) -> Result<Audited, OperateError> {
    operator.permit(Role::Viewer, "read the audit")?;
    let mut audited = read(places, ROWS_MAX.max(limit), grouped).await;
    audited.lines.truncate(limit.get() as usize);
    Ok(audited)
}

/// As [`audit`], with a line for each message. Cancel-safe.
///
/// # Errors
/// As for [`audit`].
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

/// At most so many rows of each place, brought together by `group` within it.
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
    // Each place tells the latest first; the sort is stable.
    lines.sort_by_key(|line| std::cmp::Reverse(line.at));
    lines.dedup();
    Audited { lines, away }
}

/// Decisions about messages, and other operations.
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

/// Puts the lines of one decision together: those of one operator, filter and reason that follow
/// each other.
fn grouped(lines: Vec<AuditLine>) -> Vec<AuditLine> {
    let is_of_one = |one: &AuditLine, other: &AuditLine| {
        let of = |line: &AuditLine| {
            (line.source, line.owner.clone(), line.actor.clone(), line.action.clone(), line.accept_late)
        };
        // Without a filter, each was decided about by itself.
        one.selection.is_some()
            && of(one) == of(other)
            && (&one.selection, &one.note) == (&other.selection, &other.note)
    };
    lines.chunk_by(is_of_one).map(together).collect()
}

/// The line of a decision, from those of its messages.
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
