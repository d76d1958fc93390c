//! Decides when messages of a partition are handed to librdkafka: the first one of a session goes
//! alone, and everything after it as soon as it can be sent.
//!
//! Why alone: the broker protects the order of an idempotent producer by sequence numbers. But from
//! a producer that it does not know yet, it accepts *any* first number (KIP-360). If the very first
//! batch of a partition is refused while the second is already on its way, the second is stored: a
//! later message of the key without the earlier one. Measured against a real one-node cluster:
//! behind a refused first message, a gapless producer alone stored 4 of 20 messages of its key, and
//! with this rule none of 99. Once one message is confirmed, the broker knows the producer and
//! refuses every gap. This costs one round trip per partition and session, and again after an hour
//! without a message: a broker forgets producers after a long silence
//! (`producer.id.expiration.ms`, a day by default).
//!
//! Why not before it can be sent: while an idempotent producer has 5 messages of a partition in
//! flight, librdkafka sends no further request for that partition. Its thread polls without pause
//! for as long as others wait there longer than `linger.ms` (2.12.1,
//! `rd_kafka_toppar_producer_serve`). Behind a broker that does not answer, that wastes a
//! processor. Messages that waited here are sent together, so batches stay as large.
//!
//! Each partition has its own queue of waiting messages, so that one without a leader delays no
//! other.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use message::{Message, Topic};
use secrecy::ExposeSecret as _;

use super::config::Config;
use super::partitioner::partition_of;
use crate::pending::Pending;

/// Number of messages of a partition in flight at which librdkafka sends no further request for it
/// (`RD_KAFKA_IDEMP_MAX_INFLIGHT`, which it compares with messages).
const IN_FLIGHT_MAX: usize = 5;

/// Time since the last confirmation after which a single message opens a partition again.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3_600);

/// Number of topics above which topics are forgotten whose partitions are closed anyway.
const TOPICS_KEPT_MIN: usize = 1_000;

/// Room that the queue of a partition keeps once nothing waits in it.
const WAITING_KEPT: usize = 64;

/// How messages are batched.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Batches {
    /// How long librdkafka waits for a batch to fill (`linger.ms`).
    pub(super) linger: Duration,
    /// Bytes (`batch.size`) and messages (`batch.num.messages`) at which librdkafka sends a batch
    /// at once. The gate closes at these: with lower limits, every batch would wait.
    pub(super) bytes: usize,
    pub(super) messages: usize,
}

/// Maximum messages of a batch.
pub(super) const BATCH_MESSAGES_MAX: usize = 10_000;
/// librdkafka's own default of `batch.size`.
const BATCH_BYTES_MAX: usize = 1_000_000;

impl Batches {
    /// Returns the limits that librdkafka is configured with.
    pub(super) fn of(config: &Config) -> Self {
        let own = config.properties.get("batch.size").and_then(|size| size.expose_secret().parse().ok());
        Self {
            linger: Duration::from_millis(config.linger_ms.into()),
            bytes: own.unwrap_or(BATCH_BYTES_MAX).min(config.message_bytes_max),
            messages: BATCH_MESSAGES_MAX,
        }
    }
}

/// The partitions of topics that this session has published to.
#[derive(Debug, Default)]
pub(super) struct Openings {
    topics: RwLock<Topics>,
    /// Partitions that were opened and whose queues are not empty yet.
    opened: Mutex<Vec<(Arc<Partitions>, usize)>>,
    /// Whether `opened` has entries: read after every confirmation.
    has_opened: AtomicBool,
    batches: Batches,
}

/// The partitions of each topic, by its name, because librdkafka confirms with a name.
#[derive(Debug, Default)]
struct Topics {
    by_name: HashMap<String, Arc<Partitions>>,
    /// Number of topics at which idle ones are forgotten next: twice the number that remained the
    /// last time, so that the search costs little per topic.
    kept_max: usize,
}

