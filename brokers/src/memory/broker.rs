//! The broker: topics, sessions, withheld confirmations.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use message::{
    Malformed, MaxInFlightPerKey, Message, MessageId, OrderingKey, PublishError, SubscriptionError, Topic,
};
use tokio::sync::watch;

use super::connector::Connector;
use super::faults::{FaultDecision, Faults, Loss, Script, refusal};
use super::group::Group;
use super::subscription::Subscription;
use crate::pending::Pending;

/// An in-process broker. Clones share everything.
#[derive(Clone)]
pub struct Broker {
    state: Arc<Mutex<State>>,
    /// Counts changes; a waiter watches it.
    changes: watch::Sender<u64>,
}

/// The whole state of the broker.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) logs: BTreeMap<Topic, Vec<Result<Message, Malformed>>>,
    pub(super) groups: HashMap<String, Group>,
    pub(super) script: Script,
    pub(super) duplicates_left: usize,
    pub(super) lost_settlements_left: usize,
    /// The state of the shuffling generator; `None` while deliveries keep their order.
    pub(super) shuffle: Option<u64>,
    publishers: HashMap<u64, Session>,
    subscriptions: HashSet<u64>,
    held: Vec<Held>,
    holding: bool,
    unreachable: bool,
    strict_topics: bool,
    last_number: u64,
    violations: Vec<String>,
}

#[derive(Debug)]
struct Session {
    max_in_flight_per_key: MaxInFlightPerKey,
    failed: bool,
}

/// A stored message whose confirmation is withheld.
#[derive(Debug)]
struct Held {
    session: u64,
    id: MessageId,
    key: Option<OrderingKey>,
    pending: Pending,
}

impl Broker {
    /// Creates an empty broker. A topic is created with its first message.
    #[must_use]
    pub fn new() -> Self {
        Self { state: Arc::default(), changes: watch::Sender::new(0) }
    }

    /// Like [`new`](Self::new), but a message for a topic that was not created with
    /// [`create_topic`](Self::create_topic) fails as the operator's fault.
    #[must_use]
    pub fn with_strict_topics() -> Self {
        let broker = Self::new();
        broker.lock().strict_topics = true;
        broker
    }

    /// Creates a topic, unless it exists.
    pub fn create_topic(&self, topic: &Topic) {
        self.lock().logs.entry(topic.clone()).or_default();
    }

