//! The state of consumers: according to their inboxes, and of those of this process.

mod own;
mod searches;
mod untaken;

use std::time::Duration;

use inbox::{ACTIVITY_COUNTED_MAX, Activity, ConsumerName, LETTER_ERRORS_LOOKED_AT, Reason};
use time::OffsetDateTime;

use crate::cause::Cause;
use crate::error::{OperateError, OperateErrorKind};
use crate::operator::{Operator, Role};
use crate::places::{InboxPlace, OutboxPlace, Places};
use crate::status::{Count, Symptom, Wait};
use crate::turns::in_turns;

pub use own::{OwnConsumer, OwnState, OwnWait, waits_for};
pub use searches::{Searches, Untaken};

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
    /// Whether a consumer has opened the inbox. Before that, nothing is expected in it.
    pub has_started: bool,
    /// The most frequent error of its open dead letters, apart from held ones.
    pub cause: Option<Cause>,
    /// A message that was published for it and that it does not know, while it applies nothing.
    pub untaken: Option<Untaken>,
}

impl ConsumerLine {
    /// Returns what waits at the consumer, most severe first.
    #[must_use]
    pub fn waits(&self) -> Vec<Wait> {
        let mut waits: Vec<Wait> = self.untaken.iter().map(Untaken::wait).collect();
        let Some(activity) = &self.activity else { return waits };
        let letters_are_at_least = self.letters_are_at_least();
        let mut add = |symptom, number: u64, since: Option<OffsetDateTime>, one: &str, several: &str| {
            if number == 0 {
                return;
            }
            let is_at_least = letters_are_at_least && symptom != Symptom::ConsumerFails;
            let least = if is_at_least { "≥ " } else { "" };
            let lasts = since.map(|since| (OffsetDateTime::now_utc() - since).max(time::Duration::ZERO));
            waits.push(Wait {
                symptom,
                why: if number == 1 {
                    format!("{least}1 {one}")
                } else {
                    format!("{least}{number} {several}")
                },
                count: Some(Count { number, is_at_least }),
                cause: self.cause.clone().filter(|_| symptom == Symptom::ConsumerDead),
                lasts: lasts.map(time::Duration::unsigned_abs),
                passes: symptom != Symptom::ConsumerDead,
            });
        };
        // Not every dead letter was counted: one that holds others may be missing.
        let dead = activity.dead.max(u64::from(letters_are_at_least));
        let one = "dead letter is open: requeue or discard it";
        let several = "dead letters are open: requeue or discard them";
        add(Symptom::ConsumerDead, dead, activity.dead_since, one, several);
        let one = "message is held behind dead letters of its key, and follows automatically";
        let several = "messages are held behind dead letters of their keys, and follow automatically";
        add(Symptom::ConsumerHeld, activity.held, None, one, several);
        let one = "message failed and will be retried";
        let several = "messages failed and will be retried";
        add(Symptom::ConsumerFails, activity.retrying, activity.failing_since, one, several);
        waits
    }

    /// Returns whether it may have more dead letters than were counted.
    #[must_use]
    pub fn letters_are_at_least(&self) -> bool {
        self.activity.as_ref().is_some_and(|it| letters(it) >= u64::from(ACTIVITY_COUNTED_MAX))
    }
}

/// Returns the number of open dead letters, with the held ones.
fn letters(activity: &Activity) -> u64 {
    activity.dead.saturating_add(activity.held)
}

/// The period in which applied messages are counted.
const PERIOD: Duration = Duration::from_secs(3_600);

/// Returns the work of the consumers of all inboxes within the last hour, the waiting messages, and
/// the errors of unreachable databases. Where the places have outboxes, also a message that was
/// published for a consumer that takes nothing: a process that looks again and again passes the
/// same `searches`, and searches for it at most once a minute. Cancel-safe.
///
/// # Errors
/// [`OperateError`] when the operator may not view consumers.
pub async fn consumers(
    places: &Places,
    operator: &Operator,
    searches: &Searches,
) -> Result<(Vec<ConsumerLine>, Vec<OperateError>), OperateError> {
    operator.permit(Role::Viewer, "view consumers")?;
    let (mut lines, mut away) = (Vec::new(), places.away.clone());
    let mut looks = Vec::with_capacity(places.inboxes.len());
    for place in &places.inboxes {
        looks.push(of_place(place, &places.outboxes, searches));
    }
    for (place, found) in places.inboxes.iter().zip(in_turns(looks).await) {
        match found {
            Ok(found) => lines.extend(found),
            Err(error) => {
                let name = place.consumer.as_ref();
                let whose = name.map_or(String::from("inbox"), |name| format!("inbox of {name}"));
                away.push(error.about(whose));
            }
        }
    }
    lines.dedup();
    Ok((lines, away))
}

/// Returns the consumers of an inbox.
async fn of_place(
    place: &InboxPlace,
    outboxes: &[OutboxPlace],
    searches: &Searches,
) -> Result<Vec<ConsumerLine>, OperateError> {
    let all = place.database.activity(PERIOD).await?;
    let activities: Vec<(String, Option<Activity>)> = match &place.consumer {
        Some(name) => {
            let activity = all.into_iter().find(|activity| activity.consumer == name.as_str());
            vec![(name.to_string(), activity)]
        }
        None => all.into_iter().map(|activity| (activity.consumer.clone(), Some(activity))).collect(),
    };
    let mut lines = Vec::with_capacity(activities.len());
    for (consumer, activity) in activities {
        let cause = match &activity {
            Some(activity) if activity.dead > 0 => cause(place, &consumer, letters(activity)).await?,
            _ => None,
        };
        let last_applied_at = activity.as_ref().and_then(|activity| activity.last_applied_at);
        let untaken = untaken::find(place, last_applied_at, outboxes, searches).await?;
        lines.push(ConsumerLine {
            consumer,
            location: place.location.clone(),
            activity,
            remembers_from: place.database.remembers_from(),
            has_started: place.database.has_memory(),
            cause,
            untaken,
        });
    }
    Ok(lines)
}

