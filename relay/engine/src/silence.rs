//! Detects destinations that have stopped answering, and how far the silence reaches. Pure.
//!
//! A broker can be silent about a single destination: a Kafka partition without a leader, a quorum
//! queue without a majority, a queue behind a proxy that hangs. No error reports it. The sign is
//! that other messages are answered meanwhile:
//!
//! | observed for longer than the patience, about an unconfirmed message | reaches |
//! |---|---|
//! | messages of its topic that were submitted later are confirmed | the message, and its key |
//! | nothing of its topic is confirmed, but other topics are | the topic |
//! | nothing at all is confirmed | the session: an outage, which is only reported here |
//!
//! The last row has one exception. A window full of silent messages keeps everything else from
//! being submitted, so nothing else can be confirmed. Then the engine asks for a new session. If
//! the broker accepts it and stays silent, the oldest message's topic is guessed to be silent. At
//! most one topic is guessed until something is confirmed.

use crate::event::News;
use std::collections::HashMap;
use std::time::Duration;

use message::{FaultScope, Topic};

/// Divisor of the patience where waiting costs others, or where part of the topic is known to be
/// silent.
pub(crate) const IMPATIENCE: u32 = 5;

/// A submission that is not confirmed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Submitted {
    /// Time of the submission, since the lease was taken.
    at: Duration,
    /// Its number in the order of submission, from 1.
    order: u64,
}

impl Submitted {
    /// Returns the time of the submission, since the lease was taken.
    #[must_use]
    pub(crate) fn at(self) -> Duration {
        self.at
    }

    /// Returns its number in the order of submission, from 1.
    #[must_use]
    pub(crate) fn order(self) -> u64 {
        self.order
    }
}

/// The confirmations of one topic.
#[derive(Debug, Clone, Copy)]
struct Answers {
    /// Time of the last confirmation.
    at: Duration,
    /// The latest submission among the confirmed ones.
    newest: Submitted,
}

/// Number of topics above which the uninformative ones are forgotten.
const TOPICS_MIN: usize = 1_000;

/// The next step when nothing at all is confirmed although the window is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stall {
    /// Find out whether the broker answers a new session.
    Reconnect,
    /// The broker accepts sessions but confirms nothing: treat the oldest message's topic as
    /// silent, either all of it or only the messages in flight.
    Guess(FaultScope),
}

/// Silence is reported after this time without a confirmation. It is longer than the restart of a
/// broker.
const TOLD_AFTER: Duration = Duration::from_secs(30);

/// The confirmations so far, with their times.
#[derive(Debug)]
pub(crate) struct Silence {
    patience: Duration,
    now: Duration,
    submissions: u64,
    topics: HashMap<Topic, Answers>,
    /// Number of topics above which some are forgotten.
    topics_max: usize,
    /// The topic that was confirmed last, and when.
    last: Option<(Topic, Duration)>,
    /// The last confirmation of any other topic. Together with `last` it shows for each topic
    /// whether others are answered.
    last_of_others: Option<Duration>,
    session_at: Duration,
    /// When the silence was reported.
    told_at: Option<Duration>,
    /// Whether a topic was guessed to be silent and nothing has been confirmed since.
    guessed: bool,
    /// Whether later messages of the oldest one's topic were confirmed before the requested
    /// session.
    partly: bool,
}

impl Silence {
    /// Creates a record in which nothing has been submitted.
    #[must_use]
    pub(crate) fn new(patience: Duration) -> Self {
        Self {
            patience,
            now: Duration::ZERO,
            submissions: 0,
            topics: HashMap::new(),
            topics_max: TOPICS_MIN,
            last: None,
            last_of_others: None,
            session_at: Duration::ZERO,
            told_at: None,
            guessed: false,
            partly: false,
        }
    }

    /// Sets the time since the lease was taken.
    pub(crate) fn set_now(&mut self, now: Duration) {
        self.now = now;
    }

    /// Returns the time since the lease was taken.
    #[must_use]
    pub(crate) fn now(&self) -> Duration {
        self.now
    }

    /// Records that a session has opened. Its silence is reported anew: operators see that there is
    /// a session, and no longer what was reported about the last one.
    pub(crate) fn session_started(&mut self) {
        self.session_at = self.now;
        self.told_at = None;
    }

    /// Records that a message is submitted.
    pub(crate) fn submitted(&mut self) -> Submitted {
        self.submissions += 1;
        Submitted { at: self.now, order: self.submissions }
    }

