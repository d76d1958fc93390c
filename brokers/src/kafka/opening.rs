//! Opening a partition: the first message of a session goes alone, everything after it is
//! pipelined.
//!
//! Why: the broker protects the order of an idempotent producer by sequence numbers, but to a
//! producer that it does not know yet it accepts *any* first number (KIP-360). If the very first
//! batch of a partition is refused while the second is already on its way, the second is stored: a
//! later message of the key without the earlier one. Measured against a real one-node cluster:
//! behind a refused first message, 4 of 20 messages of its key were stored by a gapless producer
//! alone, and none of 99 with this rule. Once one message is confirmed, the broker knows the
//! producer and refuses every gap. It costs one round trip per partition and session.
//!
//! Each partition has a queue of its own for what waits, so that one without a leader delays no
//! other.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use message::{Message, Topic};

use super::partitioner::partition_of;
use crate::pending::Pending;

/// The partitions of every topic that this session has published to.
#[derive(Debug, Default)]
pub(super) struct Openings {
    topics: RwLock<HashMap<Topic, Arc<Partitions>>>,
    /// Partitions that were opened and whose queues are not empty yet.
    opened: Mutex<Vec<(Arc<Partitions>, usize)>>,
    /// Whether there are any: asked after every confirmation.
    has_opened: AtomicBool,
}

/// The partitions of one topic.
#[derive(Debug)]
pub(super) struct Partitions(Box<[Mutex<Gate>]>);

/// Whether messages of a partition may go.
#[derive(Debug)]
enum Gate {
    /// Nothing was sent yet: the next message goes alone.
    Fresh,
    /// Its first message is unconfirmed, or messages still wait here: the next one queues behind
    /// them.
    Opening(VecDeque<Waiting>),
    /// Everything goes.
    Open,
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
    /// The partitions of a topic, if they were noted before.
    pub(super) fn get(&self, topic: &Topic) -> Option<Arc<Partitions>> {
        self.topics.read().unwrap_or_else(PoisonError::into_inner).get(topic).cloned()
    }

    /// Notes how many partitions a topic has.
    pub(super) fn note(&self, topic: Topic, count: usize) -> Arc<Partitions> {
        let partitions = Arc::new(Partitions((0..count).map(|_| Mutex::new(Gate::Fresh)).collect()));
        let mut topics = self.topics.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(topics.entry(topic).or_insert(partitions))
    }

    /// A message was confirmed in this partition: what waits there may go. Returns whether the
    /// topic still has the partitions that were noted. When some were added, librdkafka puts keys
    /// into other partitions than their gates stand for, and what waits there would wait for good:
    /// the session has to end.
    #[must_use]
    pub(super) fn opened(&self, topic: &str, partition: i32, key: Option<&[u8]>) -> bool {
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        let partitions = topics.iter().find(|(name, _)| name.as_str() == topic).map(|(_, found)| found);
        let Some((partitions, place)) = partitions.zip(usize::try_from(partition).ok()) else { return true };
        let Some(mut gate) = partitions.gate(place) else { return false };
        if key.is_some_and(|key| partition_of(key, partitions.0.len()) != place) {
            return false;
        }
        match &*gate {
            Gate::Opening(waiting) if waiting.is_empty() => *gate = Gate::Open,
            Gate::Fresh => *gate = Gate::Open,
            Gate::Opening(_) => {
                let mut opened = lock(&self.opened);
                if !opened.iter().any(|(known, at)| Arc::ptr_eq(known, partitions) && *at == place) {
                    opened.push((Arc::clone(partitions), place));
                }
                self.has_opened.store(true, Ordering::Release);
            }
            Gate::Open => {}
        }
        true
    }

    /// Hands over what waits for partitions that are open, in order, until `hand_over` has no room.
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