impl Topics {
    /// Forgets topics that a single message would open again anyway, once there are many.
    fn forget_idle(&mut self, now: Instant) {
        if self.by_name.len() < self.kept_max.max(TOPICS_KEPT_MIN) {
            return;
        }
        self.by_name.retain(|_, partitions| !partitions.are_idle(now));
        self.by_name.shrink_to(TOPICS_KEPT_MIN);
        self.kept_max = 2 * self.by_name.len();
    }
}

/// The partitions of one topic.
#[derive(Debug)]
pub(super) struct Partitions {
    gates: Box<[Mutex<Gate>]>,
    batches: Batches,
}

/// Decides whether messages of a partition may be sent.
#[derive(Debug, Default)]
struct Gate {
    /// When one of its messages was last confirmed. Since then the broker knows the producer.
    confirmed_at: Option<Instant>,
    /// Messages with a key that librdkafka holds unconfirmed.
    unconfirmed: usize,
    /// Start of the batch that further messages may join, and its payload bytes and messages.
    began_at: Option<Instant>,
    bytes: usize,
    messages: usize,
    /// Waiting messages; the next one queues behind them.
    waiting: VecDeque<Waiting>,
}

impl Gate {
    /// Returns whether the next message may go to librdkafka.
    fn may_go(&self, now: Instant, batches: &Batches) -> bool {
        // Half of the linger time: librdkafka must not have sent the batch by then.
        let is_young = |began_at: Instant| now < began_at + batches.linger / 2;
        if self.unconfirmed == 0 {
            return true;
        }
        self.confirmed_at.is_some()
            && (self.unconfirmed < IN_FLIGHT_MAX
                || self.has_room(batches) && self.began_at.is_some_and(is_young))
    }

    /// Returns whether nothing is known of the partition that a new gate would not assume.
    fn is_idle(&self, now: Instant) -> bool {
        self.unconfirmed == 0
            && self.waiting.is_empty()
            && self.confirmed_at.is_none_or(|at| now.duration_since(at) >= FORGOTTEN_AFTER)
    }

    fn has_room(&self, batches: &Batches) -> bool {
        self.bytes < batches.bytes && self.messages < batches.messages
    }

    fn goes(&mut self, message: &Message, now: Instant, batches: &Batches) {
        let is_forgotten = |at: Instant| now.duration_since(at) >= FORGOTTEN_AFTER;
        if self.unconfirmed == 0 && self.confirmed_at.is_some_and(is_forgotten) {
            self.confirmed_at = None;
        }
        let has_left = |began_at: Instant| now >= began_at + batches.linger;
        if self.unconfirmed < IN_FLIGHT_MAX && (self.began_at.is_none_or(has_left) || !self.has_room(batches))
        {
            (self.began_at, self.bytes, self.messages) = (Some(now), 0, 0);
        }
        self.unconfirmed += 1;
        self.bytes += message.payload.len();
        self.messages += 1;
    }
}

/// A message that waits for its partition.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) pending: Pending,
    pub(super) message: Arc<Message>,
}

/// The outcome of flushing a message that waited.
#[derive(Debug)]
pub(super) enum Flush {
    /// It was handed over, or has its receipt.
    Gone,
    /// There is no room for it now.
    Full(Waiting),
}

impl Openings {
    /// Returns the partitions of a topic, if they were recorded before.
    pub(super) fn get(&self, topic: &Topic) -> Option<Arc<Partitions>> {
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        topics.by_name.get(topic.as_str()).cloned()
    }

    /// Creates the state of a session that has sent nothing yet.
    pub(super) fn new(batches: Batches) -> Self {
        Self { batches, ..Self::default() }
    }

    /// Records how many partitions a topic has. Called by the one publisher, which holds the
    /// partitions of no other topic meanwhile: of many topics, idle ones are forgotten.
    pub(super) fn note(&self, topic: &Topic, count: usize) -> Arc<Partitions> {
        self.note_at(topic, count, Instant::now())
    }

