//! Faults.

use rand::Rng;
use rand::rngs::SmallRng;

/// Number of partitions that the group assigns, by ordering key.
pub const PARTITIONS: u8 = 3;

/// A fault and its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// When it happens, in milliseconds after the start.
    pub at: u32,
    /// The kind of fault.
    pub kind: FaultKind,
}

/// A slot for a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    /// A relay.
    Relay(u8),
    /// A consumer.
    Consumer(u8),
}

/// A call of the relay to its database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Open a connection.
    Connect,
    /// Ask for the lease.
    Acquire,
    /// Renew the lease.
    Renew,
    /// Store cursor and exceptions.
    Checkpoint,
    /// Release the lease.
    Release,
    /// List what keys wait for.
    Stuck,
    /// List queues with held entries.
    Queues,
    /// Look for new entries.
    Poll,
    /// Read entries.
    Page,
    /// Read exceptions that are due.
    Due,
    /// Read exceptions that are held.
    Held,
}

const CALLS: [Call; 11] = [
    Call::Connect,
    Call::Acquire,
    Call::Renew,
    Call::Checkpoint,
    Call::Release,
    Call::Stuck,
    Call::Queues,
    Call::Poll,
    Call::Page,
    Call::Due,
    Call::Held,
];

/// A point in a relay's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// It has read entries, and has not yet passed them on.
    Read,
    /// It is handing a batch to the broker: some messages have been sent, the others have not.
    Publish,
    /// It is about to store a checkpoint.
    Checkpoint,
}

/// A way in which a consumer's commit goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitFault {
    /// It is committed, and the answer is lost.
    UnknownApplied,
    /// It is not committed, and the answer is lost.
    UnknownLost,
    /// It is rolled back because of a conflict with another transaction.
    Conflict,
    /// It is committed, but slowly.
    Slow {
        /// The delay, in milliseconds.
        for_ms: u32,
        /// Whether the delay comes before the commit.
        is_before: bool,
    },
}

impl CommitFault {
    fn random(rng: &mut SmallRng) -> Self {
        match rng.random_range(0..5) {
            0 => Self::UnknownApplied,
            1 => Self::UnknownLost,
            2 => Self::Conflict,
            _ => Self::Slow { for_ms: rng.random_range(20..1_500), is_before: rng.random() },
        }
    }
}

/// A way in which a handler fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandlerFault {
    /// The message is at fault.
    Retry,
    /// Something that the handler needs is unavailable.
    Unavailable,
    /// It panics.
    Panic,
    /// It succeeds, but late.
    Hang {
        /// The delay, in milliseconds.
        for_ms: u32,
    },
}

impl HandlerFault {
    fn random(rng: &mut SmallRng) -> Self {
        match rng.random_range(0..4) {
            0 => Self::Retry,
            1 => Self::Unavailable,
            2 => Self::Panic,
            _ => Self::Hang { for_ms: rng.random_range(50..2_500) },
        }
    }
}

/// An operator's decision about a dead entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Retry it unchanged.
    Requeue,
    /// Retry it with a content that is accepted.
    Edit,
    /// Discard it.
    Discard,
}