    /// Returns the fault switches.
    #[must_use]
    pub fn faults(&self) -> Faults<'_> {
        Faults(self)
    }

    /// Returns everything stored in a topic, in order, including duplicates. Entries that
    /// [`put`](Self::put) stored as malformed are left out.
    #[must_use]
    pub fn log(&self, topic: &Topic) -> Vec<Message> {
        let state = self.lock();
        state.logs.get(topic).into_iter().flatten().filter_map(|entry| entry.as_ref().ok().cloned()).collect()
    }

    /// Returns the topics that exist.
    #[must_use]
    pub fn topics(&self) -> Vec<Topic> {
        self.lock().logs.keys().cloned().collect()
    }

    /// Stores a message or a malformed entry without a publisher, and creates its topic.
    pub fn put(&self, topic: &Topic, entry: Result<Message, Malformed>) {
        self.lock().logs.entry(topic.clone()).or_default().push(entry);
        self.changed();
    }

    /// Describes how callers broke the rules of their session: a second unconfirmed message of one
    /// key under [`MaxInFlightPerKey::One`].
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// Waits until `topic` holds at least `len` messages. Cancel-safe. Has no time limit.
    pub async fn stored(&self, topic: &Topic, len: usize) {
        let mut changes = self.changes.subscribe();
        while self.lock().logs.get(topic).map_or(0, Vec::len) < len {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Creates a group that reads these topics from their beginning, before its first member joins.
    /// Until then its messages wait, and the broker is not drained.
    pub fn create_group(&self, group: &str, topics: impl IntoIterator<Item = Topic>) {
        let topics: Vec<Topic> = topics.into_iter().collect();
        self.lock().groups.entry(group.to_owned()).or_default().join(&topics);
    }

    /// Redelivers everything in a topic to every group that reads it, as after an operator resets
    /// offsets or restores a backup. Unsettled deliveries stay with their members.
    pub fn replay(&self, topic: &Topic) {
        self.lock().groups.values_mut().for_each(|group| group.replay(topic));
        self.changed();
    }

    /// Returns whether every group has settled everything in its topics.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        let state = self.lock();
        state.groups.values().all(|group| group.is_drained(|topic| state.logs.get(topic).map_or(0, Vec::len)))
    }

    /// Waits until every group has settled everything in its topics. Cancel-safe. Has no time
    /// limit.
    pub async fn drained(&self) {
        let mut changes = self.changes.subscribe();
        while !self.is_drained() {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Returns whether deliveries keep the order of the log; see [`Faults::shuffle_deliveries`].
    #[must_use]
    pub fn keeps_order(&self) -> bool {
        self.lock().shuffle.is_none()
    }

    /// Returns a connector whose sessions have this limit per key.
    #[must_use]
    pub fn connector(&self, max_in_flight_per_key: MaxInFlightPerKey) -> Connector {
        Connector::new(self.clone(), max_in_flight_per_key)
    }

    /// Joins a group that reads `topics` from their beginning. A message that one member settles
    /// goes to no other.
    ///
    /// # Errors
    /// [`SubscriptionError`] when the broker is unreachable or, with strict topics, when a topic
    /// does not exist.
    pub fn subscribe(
        &self,
        group: &str,
        topics: impl IntoIterator<Item = Topic>,
    ) -> Result<Subscription, SubscriptionError> {
        let topics: Vec<Topic> = topics.into_iter().collect();
        let mut state = self.lock();
        if state.unreachable {
            return Err(SubscriptionError::lost("the memory broker is switched to unreachable"));
        }
        if let Some(missing) = topics.iter().find(|topic| state.topic_is_missing(topic)) {
            return Err(SubscriptionError::operator(format!(
                "the memory broker has no topic {missing:?}; create it first"
            )));
        }
        let member = state.number();
        state.subscriptions.insert(member);
        state.groups.entry(group.to_owned()).or_default().join(&topics);
        drop(state);
        Ok(Subscription::new(self.clone(), group.to_owned(), member, topics, self.changes.subscribe()))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn changed(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(super) fn open(&self, max_in_flight_per_key: MaxInFlightPerKey) -> Result<u64, PublishError> {
        let mut state = self.lock();
        if state.unreachable {
            return Err(PublishError::session_lost("the memory broker is switched to unreachable"));
        }
        let number = state.number();
        state.publishers.insert(number, Session { max_in_flight_per_key, failed: false });
        Ok(number)
    }

    /// Takes over one message and answers it, or withholds the answer.
    pub(super) fn accept(&self, session: u64, message: Message, pending: Pending) {
        self.lock().accept(session, message, pending);
        self.changed();
    }

    /// Ends a session; the outcome of its unconfirmed messages becomes unknown.
    pub(super) fn end(&self, session: u64) {
        let mut state = self.lock();
        state.publishers.remove(&session);
        state.held.retain(|held| held.session != session);
    }

    /// Returns the number of unconfirmed messages of a session.
    pub(super) fn unconfirmed(&self, session: u64) -> usize {
        self.lock().held.iter().filter(|held| held.session == session).count()
    }

    /// Returns whether a subscription is still open.
    pub(super) fn is_member(&self, member: u64) -> bool {
        self.lock().subscriptions.contains(&member)
    }

    /// Ends a subscription; its unsettled messages are delivered again.
    pub(super) fn leave(&self, member: u64) {
        let mut state = self.lock();
        state.subscriptions.remove(&member);
        state.groups.values_mut().for_each(|group| group.give_back(member));
        drop(state);
        self.changed();
    }

    pub(super) fn set_reachable(&self, reachable: bool) {
        self.lock().unreachable = !reachable;
    }

    pub(super) fn break_publishers(&self) {
        let mut state = self.lock();
        state.publishers.clear();
        state.held.clear();
        drop(state);
        self.changed();
    }

    pub(super) fn break_subscriptions(&self) {
        let members: Vec<u64> = self.lock().subscriptions.iter().copied().collect();
        members.into_iter().for_each(|member| self.leave(member));
    }

    pub(super) fn hold_confirms(&self) {
        self.lock().holding = true;
    }

    pub(super) fn release_confirms(&self) {
        let mut state = self.lock();
        state.holding = false;
        state.held.drain(..).for_each(|held| held.pending.answer(Ok(())));
        drop(state);
        self.changed();
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn topic_is_missing(&self, topic: &Topic) -> bool {
        self.strict_topics && !self.logs.contains_key(topic)
    }

    fn accept(&mut self, number: u64, message: Message, pending: Pending) {
        let lost = |why: &str| Err(PublishError::session_lost(format!("memory broker: {why}")));
        let Some(session) = self.publishers.get(&number) else {
            return pending.answer(lost("the session is broken"));
        };
        if session.failed {
            return pending.answer(lost("an earlier message of the session failed"));
        }
        let max_in_flight_per_key = session.max_in_flight_per_key;
        self.note_violation(number, max_in_flight_per_key, &message);
        let verdict = self.script.classify(message.id);
        let outcome = match verdict {
            FaultDecision::Refuse(fault, scope) => Err(refusal(fault, scope)),
            FaultDecision::Lose(Loss::Message) => lost("message dropped, as the test requested"),
            FaultDecision::Store | FaultDecision::Lose(_) if self.topic_is_missing(&message.topic) => {
                let topic = &message.topic;
                let text = format!("the memory broker has no topic {topic:?}; create it first");
                Err(PublishError::topic_unavailable(text))
            }
            FaultDecision::Lose(Loss::Confirmation) => {
                self.store(message);
                lost("confirmation dropped, as the test requested")
            }
            FaultDecision::Store => {
                let (id, key) = (message.id, message.key.clone());
                self.store(message);
                if self.holding {
                    return self.held.push(Held { session: number, id, key, pending });
                }
                Ok(())
            }
        };
        if let Err(error) = &outcome {
            self.fail(number, max_in_flight_per_key, error);
        }
        pending.answer(outcome);
    }

    fn store(&mut self, message: Message) {
        self.logs.entry(message.topic.clone()).or_default().push(Ok(message));
    }

    /// Records a failure. A pipelined session ends with its first failure, any other only with a
    /// failure of the session.
    fn fail(&mut self, number: u64, max_in_flight_per_key: MaxInFlightPerKey, error: &PublishError) {
        if error.scope() == message::FaultScope::Session {
            self.publishers.remove(&number);
            self.held.retain(|held| held.session != number);
        } else if max_in_flight_per_key == MaxInFlightPerKey::Pipelined
            && let Some(session) = self.publishers.get_mut(&number)
        {
            session.failed = true;
        }
    }

    fn note_violation(&mut self, number: u64, max_in_flight_per_key: MaxInFlightPerKey, message: &Message) {
        // The chunks of one message may arrive in any order.
        let waits = |held: &Held| held.session == number && held.key == message.key && held.id != message.id;
        if max_in_flight_per_key == MaxInFlightPerKey::One
            && message.key.is_some()
            && self.held.iter().any(waits)
        {
            let text = format!("message {} overtook an unconfirmed one of its key", message.id);
            self.violations.push(text);
        }
    }
}

impl Default for Broker {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        let stored: usize = state.logs.values().map(Vec::len).sum();
        f.debug_struct("Broker").field("topics", &state.logs.len()).field("stored", &stored).finish()
    }
}
