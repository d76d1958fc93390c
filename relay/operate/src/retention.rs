//! History of outboxes: its age, what holds it back, and its removal.

use std::sync::Arc;
use std::time::Duration;

use outbox_log::retention::{self, Expired, HeldBack, LogRetention, Segment};
use serde::Serialize;

use crate::error::OperateError;
use crate::note::note;
use crate::operator::{Operator, Role, Signed};
use crate::settings::PipelineConfig;
use crate::units::Time;

/// The history of a pipeline's outbox.
pub struct History {
    pipeline: PipelineConfig,
    log: Arc<dyn LogRetention>,
    keep: Duration,
}

/// One segment of a pipeline's outbox.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SegmentLine {
    /// The pipeline.
    pub pipeline: String,
    /// The number of the segment.
    pub segment: u16,
    /// The id of its newest entry.
    pub newest_id: Option<i64>,
    /// The age of its newest entry.
    pub newest_age_seconds: Option<f64>,
    /// The age of its oldest entry.
    pub oldest_age_seconds: Option<f64>,
    /// Its size.
    pub bytes: Option<u64>,
    /// Whether it can be removed, or has been.
    pub can_go: bool,
    /// The reason why it stays.
    pub held_back_by: Option<String>,
    /// The reason and the remedy, if an operator must act.
    #[serde(skip)]
    pub warning: Option<String>,
}

impl History {
    /// Opens the history of a pipeline. `keep` is how long it is kept, instead of the configured
    /// time. Does not connect yet.
    ///
    /// # Errors
    /// [`OperateError`] when retention is off and `keep` is not given, or for an unusable URL.
    pub fn open(pipeline: &PipelineConfig, keep: Option<Duration>) -> Result<Self, OperateError> {
        let keep = keep
            .or(pipeline.retention.keep())
            .ok_or_else(|| OperateError::refused("retention is off", "add --keep, for example --keep 3d"))?;
        Ok(Self { pipeline: pipeline.clone(), log: log(pipeline)?, keep })
    }

    /// Removes segments that are older than the retention and that every relay has passed. Not
    /// cancel-safe: work done before a drop stays done.
    ///
    /// If a segment can be removed, the audit has the record `expire` for the request, and
    /// `expired` for the result. The clocks that decide this also decide what is removed.
    ///
    /// # Errors
    /// [`OperateError`] when the operator may not decide, when the audit could not be written, or
    /// when the database does not answer.
    pub async fn expire(&self, signed: &Signed) -> Result<Expired, OperateError> {
        signed.check("delete old messages")?;
        if self.log.segments(self.keep).await?.iter().all(|segment| segment.held_back.is_some()) {
            return Ok(Expired::default());
        }
        let selection = format!("messages older than {}", Time(self.keep));
        note(&self.pipeline, signed, "expire", &selection).await?;
        let expired = self.log.expire(self.keep).await?;
        note(&self.pipeline, signed, "expired", &format!("{selection}: {}", deleted(&expired))).await?;
        Ok(expired)
    }

    /// Returns the segments, and which of them can go. Cancel-safe.
    ///
    /// # Errors
    /// [`OperateError`] when the operator may not view them, or when the database does not answer.
    pub async fn segments(&self, operator: &Operator) -> Result<Vec<SegmentLine>, OperateError> {
        operator.permit(Role::Viewer, "view old messages")?;
        let segments = self.log.segments(self.keep).await?;
        Ok(segments.into_iter().map(|segment| line(self.pipeline.name.as_str(), segment)).collect())
    }
}

/// Returns the retention of the pipeline's log. Does not connect yet.
pub(crate) fn log(pipeline: &PipelineConfig) -> Result<Arc<dyn LogRetention>, OperateError> {
    let options = pipeline.database.options().clone();
    Ok(retention::open(pipeline.database.address(), pipeline.source.clone(), options)?)
}

/// Describes what was deleted.
fn deleted(expired: &Expired) -> String {
    let rows = expired.rows.map(|rows| format!(", {rows} rows"));
    let bytes = expired.bytes.map(|bytes| format!(", {bytes} bytes"));
    format!("{} segments{}{}", expired.segments, rows.unwrap_or_default(), bytes.unwrap_or_default())
}

fn line(pipeline: &str, segment: Segment) -> SegmentLine {
    let seconds = |age: Option<Duration>| age.map(|age| age.as_secs_f64());
    let reason = segment.held_back.as_ref();
    let warning = reason.filter(|reason| reason.needs_attention());
    SegmentLine {
        pipeline: pipeline.to_owned(),
        segment: segment.number,
        newest_id: segment.newest.map(|id| id.0),
        newest_age_seconds: seconds(segment.newest_age),
        oldest_age_seconds: seconds(segment.oldest_age),
        bytes: segment.bytes,
        can_go: reason.is_none(),
        held_back_by: reason.map(ToString::to_string),
        warning: warning.map(|reason| format!("{reason}{}", remedy(pipeline, reason))),
    }
}

/// Returns the end of a sentence with the remedy for the operator, or an empty text.
fn remedy(pipeline: &str, reason: &HeldBack) -> String {
    match reason {
        HeldBack::Relay(relay) => {
            format!("; if it will not return: relay forget --pipeline {pipeline} {relay} --note WHY")
        }
        HeldBack::Parked(_) => {
            format!("; decide about these messages: relay dead list --pipeline {pipeline}")
        }
        HeldBack::Clocks(_) => {
            String::from("; correct the clock that is wrong: `relay doctor` compares them")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the command that is copied from the text is accepted. Oracle: it has a reason, without
    /// which nothing is forgotten.
    #[test]
    fn the_command_that_forgets_a_relay_has_a_reason() {
        let text = remedy("orders", &HeldBack::Relay(String::from("old-orders")));
        assert!(text.ends_with("relay forget --pipeline orders old-orders --note WHY"), "{text}");
    }
}
