//! Keys that wait: the message that stops each one, the reason, the time, and the number of
//! messages behind it.

use std::collections::BTreeMap;

use message::Fault;
use outbox_log::{EntryId, ExceptionState};
use serde::Serialize;
use time::OffsetDateTime;

use super::dead::DeadMessage;
use super::error::OperateError;
use super::message_state::MessageState;
use super::operator::{Operator, Role};
use super::pause::PauseLine;
use super::places::{OutboxPlace, Places};
use super::seconds;
use super::turns::in_turns;

/// Maximum number of messages examined for each state, in all outboxes together.
const LOOKED_AT_MAX: u32 = 5_000;

/// A waiting ordering key, or a topic with waiting messages without a key.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HeldLine {
    /// The pipeline.
    pub pipeline: String,
    /// The ordering key; `None` for messages of a topic without one.
    pub key: Option<String>,
    /// The topic of the first waiting message.
    pub topic: String,
    /// Its position in the log.
    pub first: String,
    /// Its state: dead, retrying or held.
    pub state: MessageState,
    /// Its last error.
    pub error: Option<String>,
    /// When it began to wait.
    #[serde(serialize_with = "seconds::serialize")]
    pub since: OffsetDateTime,
    /// The time until the next attempt, in seconds.
    pub due_in_seconds: Option<f64>,
    /// Number of messages behind it.
    pub behind: u64,
    /// The cause that stops it, if it is held itself and that is known.
    pub stopped_by: Option<Stop>,
}

/// The cause that stops the first message of a key, which is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// A pause of the pipeline, of its topic or of its key.
    Pause(PauseLine),
    /// A message that is retried and stops its topic.
    Topic {
        /// The position of that message in the log.
        first: String,
        /// Its last error.
        error: Option<String>,
    },
}

/// The waiting keys of all outboxes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Held {
    /// The keys, those with the most messages behind them first.
    pub keys: Vec<HeldLine>,
    /// Whether more messages wait than were examined.
    pub more: bool,
    /// Maximum number of messages that were examined for each state and pipeline.
    pub examined_max: u32,
    /// The errors of unreachable databases.
    pub away: Vec<OperateError>,
}

/// Returns the waiting keys among the first dead and retrying messages, and the held messages of
/// the first keys, of each outbox. Examines 5,000 messages in each state, in all outboxes together.
/// Cancel-safe.
///
/// # Errors
/// [`OperateError`] when the operator may not view parked messages.
pub async fn held(places: &Places, operator: &Operator) -> Result<Held, OperateError> {
    operator.permit(Role::Viewer, "view parked messages")?;
    let examined_max = share(places.outboxes.len());
    let mut held = Held { away: places.away.clone(), examined_max, ..Held::default() };
    let looks = places.outboxes.iter().enumerate();
    let looks = looks.map(|(number, place)| Waiting::of(number, place, examined_max)).collect();
    for (place, waiting) in places.outboxes.iter().zip(in_turns(looks).await) {
        held.more |= waiting.more;
        held.away.extend(waiting.away);
        held.keys.extend(by_key(place.pipeline.as_str(), waiting.messages, &waiting.pauses));
    }
    held.keys.sort_by(|one, other| (other.behind, one.since).cmp(&(one.behind, other.since)));
    Ok(held)
}

/// The first waiting messages of an outbox.
#[derive(Default)]
struct Waiting {
    messages: Vec<DeadMessage>,
    pauses: Vec<PauseLine>,
    more: bool,
    /// The reason why a state and those after it are missing.
    away: Option<OperateError>,
}

impl Waiting {
    async fn of(number: usize, place: &OutboxPlace, examined_max: u32) -> Self {
        let name = place.pipeline.as_str();
        let mut waiting = Self::default();
        match place.log.pauses(&place.pipeline).await {
            Ok(pauses) => {
                waiting.pauses =
                    pauses.into_iter().map(|pause| PauseLine::of(&place.pipeline, pause)).collect();
            }
            Err(error) => {
                waiting.away = Some(OperateError::from(error).about(name));
                return waiting;
            }
        }
        for state in [ExceptionState::Dead, ExceptionState::Retrying, ExceptionState::Held] {
            let found = match state {
                ExceptionState::Held => place.log.held(&place.pipeline, examined_max).await,
                _ => place.log.list(&place.pipeline, state, EntryId::default(), examined_max).await,
            };
            match found {
                Ok(page) => {
                    waiting.more |= page.len() >= examined_max as usize;
                    let messages = page.into_iter();
                    waiting
                        .messages
                        .extend(messages.map(|it| DeadMessage::of_entry(number, name, state, it)));
                }
                Err(error) => {
                    waiting.away = Some(OperateError::from(error).about(name));
                    break;
                }
            }
        }
        waiting
    }
}

/// Returns the number of messages to examine in each of a number of outboxes.
fn share(outboxes: usize) -> u32 {
    let outboxes = u32::try_from(outboxes.max(1)).unwrap_or(u32::MAX);
    (LOOKED_AT_MAX / outboxes).max(1)
}

