//! Topics that behave as endpoints of HTTP do, one message of a key in flight: they have room for a
//! few messages at a time, fail on each message, or ask for a pause.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use message::{Fault, FaultScope, MessageId, PublishError};
use tokio::time::Instant;

/// The time for which a slow endpoint works on one message, after the one before it.
const WORK: Duration = Duration::from_millis(20);

/// Different messages in succession on which an endpoint fails until it counts as failing itself.
const STREAK: usize = 4;

/// The behaviour of an endpoint for a while.
#[derive(Debug)]
enum Mood {
    /// It works on one message after the other, and this many may wait for it.
    Slow { room: u8, answers: VecDeque<Instant> },
    /// It fails on every message. After many messages, it counts as failing itself.
    Fails { on: BTreeSet<MessageId> },
    /// It asks for the next attempt once this is over.
    Waits,
}

/// The verdict about a message that arrives.
#[derive(Debug)]
pub(super) enum Verdict {
    /// It is taken, and answered as usual.
    Taken,
    /// It is taken, and answered at this time.
    TakenUntil(Instant),
    /// It is not taken.
    Refused(PublishError),
}

/// The topics that behave in this way.
#[derive(Debug, Default)]
pub(crate) struct Endpoints(BTreeMap<u8, (Instant, Mood)>);

impl Endpoints {
    /// Makes a topic slow: this many of its messages have room.
    pub(crate) fn slow(&mut self, topic: u8, until: Instant, room: u8) {
        self.0.insert(topic, (until, Mood::Slow { room, answers: VecDeque::new() }));
    }

    /// Makes a topic fail on each message.
    pub(crate) fn fails(&mut self, topic: u8, until: Instant) {
        self.0.insert(topic, (until, Mood::Fails { on: BTreeSet::new() }));
    }

    /// Makes a topic ask for a pause.
    pub(crate) fn waits(&mut self, topic: u8, until: Instant) {
        self.0.insert(topic, (until, Mood::Waits));
    }

    /// Ends all of it.
    pub(crate) fn heal(&mut self) {
        self.0.clear();
    }

    /// Returns what happens to a message.
    pub(super) fn arrival(&mut self, topic: u8, id: MessageId) -> Verdict {
        let now = Instant::now();
        let Some((until, mood)) = self.0.get_mut(&topic).filter(|(until, _)| now < *until) else {
            return Verdict::Taken;
        };
        match mood {
            Mood::Slow { room, answers } => {
                while answers.front().is_some_and(|at| *at <= now) {
                    answers.pop_front();
                }
                if answers.len() >= usize::from(*room) {
                    let full = PublishError::topic_busy("simulated: enough messages wait");
                    return Verdict::Refused(full.saturated());
                }
                let at = answers.back().copied().unwrap_or(now).max(now) + WORK;
                answers.push_back(at);
                Verdict::TakenUntil(at)
            }
            Mood::Fails { on } => {
                on.insert(id);
                Verdict::Refused(if on.len() < STREAK {
                    let text = "simulated: the handler throws";
                    PublishError::new(Fault::Broker, FaultScope::Message, text)
                } else {
                    PublishError::topic_busy("simulated: the handler always throws").about_this_message()
                })
            }
            Mood::Waits => {
                let busy = PublishError::topic_busy("simulated: it asked to wait");
                Verdict::Refused(busy.not_before(*until - now))
            }
        }
    }
}