/// The kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are times in milliseconds, counts, and what the enums above say")]
pub enum FaultKind {
    /// A process dies after this many more polls of its tasks; another replaces it.
    Crash { slot: Slot, turns: u32 },
    /// A process is suspended, and then continues as if nothing had happened.
    Pause { slot: Slot, for_ms: u32 },
    /// The next relay that reaches this point is suspended for longer than its lease lasts, and
    /// then continues as if nothing had happened.
    Zombie { moment: Moment, for_ms: u32 },
    /// A process is asked to stop; another replaces it.
    Stop { slot: Slot },
    /// The next such call fails, before or after it is applied.
    Database { call: Call, is_applied: bool },
    /// The next such call is slow, before or after it is applied.
    DatabaseSlow { call: Call, for_ms: u32, is_before: bool },
    /// The relays' database is down.
    DatabaseDown { for_ms: u32 },
    /// All sessions of publishers break; some of the messages in flight arrive.
    Sever,
    /// The broker is down.
    BrokerDown { for_ms: u32 },
    /// The next message is lost with its session, before or after it is stored.
    LoseReceipt { is_stored: bool },
    /// The next message is refused once.
    Refuse,
    /// A topic accepts no messages for a while.
    TopicBusy { topic: u8, for_ms: u32 },
    /// A topic is missing for a while.
    TopicMissing { topic: u8, for_ms: u32 },
    /// The broker answers nothing for a topic for a while, and everything afterwards. Messages that
    /// arrive meanwhile are stored at once, or afterwards in order.
    TopicSilent { topic: u8, for_ms: u32, is_stored: bool },
    /// A destination that takes one message of a key at a time works on one message of a topic
    /// after the other for a while, and has room for this many.
    TopicSlow { topic: u8, for_ms: u32, room: u8 },
    /// Such a destination fails on each message of a topic for a while, and then as a whole.
    TopicFails { topic: u8, for_ms: u32 },
    /// For a while, such a destination asks for pauses.
    TopicWaits { topic: u8, for_ms: u32 },
    /// The broker answers for each message of a key this much later, until everything is healed.
    KeySlow { key: u8, by_ms: u32 },
    /// All subscriptions break.
    SubscriptionsLost,
    /// The group reassigns its partitions. Messages of one partition are redelivered, to any
    /// member, and earlier settlements of them do not count. Members are not notified.
    Rebalance { part: u8 },
    /// The next settlement fails, before or after it is applied.
    SettleLost { is_applied: bool },
    /// The last messages are delivered again.
    Replay { len: u8 },
    /// A consumer's next commit goes wrong.
    Commit { fault: CommitFault },
    /// Another call of a consumer fails, after this many more.
    Inbox { after: u8 },
    /// The consumers' database is down.
    InboxDown { for_ms: u32 },
    /// A handler's next call fails.
    Handler { fault: HandlerFault },
    /// An operator decides about the first dead entry.
    Operator { decision: Decision },
    /// Retention runs.
    Retention,
    /// The current state becomes the backup of the relays' database.
    Backup,
    /// The relays' database goes back to the backup. Behind a pooler, connections do not notice.
    Restore { is_pooled: bool },
}

impl FaultKind {
    /// Returns a random fault.
    pub(crate) fn random(rng: &mut SmallRng, relays: u8, consumers: u8) -> Self {
        let slot = if rng.random_bool(0.7) {
            Slot::Relay(rng.random_range(0..relays))
        } else {
            Slot::Consumer(rng.random_range(0..consumers))
        };
        let call = CALLS[rng.random_range(0..CALLS.len())];
        let topic = rng.random_range(0..3);
        match rng.random_range(0..30) {
            0..2 => Self::Crash { slot, turns: rng.random_range(0..60) },
            2..5 => Self::Pause { slot, for_ms: rng.random_range(20..2_500) },
            5 => Self::Stop { slot },
            6..8 => Self::Database { call, is_applied: rng.random() },
            8 => Self::Database { call: Call::Checkpoint, is_applied: rng.random() },
            9 => Self::DatabaseSlow { call, for_ms: rng.random_range(50..2_000), is_before: rng.random() },
            10 => Self::DatabaseDown { for_ms: rng.random_range(10..800) },
            11 => Self::Sever,
            12 => Self::BrokerDown { for_ms: rng.random_range(10..800) },
            13 => Self::LoseReceipt { is_stored: rng.random() },
            14 => Self::Refuse,
            15 => Self::TopicBusy { topic, for_ms: rng.random_range(10..600) },
            16 => Self::TopicMissing { topic, for_ms: rng.random_range(10..1_200) },
            17 => Self::SubscriptionsLost,
            18 => Self::SettleLost { is_applied: rng.random() },
            19 => Self::Replay { len: rng.random_range(1..12) },
            20 => Self::Commit { fault: CommitFault::random(rng) },
            21 if rng.random() => Self::Inbox { after: rng.random_range(0..8) },
            21 => Self::InboxDown { for_ms: rng.random_range(10..600) },
            22 => Self::Handler { fault: HandlerFault::random(rng) },
            23 => Self::Operator {
                decision: [Decision::Requeue, Decision::Edit, Decision::Discard][rng.random_range(0..3)],
            },
            24..26 => Self::Zombie {
                moment: [Moment::Publish, Moment::Publish, Moment::Read, Moment::Checkpoint]
                    [rng.random_range(0..4)],
                for_ms: rng.random_range(1_500..2_500),
            },
            26..28 => {
                Self::TopicSilent { topic, for_ms: rng.random_range(50..2_500), is_stored: rng.random() }
            }
            28 => Self::Rebalance { part: rng.random_range(0..PARTITIONS) },
            _ => Self::Retention,
        }
    }

    /// Returns a random fault of an endpoint of HTTP.
    pub(crate) fn of_endpoint(rng: &mut SmallRng) -> Self {
        let (topic, for_ms) = (rng.random_range(0..3), rng.random_range(50..2_500));
        match rng.random_range(0..3) {
            0 => Self::TopicSlow { topic, for_ms, room: rng.random_range(0..6) },
            1 => Self::TopicFails { topic, for_ms },
            _ => Self::TopicWaits { topic, for_ms },
        }
    }
}