    fn note_at(&self, topic: &Topic, count: usize, now: Instant) -> Arc<Partitions> {
        let gates = (0..count).map(|_| Mutex::default()).collect();
        let partitions = Arc::new(Partitions { gates, batches: self.batches });
        let mut topics = self.topics.write().unwrap_or_else(PoisonError::into_inner);
        topics.forget_idle(now);
        Arc::clone(topics.by_name.entry(topic.as_str().to_owned()).or_insert(partitions))
    }

    /// Records a confirmation in this partition, so that messages waiting there may go. Returns
    /// whether the topic still has the recorded partitions. If some were added, librdkafka puts
    /// keys into other partitions than their gates stand for, and messages would wait there
    /// forever: the session has to end.
    #[must_use]
    pub(super) fn confirmed(&self, topic: &str, partition: i32, key: Option<&[u8]>) -> bool {
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        let Some((partitions, place)) = topics.by_name.get(topic).zip(usize::try_from(partition).ok()) else {
            return true;
        };
        let Some(mut gate) = partitions.gate(place) else { return false };
        if key.is_some_and(|key| partition_of(key, partitions.gates.len()) != place) {
            return false;
        }
        gate.confirmed_at = Some(Instant::now());
        if key.is_some() {
            gate.unconfirmed = gate.unconfirmed.saturating_sub(1);
        }
        if !gate.waiting.is_empty() && gate.unconfirmed < IN_FLIGHT_MAX {
            let mut opened = lock(&self.opened);
            if !opened.iter().any(|(known, at)| Arc::ptr_eq(known, partitions) && *at == place) {
                opened.push((Arc::clone(partitions), place));
            }
            self.has_opened.store(true, Ordering::Release);
        }
        true
    }

    /// Hands over the waiting messages of open partitions, in order, until `hand_over` has no room.
    /// Called by one thread.
    pub(super) fn flush(&self, mut hand_over: impl FnMut(Waiting) -> Flush) {
        if !self.has_opened.load(Ordering::Acquire) {
            return;
        }
        let places = lock(&self.opened).clone();
        for (partitions, place) in places {
            if !partitions.flush(place, &mut hand_over) {
                return;
            }
            let mut opened = lock(&self.opened);
            opened.retain(|(known, at)| !(Arc::ptr_eq(known, &partitions) && *at == place));
            self.has_opened.store(!opened.is_empty(), Ordering::Release);
        }
    }

    /// Takes out all waiting messages, because the session is over.
    pub(super) fn abandon(&self) -> Vec<Waiting> {
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        let mut abandoned = Vec::new();
        for gate in topics.by_name.values().flat_map(|partitions| &partitions.gates) {
            abandoned.extend(std::mem::take(&mut lock(gate).waiting));
        }
        abandoned
    }
}

