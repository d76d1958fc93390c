//! Topics whose destinations take messages more slowly than they come. Pure.
//!
//! Such a destination is not stopped, and needs no probe: it answers. It only says that enough
//! messages wait for it ([`PublishError::saturated`](message::PublishError::saturated)). From then
//! on its topic goes on in turns. A turn begins when half of what the destination has is answered,
//! and lets through as many entries as it had taken before, or a few more, to notice when it has
//! become quicker. The others are held, and stay unread in the database: each of them that was read
//! and found no room would be stored again. A topic that shares its destination with others may
//! have nothing there whose answer could begin its turn, so a turn also begins after a pause.
//!
//! The queues of a topic have turns as well. A walk over their names lists them, and each turn
//! reads some, its share of each.
//!
//! A topic is busy from the first such moment until none has come for a minute: this, and not each
//! turn, is reported.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use outbox_log::QueueName;

/// The first pause after which a topic goes on although its destination has not answered. It
/// doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// The longest such pause.
const PAUSE_MAX: Duration = Duration::from_secs(15);

/// How long a topic stays busy after the last message that its destination had no room for.
const LASTS: Duration = Duration::from_secs(60);

/// Part of what a destination has taken by which the next turn exceeds it, as a divisor. It doubles
/// with each turn that finds room for everything.
const GROWTH: usize = 8;

/// Maximum queues of a topic that are listed. A walk that begins behind them lists the others.
const LISTED_MAX: usize = if cfg!(test) { 20 } else { 1_000 };

/// Maximum destinations that messages name themselves and that are remembered as busy. The others
/// are only counted.
const NAMED_MAX: usize = 1_000;

/// The busy topics, those whose entries are held now included.
#[derive(Debug, Default)]
pub(crate) struct Busy {
    topics: BTreeMap<String, Topic>,
    /// Destinations that messages name themselves, by the reason that they give, and when each had
    /// no room last. Their messages are retried one by one.
    named: BTreeMap<String, Duration>,
    /// The time of the last look, since the lease was taken.
    now: Duration,
}

/// Whether a topic lets entries through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It does, up to its limit.
    Open,
    /// It has let through as many as its limit, and goes on when this many are left of them.
    Full { low: usize },
    /// Its destination had no room. It goes on when this many are left.
    Refused { low: usize },
}

/// Whether entries of a topic may be held. Those of the log wait behind them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owed {
    /// None is.
    Nothing,
    /// Some were before the last walk began.
    Earlier,
    /// One was held since then, so that the walk need not find it.
    Later,
}

/// The progress of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Entries were read back, or there are none.
    Read,
    /// It has begun, and queues are looked for.
    Begun,
    /// Queues are read back.
    Given,
}

#[derive(Debug)]
struct Topic {
    /// When its destination last had no room.
    last: Duration,
    state: State,
    /// Entries that were let through and are not answered.
    has: usize,
    /// How many of them there may be.
    limit: usize,
    /// By how many the limit grows if the destination has room for all of them.
    growth: usize,
    /// When a turn begins in any case, if entries may be held.
    until: Duration,
    /// How many pauses in a row have ended without an answer.
    pauses: u32,
    owed: Owed,
    stage: Stage,
    /// Queues with held entries that were found and have not had their turn.
    queues: VecDeque<QueueName>,
    /// The last queue that had room in that list: a walk lists those behind it.
    after: Option<QueueName>,
    /// Whether queues of this walk had no room there.
    is_cut: bool,
}

/// The entries that a topic lets through in its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Maximum queues to read back.
    pub(crate) queues: usize,
    /// Maximum entries to take of each.
    pub(crate) share: usize,
}

impl Topic {
    fn new(now: Duration) -> Self {
        Self {
            last: now,
            state: State::Open,
            has: 0,
            limit: 1,
            growth: 1,
            until: now,
            pauses: 0,
            owed: Owed::Later,
            stage: Stage::Read,
            queues: VecDeque::new(),
            after: None,
            is_cut: false,
        }
    }

    /// Returns how many entries the topic lets through now.
    fn room(&self) -> usize {
        if self.state == State::Open { self.limit.saturating_sub(self.has) } else { 0 }
    }

    /// Returns whether queues are to be read back once they are listed.
    fn wants_queues(&self) -> bool {
        self.room() > 0 && self.stage != Stage::Given
    }

