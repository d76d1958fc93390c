//! Keys that wait: the message that stops each one, the reason, the time, and the number of
//! messages behind it.

use std::collections::{BTreeMap, BTreeSet};

use engine::DeadPolicy;
use message::Fault;
use outbox_log::{EntryId, ExceptionState};
use serde::Serialize;
use time::OffsetDateTime;

use super::cause::signature;
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

/// A waiting ordering key, or a topic whose messages without a key are held.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HeldLine {
    /// The pipeline.
    pub pipeline: String,
    /// The ordering key; `None` for held messages of a topic without one.
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

/// The cause that stops the first message of a key, which is held, as far as the database shows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// A pause of the pipeline, of its topic or of its key.
    Pause(PauseLine),
    /// Perhaps its topic, which a message that is retried may stop.
    Topic(TopicStop),
    /// A message that was not examined, because too many wait.
    NotExamined,
}

/// A message that is retried, and may stop its topic until it is published. If it stops only its
/// own key, the held message leaves in its turn: its key has a burst, or its topic is busy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TopicStop {
    /// Its position in the log; of several such messages, the first.
    pub first: String,
    /// Its last error.
    pub error: Option<String>,
    /// The time until its next attempt, in seconds.
    pub due_in_seconds: Option<f64>,
    /// Number of other messages of the topic that are retried for faults that are not their own:
    /// any of them may be the one that stops it.
    pub others: u64,
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
    for (place, mut waiting) in places.outboxes.iter().zip(in_turns(looks).await) {
        held.more |= waiting.more;
        held.away.extend(waiting.away.take());
        held.keys.extend(by_key(place.pipeline.as_str(), waiting));
    }
    held.keys.sort_by(|one, other| (other.behind, one.since).cmp(&(one.behind, other.since)));
    Ok(held)
}

/// The first waiting messages of an outbox.
#[derive(Default)]
pub(crate) struct Waiting {
    pub(crate) messages: Vec<DeadMessage>,
    pub(crate) pauses: Vec<PauseLine>,
    /// Whether a key waits for its dead messages.
    pub(crate) dead_policy: DeadPolicy,
    pub(crate) more: bool,
    /// Whether dead or retrying messages, which stop keys and topics, are missing.
    pub(crate) more_holders: bool,
    /// The reason why a state and those after it are missing.
    pub(crate) away: Option<OperateError>,
}