/// Returns one line for each key: its first message, and the number of those behind it. A message
/// without a key waits for its topic.
fn by_key(pipeline: &str, waiting: Vec<DeadMessage>, pauses: &[PauseLine]) -> Vec<HeldLine> {
    let stopped = stopped_topics(&waiting);
    let mut keys: BTreeMap<(Option<String>, String), Vec<DeadMessage>> = BTreeMap::new();
    // The relay passes a dead message without a key, so it stops nothing.
    let stops = |message: &DeadMessage| message.key.is_some() || message.state != MessageState::Dead;
    for message in waiting.into_iter().filter(stops) {
        // A key is held across all topics; messages without a key are held by their topic.
        let topic = if message.key.is_some() { String::new() } else { message.topic.clone() };
        keys.entry((message.key.clone(), topic)).or_default().push(message);
    }
    let mut lines = Vec::with_capacity(keys.len());
    for messages in keys.into_values() {
        let behind = messages.len().saturating_sub(1) as u64;
        let Some(first) = messages.into_iter().min_by_key(place) else { continue };
        let stopped_by = match pauses.iter().find(|pause| pause.keeps(&first.topic, first.key.as_deref())) {
            _ if first.state != MessageState::Held => None,
            Some(pause) => Some(Stop::Pause(pause.clone())),
            None => stopped.get(&first.topic).cloned(),
        };
        lines.push(HeldLine {
            pipeline: pipeline.to_owned(),
            stopped_by,
            key: first.key,
            topic: first.topic,
            first: first.id,
            state: first.state,
            error: first.error,
            since: first.since,
            due_in_seconds: first.due_in_seconds,
            behind,
        });
    }
    lines
}

/// Returns the first retrying message of each topic that is stopped. A message that is retried
/// after its own fault stops only its key.
fn stopped_topics(waiting: &[DeadMessage]) -> BTreeMap<String, Stop> {
    let is_own_fault = |message: &DeadMessage| message.cause.as_deref() == Some(Fault::Message.as_str());
    let stops = |message: &&DeadMessage| message.state == MessageState::Retrying && !is_own_fault(message);
    let mut retrying: Vec<&DeadMessage> = waiting.iter().filter(stops).collect();
    retrying.sort_by_key(|message| std::cmp::Reverse(place(message)));
    let stop =
        |message: &DeadMessage| Stop::Topic { first: message.id.clone(), error: message.error.clone() };
    // The first of each topic is the last one here, and stays.
    retrying.into_iter().map(|message| (message.topic.clone(), stop(message))).collect()
}

/// Returns the position of a message in the log.
fn place(message: &DeadMessage) -> i64 {
    message.id.parse().unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use outbox_log::PauseScope;

    use super::super::dead::sample::entry;
    use super::*;

    #[test]
    fn outboxes_share_what_is_examined() {
        assert_eq!([0, 1, 2, 3, 100].map(share), [5_000, 5_000, 2_500, 1_666, 50]);
        assert_eq!(share(1_000_000), 1, "of each outbox something is shown");
    }

    #[test]
    fn a_key_is_named_with_the_message_that_stops_it() {
        let held = |id| DeadMessage { state: MessageState::Held, topic: "other".into(), ..entry(id) };
        let lines = by_key("orders", vec![held(12), entry(10), held(9_000)], &[]);
        assert_eq!(lines.len(), 1);
        assert_eq!((lines[0].first.as_str(), lines[0].state, lines[0].behind), ("10", MessageState::Dead, 2));
    }

    #[test]
    fn a_held_message_is_stopped_by_a_pause_or_by_its_topic() {
        let cause = Some(String::from("operator"));
        let of = |id, state| DeadMessage {
            state,
            key: Some(format!("key {id}")),
            cause: cause.clone(),
            ..entry(id)
        };
        let paused = |paused| PauseLine {
            pipeline: String::from("orders"),
            paused,
            actor: String::from("bob"),
            reason: String::from("migration"),
            since: OffsetDateTime::UNIX_EPOCH,
            age: Duration::ZERO,
        };
        let topic = entry(1).topic;
        let waiting = || vec![of(2, MessageState::Held), of(1, MessageState::Retrying)];
        let stops = |pauses: &[PauseLine]| {
            let lines = by_key("orders", waiting(), pauses);
            lines.into_iter().map(|line| (line.first, line.stopped_by)).collect::<BTreeMap<_, _>>()
        };
        let stop = Stop::Topic { first: String::from("1"), error: entry(1).error };
        assert_eq!(stops(&[])["2"], Some(stop), "its topic is stopped");
        assert_eq!(stops(&[])["1"], None, "it is tried again");
        let own_fault = DeadMessage { cause: Some(String::from("message")), ..of(1, MessageState::Retrying) };
        let lines = by_key("orders", vec![of(2, MessageState::Held), own_fault], &[]);
        assert!(lines.iter().all(|line| line.stopped_by.is_none()), "it stops only its own key: {lines:?}");
        for scope in [PauseScope::Pipeline, PauseScope::Topic(topic), PauseScope::Key(String::from("key 2"))]
        {
            let pause = paused(scope);
            assert_eq!(stops(std::slice::from_ref(&pause))["2"], Some(Stop::Pause(pause)));
        }
        let other = paused(PauseScope::Key(String::from("key 3")));
        assert!(matches!(stops(&[other])["2"], Some(Stop::Topic { .. })));
    }

    #[test]
    fn messages_without_a_key_wait_for_their_topic() {
        let held = |id| DeadMessage { state: MessageState::Held, ..entry(id) };
        let free = |id, topic: &str| DeadMessage { key: None, topic: topic.into(), ..held(id) };
        let lines = by_key("orders", vec![free(1, "a"), free(2, "b"), free(3, "a")], &[]);
        let told: Vec<_> = lines.iter().map(|line| (line.topic.as_str(), line.behind)).collect();
        assert_eq!(told, [("a", 1), ("b", 0)]);
        let dead = DeadMessage { state: MessageState::Dead, ..free(1, "a") };
        let lines = by_key("orders", vec![dead.clone(), free(3, "a")], &[]);
        assert_eq!((lines[0].first.as_str(), lines[0].behind), ("3", 0), "a dead one stops nobody");
        assert_eq!(by_key("orders", vec![dead], &[]), []);
    }
}