    /// Takes out everything that waits: the session is over.
    pub(super) fn abandon(&self) -> Vec<Waiting> {
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        let mut abandoned = Vec::new();
        for gate in topics.values().flat_map(|partitions| &partitions.0) {
            if let Gate::Opening(waiting) = &mut *lock(gate) {
                abandoned.extend(waiting.drain(..));
            }
        }
        abandoned
    }
}

impl Partitions {
    fn gate(&self, place: usize) -> Option<MutexGuard<'_, Gate>> {
        self.0.get(place).map(lock)
    }

    /// Gives a message back that may go now; the first one of a partition may, and closes it until
    /// it is confirmed. Otherwise the message waits here.
    pub(super) fn admit(&self, key: &str, waiting: Waiting) -> Option<Waiting> {
        let Some(mut gate) = self.gate(partition_of(key.as_bytes(), self.0.len())) else {
            return Some(waiting);
        };
        match &mut *gate {
            Gate::Open => Some(waiting),
            Gate::Fresh => {
                *gate = Gate::Opening(VecDeque::new());
                Some(waiting)
            }
            Gate::Opening(queue) => {
                queue.push_back(waiting);
                None
            }
        }
    }

    /// Hands over what waits for a partition; whether nothing waits any more.
    fn flush(&self, place: usize, hand_over: &mut impl FnMut(Waiting) -> Flush) -> bool {
        let Some(mut gate) = self.gate(place) else { return true };
        if let Gate::Opening(waiting) = &mut *gate {
            while let Some(next) = waiting.pop_front() {
                if let Flush::Full(next) = hand_over(next) {
                    waiting.push_front(next);
                    return false;
                }
            }
            *gate = Gate::Open;
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

    fn waiting(ticket: u64) -> Waiting {
        let message = Message::new(Topic::new("orders").unwrap(), EventType::new("e").unwrap(), "x");
        Waiting { pending: Pending::new(Ticket(ticket), Receipts::channel().0), message: Arc::new(message) }
    }

    #[test]
    fn the_first_message_of_a_partition_goes_alone_and_the_others_follow_in_order() {
        let (openings, topic) = (Openings::default(), Topic::new("orders").unwrap());
        let partitions = openings.note(topic.clone(), 1);
        assert!(partitions.admit("a", waiting(1)).is_some());
        assert!(partitions.admit("b", waiting(2)).is_none() && partitions.admit("a", waiting(3)).is_none());
        openings.flush(|_| panic!("nothing is confirmed"));
        assert!(openings.opened("orders", 0, Some(b"a")));
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
    fn a_partition_that_is_not_opened_delays_no_other() {
        let openings = Openings::default();
        let partitions = openings.note(Topic::new("orders").unwrap(), 2);
        let keys: Vec<String> = (0..).map(|n| format!("k{n}")).take(50).collect();
        let place = |key: &str| partition_of(key.as_bytes(), 2);
        let in_place = |wanted| keys.iter().find(|key| place(key) == wanted).unwrap();
        assert!(partitions.admit(in_place(0), waiting(1)).is_some());
        assert!(partitions.admit(in_place(0), waiting(2)).is_none());
        assert!(partitions.admit(in_place(1), waiting(3)).is_some());
        assert_eq!(openings.abandon().len(), 1);
    }
    #[test]
    fn partitions_that_were_added_are_noticed_by_where_messages_arrive() {
        let openings = Openings::default();
        openings.note(Topic::new("orders").unwrap(), 2);
        let keys: Vec<String> = (0..50).map(|n| format!("k{n}")).collect();
        for added in 3..=5 {
            for key in keys.iter().map(String::as_bytes) {
                let (noted, actual) = (partition_of(key, 2), partition_of(key, added));
                assert_eq!(openings.opened("orders", actual as i32, Some(key)), actual == noted);
            }
            assert!(!openings.opened("orders", added as i32 - 1, None), "no key tells, but the number does");
        }
        assert!(openings.opened("orders", 1, None) && openings.opened("unknown", 7, None));
    }
}
