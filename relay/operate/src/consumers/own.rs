//! Consumers of this process, as their status shows them: from memory, without a database.

use std::time::Duration;

use inbox::{ConsumerStatus, WaitReason};
use message::MessageId;

use crate::status::{Symptom, Wait};

/// The time without progress after which a consumer is reported: a restart of a broker, or of
/// another member of its group, takes seconds.
const STALLED_FROM: Duration = Duration::from_secs(30);

/// The state of a consumer of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnState {
    /// Its `run` has not begun.
    NotStarted,
    /// It has a session with its broker.
    Connected,
    /// It has no session with its broker.
    NotConnected,
    /// Its loop has not iterated for a minute.
    Blocked,
    /// Its `run` ended this long ago.
    Ended(Duration),
}

/// Something that a consumer waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnWait {
    /// The reason.
    pub reason: WaitReason,
    /// How long it has waited; of several messages the longest time.
    pub waited: Duration,
    /// The message that has waited longest, if messages wait.
    pub message: Option<MessageId>,
    /// How many messages wait; 0 if the consumer itself does.
    pub messages: usize,
    /// The last error, if there was one.
    pub error: Option<String>,
}

impl From<inbox::Wait> for OwnWait {
    fn from(wait: inbox::Wait) -> Self {
        let inbox::Wait { reason, waited, message, messages, error, .. } = wait;
        Self { reason, waited, message, messages, error }
    }
}

/// A consumer of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnConsumer {
    /// Its name.
    pub consumer: String,
    /// Its state.
    pub state: OwnState,
    /// The topics or the queue of its last session, with its group.
    pub reads: Option<String>,
    /// Number of unsettled deliveries.
    pub in_hand: usize,
    /// Number of messages at the broker, if the broker reports it.
    pub lag: Option<u64>,
    /// Number of keys with held messages, as it last counted them.
    pub held_keys: Option<usize>,
    /// How long it has settled nothing although it had work, or had no session.
    pub stalled_for: Duration,
    /// Its waits, the longest first.
    pub waits_for: Vec<OwnWait>,
}

impl OwnConsumer {
    /// Returns what a status shows now.
    #[must_use]
    pub fn of(status: &ConsumerStatus) -> Self {
        let waits_for: Vec<OwnWait> = status.waits().into_iter().map(OwnWait::from).collect();
        let state = match status.ended_for() {
            Some(ago) => OwnState::Ended(ago),
            None if waits_for.is_empty() && !status.is_alive() => OwnState::NotStarted,
            None if !status.is_alive() => OwnState::Blocked,
            None if status.is_connected() => OwnState::Connected,
            None => OwnState::NotConnected,
        };
        Self {
            consumer: status.consumer().to_string(),
            state,
            reads: status.reads(),
            in_hand: status.in_hand(),
            lag: status.lag(),
            held_keys: status.held_keys(),
            stalled_for: status.stalled_for(),
            waits_for,
        }
    }

    /// Returns the condition that keeps it from applying messages, if there is one. An operator has
    /// to act if the process needs a restart, or if the broker, the database or another service is
    /// away; a long handler and messages that are retried may end by themselves.
    #[must_use]
    pub fn wait(&self) -> Option<Wait> {
        let condition = |why: &str, lasts, passes| Wait {
            symptom: Symptom::ConsumerStalled,
            why: format!("this process applies nothing: {why}"),
            count: None,
            cause: None,
            lasts: Some(lasts),
            passes,
        };
        match self.state {
            OwnState::NotStarted => None,
            OwnState::Ended(ago) => {
                Some(condition("its consumer has ended; the service's log says why", ago, false))
            }
            OwnState::Blocked => {
                let why =
                    "a handler has blocked its thread, or its consumer was aborted; restart the service";
                Some(condition(why, self.stalled_for, false))
            }
            OwnState::Connected | OwnState::NotConnected => {
                let lasts = Some(self.stalled_for).filter(|lasts| *lasts >= STALLED_FROM)?;
                let wait = self.longest()?;
                let is_away =
                    matches!(wait.reason, WaitReason::Broker | WaitReason::Database | WaitReason::Outage);
                let why = format!("it waits for {}", waits_for(wait.reason));
                let error = wait.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
                Some(condition(&format!("{why}{error}"), lasts, !is_away))
            }
        }
    }

