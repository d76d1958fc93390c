//! Topics for which the broker answers nothing for a while.
//!
//! A message that arrives for such a topic is stored at once and confirmed afterwards, or stored
//! afterwards, in the order of arrival. In a pipelined session, later messages of the same key wait
//! as well: within a key nothing overtakes.

use std::collections::BTreeMap;
use std::time::Duration;

use message::{Message, OrderingKey};
use tokio::time::Instant;

/// The keys with a message that waits in a session, and until when.
pub(super) type HeldKeys = BTreeMap<OrderingKey, Instant>;

/// The silence of a topic.
#[derive(Debug, Clone, Copy)]
struct Silent {
    until: Instant,
    is_stored: bool,
}

/// The way in which an arriving message is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It is processed now, and answered.
    Now,
    /// It is processed now, and answered at this time.
    AnsweredAt(Instant),
    /// It arrives at this time.
    At(Instant),
}

/// The topics that are silent.
#[derive(Debug)]
pub(crate) struct Silence {
    topics: BTreeMap<u8, Silent>,
    /// Whether all topics are silent as soon as one is.
    is_spreading: bool,
}

impl Silence {
    /// Starts without any silent topic.
    pub(super) fn new(is_spreading: bool) -> Self {
        Self { topics: BTreeMap::new(), is_spreading }
    }

    /// Silences a topic, or extends its silence in the same way as before.
    pub(crate) fn begin(&mut self, topic: u8, until: Instant, is_stored: bool) {
        let silent = self.topics.entry(topic).or_insert(Silent { until, is_stored });
        if silent.until < Instant::now() {
            *silent = Silent { until, is_stored };
        }
        silent.until = silent.until.max(until);
    }

    /// Decides how a message to a topic is treated. `held` is the time until which an earlier
    /// message of its key waits in its session.
    pub(super) fn arrival(&self, topic: u8, held: Option<Instant>) -> Arrival {
        let now = Instant::now();
        if let Some(until) = held.filter(|until| now < *until) {
            return Arrival::At(until);
        }
        let own = self.topics.get(&topic);
        let others = self.topics.values().filter(|_| self.is_spreading).max_by_key(|silent| silent.until);
        match own.or(others).filter(|silent| now <= silent.until) {
            None => Arrival::Now,
            Some(Silent { until, is_stored: true }) => Arrival::AnsweredAt(after(*until)),
            Some(Silent { until, .. }) => Arrival::At(after(*until)),
        }
    }
}

/// Returns a time between two milliseconds: waiting messages precede those that arrive in the next
/// millisecond.
fn after(until: Instant) -> Instant {
    until + Duration::from_nanos(1)
}

/// Returns the number of a message's topic.
pub(super) fn topic(message: &Message) -> u8 {
    message.topic.as_str().trim_start_matches('t').parse().unwrap_or_default()
}
