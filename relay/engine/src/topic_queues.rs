//! The queues that rest because their topics let nothing through. Pure.
//!
//! A resting queue is only a hash ([`Held`](crate::held::Held)), and only a walk over the names in
//! the database finds it again. Such a walk passes all held queues, those of other topics included:
//! beside a large backlog of another destination it takes seconds. So the names of a stopped
//! topic's queues are kept here, up to a bound, and the end of the stop costs no more than these.
//!
//! # Why none is missing
//! A queue rests only while something stops its first entry. When that is the topic, the queue is
//! recorded at the moment at which it comes to rest ([`TopicQueues::rests`]), or at which a walk
//! finds it resting. Before the topic was stopped, none could rest because of it. A topic with more
//! queues than have room is marked as partial, until a walk that began later has found room for all
//! that it has seen.
//!
//! # Turns
//! A busy topic (`busy.rs`) reads some of its queues in each turn. They take turns: one that comes
//! to rest again is behind all others. If the list is partial, a walk adds those that have not had
//! their turn in this round, and the round ends with a walk that has added all of them.

use std::collections::{BTreeMap, HashSet, VecDeque};

use outbox_log::QueueName;

use crate::held::QueueHash;

/// Maximum queues of a topic that are kept when they come to rest.
const RESTED_MAX: usize = if cfg!(test) { 4 } else { 1_000 };

/// Maximum queues that have their turn next and to which a walk adds others.
const NEXT_MAX: usize = RESTED_MAX / 2;

/// Maximum queues of all topics that are kept when they come to rest.
const TOTAL_MAX: usize = 20_000;

/// The resting queues of all topics that let nothing through, or only some entries at a time.
#[derive(Debug, Default)]
pub(crate) struct TopicQueues {
    topics: BTreeMap<String, Queues>,
    /// Queues of all topics that are kept since they came to rest.
    total: usize,
    /// The number of the last round that has begun.
    rounds: u32,
}

#[derive(Debug, Default)]
struct Queues {
    /// Queues whose turn comes first.
    next: VecDeque<QueueName>,
    /// Queues that have come to rest since. Their turn is behind those.
    rested: VecDeque<QueueName>,
    /// All of them.
    known: HashSet<QueueHash>,
    /// Queues whose turn it was and that have not come to rest because of the topic since then.
    given: HashSet<QueueHash>,
    /// The walk that began last when a queue had no room here, or when its entries were stored
    /// after that: a walk finds only what is stored. `None`: all are here.
    partial_since: Option<u64>,
    /// Queues that had no room here and that no walk can find yet.
    unstored: HashSet<QueueHash>,
    /// The walk that began last when a queue that a walk had found had no room in `next`.
    cut_since: Option<u64>,
    /// Whether the names were given up, because the topic took no turns: then no walk makes the
    /// list whole.
    is_given_up: bool,
    /// The round. Queues that walks have added in it, and those that came to rest in it without a
    /// place in the list, bear its number: they have their turns in the next one.
    round: u32,
}

/// The circumstances in which a queue comes to rest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rest {
    /// Whether its topic is busy, so that a partial list is of use.
    pub(crate) takes_turns: bool,
    /// Whether its held entries are stored.
    pub(crate) is_stored: bool,
    /// How many walks have begun.
    pub(crate) walks: u64,
}

/// The queues of a topic that lets everything through again.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Released {
    pub(crate) queues: Vec<QueueName>,
    /// Whether there may be others, which only a walk finds.
    pub(crate) is_partial: bool,
}

impl Queues {
    fn len(&self) -> usize {
        self.next.len() + self.rested.len()
    }

    /// Puts a queue behind all others. Returns whether there was room.
    fn put_behind(&mut self, name: QueueName, has_room: bool) -> bool {
        let has_room = has_room && self.len() < RESTED_MAX;
        if has_room {
            self.know(QueueHash::of_name(&name));
            self.rested.push_back(name);
        }
        has_room
    }

    fn know(&mut self, queue: QueueHash) {
        self.known.insert(queue);
        self.unstored.remove(&queue);
    }
}

