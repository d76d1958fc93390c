//! The lag of topics: unpublished entries, by topic.

use std::collections::BTreeMap;

use outbox_log::entries::UNREAD_COUNTED_MAX;
use outbox_log::{ExceptionState, LogError};
use serde::Serialize;

use super::error::OperateError;
use super::operator::{Operator, Role};
use super::pause::PauseLine;
use super::places::{OutboxPlace, Places};
use super::turns::in_turns;

/// The lag of one topic in one pipeline.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LagLine {
    /// The pipeline.
    pub pipeline: String,
    /// The topic.
    pub topic: String,
    /// Messages that the relay has not passed.
    pub unread: u64,
    /// Whether `unread` is a lower bound: the pipeline has more messages than are counted over all
    /// topics, [`UNREAD_COUNTED_MAX`].
    pub unread_is_at_least: bool,
    /// Parked messages, by their state.
    pub parked: BTreeMap<ExceptionState, u64>,
    /// The age of the oldest message that should have been published: unread, held or retrying
    /// since it was enqueued, scheduled since it was due. The same as in the status.
    pub oldest_age_seconds: Option<f64>,
    /// The pause of the topic or of the whole pipeline, with author and reason.
    pub paused: Option<PauseLine>,
}

/// Returns the lag of each topic with unpublished messages, and the errors of unreachable
/// databases. Cancel-safe.
///
/// # Errors
/// [`OperateError`] when the operator may not view the backlog.
pub async fn lag(
    places: &Places,
    operator: &Operator,
) -> Result<(Vec<LagLine>, Vec<OperateError>), OperateError> {
    operator.permit(Role::Viewer, "view the backlog")?;
    let (mut lines, mut away) = (Vec::new(), places.away.clone());
    let look = |place: &OutboxPlace| {
        let place = place.clone();
        async move {
            let topics = place.entries.lag(&place.pipeline).await?;
            Ok::<_, LogError>((topics, place.log.pauses(&place.pipeline).await?))
        }
    };
    let looks = places.outboxes.iter().map(look).collect();
    for (place, found) in places.outboxes.iter().zip(in_turns(looks).await) {
        match found {
            Ok((mut topics, pauses)) => {
                let pauses: Vec<PauseLine> =
                    pauses.into_iter().map(|pause| PauseLine::of(&place.pipeline, pause)).collect();
                let counted: u64 = topics.iter().map(|topic| topic.unread).sum();
                let is_cut = counted >= u64::from(UNREAD_COUNTED_MAX);
                // Messages that the pipeline leaves to others do not lag.
                topics.retain(|of| !of.parked.is_empty() || place.filter.can_take_topic(&of.topic));
                lines.extend(topics.into_iter().map(|topic| LagLine {
                    pipeline: place.pipeline.to_string(),
                    paused: pauses.iter().find(|pause| pause.keeps(&topic.topic, None)).cloned(),
                    topic: topic.topic,
                    unread: topic.unread,
                    unread_is_at_least: is_cut,
                    parked: topic.parked,
                    oldest_age_seconds: topic.oldest.map(|age| age.as_secs_f64()),
                }));
            }
            Err(error) => away.push(OperateError::from(error).about(&place.pipeline)),
        }
    }
    Ok((lines, away))
}
