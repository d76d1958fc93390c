//! The decisions taken so far, and what operators did besides.

use std::num::NonZeroU32;

use serde::Serialize;
use time::OffsetDateTime;

use super::message::DeadSource;
use crate::operate::error::OperateError;
use crate::operate::operator::{Operator, Role};
use crate::operate::places::Places;
use crate::operate::seconds;

/// One decision.
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
    /// Its place in the log, or the id of the dead letter; `None` for an operation.
    pub id: Option<String>,
    /// Its message id, where the audit has it.
    pub message_id: Option<String>,
    /// The filter by which it was chosen, and how many it chose; of a pause or resume, its scope.
    pub selection: Option<String>,
    /// Why.
    pub note: String,
    /// Whether a redrive applies what is older than the inbox remembers.
    pub accept_late: bool,
    /// Its outcome; nothing while a request is open, and for what takes effect at once.
    pub outcome: Option<String>,
    /// When that was.
    #[serde(serialize_with = "seconds::serialize_option")]
    pub done_at: Option<OffsetDateTime>,
    /// SHA-256 of payload and headers before an edit.
    pub digest_before: Option<String>,
    /// SHA-256 of payload and headers after an edit.
    pub digest_after: Option<String>,
}

/// The decisions about messages in all places, the latest first, at most `limit`. Cancel-safe.
///
/// # Errors
/// [`OperateError`] when the operator may not look, or when a place could not be asked.
pub async fn audit(
    places: &Places,
    operator: &Operator,
    limit: NonZeroU32,
) -> Result<Vec<AuditLine>, OperateError> {
    operator.permit(Role::Viewer, "read the audit")?;
    if let Some(error) = places.away.first() {
        return Err(error.clone());
    }
    let mut lines = Vec::new();
    for place in &places.outboxes {
        let records = place.log.audit(&place.pipeline, limit.get()).await;
        let records = records.map_err(|error| OperateError::from(error).about(&place.pipeline))?;
        lines.extend(records.into_iter().map(|record| AuditLine {
            at: record.at,
            actor: record.actor,
            action: record.action,
            source: DeadSource::Outbox,
            owner: place.pipeline.to_string(),
            id: Some(record.id.to_string()),
            message_id: Some(record.message_id),
            selection: record.selection,
            note: record.note,
            accept_late: false,
            outcome: None,
            done_at: None,
            digest_before: record.digest_before,
            digest_after: record.digest_after,
        }));
        let operations = place.log.operations(&place.pipeline, limit.get()).await;
        let operations = operations.map_err(|error| OperateError::from(error).about(&place.pipeline))?;
        lines.extend(operations.into_iter().map(|operation| AuditLine {
            at: operation.at,
            actor: operation.actor,
            action: operation.action,
            source: DeadSource::Outbox,
            owner: place.pipeline.to_string(),
            id: None,
            message_id: None,
            selection: Some(operation.selection),
            note: operation.note,
            accept_late: false,
            outcome: None,
            done_at: None,
            digest_before: None,
            digest_after: None,
        }));
    }
    for place in &places.inboxes {
        let decisions = place.database.decisions(limit).await?;
        let is_here = |consumer: &str| place.consumer.as_ref().is_none_or(|name| name.as_str() == consumer);
        lines.extend(decisions.into_iter().filter(|line| is_here(&line.consumer)).map(|decision| {
            AuditLine {
                at: decision.at,
                actor: decision.signature.actor,
                action: decision.action.as_str().to_owned(),
                source: DeadSource::Inbox,
                owner: decision.consumer,
                id: Some(decision.dead_letter.to_string()),
                message_id: None,
                selection: decision.signature.selection,
                note: decision.signature.note,
                accept_late: decision.accept_late,
                outcome: decision.outcome,
                done_at: decision.done_at,
                digest_before: None,
                digest_after: None,
            }
        }));
    }
    // Each place tells the latest first; the sort is stable.
    lines.sort_by_key(|line| std::cmp::Reverse(line.at));
    lines.dedup();
    lines.truncate(limit.get() as usize);
    Ok(lines)
}