impl TopicQueues {
    /// Records that a queue rests because of its topic. If there is no room for it, returns the
    /// round in which it has no turn any more: otherwise new queues would keep those of a round
    /// from theirs.
    pub(crate) fn rests(&mut self, topic: &str, name: QueueName, rest: Rest) -> Option<u32> {
        let Rest { takes_turns, is_stored, walks } = rest;
        let has_room = self.total < TOTAL_MAX;
        let queues = match self.topics.get_mut(topic) {
            Some(queues) => queues,
            None => {
                self.rounds = self.rounds.wrapping_add(1);
                let new = Queues { round: self.rounds, ..Queues::default() };
                self.topics.entry(topic.to_owned()).or_insert(new)
            }
        };
        let queue = QueueHash::of_name(&name);
        queues.given.remove(&queue);
        if queues.known.contains(&queue) {
            return None;
        }
        let is_of_use = takes_turns || queues.partial_since.is_none();
        if is_of_use && queues.put_behind(name, has_room) {
            self.total += 1;
            return None;
        }
        let round = queues.round;
        queues.partial_since = Some(walks);
        if takes_turns {
            queues.unstored.extend((!is_stored).then_some(queue));
        } else {
            self.total -= queues.rested.len();
            let partial_since = queues.partial_since;
            *queues = Queues { round, partial_since, is_given_up: true, ..Queues::default() };
        }
        Some(round)
    }

    /// Records that a walk has found a resting queue of a busy topic. `round` is the one in which a
    /// walk has added the queue last.
    pub(crate) fn found(&mut self, topic: &str, name: QueueName, round: &mut u32, walks: u64) {
        let Some(queues) = self.topics.get_mut(topic).filter(|queues| queues.partial_since.is_some()) else {
            let rest = Rest { takes_turns: true, is_stored: true, walks };
            if let Some(now) = self.rests(topic, name, rest) {
                *round = now;
            }
            return;
        };
        let queue = QueueHash::of_name(&name);
        if queues.known.contains(&queue) {
            return;
        }
        if *round == queues.round {
            if queues.put_behind(name, self.total < TOTAL_MAX) {
                self.total += 1;
            } else {
                queues.partial_since = Some(walks);
            }
        } else if queues.next.len() < NEXT_MAX {
            *round = queues.round;
            queues.know(queue);
            queues.next.push_back(name);
        } else {
            queues.partial_since = Some(walks);
            queues.cut_since = Some(walks);
        }
    }

    /// Records the end of a walk over all queues, the last one of `walks`. `is_stored` returns
    /// whether all held entries of a queue are stored.
    pub(crate) fn walked(&mut self, walks: u64, is_stored: impl Fn(QueueHash) -> bool) {
        let is_partial = |queues: &&mut Queues| queues.partial_since.is_some() && !queues.is_given_up;
        for queues in self.topics.values_mut().filter(is_partial) {
            let before = queues.unstored.len();
            queues.unstored.retain(|queue| !is_stored(*queue));
            if before > 0 {
                queues.partial_since = Some(walks);
            }
            if queues.cut_since.is_none_or(|walk| walk < walks) {
                self.rounds = self.rounds.wrapping_add(1);
                queues.round = self.rounds;
                self.total -= queues.rested.len();
                queues.next.append(&mut queues.rested);
            }
            queues.partial_since = queues.partial_since.filter(|walk| *walk >= walks);
        }
    }

    /// Returns how many queues of a topic are known.
    #[must_use]
    pub(crate) fn len(&self, topic: &str) -> usize {
        self.topics.get(topic).map_or(0, Queues::len)
    }

    /// Returns whether a walk is to look for more queues of a busy topic.
    #[must_use]
    pub(crate) fn wants_walk(&self, topic: &str) -> bool {
        let wants = |queues: &Queues| queues.partial_since.is_some() && queues.next.len() <= NEXT_MAX / 2;
        self.topics.get(topic).is_some_and(wants)
    }

    /// Returns whether there may be queues of the topic that are not known.
    #[must_use]
    pub(crate) fn is_partial(&self, topic: &str) -> bool {
        self.topics.get(topic).is_some_and(|queues| queues.partial_since.is_some())
    }

    /// Takes the queue of a topic whose turn it is.
    pub(crate) fn next(&mut self, topic: &str) -> Option<QueueName> {
        let queues = self.topics.get_mut(topic)?;
        let name = queues.next.pop_front().or_else(|| {
            let name = queues.rested.pop_front()?;
            self.total -= 1;
            Some(name)
        })?;
        let queue = QueueHash::of_name(&name);
        queues.known.remove(&queue);
        queues.given.insert(queue);
        Some(name)
    }

    /// Returns whether nothing of a topic rests, nor is any of its turns under way. `is_moving`
    /// returns whether a queue is being read, or soon is.
    pub(crate) fn is_done(&mut self, topic: &str, is_moving: impl Fn(QueueHash) -> bool) -> bool {
        let Some(queues) = self.topics.get_mut(topic) else { return true };
        queues.given.retain(|queue| is_moving(*queue));
        queues.len() == 0 && queues.given.is_empty() && queues.partial_since.is_none()
    }

