//! Pausing and resuming a pipeline, one of its topics, or an ordering key.
//!
//! A pause is a row in the outbox's database. A running relay and its successors apply it within a
//! second. Messages of a paused topic or key are held. The order of keys is kept, so later messages
//! of a key wait behind a held one, whatever their topic.

use std::collections::BTreeSet;
use std::time::Duration;

use outbox_log::entries::{Search, Selection};
use outbox_log::{EntryId, LogError, Pause, PauseScope, RelayName};
use serde::Serialize;
use time::OffsetDateTime;

use super::error::{OperateError, OperateErrorKind};
use super::operator::{Operator, Role, Signed};
use super::places::{OutboxPlace, Places};
use super::seconds;
use super::text::with_short_names;
use super::turns::in_turns;

/// The words behind the scope of a pause, in its sentence.
pub(crate) const PAUSED_BY: &str = " is paused by ";

/// A pause that is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PauseLine {
    /// The pipeline.
    pub pipeline: String,
    /// The scope that is paused.
    pub paused: PauseScope,
    /// The author.
    pub actor: String,
    /// The reason.
    pub reason: String,
    /// The time since which it is paused, by the database's clock.
    #[serde(serialize_with = "seconds::serialize")]
    pub since: OffsetDateTime,
    /// Time since then, by the same clock.
    #[serde(skip)]
    pub age: Duration,
}

impl PauseLine {
    pub(crate) fn of(pipeline: &RelayName, pause: Pause) -> Self {
        Self {
            pipeline: pipeline.to_string(),
            paused: pause.scope,
            actor: pause.actor,
            reason: pause.reason,
            since: pause.since,
            age: pause.age,
        }
    }

    /// Returns whether it keeps a message with this topic and key.
    pub(crate) fn keeps(&self, topic: &str, key: Option<&str>) -> bool {
        match &self.paused {
            PauseScope::Pipeline => true,
            PauseScope::Topic(paused) => paused == topic,
            PauseScope::Key(paused) => key == Some(paused.as_str()),
        }
    }

    /// Returns what is paused, by whom and why, in one sentence. A very long name is cut in its
    /// middle.
    #[must_use]
    pub fn told(&self) -> String {
        let paused = with_short_names(&self.paused.to_string());
        format!("{paused}{PAUSED_BY}{}: {}", self.actor, self.reason)
    }
}

/// Returns the pauses in force, in all outboxes. Cancel-safe.
///
/// # Errors
/// [`OperateError`] when the operator may not view pauses, or when a place does not answer.
pub async fn pauses(places: &Places, operator: &Operator) -> Result<Vec<PauseLine>, OperateError> {
    operator.permit(Role::Viewer, "view pauses")?;
    if let Some(error) = places.away.first() {
        return Err(error.clone());
    }
    let mut lines = Vec::new();
    for in_force in in_turns(places.outboxes.iter().map(in_force).collect()).await {
        lines.extend(in_force?);
    }
    Ok(lines)
}

/// Pauses a scope in every outbox of the places. Not cancel-safe: check [`pauses`].
///
/// # Errors
/// [`OperateError`] when the operator may not pause, or when the scope is already paused; the error
/// names author and reason.
pub async fn pause(places: &Places, signed: &Signed, scope: &PauseScope) -> Result<(), OperateError> {
    signed.check("pause")?;
    for place in outboxes(places)? {
        let (actor, reason) = (signed.operator.name(), signed.note.as_str());
        if place.log.pause(&place.pipeline, scope, actor, reason).await.map_err(|e| about(place, e.into()))? {
            continue;
        }
        let text = match in_force(place).await?.into_iter().find(|line| line.paused == *scope) {
            Some(line) => format!(
                "{scope} is already paused by {} since {}: {:?}",
                line.actor,
                seconds::text(line.since),
                line.reason
            ),
            None => format!("another operator has just paused and resumed {scope}"),
        };
        let error = OperateError::new(OperateErrorKind::Conflict, text);
        return Err(about(place, error.with_help("`relay status` shows what is paused")));
    }
    Ok(())
}