    fn begin_turn(&mut self, now: Duration) {
        self.state = State::Open;
        self.limit = self.limit.max(self.has + 1);
        self.until = now.saturating_add(pause(self.pauses));
        self.stage = Stage::Begun;
    }

    /// Forgets what was listed: a walk over all queues follows.
    fn open(&mut self) {
        self.state = State::Open;
        self.queues.clear();
        self.after = None;
        self.owed = Owed::Later;
    }
}

impl Busy {
    /// Returns whether no topic is busy.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    /// Returns the number of busy topics.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.topics.len()
    }

    /// Returns whether a topic is busy.
    #[must_use]
    pub(crate) fn contains(&self, topic: &str) -> bool {
        self.topics.contains_key(topic)
    }

    /// Returns whether the destination of a topic had no room, so that also entries that were let
    /// through are held.
    #[must_use]
    pub(crate) fn is_refused(&self, topic: &str) -> bool {
        self.topics.get(topic).is_some_and(|topic| matches!(topic.state, State::Refused { .. }))
    }

    /// Returns whether the topic lets no further entry through.
    #[must_use]
    pub(crate) fn is_full(&self, topic: &str) -> bool {
        self.topics.get(topic).is_some_and(|topic| topic.room() == 0)
    }

    /// Returns whether new entries of the topic are held: it lets none through, or others are held.
    #[must_use]
    pub(crate) fn holds(&self, topic: &str) -> bool {
        self.topics.get(topic).is_some_and(|topic| topic.owed != Owed::Nothing || topic.room() == 0)
    }

    /// Returns whether a turn of any topic reads held entries later.
    #[cfg(test)]
    pub(crate) fn has_a_turn_later(&self) -> bool {
        self.topics.values().any(|topic| topic.owed != Owed::Nothing)
    }

    /// Records that a destination had no room for an entry. `in_flight` counts the entries of the
    /// topic that are still with the publisher, and is called when the first entry of a turn finds
    /// no room. Returns whether the topic was not busy before.
    pub(crate) fn refused(&mut self, name: &str, now: Duration, in_flight: impl FnOnce() -> usize) -> bool {
        let is_news = !self.topics.contains_key(name);
        let topic = self.topics.entry(name.to_owned()).or_insert_with(|| Topic::new(now));
        topic.last = now;
        if matches!(topic.state, State::Refused { .. }) {
            // It was with the publisher as well. The rest is what the destination has taken.
            topic.has = topic.has.saturating_sub(1);
        } else {
            topic.has = in_flight();
            topic.until = now.saturating_add(pause(topic.pauses));
        }
        topic.state = State::Refused { low: topic.has / 2 };
        topic.limit = topic.has.max(1);
        topic.growth = (topic.limit / GROWTH).max(1);
        topic.owed = Owed::Later;
        is_news
    }

    /// Records that a destination that a message names itself had no room for it. Returns whether
    /// it was not busy before.
    pub(crate) fn named_refused(&mut self, reason: &str, now: Duration) -> bool {
        if let Some(last) = self.named.get_mut(reason) {
            *last = now;
            return false;
        }
        let is_news = self.named.len() < NAMED_MAX;
        if is_news {
            self.named.insert(reason.to_owned(), now);
        }
        is_news
    }

    /// Returns the reasons of such destinations that are no longer busy, and forgets them.
    pub(crate) fn named_over(&mut self, now: Duration) -> Vec<String> {
        let over = self.named.extract_if(.., |_, last| now.saturating_sub(*last) >= LASTS);
        over.map(|(reason, _)| reason).collect()
    }

    /// Records that an entry of a topic was let through.
    pub(crate) fn admitted(&mut self, name: &str) {
        let Some(topic) = self.topics.get_mut(name) else { return };
        topic.has += 1;
        if topic.state == State::Open && topic.has >= topic.limit {
            topic.state = State::Full { low: topic.has / 2 };
            topic.until = self.now.saturating_add(pause(topic.pauses));
        }
    }

    /// Records that an entry of a topic is held, or stays unread. Returns whether the topic is
    /// busy: then a later turn reads it.
    pub(crate) fn held(&mut self, name: &str) -> bool {
        let Some(topic) = self.topics.get_mut(name) else { return false };
        topic.owed = Owed::Later;
        true
    }

    /// Records that an entry of a topic is no longer with the publisher. Returns whether a turn of
    /// the topic begins.
    pub(crate) fn left(&mut self, name: &str) -> bool {
        let Some(topic) = self.topics.get_mut(name) else { return false };
        topic.has = topic.has.saturating_sub(1);
        let begins = match topic.state {
            State::Open => {
                topic.owed != Owed::Nothing && topic.stage == Stage::Read && topic.has <= topic.limit / 2
            }
            State::Full { low } | State::Refused { low } => topic.has <= low,
        };
        if begins {
            if matches!(topic.state, State::Full { .. }) {
                topic.limit = topic.limit.saturating_add(topic.growth);
                topic.growth = topic.growth.saturating_mul(2);
            }
            topic.pauses = 0;
            topic.begin_turn(self.now);
        }
        begins
    }

    /// Records that entries have left the window without having been with the publisher. `has`
    /// counts the entries of a topic that are left there. Returns the topics whose turn begins
    /// because of that. Their limits stay: no answer shows that more would be taken.
    pub(crate) fn moved_out(&mut self, has: impl Fn(&str) -> usize) -> Vec<String> {
        let mut names = Vec::new();
        for (name, topic) in &mut self.topics {
            // A destination that had no room counts only what it has taken.
            if matches!(topic.state, State::Refused { .. }) {
                continue;
            }
            topic.has = topic.has.min(has(name));
            if matches!(topic.state, State::Full { low } if topic.has <= low) {
                topic.begin_turn(self.now);
                names.push(name.clone());
            }
        }
        names
    }

    /// Returns the topics whose turn begins now because they have waited long enough. `has` counts
    /// the entries of a topic that were let through and are not answered.
    pub(crate) fn waited(&mut self, now: Duration, has: impl Fn(&str) -> usize) -> Vec<String> {
        self.now = now;
        let mut names = Vec::new();
        for (name, topic) in &mut self.topics {
            if topic.until <= now && (topic.owed != Owed::Nothing || topic.state != State::Open) {
                topic.has = has(name);
                topic.pauses = topic.pauses.saturating_add(1);
                topic.begin_turn(now);
                names.push(name.clone());
            }
        }
        names
    }

    /// Lists a queue whose first entry is of a busy topic.
    pub(crate) fn list(&mut self, topic: &str, queue: QueueName) {
        let Some(topic) = self.topics.get_mut(topic) else { return };
        // Walks go in the order of names; one that another topic needs lists no queue twice.
        let last = topic.after.as_ref().max(topic.queues.back());
        if last.is_some_and(|last| queue <= *last) {
            return;
        }
        if topic.queues.len() < LISTED_MAX {
            topic.queues.push_back(queue);
        } else if !topic.is_cut {
            topic.is_cut = true;
            topic.after = topic.queues.back().cloned();
        }
    }

    /// Returns what a topic lets through now.
    #[must_use]
    pub(crate) fn turn(&self, name: &str) -> Turn {
        let Some(topic) = self.topics.get(name) else { return Turn { queues: 0, share: 0 } };
        Turn { queues: topic.room(), share: (topic.room() / topic.queues.len().max(1)).max(1) }
    }

    /// Takes the next queue that a topic has listed. If it has none, a walk must list them.
    pub(crate) fn next_queue(&mut self, name: &str) -> Option<QueueName> {
        self.topics.get_mut(name)?.queues.pop_front()
    }

    /// Records that a walk over all queues begins: what is held now will be found by it. A walk
    /// that is under way has perhaps passed it.
    pub(crate) fn walk_begins(&mut self, name: &str) {
        if let Some(topic) = self.topics.get_mut(name)
            && topic.owed == Owed::Later
        {
            topic.owed = Owed::Earlier;
        }
    }

    /// Records that queues of a topic are read back.
    pub(crate) fn given(&mut self, name: &str) {
        if let Some(topic) = self.topics.get_mut(name) {
            topic.stage = Stage::Given;
        }
    }

    /// Returns the topics whose turn it is and that have listed enough queues for it.
    pub(crate) fn listed(&self) -> Vec<String> {
        let has = |topic: &Topic| topic.wants_queues() && topic.queues.len() >= topic.room();
        self.topics.iter().filter(|(_, topic)| has(topic)).map(|(name, _)| name.clone()).collect()
    }

    /// Records the end of a walk over all queues. `is_last`: no other one follows it. Returns the
    /// topics whose turn it is and that have queues.
    pub(crate) fn walked(&mut self, is_last: bool) -> Vec<String> {
        let mut names = Vec::new();
        for (name, topic) in &mut self.topics {
            let began_later = !std::mem::take(&mut topic.is_cut) && topic.after.take().is_some();
            if !topic.queues.is_empty() {
                if topic.wants_queues() {
                    names.push(name.clone());
                }
            } else if is_last {
                topic.stage = Stage::Read;
                if topic.owed == Owed::Earlier && !began_later {
                    topic.owed = Owed::Nothing;
                }
            }
        }
        names
    }

    /// Records that held entries were read back.
    pub(crate) fn read_back(&mut self) {
        self.topics.values_mut().for_each(|topic| topic.stage = Stage::Read);
    }

    /// Returns the topics that are no longer busy, and forgets them.
    pub(crate) fn over(&mut self, now: Duration) -> Vec<String> {
        let is_over = |topic: &Topic| topic.state == State::Open && now.saturating_sub(topic.last) >= LASTS;
        if !self.topics.values().any(is_over) {
            return Vec::new();
        }
        let names = self.topics.iter().filter(|(_, topic)| is_over(topic)).map(|(name, _)| name.clone());
        let names: Vec<String> = names.collect();
        self.topics.retain(|_, topic| !is_over(topic));
        names
    }

    /// Records that the topic waits for something else from now on.
    pub(crate) fn stops_waiting(&mut self, name: &str) {
        if let Some(topic) = self.topics.get_mut(name) {
            topic.open();
        }
    }

    /// Records that the session has ended, and with it what its destinations had taken.
    pub(crate) fn session_ended(&mut self) {
        for topic in self.topics.values_mut() {
            topic.has = 0;
            topic.open();
        }
    }
}