    /// Returns the wait that has lasted longest, other than for work.
    fn longest(&self) -> Option<&OwnWait> {
        let is_idle = |reason| matches!(reason, WaitReason::Message | WaitReason::Partition);
        self.waits_for.iter().find(|wait| !is_idle(wait.reason))
    }
}

/// Returns what a consumer waits for, in words that follow "it waits for".
#[must_use]
pub fn waits_for(reason: WaitReason) -> &'static str {
    match reason {
        WaitReason::Broker => "the broker",
        WaitReason::Partition => {
            "a partition, or its turn: its group is rebalancing, or others have what there is to read"
        }
        WaitReason::Handler => "the end of a handler",
        WaitReason::Database => "the database",
        WaitReason::Outage => "the end of an outage",
        WaitReason::Retry => "the next attempt",
        WaitReason::AnotherProcess => "another process that has the same message in hand",
        WaitReason::Message => "the next message: there is none",
        reason => reason.as_str(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a consumer that has stalled for this many seconds.
    fn stalled(state: OwnState, seconds: u64, waits_for: Vec<OwnWait>) -> OwnConsumer {
        OwnConsumer {
            consumer: String::from("billing"),
            state,
            reads: Some(String::from("orders (group billing)")),
            in_hand: 1,
            lag: None,
            held_keys: None,
            stalled_for: Duration::from_secs(seconds),
            waits_for,
        }
    }

    fn wait(reason: WaitReason, seconds: u64, error: Option<&str>) -> OwnWait {
        let waited = Duration::from_secs(seconds);
        OwnWait { reason, waited, message: None, messages: 0, error: error.map(str::to_owned) }
    }

    /// Goal: an operator learns that a consumer of this process applies nothing, since when, why,
    /// and whether that needs an operator; a consumer that is idle or busy is not reported. Oracle:
    /// the table.
    #[test]
    fn a_consumer_that_applies_nothing_is_reported_with_its_reason() {
        use OwnState::{Blocked, Connected, Ended, NotConnected, NotStarted};
        let refused = || wait(WaitReason::Broker, 90, Some("connection refused"));
        let told = |own: OwnConsumer| own.wait().map(|wait| (wait.told(), wait.needs_operator()));
        for (own, told_before, is_grave) in [
            (
                stalled(NotConnected, 90, vec![refused()]),
                "this process applies nothing, for 1m30s: it waits for the broker: connection refused",
                true,
            ),
            (
                stalled(Connected, 45, vec![wait(WaitReason::Outage, 44, Some("mail is away"))]),
                "this process applies nothing, for 45s: it waits for the end of an outage: mail is away",
                true,
            ),
            (
                stalled(Connected, 300, vec![wait(WaitReason::Handler, 300, None)]),
                "this process applies nothing, for 5m: it waits for the end of a handler",
                false,
            ),
            (
                stalled(Ended(Duration::from_secs(8)), 8, Vec::new()),
                "this process applies nothing, for 8s: its consumer has ended; the service's log says why",
                true,
            ),
            (
                stalled(Blocked, 61, vec![wait(WaitReason::Handler, 61, None)]),
                "this process applies nothing, for 1m1s: a handler has blocked its thread, or its consumer was aborted; \
                 restart the service",
                true,
            ),
        ] {
            assert_eq!(told(own), Some((told_before.to_owned(), is_grave)));
        }
        for own in [
            stalled(NotStarted, 900, Vec::new()),
            stalled(NotConnected, 29, vec![refused()]),
            stalled(Connected, 0, vec![wait(WaitReason::Handler, 300, None)]),
            stalled(Connected, 900, vec![wait(WaitReason::Message, 900, None)]),
            stalled(Connected, 900, vec![wait(WaitReason::Partition, 900, None)]),
        ] {
            assert_eq!(told(own.clone()), None, "{own:?}");
        }
    }
}