    /// Records that a message was answered: confirmed, or refused individually.
    pub(crate) fn answered(&mut self, topic: &Topic, submitted: Submitted) {
        let at = self.now;
        self.guessed = false;
        match &mut self.last {
            Some((last, last_at)) if last == topic => *last_at = at,
            last => {
                if let Some((_, last_at)) = last.replace((topic.clone(), at)) {
                    self.last_of_others = Some(last_at);
                }
            }
        }
        match self.topics.get_mut(topic) {
            Some(answers) => {
                answers.at = at;
                if answers.newest.order < submitted.order {
                    answers.newest = submitted;
                }
            }
            None => _ = self.topics.insert(topic.clone(), Answers { at, newest: submitted }),
        }
    }

    /// Returns when anything was last confirmed.
    fn answered_at(&self) -> Option<Duration> {
        self.last.as_ref().map(|(_, at)| *at)
    }

    /// Returns when any other topic was last confirmed.
    fn others_answered_at(&self, topic: &Topic) -> Option<Duration> {
        let (last, at) = self.last.as_ref()?;
        if last == topic { self.last_of_others } else { Some(*at) }
    }

    /// Returns whether [`forget`](Self::forget) is due.
    #[must_use]
    pub(crate) fn is_large(&self) -> bool {
        self.topics.len() > self.topics_max
    }

    /// Forgets topics that reveal nothing about messages in flight, because none of those was
    /// submitted before the topic's last confirmation. `oldest` is the first submission in flight.
    pub(crate) fn forget(&mut self, oldest: Option<Submitted>) {
        self.topics.retain(|_, answers| {
            oldest.is_some_and(|oldest| answers.newest.order > oldest.order || answers.at > oldest.at)
        });
        self.topics_max = TOPICS_MIN.max(2 * self.topics.len());
    }

    /// Returns a report once when nothing has been confirmed for too long, and once when
    /// confirmations resume. `oldest` is the first submission in flight.
    pub(crate) fn news(&mut self, oldest: Option<Submitted>) -> Option<News> {
        if let Some(told_at) = self.told_at {
            let is_over = self.answered_at().is_some_and(|at| at >= told_at);
            return is_over.then(|| {
                self.told_at = None;
                News::Answers
            });
        }
        let since = oldest?.at.max(self.answered_at().unwrap_or_default());
        let silent = self.now.saturating_sub(since);
        (silent >= TOLD_AFTER).then(|| {
            self.told_at = Some(self.now);
            News::Silent(silent)
        })
    }

    /// Returns whether a submission is old enough to check for silence.
    #[must_use]
    pub(crate) fn is_old(&self, submitted: Submitted) -> bool {
        self.now.saturating_sub(submitted.at) >= self.patience / IMPATIENCE
    }

    /// Returns whether a submission is so old that it counts as silent, even if nothing else is
    /// answered.
    #[must_use]
    pub(crate) fn is_overdue(&self, submitted: Submitted) -> bool {
        self.now.saturating_sub(submitted.at) >= self.patience
    }

    /// Returns how far the silence about a message reaches, if it has lasted too long. `urgent`
    /// means that others wait for room in the window. `partly` means that part of the topic is
    /// known to be silent.
    #[must_use]
    pub(crate) fn reach(
        &self,
        topic: &Topic,
        submitted: Submitted,
        urgent: bool,
        partly: bool,
    ) -> Option<FaultScope> {
        let short = self.patience / IMPATIENCE;
        let quiet_max = if urgent || partly { short } else { self.patience };
        let behind_max = if partly { short } else { self.patience };
        let age = self.now.saturating_sub(submitted.at);
        let own = self.topics.get(topic);
        let overtaken = own.filter(|own| own.newest.order > submitted.order);
        // A slow queue confirms in order: its oldest message is old, but no message that was
        // submitted much later is confirmed.
        let by_far = overtaken.is_some_and(|own| own.newest.at >= submitted.at + behind_max / 2);
        if age >= behind_max && by_far {
            return Some(FaultScope::Message);
        }
        let is_quiet = age >= quiet_max && own.is_none_or(|own| self.now.saturating_sub(own.at) >= quiet_max);
        let scope = if overtaken.is_some() { FaultScope::Message } else { FaultScope::Topic };
        (is_quiet && self.others_answer(topic, submitted, quiet_max)).then_some(scope)
    }

    /// Returns whether another topic was confirmed after the submission, and recently. Older
    /// confirmations prove nothing, because some precede a full outage as well.
    fn others_answer(&self, topic: &Topic, submitted: Submitted, quiet_max: Duration) -> bool {
        self.others_answered_at(topic)
            .is_some_and(|at| at >= submitted.at && self.now.saturating_sub(at) < quiet_max / 2)
    }

