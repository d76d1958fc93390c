//! The reasons for which a consumer waits, and since when.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use message::MessageId;
use tokio::time::Instant;

message::words! {
    /// A reason for which a consumer waits.
    #[derive(PartialOrd, Ord, Hash)]
    #[non_exhaustive]
    pub enum WaitReason {
        /// A session with the broker, or its answer to a call.
        Broker = "broker",
        /// A partition to read: its group is rebalancing, or other members have all of them. Or its
        /// turn at a queue of RabbitMQ or SQS whose messages are for other consumers now.
        Partition = "partition",
        /// The end of handlers.
        Handler = "handler",
        /// The answer of the database to an attempt whose handler has not begun, or has ended.
        Database = "database",
        /// The end of an outage: of the database, or of another service that the handler needs.
        Outage = "outage",
        /// The next attempt at messages that have failed.
        Retry = "retry",
        /// Another process that has the same messages in hand.
        AnotherProcess = "another process",
        /// The next message: there is none.
        Message = "message",
    }
}

/// A wait of a consumer that has not ended. Its text has no error, which may name servers and
/// users: `handler of 0190…: 42s, 3 messages`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wait {
    /// The reason.
    pub reason: WaitReason,
    /// How long it has waited; of several messages the longest time.
    pub waited: Duration,
    /// The message that has waited longest, if messages wait.
    pub message: Option<MessageId>,
    /// How many messages wait; 0 if the consumer itself does.
    pub messages: usize,
    /// The last error, if there was one. It has no payload, header value or secret.
    pub error: Option<String>,
}

impl Wait {
    pub(super) fn of(reason: WaitReason, waited: Duration) -> Self {
        Self { reason, waited, message: None, messages: 0, error: None }
    }

    /// Adds messages that wait for the same reason.
    fn add(&mut self, other: Self) {
        let messages = self.messages + other.messages;
        if other.waited > self.waited {
            *self = other;
        }
        self.messages = messages;
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.reason)?;
        if let Some(message) = self.message {
            write!(f, " of {message}")?;
        }
        write!(f, ": {}s", self.waited.as_secs())?;
        if self.messages > 1 {
            write!(f, ", {} messages", self.messages)?;
        }
        Ok(())
    }
}

/// The messages that wait together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waited {
    /// The first one; `None` for a delivery without an id.
    pub(super) first: Option<MessageId>,
    pub(super) count: usize,
}

impl Waited {
    pub(super) fn one(message: impl Into<Option<MessageId>>) -> Self {
        Self { first: message.into(), count: 1 }
    }
}

/// The waits of messages in hand, except for handlers.
#[derive(Debug, Clone, Default)]
pub(super) struct MessageWaits(Arc<Mutex<Entries>>);

#[derive(Debug, Default)]
struct Entries {
    last: u64,
    all: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    reason: WaitReason,
    of: Waited,
    /// All messages, if there are several.
    all: HashSet<MessageId>,
    since: Instant,
    error: Option<String>,
}

impl Entry {
    /// Returns whether it waits for the answer of the database to an attempt at this message.
    fn is_attempt_at(&self, id: MessageId) -> bool {
        self.reason == WaitReason::Database && (self.of.first == Some(id) || self.all.contains(&id))
    }
}

/// A record of messages that wait; its drop ends the wait.
#[derive(Debug)]
pub(super) struct Waiting {
    waits: MessageWaits,
    number: u64,
}

impl MessageWaits {
    /// Records that messages wait.
    pub(super) fn enter(&self, reason: WaitReason, of: Waited) -> Waiting {
        let mut entries = self.lock();
        entries.last += 1;
        let number = entries.last;
        let entry = Entry { reason, of, all: HashSet::new(), since: Instant::now(), error: None };
        entries.all.insert(number, entry);
        Waiting { waits: self.clone(), number }
    }

    /// Records the end of a handler: what its attempt still waits for begins now.
    pub(super) fn handled(&self, id: MessageId) {
        let mut entries = self.lock();
        for entry in entries.all.values_mut().filter(|entry| entry.is_attempt_at(id)) {
            entry.since = Instant::now();
        }
    }

