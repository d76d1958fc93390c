//! The state of consumers, according to their inboxes.

use std::time::Duration;

use inbox::Activity;
use time::OffsetDateTime;

use super::error::OperateError;
use super::operator::{Operator, Role};
use super::places::Places;
use super::status::{Count, Symptom, Wait};
use super::turns::in_turns;

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

impl ConsumerLine {
    /// Returns what waits at the consumer, most severe first.
    #[must_use]
    pub fn waits(&self) -> Vec<Wait> {
        let Some(activity) = &self.activity else { return Vec::new() };
        let mut waits = Vec::new();
        let mut add = |symptom, number: u64, since: Option<OffsetDateTime>, one: &str, several: &str| {
            if number == 0 {
                return;
            }
            let lasts = since.map(|since| (OffsetDateTime::now_utc() - since).max(time::Duration::ZERO));
            waits.push(Wait {
                symptom,
                why: if number == 1 { format!("1 {one}") } else { format!("{number} {several}") },
                count: Some(Count { number, is_at_least: false }),
                cause: None,
                lasts: lasts.map(time::Duration::unsigned_abs),
                passes: symptom == Symptom::ConsumerFails,
            });
        };
        let one = "dead letter is open: requeue or discard it";
        let several = "dead letters are open: requeue or discard them";
        add(Symptom::ConsumerDead, activity.dead, activity.dead_since, one, several);
        let one = "message failed and will be retried";
        let several = "messages failed and will be retried";
        add(Symptom::ConsumerFails, activity.retrying, activity.failing_since, one, several);
        waits
    }
}

/// The period in which applied messages are counted.
const PERIOD: Duration = Duration::from_secs(3_600);

/// Returns the work of the consumers of all inboxes within the last hour, the waiting messages, and
/// the errors of unreachable databases. Cancel-safe.
///
/// # Errors
/// [`OperateError`] when the operator may not view consumers.
pub async fn consumers(
    places: &Places,
    operator: &Operator,
) -> Result<(Vec<ConsumerLine>, Vec<OperateError>), OperateError> {
    operator.permit(Role::Viewer, "view consumers")?;
    let (mut lines, mut away) = (Vec::new(), places.away.clone());
    let looks = places.inboxes.iter().map(|place| place.database.activity(PERIOD)).collect();
    for (place, activity) in places.inboxes.iter().zip(in_turns(looks).await) {
        let remembers_from = place.database.remembers_from();
        let location = place.location.clone();
        match (activity, &place.consumer) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_letters_come_before_what_is_retried() {
        let now = OffsetDateTime::now_utc();
        let activity = Activity {
            dead: 12,
            dead_since: Some(now - Duration::from_secs(90)),
            retrying: 1,
            ..Activity::default()
        };
        let mut line = ConsumerLine {
            consumer: String::from("billing"),
            location: String::new(),
            activity: Some(activity),
            remembers_from: now,
        };
        let waits = line.waits();
        let told: Vec<String> = waits.iter().map(Wait::told).collect();
        assert_eq!(told[0], "12 dead letters are open: requeue or discard them, for 1m30s");
        assert_eq!(told[1], "1 message failed and will be retried");
        assert!(!waits[0].passes && waits[1].passes);
        line.activity = None;
        assert_eq!(line.waits(), []);
    }
}
