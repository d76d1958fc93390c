//! The state of consumers, as far as their inboxes show it.

use std::time::Duration;

use inbox::Activity;
use time::OffsetDateTime;

use super::error::OperateError;
use super::operator::{Operator, Role};
use super::places::Places;

/// One consumer.
#[derive(Debug, Clone, PartialEq)]
pub struct ConsumerLine {
    /// Its name.
    pub consumer: String,
    /// The location of its inbox.
    pub location: String,
    /// Its work and its waiting messages; `None` when its inbox knows nothing of it.
    pub activity: Option<Activity>,
    /// Messages made before this time are not remembered, so they are refused.
    pub remembers_from: OffsetDateTime,
}

/// The period in which applied messages are counted.
const PERIOD: Duration = Duration::from_secs(3_600);

/// Returns what the consumers of all inboxes did within the last hour and what waits there, and the
/// errors of unreachable databases. Cancel-safe.
///
/// # Errors
/// [`OperateError`] when the operator may not view consumers.
pub async fn consumers(
    places: &Places,
    operator: &Operator,
) -> Result<(Vec<ConsumerLine>, Vec<OperateError>), OperateError> {
    operator.permit(Role::Viewer, "view consumers")?;
    let (mut lines, mut away) = (Vec::new(), places.away.clone());
    for place in &places.inboxes {
        let remembers_from = place.database.remembers_from();
        let location = place.location.clone();
        match (place.database.activity(PERIOD).await, &place.consumer) {
            (Ok(all), Some(name)) => {
                let activity = all.into_iter().find(|activity| activity.consumer == name.as_str());
                lines.push(ConsumerLine { consumer: name.to_string(), location, activity, remembers_from });
            }
            (Ok(all), None) => lines.extend(all.into_iter().map(|activity| {
                let consumer = activity.consumer.clone();
                ConsumerLine {
                    consumer,
                    location: location.clone(),
                    activity: Some(activity),
                    remembers_from,
                }
            })),
            (Err(error), name) => {
                let whose = name.as_ref().map_or(String::from("inbox"), |name| format!("inbox of {name}"));
                away.push(error.about(whose));
            }
        }
    }
    lines.dedup();
    Ok((lines, away))
}