/// Returns the pause of a topic that has paused this often without an answer.
fn pause(pauses: u32) -> Duration {
    PAUSE_MIN.saturating_mul(1_u32.checked_shl(pauses).unwrap_or(u32::MAX)).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn refuse(busy: &mut Busy, now: Duration, in_flight: usize) -> bool {
        busy.refused("t", now, || in_flight)
    }

    /// Returns how many entries the topic lets through.
    fn let_through(busy: &mut Busy) -> usize {
        let room = (0..1_000).take_while(|_| {
            let is_full = busy.is_full("t");
            if !is_full {
                busy.admitted("t");
            }
            !is_full
        });
        room.count()
    }

    /// Returns after how many answers a turn begins.
    fn answers(busy: &mut Busy) -> usize {
        (1..=1_000).take_while(|_| !busy.left("t")).count() + 1
    }

    #[test]
    fn a_topic_goes_on_when_half_of_what_its_destination_has_is_answered() {
        let mut busy = Busy::default();
        assert!(!busy.left("t") && !busy.holds("t"));
        // 100 were submitted, and 40 of them found no room.
        assert!(refuse(&mut busy, at(0), 99));
        (0..39).for_each(|_| assert!(!busy.refused("t", at(0), || panic!("it waits already"))));
        assert!(busy.is_full("t") && busy.holds("t") && !busy.holds("u"));
        assert_eq!(answers(&mut busy), 30, "60 were taken");
        assert!(!busy.is_full("t") && busy.len() == 1, "it is busy all the same");
        assert!(!refuse(&mut busy, at(1), 9), "no news");
    }

    /// Goal: a turn offers the destination little more than it took before, and a quicker one soon
    /// has much more. Oracle: what each turn lets through.
    #[test]
    fn a_turn_lets_through_what_was_taken_and_grows_while_all_of_it_is() {
        let mut busy = Busy::default();
        refuse(&mut busy, at(0), 32);
        let mut offered = Vec::new();
        for _ in 0..6 {
            answers(&mut busy);
            offered.push(let_through(&mut busy));
        }
        assert_eq!(offered, [16, 20, 26, 38, 62, 110], "32, 36, 44, 60, 92 and 156 at the destination");
        // It had room for 100 of them.
        refuse(&mut busy, at(0), 100);
        assert_eq!((answers(&mut busy), let_through(&mut busy)), (50, 50));
    }

    /// Goal: entries that are moved out of the window do not keep a topic from its next turn.
    /// Oracle: after how many of them it begins, and what it lets through.
    #[test]
    fn entries_that_are_moved_out_of_the_window_count_no_longer() {
        let mut busy = Busy::default();
        refuse(&mut busy, at(0), 32);
        answers(&mut busy);
        assert_eq!(let_through(&mut busy), 16, "32 are in the window");
        assert!(busy.moved_out(|_| 17).is_empty() && busy.is_full("t"));
        assert_eq!(busy.moved_out(|_| 16), ["t"]);
        assert_eq!(let_through(&mut busy), 16, "no more than before");
        assert!(busy.moved_out(|_| 99).is_empty() && busy.is_full("t"), "others are not added");
        refuse(&mut busy, at(0), 20);
        assert!(busy.moved_out(|_| 0).is_empty() && busy.is_full("t"), "20 are at the destination");
    }

    #[test]
    fn a_topic_with_nothing_at_its_destination_goes_on_ever_more_rarely() {
        let mut busy = Busy::default();
        let mut now = at(0);
        for pause in [1, 2, 4, 8, 15, 15] {
            refuse(&mut busy, now, 0);
            let end = now + at(pause);
            assert!(busy.waited(end - Duration::from_millis(1), |_| 0).is_empty() && busy.is_full("t"));
            assert_eq!(busy.waited(end, |_| 0), ["t"]);
            assert_eq!(let_through(&mut busy), 1, "one tries it");
            now = end;
        }
        assert!(busy.left("t"), "an answer shows that it has room");
        refuse(&mut busy, now, 0);
        assert_eq!(busy.waited(now + at(1), |_| 0), ["t"]);
    }

    /// Goal: queues have their turns one after the other, however many there are. Oracle: the
    /// queues of each turn.
    #[test]
    fn queues_take_turns_also_if_there_are_more_than_are_listed() {
        let mut busy = Busy::default();
        refuse(&mut busy, at(0), 8);
        answers(&mut busy);
        let all: Vec<_> = (100..150).map(|key| QueueName::of("t", Some(&key.to_string()))).collect();
        let mut served = Vec::new();
        for is_whole in [false, false, true, false] {
            all.iter().for_each(|queue| busy.list("t", queue.clone()));
            assert_eq!(busy.walked(true), ["t"]);
            assert_eq!(busy.turn("t"), Turn { queues: 4, share: 1 });
            served.extend(std::iter::from_fn(|| busy.next_queue("t")));
            busy.walk_begins("t");
            assert!(busy.has_a_turn_later());
            assert_eq!(served.len() == all.len(), is_whole);
        }
        assert_eq!(served[..50], all);
        assert_eq!(served[50..], all[..20], "from the first one on");
        busy.walked(true);
        assert!(busy.has_a_turn_later(), "there may be some before them");
        busy.walked(true);
        assert!(!busy.has_a_turn_later() && !busy.holds("t"), "nothing is held");
    }

    /// Goal: the end of a walk forgets no queue that it had listed before and that has had only a
    /// part of its turn: its next entry may be of another topic. Oracle: whether a turn follows.
    #[test]
    fn a_walk_under_way_is_no_proof_that_nothing_is_held() {
        let mut busy = Busy::default();
        refuse(&mut busy, at(0), 2);
        answers(&mut busy);
        busy.list("t", QueueName::of("t", Some("k")));
        assert!(busy.next_queue("t").is_some() && busy.next_queue("t").is_none());
        busy.given("t");
        busy.walked(true);
        assert!(busy.has_a_turn_later());
        busy.walk_begins("t");
        busy.walked(true);
        assert!(!busy.has_a_turn_later());
    }

    #[test]
    fn a_topic_is_busy_until_its_destination_had_room_for_a_minute() {
        let mut busy = Busy::default();
        for second in [0, 59, 118] {
            assert_eq!(refuse(&mut busy, at(second), 1), second == 0);
            assert!(busy.left("t"));
            assert!(busy.over(at(second + 59)).is_empty());
        }
        assert_eq!(busy.over(at(178)), ["t"]);
        assert!(busy.is_empty());
        assert!(refuse(&mut busy, at(200), 1));
        assert!(busy.over(at(1_000)).is_empty(), "it waits");
        busy.session_ended();
        assert!(!busy.is_full("t"));
        assert_eq!(busy.over(at(1_000)), ["t"]);
    }
}