    /// Decides the next step while the window is full and nothing is confirmed, from the oldest
    /// submission and its topic.
    #[must_use]
    pub(crate) fn stall(&mut self, topic: &Topic, submitted: Submitted) -> Option<Stall> {
        let since = self.answered_at()?.max(self.session_at);
        if self.guessed || self.now.saturating_sub(since) < self.patience {
            return None;
        }
        if self.answered_at().is_some_and(|at| at >= self.session_at) {
            let newest = self.topics.get(topic).map(|own| own.newest.order);
            self.partly = newest.is_some_and(|newest| newest > submitted.order);
            // With no other messages to protect, waiting is just as good.
            let has_others = self.partly || self.others_answered_at(topic).is_some();
            return has_others.then_some(Stall::Reconnect);
        }
        self.guessed = true;
        Some(Stall::Guess(if self.partly { FaultScope::Message } else { FaultScope::Topic }))
    }

    /// Returns whether a topic was guessed to be silent and nothing has been confirmed since.
    #[must_use]
    pub(crate) fn is_guess(&self) -> bool {
        self.guessed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: u64 = 5_000;

    struct Scene(Silence);

    fn topic(name: &str) -> Topic {
        Topic::new(name).unwrap()
    }

    impl Scene {
        fn new() -> Self {
            Self(Silence::new(Duration::from_millis(PATIENCE)))
        }

        fn at(&mut self, ms: u64) -> &mut Silence {
            self.0.set_now(Duration::from_millis(ms));
            &mut self.0
        }

        fn submit(&mut self, ms: u64) -> Submitted {
            self.at(ms).submitted()
        }

        fn confirm(&mut self, ms: u64, name: &str, submitted: Submitted) {
            self.at(ms).answered(&topic(name), submitted);
        }

        fn reach(&mut self, ms: u64, submitted: Submitted) -> Option<FaultScope> {
            self.at(ms).reach(&topic("t"), submitted, false, false)
        }
    }

    #[test]
    fn a_topic_is_silent_when_only_others_are_confirmed() {
        let mut scene = Scene::new();
        let silent = scene.submit(0);
        assert_eq!(scene.reach(6_000, silent), None, "nothing is confirmed: an outage");
        let other = scene.submit(6_000);
        scene.confirm(6_010, "other", other);
        assert_eq!(scene.reach(6_020, silent), Some(FaultScope::Topic));
        assert_eq!(scene.reach(9_000, silent), None, "the other one is silent by now as well");
    }

    #[test]
    fn what_the_last_two_topics_say_is_what_all_would_say() {
        let mut scene = Scene::new();
        let silent = scene.submit(0);
        for (at, name) in [(1_000, "a"), (2_000, "t"), (3_000, "b"), (3_500, "t"), (4_000, "t")] {
            let submitted = scene.submit(at);
            scene.confirm(at, name, submitted);
        }
        let answered = |name: &str| scene.0.others_answered_at(&topic(name)).map(|at| at.as_millis());
        assert_eq!((answered("t"), answered("b"), answered("c")), (Some(3_000), Some(4_000), Some(4_000)));
        assert_eq!(scene.reach(5_400, silent), Some(FaultScope::Message));
    }

    /// Goal: topics that come and go use no memory, and no decision changes. Oracle: the same
    /// course of events without forgetting.
    #[test]
    fn topics_that_tell_nothing_about_what_is_in_flight_are_forgotten() {
        let (mut forgets, mut keeps) = (Scene::new(), Scene::new());
        let silent = [&mut forgets, &mut keeps].map(|scene| scene.submit(0));
        for n in 0..5_000_u64 {
            for scene in [&mut forgets, &mut keeps] {
                let submitted = scene.submit(n);
                scene.confirm(n, &format!("topic-{n}"), submitted);
            }
        }
        assert!(forgets.0.is_large());
        // The silent one is older than all answers: each may show that it was overtaken.
        forgets.0.forget(Some(silent[0]));
        assert_eq!(forgets.0.topics.len(), 5_000);
        let later = [&mut forgets, &mut keeps].map(|scene| scene.submit(6_000));
        forgets.0.forget(Some(later[0]));
        assert_eq!(forgets.0.topics.len(), 0);
        for at in (6_000..20_000).step_by(100) {
            for name in ["topic-0", "topic-4999", "other"] {
                let decide =
                    |scene: &mut Scene, submitted| scene.at(at).reach(&topic(name), submitted, false, false);
                assert_eq!(decide(&mut forgets, later[0]), decide(&mut keeps, later[1]), "{name} at {at}");
            }
        }
    }

    #[test]
    fn a_session_that_confirms_nothing_is_told_once_until_it_confirms_something() {
        let mut scene = Scene::new();
        assert_eq!(scene.at(60_000).news(None), None, "nothing waits");
        let first = scene.submit(60_000);
        let second = scene.submit(60_000);
        assert_eq!(scene.at(89_999).news(Some(first)), None);
        scene.confirm(89_999, "t", first);
        assert_eq!(scene.at(119_998).news(Some(second)), None, "something was confirmed lately");
        let silent = News::Silent(Duration::from_secs(30));
        assert_eq!(scene.at(119_999).news(Some(second)), Some(silent));
        assert_eq!(scene.at(200_000).news(Some(second)), None, "told once");
        scene.confirm(200_001, "t", second);
        assert_eq!(scene.at(200_002).news(None), Some(News::Answers));
        assert_eq!(scene.at(300_000).news(None), None);
    }

    #[test]
    fn the_silence_of_the_next_session_is_told_as_well() {
        let mut scene = Scene::new();
        let submitted = scene.submit(0);
        assert!(scene.at(30_000).news(Some(submitted)).is_some());
        scene.at(40_000).session_started();
        let again = scene.submit(40_000);
        assert_eq!(scene.at(69_999).news(Some(again)), None);
        assert_eq!(scene.at(70_000).news(Some(again)), Some(News::Silent(Duration::from_secs(30))));
    }

    #[test]
    fn patience_is_shorter_when_others_wait_for_room() {
        let mut scene = Scene::new();
        let silent = scene.submit(0);
        let other = scene.submit(0);
        scene.confirm(1_000, "other", other);
        assert_eq!(scene.reach(1_100, silent), None);
        let now = scene.at(1_100);
        assert_eq!(now.reach(&topic("t"), silent, true, false), Some(FaultScope::Topic));
    }

    #[test]
    fn a_message_that_later_ones_of_its_topic_overtake_is_silent_alone() {
        let mut scene = Scene::new();
        let silent = scene.submit(0);
        let later = scene.submit(2_600);
        scene.confirm(4_900, "t", later);
        assert_eq!(scene.reach(4_990, silent), None, "not old enough");
        assert_eq!(scene.reach(5_000, silent), Some(FaultScope::Message));
    }

    #[test]
    fn a_slow_topic_is_not_silent() {
        let mut scene = Scene::new();
        let first = scene.submit(0);
        let second = scene.submit(1_000);
        let third = scene.submit(1_100);
        let other = scene.submit(1_000);
        scene.confirm(9_000, "t", first);
        scene.confirm(9_000, "other", other);
        assert_eq!(scene.reach(9_010, second), None, "its topic moves on, in order");
        scene.confirm(9_020, "t", third);
        assert_eq!(scene.reach(9_030, second), None, "overtaken by little");
        assert_eq!(scene.reach(14_100, second), None, "now everything is quiet: an outage");
        let other = scene.submit(14_100);
        scene.confirm(14_100, "other", other);
        assert_eq!(scene.reach(14_110, second), Some(FaultScope::Message), "and now only its topic is");
    }

    #[test]
    fn a_full_window_without_confirmations_asks_for_a_session_and_then_guesses_once() {
        let mut scene = Scene::new();
        let first = scene.submit(0);
        assert_eq!(
            scene.at(9_000).stall(&topic("t"), first),
            None,
            "the broker has never confirmed anything"
        );
        scene.confirm(9_000, "t", first);
        let silent = scene.submit(9_000);
        assert_eq!(scene.at(20_000).stall(&topic("t"), silent), None, "there is nobody to protect");
        let other = scene.submit(20_000);
        scene.confirm(20_000, "other", other);
        assert_eq!(scene.at(24_900).stall(&topic("t"), silent), None);
        assert_eq!(scene.at(25_000).stall(&topic("t"), silent), Some(Stall::Reconnect));
        scene.at(26_000).session_started();
        let silent = scene.submit(26_000);
        assert_eq!(scene.at(30_900).stall(&topic("t"), silent), None);
        assert_eq!(scene.at(31_000).stall(&topic("t"), silent), Some(Stall::Guess(FaultScope::Topic)));
        assert_eq!(
            scene.at(50_000).stall(&topic("u"), silent),
            None,
            "an outage sets one topic parked at most"
        );
        assert!(scene.0.is_guess());
    }

    #[test]
    fn a_full_window_of_one_topic_that_was_overtaken_gives_up_only_what_is_in_flight() {
        let mut scene = Scene::new();
        let silent = scene.submit(0);
        let later = scene.submit(0);
        scene.confirm(100, "t", later);
        assert_eq!(scene.at(5_100).stall(&topic("t"), silent), Some(Stall::Reconnect));
        scene.at(5_200).session_started();
        let silent = scene.submit(5_200);
        assert_eq!(scene.at(10_200).stall(&topic("t"), silent), Some(Stall::Guess(FaultScope::Message)));
    }
}
