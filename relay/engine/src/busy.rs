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
//! The queues of a topic have turns as well (`topic_queues.rs`): each turn of the topic reads some
//! of them, its share of each.
//!
//! A topic is busy from the first such moment until none has come for a minute: this, and not each
//! turn, is reported.

use std::collections::BTreeMap;
use std::time::Duration;

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
    /// Whether entries of the topic may be held. Those of the log wait behind them.
    holds_some: bool,
    stage: Stage,
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
            holds_some: true,
            stage: Stage::Read,
        }
    }

    /// Returns how many entries the topic lets through now.
    fn room(&self) -> usize {
        if self.state == State::Open { self.limit.saturating_sub(self.has) } else { 0 }
    }

    /// Returns whether queues are to be read back once they are known.
    fn wants_queues(&self) -> bool {
        self.room() > 0 && self.stage != Stage::Given
    }

    fn begin_turn(&mut self, now: Duration) {
        self.state = State::Open;
        self.limit = self.limit.max(self.has + 1);
        self.until = now.saturating_add(pause(self.pauses));
        self.stage = Stage::Begun;
    }

    /// Lets entries through up to the limit, without waiting for what the destination has.
    fn open(&mut self) {
        self.state = State::Open;
        self.stage = Stage::Read;
        self.holds_some = true;
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
        self.topics.get(topic).is_some_and(|topic| topic.holds_some || topic.room() == 0)
    }

    /// Returns the busy topics.
    #[cfg(test)]
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.topics.keys().map(String::as_str)
    }

    /// Returns whether a turn of any topic reads held entries later.
    #[cfg(test)]
    pub(crate) fn has_a_turn_later(&self) -> bool {
        self.topics.values().any(|topic| topic.holds_some)
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
        topic.holds_some = true;
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
        topic.holds_some = true;
        true
    }

    /// Records that an entry of a topic is no longer with the publisher. Returns whether a turn of
    /// the topic begins.
    pub(crate) fn left(&mut self, name: &str) -> bool {
        let Some(topic) = self.topics.get_mut(name) else { return false };
        topic.has = topic.has.saturating_sub(1);
        let begins = match topic.state {
            State::Open => topic.holds_some && topic.stage == Stage::Read && topic.has <= topic.limit / 2,
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
            if topic.until <= now && (topic.holds_some || topic.state != State::Open) {
                topic.has = has(name);
                topic.pauses = topic.pauses.saturating_add(1);
                topic.begin_turn(now);
                names.push(name.clone());
            }
        }
        names
    }

    /// Returns what a topic lets through now. `queues` is how many of its queues are known.
    #[must_use]
    pub(crate) fn turn(&self, name: &str, queues: usize) -> Turn {
        let Some(topic) = self.topics.get(name) else { return Turn { queues: 0, share: 0 } };
        Turn { queues: topic.room(), share: (topic.room() / queues.max(1)).max(1) }
    }

    /// Records that queues of a topic are read back.
    pub(crate) fn given(&mut self, name: &str) {
        if let Some(topic) = self.topics.get_mut(name) {
            topic.stage = Stage::Given;
        }
    }

    /// Records that nothing of a topic is held.
    pub(crate) fn holds_none(&mut self, name: &str) {
        if let Some(topic) = self.topics.get_mut(name) {
            topic.stage = Stage::Read;
            topic.holds_some = false;
        }
    }

    /// Returns the topics that let entries through now and whose queues are not being read back.
    pub(crate) fn want_queues(&self) -> Vec<String> {
        let wants = self.topics.iter().filter(|(_, topic)| topic.wants_queues());
        wants.map(|(name, _)| name.clone()).collect()
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

    #[test]
    fn a_turn_is_shared_by_the_queues_that_are_known() {
        let mut busy = Busy::default();
        refuse(&mut busy, at(0), 32);
        answers(&mut busy);
        for (queues, share) in [(0, 16), (1, 16), (3, 5), (16, 1), (99, 1)] {
            assert_eq!(busy.turn("t", queues), Turn { queues: 16, share });
        }
        assert_eq!(busy.want_queues(), ["t"]);
        busy.given("t");
        assert!(busy.want_queues().is_empty() && busy.holds("t"));
        busy.read_back();
        busy.holds_none("t");
        assert!(!busy.holds("t") && !busy.has_a_turn_later());
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
