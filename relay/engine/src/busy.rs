//! Topics whose destinations take messages more slowly than they come. Pure.
//!
//! Such a destination is not stopped, and needs no probe: it answers. It only says that enough
//! messages wait for it ([`PublishError::saturated`](message::PublishError::saturated)). From then
//! on the entries of the topic are held until half of those at the destination are answered.
//! Otherwise each answer would read all of them back, and all but one would be refused again. A
//! topic that shares its destination with others may have nothing there whose answer could free it,
//! so it also goes on after a pause.
//!
//! A topic is busy from the first such moment until none has come for a minute: this, and not each
//! pause, is reported.

use std::collections::BTreeMap;
use std::time::Duration;

/// The first pause after which a topic goes on although its destination has not answered. It
/// doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// The longest such pause.
const PAUSE_MAX: Duration = Duration::from_secs(15);

/// How long a topic stays busy after the last message that its destination had no room for.
const LASTS: Duration = Duration::from_secs(60);

/// The busy topics, including those whose entries are held now.
#[derive(Debug, Default)]
pub(crate) struct Busy {
    topics: BTreeMap<String, Topic>,
    /// How many of them wait, so that the usual case costs nothing.
    waiting: usize,
}

#[derive(Debug)]
struct Topic {
    /// When its destination last had no room.
    last: Duration,
    /// How many pauses in a row have ended without an answer.
    pauses: u32,
    waits: Option<Wait>,
}

/// The wait of a topic for room.
#[derive(Debug)]
struct Wait {
    /// Entries that the publisher has not answered.
    in_flight: usize,
    /// The number of them at which the topic goes on.
    low: usize,
    /// When it goes on in any case.
    until: Duration,
}

impl Busy {
    /// Returns whether the entries of any topic are held until its destination has room.
    #[must_use]
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// Returns the number of busy topics.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.topics.len()
    }

    /// Returns whether the entries of a topic are held until its destination has room.
    #[must_use]
    pub(crate) fn holds(&self, topic: &str) -> bool {
        self.waiting > 0 && self.topics.get(topic).is_some_and(|topic| topic.waits.is_some())
    }

    /// Records that a destination had no room for an entry. `in_flight` counts the entries of the
    /// topic that are still with the publisher, and is called when the topic begins to wait.
    /// Returns whether the topic was not busy before.
    pub(crate) fn refused(&mut self, name: &str, now: Duration, in_flight: impl FnOnce() -> usize) -> bool {
        let is_news = !self.topics.contains_key(name);
        let new = || Topic { last: now, pauses: 0, waits: None };
        let topic = self.topics.entry(name.to_owned()).or_insert_with(new);
        topic.last = now;
        match &mut topic.waits {
            // It was with the publisher as well. The rest is what the destination has taken.
            Some(wait) => wait.in_flight = wait.in_flight.saturating_sub(1),
            None => {
                self.waiting += 1;
                let until = now.saturating_add(pause(topic.pauses));
                topic.waits = Some(Wait { in_flight: in_flight(), low: 0, until });
            }
        }
        if let Some(wait) = &mut topic.waits {
            wait.low = wait.in_flight / 2;
        }
        is_news
    }

    /// Records that an entry of a topic is no longer with the publisher. Returns whether its
    /// destination now has room, so that the topic goes on.
    pub(crate) fn left(&mut self, name: &str) -> bool {
        if self.waiting == 0 {
            return false;
        }
        let Some(topic) = self.topics.get_mut(name) else { return false };
        let Some(wait) = &mut topic.waits else { return false };
        wait.in_flight = wait.in_flight.saturating_sub(1);
        if wait.in_flight > wait.low {
            return false;
        }
        topic.waits = None;
        topic.pauses = 0;
        self.waiting -= 1;
        true
    }

    /// Returns the topics that go on now because they have waited long enough.
    pub(crate) fn waited(&mut self, now: Duration) -> Vec<String> {
        let mut names = Vec::new();
        if self.waiting == 0 {
            return names;
        }
        for (name, topic) in &mut self.topics {
            if topic.waits.as_ref().is_some_and(|wait| wait.until <= now) {
                topic.waits = None;
                topic.pauses = topic.pauses.saturating_add(1);
                self.waiting -= 1;
                names.push(name.clone());
            }
        }
        names
    }

    /// Returns the topics that are no longer busy, and forgets them.
    pub(crate) fn over(&mut self, now: Duration) -> Vec<String> {
        let is_over = |topic: &Topic| topic.waits.is_none() && now.saturating_sub(topic.last) >= LASTS;
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
        if let Some(topic) = self.topics.get_mut(name)
            && topic.waits.take().is_some()
        {
            self.waiting -= 1;
        }
    }

    /// Records that the session has ended, and with it what its destinations had taken.
    pub(crate) fn session_ended(&mut self) {
        self.topics.values_mut().for_each(|topic| topic.waits = None);
        self.waiting = 0;
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

    #[test]
    fn a_topic_goes_on_when_half_of_what_its_destination_has_is_answered() {
        let mut busy = Busy::default();
        assert!(!busy.left("t") && !busy.holds("t"));
        // 100 were submitted, and 40 of them found no room.
        assert!(busy.refused("t", at(0), || 99));
        (0..39).for_each(|_| assert!(!busy.refused("t", at(0), || panic!("it waits already"))));
        assert!(busy.holds("t") && !busy.holds("u"));
        let answered = (1..=60).take_while(|_| !busy.left("t")).count() + 1;
        assert_eq!(answered, 30, "60 were taken");
        assert!(!busy.holds("t") && busy.len() == 1, "it is busy all the same");
        assert!(!busy.refused("t", at(1), || 9), "no news");
    }

    #[test]
    fn a_topic_with_nothing_at_its_destination_goes_on_ever_more_rarely() {
        let mut busy = Busy::default();
        let mut now = at(0);
        for pause in [1, 2, 4, 8, 15, 15] {
            busy.refused("t", now, || 0);
            let end = now + at(pause);
            assert!(busy.waited(end - Duration::from_millis(1)).is_empty() && busy.holds("t"));
            assert_eq!(busy.waited(end), ["t"]);
            now = end;
        }
        busy.refused("t", now, || 1);
        assert!(busy.left("t"), "an answer shows that it has room");
        busy.refused("t", now, || 0);
        assert_eq!(busy.waited(now + at(1)), ["t"]);
    }

    #[test]
    fn a_topic_is_busy_until_its_destination_had_room_for_a_minute() {
        let mut busy = Busy::default();
        for second in [0, 59, 118] {
            assert_eq!(busy.refused("t", at(second), || 1), second == 0);
            assert!(busy.left("t"));
            assert!(busy.over(at(second + 59)).is_empty());
        }
        assert_eq!(busy.over(at(178)), ["t"]);
        assert!(busy.len() == 0 && !busy.is_waiting());
        assert!(busy.refused("t", at(200), || 1));
        assert!(busy.over(at(1_000)).is_empty(), "it waits");
        busy.session_ended();
        assert!(!busy.holds("t"));
        assert_eq!(busy.over(at(1_000)), ["t"]);
    }
}