    /// Takes all queues of a topic that lets everything through again.
    pub(crate) fn release(&mut self, topic: &str) -> Released {
        let Some(Queues { next, rested, partial_since, .. }) = self.topics.remove(topic) else {
            return Released { queues: Vec::new(), is_partial: false };
        };
        self.total -= rested.len();
        Released { queues: next.into_iter().chain(rested).collect(), is_partial: partial_since.is_some() }
    }

    /// Returns whether the names of a topic's queues were given up, so that only a walk that
    /// releases all of them finds these.
    #[must_use]
    pub(crate) fn is_given_up(&self, topic: &str) -> bool {
        self.topics.get(topic).is_some_and(|queues| queues.is_given_up)
    }

    /// Returns whether a queue is known as one of a topic.
    #[cfg(test)]
    pub(crate) fn knows(&self, queue: QueueHash) -> bool {
        self.topics.values().any(|queues| queues.known.contains(&queue))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(key: u32) -> QueueName {
        QueueName::of("t", Some(&key.to_string()))
    }

    fn stopped(walks: u64) -> Rest {
        Rest { takes_turns: false, is_stored: true, walks }
    }

    fn busy(walks: u64) -> Rest {
        Rest { takes_turns: true, ..stopped(walks) }
    }

    fn names(keys: impl IntoIterator<Item = u32>) -> Vec<QueueName> {
        keys.into_iter().map(name).collect()
    }

    #[test]
    fn what_rests_because_of_a_topic_is_released_with_it() {
        let mut queues = TopicQueues::default();
        for key in [3, 1, 3] {
            queues.rests("t", name(key), stopped(0));
        }
        queues.rests("u", name(9), stopped(0));
        assert_eq!(queues.len("t"), 2);
        assert_eq!(queues.release("t"), Released { queues: names([3, 1]), is_partial: false });
        assert_eq!(queues.release("t"), Released { queues: Vec::new(), is_partial: false });
        assert_eq!(queues.release("u"), Released { queues: names([9]), is_partial: false });
        assert_eq!(queues.total, 0);
    }

    /// Goal: a stopped topic with more queues than have room keeps none of them, and says that a
    /// walk must look for them, even if one has ended meanwhile.
    #[test]
    fn a_topic_with_too_many_queues_leaves_them_to_a_walk() {
        let mut queues = TopicQueues::default();
        (0..10).for_each(|key| _ = queues.rests("t", name(key), stopped(0)));
        assert_eq!((queues.len("t"), queues.total), (0, 0));
        (0..10).for_each(|key| _ = queues.rests("t", name(key), stopped(1)));
        for walks in 1..3 {
            queues.walked(walks, |_| true);
        }
        assert!(queues.is_given_up("t"));
        assert_eq!(queues.release("t"), Released { queues: Vec::new(), is_partial: true });
    }

    #[test]
    fn queues_that_come_to_rest_again_are_behind_the_others() {
        let mut queues = TopicQueues::default();
        (0..3).for_each(|key| _ = queues.rests("t", name(key), busy(0)));
        let mut served = Vec::new();
        for _ in 0..7 {
            let next = queues.next("t").unwrap();
            served.push(next.clone());
            queues.rests("t", next, busy(0));
        }
        assert_eq!(served, names([0, 1, 2, 0, 1, 2, 0]));
        assert!(!queues.wants_walk("t"));
    }

    #[test]
    fn a_topic_is_done_when_its_queues_have_been_read() {
        let mut queues = TopicQueues::default();
        assert!(queues.is_done("t", |_| false));
        queues.rests("t", name(1), busy(0));
        assert!(!queues.is_done("t", |_| false));
        queues.next("t");
        assert!(!queues.is_done("t", |_| true), "it is being read");
        assert!(queues.is_done("t", |_| false));
    }

    /// A topic with many queues, of which `held` are in the database.
    struct Many {
        queues: TopicQueues,
        held: Vec<u32>,
        rounds: BTreeMap<u32, u32>,
        walks: u64,
        served: Vec<u32>,
    }

    impl Many {
        fn new(held: impl IntoIterator<Item = u32>) -> Self {
            let mut many = Self {
                queues: TopicQueues::default(),
                held: held.into_iter().collect(),
                rounds: BTreeMap::new(),
                walks: 0,
                served: Vec::new(),
            };
            many.held.clone().into_iter().for_each(|key| many.rests(key));
            many
        }

        /// Takes turns of one queue each. Every queue rests again, and every `walk_after` turns a
        /// wanted walk ends.
        fn serve(&mut self, turns: usize, walk_after: usize) {
            for turn in 1..=turns {
                if let Some(next) = self.queues.next("t") {
                    let key = next.as_str()[1..].parse().unwrap();
                    self.served.push(key);
                    if self.held.contains(&key) {
                        self.rests(key);
                    }
                }
                if turn.is_multiple_of(walk_after) && self.queues.wants_walk("t") {
                    self.walk();
                }
            }
        }

        /// A queue comes to rest.
        fn rests(&mut self, key: u32) {
            let round = self.rounds.entry(key).or_default();
            if let Some(now) = self.queues.rests("t", name(key), busy(self.walks))
                && *round == 0
            {
                *round = now;
            }
        }

        fn walk(&mut self) {
            self.walks += 1;
            for key in &self.held {
                let round = self.rounds.entry(*key).or_default();
                self.queues.found("t", name(*key), round, self.walks);
            }
            self.queues.walked(self.walks, |_| true);
        }
    }

    /// Goal: no queue waits for ever, however many there are and however seldom walks are. Oracle:
    /// how often each has had its turn.
    #[test]
    fn queues_take_turns_also_if_there_are_more_than_have_room() {
        for walk_after in 1..=5 {
            let mut many = Many::new(0..50);
            many.serve(1_500, walk_after);
            let turns = (0..50).map(|key| many.served.iter().filter(|served| **served == key).count());
            let turns: Vec<usize> = turns.collect();
            assert!(many.queues.len("t") <= RESTED_MAX + NEXT_MAX && many.queues.is_partial("t"));
            assert!(turns.iter().all(|turns| *turns >= 3), "a walk after {walk_after}: {turns:?}");
        }
    }

    /// Goal: new keys, as many as have their turns, do not keep older ones from theirs. Oracle: how
    /// often each of the older ones has had its turn, whose names come last.
    #[test]
    fn new_queues_keep_no_older_one_from_its_turn() {
        let mut many = Many::new(500..520);
        for new in 0..400 {
            let before = many.served.len();
            many.held.insert(0, new);
            many.rests(new);
            many.serve(1, 1);
            // It has had only this message.
            let served = many.served[before..].to_vec();
            many.held.retain(|key| *key >= 500 || !served.contains(key));
            many.rounds.retain(|key, _| *key >= 500 || !served.contains(key));
        }
        let turns = (500..520).map(|key| many.served.iter().filter(|served| **served == key).count());
        let turns: Vec<usize> = turns.collect();
        assert!(turns.iter().all(|turns| *turns >= 3), "{turns:?}");
    }

    /// Goal: once there are few queues left, no further walk is needed. Oracle: whether one is
    /// wanted, and that all have turns.
    #[test]
    fn a_list_that_has_room_for_all_again_needs_no_walk() {
        let mut many = Many::new(0..50);
        many.serve(20, 1);
        many.held.truncate(4);
        for _ in 0..4 {
            if many.queues.is_partial("t") {
                while many.queues.next("t").is_some() {}
                many.walk();
            }
        }
        assert!(!many.queues.is_partial("t") && !many.queues.wants_walk("t"));
        assert_eq!(many.queues.len("t"), 4);
        many.served.clear();
        many.serve(8, 1);
        many.served.sort_unstable();
        assert_eq!(many.served, [0, 0, 1, 1, 2, 2, 3, 3]);
        let walks = many.walks;
        many.serve(100, 1);
        assert_eq!(many.walks, walks);
    }

    /// Goal: a queue that had no room while a walk was under way is not forgotten: that walk may
    /// have passed it. Oracle: whether the list counts as whole.
    #[test]
    fn a_walk_under_way_is_no_proof_that_all_are_known() {
        let mut queues = TopicQueues::default();
        (0..5).for_each(|key| _ = queues.rests("t", name(key), busy(1)));
        queues.walked(1, |_| true);
        assert!(queues.is_partial("t"), "it may have passed queue 4");
        while queues.next("t").is_some() {}
        queues.walked(2, |_| true);
        assert!(!queues.is_partial("t"));
    }

    /// Goal: a queue that had no room, and whose entries a walk could not find because they were
    /// not stored, is not forgotten. Oracle: whether the list counts as whole.
    #[test]
    fn a_walk_before_a_queue_is_stored_is_no_proof_either() {
        let mut queues = TopicQueues::default();
        let unstored = Rest { is_stored: false, ..busy(0) };
        (0..5).for_each(|key| _ = queues.rests("t", name(key), unstored));
        while queues.next("t").is_some() {}
        for (walk, is_stored, is_partial) in [(1, false, true), (2, true, true), (3, true, false)] {
            queues.walked(walk, |_| is_stored);
            assert_eq!(queues.is_partial("t"), is_partial, "walk {walk}");
        }
    }
}