/// Returns the most frequent error of the open dead letters of a consumer, which the database
/// groups; `None` for a user who may not read errors. The error of a held one names what it waits
/// for: a decision about all with this error would be about messages that nothing is wrong with.
async fn cause(place: &InboxPlace, consumer: &str, letters: u64) -> Result<Option<Cause>, OperateError> {
    let Ok(consumer) = ConsumerName::new(consumer) else { return Ok(None) };
    let groups = match place.database.letter_errors(&consumer).await {
        Err(error) if error.kind() == OperateErrorKind::NotGranted => return Ok(None),
        groups => groups?,
    };
    let is_sample = letters > 2 * u64::from(LETTER_ERRORS_LOOKED_AT);
    let own = groups.into_iter().filter(|group| group.reason != Reason::Held.as_str());
    Ok(Cause::of(own.map(|group| (group.error, group.count)), is_sample))
}

#[cfg(test)]
mod tests {
    use migrations::{Line, Migrator};
    use sqlx::{Connection as _, Sqlite, SqliteConnection};

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
            has_started: true,
            cause: None,
            untaken: None,
        };
        let waits = line.waits();
        let told: Vec<String> = waits.iter().map(Wait::told).collect();
        assert_eq!(told[0], "12 dead letters are open, for 1m30s: requeue or discard them");
        assert_eq!(told[1], "1 message failed and will be retried");
        assert!(!waits[0].passes && waits[1].passes);
        let text = String::from("the amount is negative");
        let example = text.clone();
        line.cause =
            Some(Cause { text, example, count: 12, behind: 0, is_at_least: false, others: 0, is_cut: false });
        let waits = line.waits();
        assert_eq!(waits[0].cause, line.cause, "the front page names it");
        assert_eq!(waits[1].cause, None);
        line.activity = None;
        assert_eq!(line.waits(), []);
    }

    /// Goal: messages that follow automatically are not counted among those that an operator
    /// decides about. Oracle: the conditions of a consumer that holds keys, within and at the limit
    /// of the count.
    #[test]
    fn held_messages_of_a_consumer_need_no_decision() {
        let told = |dead, held| {
            let line = ConsumerLine {
                consumer: String::from("billing"),
                location: String::new(),
                activity: Some(Activity { dead, held, ..Activity::default() }),
                remembers_from: OffsetDateTime::now_utc(),
                has_started: true,
                cause: None,
                untaken: None,
            };
            let waits = line.waits();
            waits.iter().map(|wait| (wait.told(), wait.needs_operator())).collect::<Vec<_>>()
        };
        let waits = told(1, 2_000);
        assert_eq!(waits[0], (String::from("1 dead letter is open: requeue or discard it"), true));
        let held = "2000 messages are held behind dead letters of their keys, and follow automatically";
        assert_eq!(waits[1], (String::from(held), false));
        assert!(told(7, 199_993).iter().all(|(told, _)| told.starts_with("≥ ")));
        assert_eq!(told(0, 1).len(), 1);
        let one = String::from("≥ 1 dead letter is open: requeue or discard it");
        assert_eq!(told(0, u64::from(ACTIVITY_COUNTED_MAX))[0], (one, true), "none of those was counted");
    }

    const LETTERS: &str = "\
        INSERT INTO inbox_dead_letter (id, consumer, scope, subject, fingerprint, topic, headers, payload, \
            reason, error, attempts, origin) \
        SELECT printf('019f0000-0000-7000-8000-%012d', value), 'billing', '', 's' || value, x'00', 'invoices', \
            CASE value WHEN 1 THEN '{}' ELSE '[]' END, x'', CASE WHEN value % 2 = 0 THEN 'held' ELSE 'poison' END, \
            CASE WHEN value % 2 = 0 THEN 'held behind dead letter ' || value || ', which has the same key' \
                WHEN value % 3 = 0 THEN 'no account' ELSE 'invoice ' || value || ' is unknown' END, 1, 'q' \
        FROM (WITH RECURSIVE n (value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < 1200) \
            SELECT value FROM n)";

    /// Goal: a dead letter that other SQL has written, with headers that are not a list, does not
    /// hide its consumer, and many of them cost one statement of bounded size; held messages are
    /// not the cause, although they are the most. Oracle: the cause on the line: of the 500 oldest
    /// and the 500 newest, half of which are held.
    #[tokio::test]
    async fn the_errors_of_a_consumer_are_grouped_whatever_its_headers_are() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}?mode=rwc", folder.path().join("inbox.db").display());
        let mut connection = SqliteConnection::connect(&url).await.unwrap();
        Migrator::<Sqlite>::new(Line::Inbox).up(&mut connection).await.unwrap();
        sqlx::query(LETTERS).execute(&mut connection).await.unwrap();
        let places = Places::new().inbox_at(&url.into(), None, false).await;
        let viewer = Operator::new("ann", Role::Viewer);
        let found = consumers(&places, &viewer, &Searches::default()).await.unwrap();
        assert_eq!(found.1, [], "the inbox answers");
        let cause = found.0[0].cause.as_ref().unwrap();
        let activity = found.0[0].activity.as_ref().unwrap();
        assert_eq!((activity.dead, activity.held), (600, 600));
        assert_eq!((cause.text.as_str(), cause.count), ("invoice # is unknown", 334));
        assert!(cause.is_at_least && cause.others == 1, "{cause:?}");
        assert!(cause.example.starts_with("invoice 1"), "{cause:?}");
    }
}
