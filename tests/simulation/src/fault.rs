//! Faults.

use rand::Rng;
use rand::rngs::SmallRng;

/// The partitions that the group shares out, by ordering key.
pub const PARTITIONS: u8 = 3;

/// A fault and its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// In milliseconds after the start.
    pub at: u32,
    /// The kind of fault.
    pub kind: FaultKind,
}

/// A place for a process.
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
    /// Opens a connection.
    Connect,
    /// Asks for the lease.
    Acquire,
    /// Prolongs the lease.
    Renew,
    /// Stores cursor and exceptions.
    Checkpoint,
    /// Gives the lease back.
    Release,
    /// Lists what keys wait for.
    Stuck,
    /// Lists queues with held entries.
    Queues,
    /// Looks for new entries.
    Poll,
    /// Reads entries.
    Page,
    /// Reads exceptions that are due.
    Due,
    /// Reads exceptions that are held.
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

/// A moment in a relay's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// It has read entries, and nobody has seen them yet.
    Read,
    /// It hands a batch to the broker: some messages have left, the others have not.
    Publish,
    /// It is about to store a checkpoint.
    Checkpoint,
}

/// How a consumer's commit ends otherwise than it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitFault {
    /// Committed, and the answer got lost.
    UnknownApplied,
    /// Not committed, and the answer got lost.
    UnknownLost,
    /// Lost against another transaction.
    Conflict,
    /// Committed, and it takes long: before it is committed or after.
    Slow {
        /// How long, in milliseconds.
        for_ms: u32,
        /// Whether it takes long before it is committed.
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

/// How a handler fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandlerFault {
    /// The message's fault.
    Retry,
    /// Something is away.
    Unavailable,
    /// It panics.
    Panic,
    /// It answers late, and then as if nothing had happened.
    Hang {
        /// How late, in milliseconds.
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
    /// Try it again as it is.
    Requeue,
    /// Try it again with a content that is accepted.
    Edit,
    /// Give it up.
    Discard,
}

/// The kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are times in milliseconds, counts, and what the enums above say")]
pub enum FaultKind {
    /// A process dies after so many more turns of its tasks; another takes its place.
    Crash { slot: Slot, turns: u32 },
    /// A process stands still, and then goes on as if nothing had happened.
    Pause { slot: Slot, for_ms: u32 },
    /// The next relay that gets there stands still for longer than its lease lasts, and then goes
    /// on as if nothing had happened.
    Zombie { moment: Moment, for_ms: u32 },
    /// A process is asked to stop; another takes its place.
    Stop { slot: Slot },
    /// The next such call fails, after it was carried out or before.
    Database { call: Call, is_applied: bool },
    /// The next such call takes long, before or after it is carried out.
    DatabaseSlow { call: Call, for_ms: u32, is_before: bool },
    /// The relays' database is away.
    DatabaseDown { for_ms: u32 },
    /// All sessions of publishers break; of what is on its way, some arrives.
    Sever,
    /// The broker is away.
    BrokerDown { for_ms: u32 },
    /// The next message is lost with its session, after it was stored or before.
    LoseReceipt { is_stored: bool },
    /// The next message is refused once.
    Refuse,
    /// A topic takes no messages for a while.
    TopicBusy { topic: u8, for_ms: u32 },
    /// A topic is missing for a while.
    TopicMissing { topic: u8, for_ms: u32 },
    /// The broker answers nothing about a topic for a while, and everything afterwards. What it is
    /// sent meanwhile is stored at once, or afterwards in order.
    TopicSilent { topic: u8, for_ms: u32, is_stored: bool },
    /// All subscriptions break.
    SubscriptionsLost,
    /// The group shares its partitions out anew: what members have of one part is delivered again,
    /// to anybody, and what they settle of it counts for nothing. They are not told.
    Rebalance { part: u8 },
    /// The next settlement fails, after it was carried out or before.
    SettleLost { is_applied: bool },
    /// The last messages are delivered again.
    Replay { len: u8 },
    /// A consumer's next commit.
    Commit { fault: CommitFault },
    /// A consumer's next other call fails, after so many more.
    Inbox { after: u8 },
    /// The consumers' database is away.
    InboxDown { for_ms: u32 },
    /// A handler's next call.
    Handler { fault: HandlerFault },
    /// An operator decides about the first dead entry.
    Operator { decision: Decision },
    /// Retention runs.
    Retention,
    /// The state is kept to which the relays' database goes back.
    Backup,
    /// The relays' database goes back to it. Behind a pooler, connections do not notice.
    Restore { is_pooled: bool },
}

impl FaultKind {
    /// Any of them.
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
}