    /// Returns the reasons for which messages wait. A message whose handler runs waits for that
    /// alone, and so do the others of its batch.
    pub(super) fn by_reason(&self, now: Instant, handled: &HashSet<MessageId>) -> Vec<Wait> {
        let mut waits: BTreeMap<WaitReason, Wait> = BTreeMap::new();
        for entry in self.lock().all.values() {
            let Entry { reason, of, since, error, .. } = entry;
            if handled.iter().any(|id| entry.is_attempt_at(*id)) {
                continue;
            }
            let waited = now.saturating_duration_since(*since);
            let wait = Wait {
                message: of.first,
                messages: of.count,
                error: error.clone(),
                ..Wait::of(*reason, waited)
            };
            match waits.get_mut(reason) {
                Some(sum) => sum.add(wait),
                None => {
                    waits.insert(*reason, wait);
                }
            }
        }
        waits.into_values().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// Names all messages that wait. The handler of any of them interrupts the wait.
    pub(super) fn with(self, all: HashSet<MessageId>) -> Self {
        if let Some(entry) = self.waits.lock().all.get_mut(&self.number) {
            entry.all = all;
        }
        self
    }

    /// Records the last error.
    pub(super) fn failed(&self, error: String) {
        if let Some(entry) = self.waits.lock().all.get_mut(&self.number) {
            entry.error = Some(error);
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.waits.lock().all.remove(&self.number);
    }
}

/// Consecutive failures of a message or a batch that are an outage, and its wait for their end.
#[derive(Debug, Default)]
pub(super) struct Outages {
    pub(super) count: u32,
    waiting: Option<Waiting>,
}

impl Outages {
    /// Records another failure. The wait began with the first one.
    pub(super) fn add(&mut self, error: String, enter: impl FnOnce() -> Waiting) {
        self.count = self.count.saturating_add(1);
        self.waiting.get_or_insert_with(enter).failed(error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(number: u128) -> MessageId {
        let at = time::OffsetDateTime::UNIX_EPOCH;
        MessageId::derived(at, [number.to_string().as_str()]).unwrap()
    }

    const SECOND: Duration = Duration::from_secs(1);

    /// Goal: of many messages that wait, each reason is reported with the one that waits longest.
    /// Oracle: virtual time.
    #[tokio::test(start_paused = true)]
    async fn a_reason_has_its_longest_wait_and_its_count() {
        let waits = MessageWaits::default();
        let mut outages = Outages::default();
        outages.add(String::from("refused"), || waits.enter(WaitReason::Outage, Waited::one(message(1))));
        tokio::time::advance(3 * SECOND).await;
        let retry = waits.enter(WaitReason::Retry, Waited::one(message(2)));
        let batch = waits.enter(WaitReason::Retry, Waited { first: Some(message(3)), count: 20 });
        outages.add(String::from("timed out"), || panic!("it has begun to wait before"));
        tokio::time::advance(SECOND).await;
        let found = waits.by_reason(Instant::now(), &HashSet::new());
        let [outage, retries] = &found[..] else { panic!("{found:?}") };
        assert_eq!((outage.waited, outage.message, outages.count), (4 * SECOND, Some(message(1)), 2));
        assert_eq!(outage.error.as_deref(), Some("timed out"));
        assert_eq!((retries.waited, retries.messages), (SECOND, 21));
        assert_eq!(retries.to_string(), format!("retry of {}: 1s, 21 messages", message(2)));
        drop((outages, retry, batch));
        assert!(waits.by_reason(Instant::now(), &HashSet::new()).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_in_its_handler_does_not_wait_for_the_database() {
        let waits = MessageWaits::default();
        let _attempt = waits.enter(WaitReason::Database, Waited::one(message(1)));
        let handled = HashSet::from([message(1)]);
        assert!(waits.by_reason(Instant::now(), &handled).is_empty());
        assert_eq!(waits.by_reason(Instant::now(), &HashSet::new()).len(), 1);
    }

    /// Goal: a slow handler in a batch is not reported as a silent database, whichever message of
    /// the batch it has, and neither is the commit after it. Oracle: virtual time.
    #[tokio::test(start_paused = true)]
    async fn a_batch_waits_for_the_database_only_before_and_after_its_handlers() {
        let waits = MessageWaits::default();
        let ids: HashSet<MessageId> = (1..=50).map(message).collect();
        let of = Waited { first: Some(message(1)), count: 50 };
        let _attempt = waits.enter(WaitReason::Database, of).with(ids);
        let other = waits.enter(WaitReason::Database, Waited::one(message(51)));
        tokio::time::advance(SECOND).await;
        let found = |handled: &[u128]| {
            let handled = handled.iter().map(|number| message(*number)).collect();
            let waits = waits.by_reason(Instant::now(), &handled);
            waits.first().map(|wait| (wait.waited, wait.messages))
        };
        assert_eq!(found(&[]), Some((SECOND, 51)), "it is being admitted");
        tokio::time::advance(39 * SECOND).await;
        assert_eq!(found(&[50]), Some((40 * SECOND, 1)), "the last message is in its handler");
        drop(other);
        assert_eq!(found(&[50]), None);
        waits.handled(message(50));
        tokio::time::advance(SECOND).await;
        assert_eq!(found(&[]), Some((SECOND, 50)), "it is being committed");
    }
}