impl Partitions {
    fn gate(&self, place: usize) -> Option<MutexGuard<'_, Gate>> {
        self.gates.get(place).map(lock)
    }

    /// Returns whether nothing is known about the topic that a new session would not know. A
    /// partition whose messages are being handed over counts as busy: librdkafka's thread holds its
    /// gate, and this does not wait for it.
    fn are_idle(&self, now: Instant) -> bool {
        self.gates.iter().all(|gate| gate.try_lock().is_ok_and(|gate| gate.is_idle(now)))
    }

    /// Returns the message if it may go now. Otherwise keeps it waiting here.
    pub(super) fn admit(&self, key: &str, waiting: Waiting) -> Option<Waiting> {
        let Some(mut gate) = self.gate(partition_of(key.as_bytes(), self.gates.len())) else {
            return Some(waiting);
        };
        let now = Instant::now();
        if gate.waiting.is_empty() && gate.may_go(now, &self.batches) {
            gate.goes(&waiting.message, now, &self.batches);
            return Some(waiting);
        }
        gate.waiting.push_back(waiting);
        None
    }

    /// Undoes the last admission: librdkafka did not take the message. Nothing waits behind it,
    /// because there is only one publisher.
    pub(super) fn withdraw(&self, key: &str) {
        if let Some(mut gate) = self.gate(partition_of(key.as_bytes(), self.gates.len())) {
            gate.unconfirmed = gate.unconfirmed.saturating_sub(1);
        }
    }

    /// Hands over waiting messages of a partition that can be sent together. Returns false when
    /// there is no room.
    fn flush(&self, place: usize, hand_over: &mut impl FnMut(Waiting) -> Flush) -> bool {
        let Some(mut gate) = self.gate(place) else { return true };
        let now = Instant::now();
        // Earlier messages have been sent: these begin a batch of their own.
        gate.began_at = None;
        while gate.unconfirmed < IN_FLIGHT_MAX || gate.has_room(&self.batches) {
            let Some(next) = gate.waiting.pop_front() else { break };
            let message = Arc::clone(&next.message);
            match hand_over(next) {
                Flush::Gone => gate.goes(&message, now, &self.batches),
                Flush::Full(next) => {
                    gate.waiting.push_front(next);
                    return false;
                }
            }
        }
        if gate.waiting.is_empty() {
            gate.waiting.shrink_to(WAITING_KEPT);
        }
        true
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use message::{EventType, Receipts, Ticket};

    fn openings(linger: Duration) -> Openings {
        Openings::new(Batches { linger, bytes: 1_000, messages: 100 })
    }

    fn waiting(ticket: u64) -> Waiting {
        let message = Message::new(Topic::new("orders").unwrap(), EventType::new("e").unwrap(), "x");
        Waiting { pending: Pending::new(Ticket(ticket), Receipts::channel().0), message: Arc::new(message) }
    }

    #[test]
    fn the_first_message_of_a_partition_goes_alone_and_the_others_follow_in_order() {
        let (openings, topic) = (openings(Duration::ZERO), Topic::new("orders").unwrap());
        let partitions = openings.note(&topic, 1);
        assert!(partitions.admit("a", waiting(1)).is_some());
        assert!(partitions.admit("b", waiting(2)).is_none() && partitions.admit("a", waiting(3)).is_none());
        openings.flush(|_| panic!("nothing is confirmed"));
        assert!(openings.confirmed("orders", 0, Some(b"a")));
        let mut room = 1;
        let mut gone = Vec::new();
        let mut hand_over = |waiting: Waiting| {
            if room == 0 {
                return Flush::Full(waiting);
            }
            room -= 1;
            gone.push(waiting.pending.hand_over());
            Flush::Gone
        };
        openings.flush(&mut hand_over);
        assert!(partitions.admit("a", waiting(4)).is_none(), "it must not overtake what still waits");
        openings.flush(|waiting| {
            gone.push(waiting.pending.hand_over());
            Flush::Gone
        });
        assert_eq!(gone, [Ticket(2), Ticket(3), Ticket(4)]);
        assert!(partitions.admit("a", waiting(5)).is_some());
        assert!(openings.get(&topic).is_some() && openings.abandon().is_empty());
    }

    #[test]
    fn a_partition_that_was_silent_for_long_is_opened_by_a_single_message_again() {
        let batches = Batches { linger: Duration::ZERO, bytes: 1_000, messages: 100 };
        let (message, begin) = (waiting(1).message, Instant::now());
        for (silent, expected) in [(FORGOTTEN_AFTER / 2, true), (FORGOTTEN_AFTER, false)] {
            let mut gate = Gate { confirmed_at: Some(begin), ..Gate::default() };
            let now = begin + silent;
            assert!(gate.may_go(now, &batches));
            gate.goes(&message, now, &batches);
            assert_eq!(gate.may_go(now, &batches), expected, "after {silent:?}");
        }
    }

    #[test]
    fn librdkafka_gets_no_more_than_can_leave() {
        for (linger, joins) in [(Duration::ZERO, false), (Duration::from_secs(60), true)] {
            let openings = openings(linger);
            let partitions = openings.note(&Topic::new("orders").unwrap(), 1);
            assert!(openings.confirmed("orders", 0, None), "of another session, say");
            for ticket in 1..=IN_FLIGHT_MAX as u64 {
                assert!(partitions.admit("a", waiting(ticket)).is_some(), "{ticket}");
            }
            assert_eq!(partitions.admit("a", waiting(6)).is_some(), joins);
            if joins {
                continue;
            }
            assert!(partitions.admit("a", waiting(7)).is_none());
            assert!(openings.confirmed("orders", 0, None), "it was not counted");
            openings.flush(|_| panic!("five are in flight"));
            assert!(openings.confirmed("orders", 0, Some(b"a")));
            let mut gone = Vec::new();
            openings.flush(|waiting| {
                gone.push(waiting.pending.hand_over());
                Flush::Gone
            });
            assert_eq!(gone, [Ticket(6), Ticket(7)], "together");
            assert!(partitions.admit("a", waiting(8)).is_none());
            assert_eq!(openings.abandon().len(), 1);
            for _ in 0..2 {
                partitions.withdraw("a");
            }
            assert!(partitions.admit("a", waiting(9)).is_some(), "what was not taken is not waited for");
        }
    }

    #[test]
    fn what_leaves_together_fits_into_a_request() {
        let openings = openings(Duration::from_secs(60));
        let partitions = openings.note(&Topic::new("orders").unwrap(), 1);
        let large = |ticket| {
            let Waiting { pending, message } = waiting(ticket);
            let mut message = Message::clone(&message);
            message.payload = vec![0; 100].into();
            Waiting { pending, message: Arc::new(message) }
        };
        assert!(openings.confirmed("orders", 0, None));
        let admitted = (1..=20).filter(|ticket| partitions.admit("a", large(*ticket)).is_some()).count();
        assert_eq!(admitted, 10, "a batch");
        let left = 20 - admitted;
        for _ in 0..admitted {
            assert!(openings.confirmed("orders", 0, Some(b"a")));
        }
        let mut gone = 0;
        openings.flush(|waiting| {
            waiting.pending.hand_over();
            gone += 1;
            Flush::Gone
        });
        assert_eq!(gone, left);
    }

    /// Goal: the memory of a session depends on the messages that wait, not on those that once
    /// waited. Oracle: the room of the queue of a partition after 10,000 messages have left it.
    #[test]
    fn a_queue_that_was_long_gives_its_memory_back() {
        let openings = openings(Duration::ZERO);
        let partitions = openings.note(&Topic::new("orders").unwrap(), 1);
        assert!(partitions.admit("a", waiting(0)).is_some());
        for ticket in 1..=10_000 {
            assert!(partitions.admit("a", waiting(ticket)).is_none());
        }
        let room = || lock(&partitions.gates[0]).waiting.capacity();
        assert!(room() >= 10_000);
        let mut gone = 0;
        while gone < 10_000 {
            assert!(openings.confirmed("orders", 0, Some(b"a")));
            openings.flush(|waiting| {
                waiting.pending.hand_over();
                gone += 1;
                Flush::Gone
            });
        }
        assert!(room() <= 2 * WAITING_KEPT, "{}", room());
    }

    /// Goal: a session that publishes to ever new topics keeps those whose state matters, and not
    /// all. Oracle: the topics that are known after an hour without messages for most of them.
    /// Three stay: one with a message in flight, one with a message that waits, and one that was
    /// confirmed recently.
    #[test]
    fn of_many_topics_only_idle_ones_are_forgotten() {
        let openings = openings(Duration::ZERO);
        let topic = |name: &str| Topic::new(name).unwrap();
        let begin = Instant::now();
        let waits = openings.note_at(&topic("waits"), 1, begin);
        assert!(waits.admit("a", waiting(1)).is_some() && waits.admit("a", waiting(2)).is_none());
        assert!(openings.note_at(&topic("in-flight"), 2, begin).admit("a", waiting(3)).is_some());
        let gate = |name: &str, at| {
            let partitions = openings.get(&topic(name)).unwrap();
            lock(&partitions.gates[0]).confirmed_at = Some(at);
        };
        let later = begin + FORGOTTEN_AFTER;
        openings.note_at(&topic("lately"), 1, begin);
        gate("lately", begin + FORGOTTEN_AFTER / 2);
        for number in 0..20_000 {
            let name = format!("orders-{number}");
            openings.note_at(&topic(&name), 1, later);
            gate(&name, begin);
        }
        let known = openings.topics.read().unwrap().by_name.len();
        assert!(known <= TOPICS_KEPT_MIN + 3, "{known}");
        for name in ["waits", "in-flight", "lately", "orders-19999"] {
            assert!(openings.get(&topic(name)).is_some(), "{name}");
        }
        assert!(openings.get(&topic("orders-0")).is_none());
        assert!(openings.confirmed("orders-0", 0, Some(b"a")), "of a topic that was forgotten");
        assert_eq!(openings.abandon().len(), 1);
    }

    #[test]
    fn a_partition_that_is_not_opened_delays_no_other() {
        let openings = openings(Duration::ZERO);
        let partitions = openings.note(&Topic::new("orders").unwrap(), 2);
        let keys: Vec<String> = (0..).map(|n| format!("k{n}")).take(50).collect();
        let place = |key: &str| partition_of(key.as_bytes(), 2);
        let in_place = |wanted| keys.iter().find(|key| place(key) == wanted).unwrap();
        assert!(partitions.admit(in_place(0), waiting(1)).is_some());
        assert!(partitions.admit(in_place(0), waiting(2)).is_none());
        assert!(partitions.admit(in_place(1), waiting(3)).is_some());
        assert_eq!(openings.abandon().len(), 1);
    }

    /// Goal: librdkafka's thread confirms messages as fast with many topics as with few. Oracle:
    /// the time, with a wide margin: a search of all topics takes thousands of times as long.
    #[test]
    fn a_confirmation_takes_as_long_whatever_the_number_of_topics() {
        let confirming = |topics: usize| {
            let openings = openings(Duration::ZERO);
            let names: Vec<String> = (0..topics).map(|topic| format!("orders-{topic}")).collect();
            for name in &names {
                openings.note(&Topic::new(name.as_str()).unwrap(), 1);
            }
            let begun_at = Instant::now();
            for name in names.iter().cycle().take(20_000) {
                assert!(openings.confirmed(name, 0, None));
            }
            begun_at.elapsed()
        };
        // The fastest of several rounds, because another process may stop one of them.
        let fastest = |topics: usize| (0..5).map(|_| confirming(topics)).min().unwrap();
        let few = fastest(10);
        let many = fastest(20_000);
        assert!(many < few * 100, "{few:?} with 10 topics, {many:?} with 20,000");
    }

    #[test]
    fn partitions_that_were_added_are_noticed_by_where_messages_arrive() {
        let openings = openings(Duration::ZERO);
        openings.note(&Topic::new("orders").unwrap(), 2);
        let keys: Vec<String> = (0..50).map(|n| format!("k{n}")).collect();
        for added in 3..=5 {
            for key in keys.iter().map(String::as_bytes) {
                let (noted, actual) = (partition_of(key, 2), partition_of(key, added));
                assert_eq!(openings.confirmed("orders", actual as i32, Some(key)), actual == noted);
            }
            assert!(
                !openings.confirmed("orders", added as i32 - 1, None),
                "no key tells, but the number does"
            );
        }
        assert!(openings.confirmed("orders", 1, None) && openings.confirmed("unknown", 7, None));
    }
}