/// Resumes a scope in every outbox of the places: the pause that began at `since`, or the current
/// one. Not cancel-safe: check [`pauses`].
///
/// # Errors
/// [`OperateError`] when the operator may not resume, when the scope is not paused (the error lists
/// what is), or when it was paused again: the new pause has its own reason.
pub async fn resume(
    places: &Places,
    signed: &Signed,
    scope: &PauseScope,
    since: Option<OffsetDateTime>,
) -> Result<(), OperateError> {
    signed.check("resume")?;
    for place in outboxes(places)? {
        let (actor, reason) = (signed.operator.name(), signed.note.as_str());
        if place
            .log
            .resume(&place.pipeline, scope, since, actor, reason)
            .await
            .map_err(|e| about(place, e.into()))?
        {
            continue;
        }
        let lines = in_force(place).await?;
        if let Some(line) = lines.iter().find(|line| line.paused == *scope) {
            let text = format!("{scope} was paused again by {}: {}", line.actor, line.reason);
            let error = OperateError::new(OperateErrorKind::Conflict, text);
            return Err(about(place, error.with_help("it stays paused: check the new pause")));
        }
        let others: Vec<String> = lines.into_iter().map(|line| line.paused.to_string()).collect();
        let others = if others.is_empty() { String::from("nothing") } else { others.join(", ") };
        let error = OperateError::new(OperateErrorKind::Conflict, format!("{scope} is not paused"));
        return Err(about(place, error.with_help(format_args!("currently paused: {others}"))));
    }
    Ok(())
}

/// Number of the newest entries that are searched for a topic or key.
const LOOKED_AT_MAX: i64 = 10_000;

/// Returns whether a topic or key appears neither among the newest entries of the outboxes nor
/// among parked ones, so that its name may be misspelled. Returns false when a query fails.
/// Cancel-safe.
pub async fn is_unknown(places: &Places, scope: &PauseScope) -> bool {
    let (topic, key) = match scope {
        PauseScope::Topic(topic) => (Some(topic.clone()), None),
        PauseScope::Key(key) => (None, Some(key.clone())),
        PauseScope::Pipeline => return false,
    };
    let topic = &topic;
    let key = &key;
    let looks = places.outboxes.iter().map(|place| async move {
        let extent = place.entries.extent(&place.pipeline).await?;
        let newest = extent.newest.map_or(0, |newest| newest.0);
        let first = Some(EntryId(newest.saturating_sub(LOOKED_AT_MAX)));
        let selection = Selection { topic: topic.clone(), key: key.clone(), first, ..Selection::default() };
        let page = place.entries.select(&place.pipeline, &extent, &selection, EntryId::default()).await?;
        let lag = place.entries.lag(&place.pipeline).await?;
        let is_behind = lag.iter().any(|of| Some(&of.topic) == topic.as_ref());
        Ok::<_, LogError>(!page.entries.is_empty() || is_behind)
    });
    in_turns(looks.collect()).await.into_iter().all(|found| matches!(found, Ok(false)))
}

/// Maximum number of the newest entries whose topics are known.
const NEWEST_MAX: u32 = 1_000;

/// Returns the topics of the newest entries of the outboxes, and those with unpublished entries. An
/// outbox that does not answer is left out. Cancel-safe.
pub async fn known_topics(places: &Places) -> BTreeSet<String> {
    let looks = places.outboxes.iter().map(|place| async move {
        let extent = place.entries.extent(&place.pipeline).await?;
        let below = EntryId(extent.newest.map_or(0, |newest| newest.0).saturating_add(1));
        let search = Search::default();
        let newest = place.entries.search(&place.pipeline, &extent, &search, below, NEWEST_MAX).await?;
        let topics = newest.entries.into_iter().map(|entry| entry.topic);
        let lag = place.entries.lag(&place.pipeline).await?.into_iter().map(|of| of.topic);
        Ok::<_, LogError>(topics.chain(lag).collect::<Vec<_>>())
    });
    in_turns(looks.collect()).await.into_iter().flatten().flatten().collect()
}

fn outboxes(places: &Places) -> Result<&[OutboxPlace], OperateError> {
    places.away.first().map_or(Ok(&places.outboxes), |error| Err(error.clone()))
}

async fn in_force(place: &OutboxPlace) -> Result<Vec<PauseLine>, OperateError> {
    let pauses = place.log.pauses(&place.pipeline).await.map_err(|error| about(place, error.into()))?;
    Ok(pauses.into_iter().map(|pause| PauseLine::of(&place.pipeline, pause)).collect())
}

fn about(place: &OutboxPlace, error: OperateError) -> OperateError {
    error.about(&place.pipeline)
}