impl Waiting {
    async fn of(number: usize, place: &OutboxPlace, examined_max: u32) -> Self {
        let name = place.pipeline.as_str();
        let mut waiting = Self { dead_policy: place.dead_policy, ..Self::default() };
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
                    let is_full = page.len() >= examined_max as usize;
                    waiting.more |= is_full;
                    waiting.more_holders |= is_full && state != ExceptionState::Held;
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

/// Returns the number of held messages behind each error of the messages that stop them, by the
/// error's signature. Messages that a pause keeps, and those whose stop was not examined, wait for
/// no error here.
pub(crate) fn behind_errors(waiting: Waiting) -> BTreeMap<String, u64> {
    let mut behind: BTreeMap<String, u64> = BTreeMap::new();
    for line in by_key("", waiting) {
        let is_held = line.state == MessageState::Held;
        let error = match line.stopped_by {
            Some(Stop::Topic(topic)) => topic.error,
            Some(Stop::Pause(_) | Stop::NotExamined) => None,
            None => line.error.filter(|_| !is_held),
        };
        let held = line.behind + u64::from(is_held);
        if let Some(error) = error.filter(|_| held > 0) {
            *behind.entry(signature(&error)).or_default() += held;
        }
    }
    behind
}

/// Returns one line for each key: its first message, and the number of those behind it. Messages
/// without a key wait only for their topic: those that are held share a line, and the others stop
/// nothing.
fn by_key(pipeline: &str, waiting: Waiting) -> Vec<HeldLine> {
    let stopped = stopped_topics(&waiting);
    let mut keys: BTreeMap<(Option<String>, String), Vec<DeadMessage>> = BTreeMap::new();
    let waits = |message: &DeadMessage| match (&message.key, message.state) {
        (_, MessageState::Held) => true,
        (None, _) => false,
        (Some(_), MessageState::Dead) => waiting.dead_policy == DeadPolicy::Hold,
        (Some(_), _) => true,
    };
    for message in waiting.messages.into_iter().filter(waits) {
        // A key is held across all topics; messages without a key are held by their topic.
        let topic = if message.key.is_some() { String::new() } else { message.topic.clone() };
        keys.entry((message.key.clone(), topic)).or_default().push(message);
    }
    let mut lines = Vec::with_capacity(keys.len());
    for messages in keys.into_values() {
        let behind = messages.len().saturating_sub(1) as u64;
        let Some(first) = messages.into_iter().min_by_key(place) else { continue };
        let stopped_by = match pause_of(&waiting.pauses, &first) {
            _ if first.state != MessageState::Held => None,
            Some(pause) => Some(Stop::Pause(pause.clone())),
            None => match stopped.get(&first.topic) {
                Some(topic) => Some(Stop::Topic(topic.clone())),
                None => waiting.more_holders.then_some(Stop::NotExamined),
            },
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

/// Returns the topics that may be stopped, each with the message that is retried. A message that is
/// retried after its own fault stops only its key, and so may one that is retried after another
/// fault. A topic is more likely to be stopped where a message without a key is held, or if all
/// dead and retrying messages were examined. It is never certain: a message is also held while its
/// key has more than its share of the relay's window, or while its topic is busy.
fn stopped_topics(waiting: &Waiting) -> BTreeMap<String, TopicStop> {
    let is_own_fault = |message: &DeadMessage| message.cause.as_deref() == Some(Fault::Message.as_str());
    let stops = |message: &&DeadMessage| message.state == MessageState::Retrying && !is_own_fault(message);
    let shows_it = |message: &DeadMessage| {
        let is_held = message.state == MessageState::Held && message.key.is_none();
        is_held && pause_of(&waiting.pauses, message).is_none()
    };
    let held = waiting.messages.iter().filter(|message| shows_it(message));
    let shown: BTreeSet<&str> = held.map(|message| message.topic.as_str()).collect();
    let is_likely = |topic: &str| !waiting.more_holders || shown.contains(topic);
    let mut retrying: Vec<&DeadMessage> = waiting.messages.iter().filter(stops).collect();
    retrying.sort_by_key(|message| place(message));
    let mut topics: BTreeMap<String, TopicStop> = BTreeMap::new();
    for message in retrying.into_iter().filter(|message| is_likely(&message.topic)) {
        let stop = || TopicStop {
            first: message.id.clone(),
            error: message.error.clone(),
            due_in_seconds: message.due_in_seconds,
            others: 0,
        };
        topics.entry(message.topic.clone()).and_modify(|stop| stop.others += 1).or_insert_with(stop);
    }
    topics
}

/// Returns the pause that keeps a message, if there is one.
fn pause_of<'a>(pauses: &'a [PauseLine], message: &DeadMessage) -> Option<&'a PauseLine> {
    pauses.iter().find(|pause| pause.keeps(&message.topic, message.key.as_deref()))
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

    fn waiting(messages: Vec<DeadMessage>) -> Waiting {
        Waiting { messages, ..Waiting::default() }
    }

    #[test]
    fn a_key_is_named_with_the_message_that_stops_it() {
        let held = |id| DeadMessage { state: MessageState::Held, topic: "other".into(), ..entry(id) };
        let of = |dead_policy| {
            let messages = vec![held(12), entry(10), held(9_000)];
            by_key("orders", Waiting { dead_policy, ..waiting(messages) }).remove(0)
        };
        let line = of(DeadPolicy::Hold);
        assert_eq!((line.first.as_str(), line.state, line.behind), ("10", MessageState::Dead, 2));
        let line = of(DeadPolicy::Pass);
        assert_eq!((line.first.as_str(), line.state, line.behind), ("12", MessageState::Held, 1));
    }

    fn of(id: i64, state: MessageState) -> DeadMessage {
        let cause = Some(String::from("operator"));
        DeadMessage { state, key: Some(format!("key {id}")), cause, ..entry(id) }
    }

    fn stop(first: i64, others: u64) -> Option<Stop> {
        let (first, error) = (first.to_string(), entry(first).error);
        Some(Stop::Topic(TopicStop { first, error, due_in_seconds: None, others }))
    }

    /// Returns what stops the first message of each line.
    fn stops(waiting: Waiting) -> BTreeMap<String, Option<Stop>> {
        by_key("orders", waiting).into_iter().map(|line| (line.first, line.stopped_by)).collect()
    }

    #[test]
    fn a_held_message_is_stopped_by_a_pause_or_by_its_topic() {
        let paused = |paused| PauseLine {
            pipeline: String::from("orders"),
            paused,
            actor: String::from("bob"),
            reason: String::from("migration"),
            since: OffsetDateTime::UNIX_EPOCH,
            age: Duration::ZERO,
        };
        let topic = entry(1).topic;
        let messages = || vec![of(2, MessageState::Held), of(1, MessageState::Retrying)];
        let under = |pauses: &[PauseLine]| stops(Waiting { pauses: pauses.to_vec(), ..waiting(messages()) });
        assert_eq!(under(&[])["2"], stop(1, 0), "its topic may be stopped");
        assert_eq!(under(&[])["1"], None, "it is tried again");
        let own_fault = DeadMessage { cause: Some(String::from("message")), ..of(1, MessageState::Retrying) };
        let told = stops(waiting(vec![of(2, MessageState::Held), own_fault]));
        assert!(told.values().all(Option::is_none), "it stops only its own key: {told:?}");
        for scope in [PauseScope::Pipeline, PauseScope::Topic(topic), PauseScope::Key(String::from("key 2"))]
        {
            let pause = paused(scope);
            assert_eq!(under(std::slice::from_ref(&pause))["2"], Some(Stop::Pause(pause)));
        }
        let other = paused(PauseScope::Key(String::from("key 3")));
        assert_eq!(under(&[other])["2"], stop(1, 0));
    }

    /// Goal: no message that stops nothing is named for a decision. Oracle: the message that is
    /// named, where the one that stops a key was not examined, and where several are retried for
    /// the broker's fault, each of which may stop its own key only.
    #[test]
    fn a_message_that_may_stop_only_its_key_is_not_blamed() {
        let retried =
            |id| DeadMessage { cause: Some(String::from("broker")), ..of(id, MessageState::Retrying) };
        let messages = || vec![retried(5), of(9, MessageState::Held)];
        let cut = |messages| Waiting { more: true, more_holders: true, ..waiting(messages) };
        assert_eq!(stops(waiting(messages()))["9"], stop(5, 0));
        assert_eq!(stops(cut(messages()))["9"], Some(Stop::NotExamined), "its holder may be one of the rest");
        let free = DeadMessage { key: None, ..of(8, MessageState::Held) };
        let told = stops(cut([messages(), vec![free]].concat()));
        assert_eq!(
            (&told["8"], &told["9"]),
            (&stop(5, 0), &stop(5, 0)),
            "only a topic holds one without a key"
        );
        let several = vec![retried(7), retried(5), retried(6), of(9, MessageState::Held)];
        assert_eq!(stops(waiting(several))["9"], stop(5, 2), "any of them may be the one");
    }

    /// Goal: the error that stops most messages is found, whether it stops a key or a topic.
    /// Oracle: the numbers behind a refused message of a key, and behind one that stops a topic.
    #[test]
    fn held_messages_are_counted_behind_the_error_that_stops_them() {
        const REFUSED: &str = "it refused the message: status 422";
        const AWAY: &str = "it accepts no messages now: status 503";
        let failed = |id, cause: &str, error: &str| DeadMessage {
            cause: Some(cause.to_owned()),
            error: Some(error.to_owned()),
            ..of(id, MessageState::Retrying)
        };
        let held = |id, key: &str| DeadMessage { key: Some(key.to_owned()), ..of(id, MessageState::Held) };
        let messages = || {
            let mut messages = vec![failed(1, "message", REFUSED), failed(2, "broker", AWAY)];
            messages.push(held(3, "key 1"));
            messages.extend((10..15).map(|id| of(id, MessageState::Held)));
            messages
        };
        let behind = behind_errors(waiting(messages()));
        assert_eq!(behind, BTreeMap::from([(signature(REFUSED), 1), (signature(AWAY), 5)]));
        let pause = PauseLine {
            pipeline: String::from("orders"),
            paused: PauseScope::Key(String::from("key 10")),
            actor: String::from("bob"),
            reason: String::from("migration"),
            since: OffsetDateTime::UNIX_EPOCH,
            age: Duration::ZERO,
        };
        let behind = behind_errors(Waiting { pauses: vec![pause], ..waiting(messages()) });
        assert_eq!(behind[&signature(AWAY)], 4, "one waits for the pause");
    }

    #[test]
    fn messages_without_a_key_wait_for_their_topic_alone() {
        let held = |id| DeadMessage { state: MessageState::Held, ..entry(id) };
        let free = |id, topic: &str| DeadMessage { key: None, topic: topic.into(), ..held(id) };
        let lines = by_key("orders", waiting(vec![free(1, "a"), free(2, "b"), free(3, "a")]));
        let told: Vec<_> = lines.iter().map(|line| (line.topic.as_str(), line.behind)).collect();
        assert_eq!(told, [("a", 1), ("b", 0)]);
        let dead = DeadMessage { state: MessageState::Dead, ..free(1, "a") };
        let lines = by_key("orders", waiting(vec![dead.clone(), free(3, "a")]));
        assert_eq!((lines[0].first.as_str(), lines[0].behind), ("3", 0), "a dead one stops nobody");
        assert_eq!(by_key("orders", waiting(vec![dead])), []);
        // Five that are refused one by one: none waits for another.
        let refused = |id| DeadMessage { state: MessageState::Retrying, ..free(id, "a") };
        assert_eq!(by_key("orders", waiting((1..6).map(refused).collect())), []);
        let probe = DeadMessage { cause: Some(String::from("operator")), ..refused(1) };
        let lines = by_key("orders", waiting(vec![probe, free(3, "a"), free(4, "a")]));
        assert_eq!((lines.len(), lines[0].first.as_str(), lines[0].behind), (1, "3", 1));
        assert_eq!(lines[0].stopped_by, stop(1, 0));
    }
}
