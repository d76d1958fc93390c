//! One course of events, planned from a seed: processes, messages, and faults with their times.

mod levels;

use std::fmt;

use message::MaxInFlightPerKey;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::fault::{Fault, FaultKind};

pub use levels::{FACTORS, Factor};

/// When all faults end, in milliseconds after the start.
pub const HEALED_AT: u32 = 3_000;

/// A topic that is created only after everything else has come to rest. Nothing else may wait for
/// it.
pub const MISSING: u8 = 3;

/// The plan of a run. The same plan gives the same course of events.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// The source of all random numbers.
    pub seed: u64,
    /// Number of relays of one name.
    pub relays: u8,
    /// Number of consumers of one name.
    pub consumers: u8,
    /// How the broker's publisher keeps order.
    pub max_in_flight_per_key: MaxInFlightPerKey,
    /// Number of messages that the broker's publisher accepts at once.
    pub submission_len: u8,
    /// Whether the broker gives the messages of a key to one consumer at a time.
    pub is_key_exclusive: bool,
    /// Messages per transaction of a consumer, if they share one.
    pub batch: Option<u8>,
    /// Probability that a ready task waits for the others, in `0.0..1.0`.
    pub shuffle: f64,
    /// Maximum number of entries in the relay's memory.
    pub window_entries: u8,
    /// Maximum number of bytes in the relay's memory.
    pub window_bytes: u32,
    /// Maximum number of entries in one read.
    pub page_entries: u8,
    /// Maximum number of bytes in one read.
    pub page_bytes: u32,
    /// Maximum number of changes of exceptions that the relay has not stored yet.
    pub unstored_max: u16,
    /// Maximum number of changes that one checkpoint stores.
    pub checkpoint_changes: u16,
    /// Additional duration of the relay's commits, in milliseconds.
    pub commit_ms: u8,
    /// The producers' transactions.
    pub transactions: Vec<Transaction>,
    /// Faults.
    pub faults: Vec<Fault>,
}

/// A producer's transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// When it begins, in milliseconds.
    pub begins_at: u32,
    /// When it ends, in milliseconds.
    pub ends_at: u32,
    /// How it ends.
    pub ending: Ending,
    /// The messages that it enqueues.
    pub messages: Vec<Draft>,
}

/// How a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It is committed, and the producer knows.
    Committed,
    /// It is rolled back, and the producer knows.
    RolledBack,
    /// The answer to the commit is lost.
    Unknown {
        /// Whether it is committed.
        committed: bool,
    },
}

/// A message to enqueue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    /// Its number, which is its name.
    pub number: u32,
    /// When its row is inserted, in milliseconds.
    pub enqueued_at: u32,
    /// Its ordering key.
    pub key: Option<u8>,
    /// Its topic.
    pub topic: u8,
    /// The delay of its delivery, in milliseconds.
    pub deliver_after: Option<u32>,
    /// Its defect.
    pub defect: Defect,
}

/// A defect of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defect {
    /// No defect.
    None,
    /// The broker refuses it until an operator edits it.
    Refused,
    /// It is larger than the destination accepts, until an operator edits it.
    Oversize,
    /// Its handler fails this many times.
    Fails(u8),
    /// Its handler rejects it.
    Rejected,
    /// The time in its id is two days ahead of the database's clock.
    FromTheFuture,
}

impl Schedule {
    /// Returns a plan for these transactions: without faults, with one relay and one consumer, and
    /// with room for everything. Cases about one kind of load begin with it.
    pub(crate) fn calm(seed: u64, transactions: Vec<Transaction>) -> Self {
        Self {
            seed,
            relays: 1,
            consumers: 1,
            max_in_flight_per_key: MaxInFlightPerKey::One,
            submission_len: 10,
            is_key_exclusive: true,
            batch: None,
            shuffle: 0.0,
            window_entries: 200,
            window_bytes: 12 << 20,
            page_entries: 50,
            page_bytes: 2 << 20,
            unstored_max: 8_000,
            checkpoint_changes: 1_000,
            commit_ms: 0,
            transactions,
            faults: Vec::new(),
        }
    }

    /// Returns the plan of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let relays = rng.random_range(1..=3);
        let consumers = rng.random_range(1..=2);
        let window_entries = rng.random_range(3..=40);
        let mut transactions = transactions(&mut rng);
        let mut faults = faults(&mut rng, relays, consumers);
        if rng.random_bool(0.25) {
            late_commit(&mut rng, &mut transactions, &mut faults);
        }
        let mut schedule = Self {
            seed,
            relays,
            consumers,
            max_in_flight_per_key: if rng.random() {
                MaxInFlightPerKey::One
            } else {
                MaxInFlightPerKey::Pipelined
            },
            is_key_exclusive: rng.random_bool(0.7),
            batch: rng.random_bool(0.3).then(|| rng.random_range(2..8)),
            shuffle: if rng.random_bool(0.3) { 0.0 } else { rng.random_range(0.05..0.5) },
            window_entries,
            window_bytes: 12 << 20,
            page_entries: rng.random_range(1..=10),
            page_bytes: 2 << 20,
            unstored_max: 8_000,
            checkpoint_changes: 1_000,
            commit_ms: 0,
            transactions,
            faults,
            submission_len: rng.random_range(1..=5),
        };
        if rng.random_bool(0.3) {
            to_missing_topic(&mut rng, &mut schedule.transactions);
        }
        if rng.random_bool(0.4) {
            small_memory(&mut rng, &mut schedule);
        }
        if rng.random_bool(0.05) {
            burst(&mut rng, &mut schedule);
        }
        if rng.random_bool(0.1) {
            goes_back(&mut rng, &mut schedule.faults);
        }
        if schedule.max_in_flight_per_key == MaxInFlightPerKey::One && rng.random_bool(0.5) {
            to_endpoints(&mut rng, &mut schedule.faults);
        }
        schedule
    }

    /// Returns the number of messages in it.
    #[must_use]
    pub fn messages_len(&self) -> usize {
        self.transactions.iter().map(|transaction| transaction.messages.len()).sum()
    }
}

fn transactions(rng: &mut SmallRng) -> Vec<Transaction> {
    let keys = rng.random_range(1..=4);
    let mut number = 0;
    let mut drafts = |rng: &mut SmallRng, begins_at, ends_at| {
        let mut times: Vec<u32> =
            (0..rng.random_range(1..=4)).map(|_| rng.random_range(begins_at..=ends_at)).collect();
        times.sort_unstable();
        times.into_iter().map(|enqueued_at| draft(rng, &mut number, enqueued_at, keys)).collect()
    };
    (0..rng.random_range(3..=16))
        .map(|_| {
            let begins_at = rng.random_range(0..HEALED_AT - 500);
            let length =
                if rng.random_bool(0.2) { rng.random_range(100..900) } else { rng.random_range(0..20) };
            let ends_at = begins_at + length;
            let ending = match rng.random_range(0..20) {
                0..2 => Ending::RolledBack,
                2 => Ending::Unknown { committed: true },
                3 => Ending::Unknown { committed: false },
                _ => Ending::Committed,
            };
            Transaction { begins_at, ends_at, ending, messages: drafts(rng, begins_at, ends_at) }
        })
        .collect()
}

fn draft(rng: &mut SmallRng, number: &mut u32, enqueued_at: u32, keys: u8) -> Draft {
    *number += 1;
    let defect = match rng.random_range(0..40) {
        0..2 => Defect::Refused,
        2 => Defect::Oversize,
        3..5 => Defect::Fails(rng.random_range(1..4)),
        5 => Defect::Rejected,
        6 => Defect::FromTheFuture,
        _ => Defect::None,
    };
    Draft {
        number: *number,
        enqueued_at,
        key: rng.random_bool(0.85).then(|| rng.random_range(0..keys)),
        topic: rng.random_range(0..3),
        deliver_after: rng.random_bool(0.06).then(|| rng.random_range(1..1_500)),
        defect,
    }
}

fn faults(rng: &mut SmallRng, relays: u8, consumers: u8) -> Vec<Fault> {
    let mut faults: Vec<_> = (0..rng.random_range(0..=14))
        .map(|_| Fault {
            at: rng.random_range(0..HEALED_AT),
            kind: FaultKind::random(rng, relays, consumers),
        })
        .collect();
    faults.sort_by_key(|fault| fault.at);
    faults
}

/// Adds two transactions that write to one key of a topic that is missing. The first to write is
/// the last to commit.
fn late_commit(rng: &mut SmallRng, transactions: &mut Vec<Transaction>, faults: &mut Vec<Fault>) {
    let mut number = transactions.iter().flat_map(|transaction| &transaction.messages).count() as u32;
    let (key, topic) = (Some(0), rng.random_range(0..3));
    let begins_at = rng.random_range(0..HEALED_AT - 1_500);
    let away_for = rng.random_range(200..1_200);
    let mut write = |begins_at, ends_at| {
        number += 1;
        let defect = Defect::None;
        let messages =
            vec![Draft { number, enqueued_at: begins_at, key, topic, deliver_after: None, defect }];
        transactions.push(Transaction { begins_at, ends_at, ending: Ending::Committed, messages });
    };
    write(begins_at, begins_at + rng.random_range(50..away_for));
    write(begins_at + 5, begins_at + 10);
    let kind = FaultKind::TopicMissing { topic, for_ms: away_for };
    insert(faults, Fault { at: begins_at, kind });
}

/// Adds messages to the missing topic, some of them with keys, which are all different. Adds one to
/// another topic, later, when these have been alone for a while.
fn to_missing_topic(rng: &mut SmallRng, transactions: &mut Vec<Transaction>) {
    let mut number = transactions.iter().flat_map(|transaction| &transaction.messages).count() as u32;
    let mut write = |enqueued_at, key, topic| {
        number += 1;
        let defect = Defect::None;
        let messages = vec![Draft { number, enqueued_at, key, topic, deliver_after: None, defect }];
        let (begins_at, ends_at, ending) = (enqueued_at, enqueued_at + 1, Ending::Committed);
        transactions.push(Transaction { begins_at, ends_at, ending, messages });
    };
    for place in 0..rng.random_range(1..=4) {
        write(rng.random_range(0..HEALED_AT / 2), rng.random_bool(0.7).then_some(100 + place), MISSING);
    }
    write(HEALED_AT + rng.random_range(1_000..6_000), None, rng.random_range(0..MISSING));
}

/// Sets bounds that few messages reach, and in half of the schedules slow commits.
fn small_memory(rng: &mut SmallRng, schedule: &mut Schedule) {
    schedule.unstored_max = rng.random_range(1..=30);
    schedule.checkpoint_changes = rng.random_range(1..=20);
    if rng.random() {
        schedule.window_bytes = rng.random_range(600..=10_000);
        schedule.page_bytes = rng.random_range(1..=schedule.window_bytes);
    }
    if rng.random() {
        schedule.commit_ms = rng.random_range(1..=30);
    }
}

/// Adds more messages than can be published at once: while their topic is missing and when it comes
/// back, or scheduled for the same time.
fn burst(rng: &mut SmallRng, schedule: &mut Schedule) {
    let mut number = schedule.messages_len() as u32;
    let (topic, keys) = (rng.random_range(0..MISSING), rng.random_range(1..=12));
    let begins_at = rng.random_range(0..1_000);
    let every = rng.random_range(1..=5);
    let due_at = rng.random_bool(0.3).then(|| begins_at + rng.random_range(300..1_500));
    let transactions = (0..rng.random_range(40..=120)).map(|place| {
        let at = begins_at + place * every;
        let messages = (0..rng.random_range(1..=4)).map(|_| {
            number += 1;
            Draft {
                number,
                enqueued_at: at,
                key: rng.random_bool(0.9).then(|| 50 + rng.random_range(0..keys)),
                topic,
                deliver_after: due_at.and_then(|due_at| due_at.checked_sub(at)),
                defect: Defect::None,
            }
        });
        let messages = messages.collect();
        Transaction { begins_at: at, ends_at: at + 1, ending: Ending::Committed, messages }
    });
    schedule.transactions.extend(transactions);
    let for_ms = rng.random_range(100..800);
    let kind = match rng.random_range(0..4) {
        0 => FaultKind::TopicMissing { topic, for_ms },
        1 => FaultKind::TopicSilent { topic, for_ms, is_stored: rng.random() },
        2 => FaultKind::BrokerDown { for_ms },
        _ => FaultKind::TopicBusy { topic, for_ms },
    };
    insert(&mut schedule.faults, Fault { at: begins_at + rng.random_range(0..300), kind });
}

/// Lets the database go back to an earlier state.
fn goes_back(rng: &mut SmallRng, faults: &mut Vec<Fault>) {
    let at = rng.random_range(0..HEALED_AT - 200);
    insert(faults, Fault { at, kind: FaultKind::Backup });
    let at = rng.random_range(at..HEALED_AT);
    insert(faults, Fault { at, kind: FaultKind::Restore { is_pooled: rng.random() } });
}

/// Makes the topics those of HTTP endpoints, with the faults that only these have.
fn to_endpoints(rng: &mut SmallRng, faults: &mut Vec<Fault>) {
    for _ in 0..rng.random_range(1..=4) {
        let at = rng.random_range(0..HEALED_AT);
        insert(faults, Fault { at, kind: FaultKind::of_endpoint(rng) });
    }
}

fn insert(faults: &mut Vec<Fault>, fault: Fault) {
    let place = faults.partition_point(|other| other.at <= fault.at);
    faults.insert(place, fault);
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, relays, consumers, max_in_flight_per_key, is_key_exclusive, batch, shuffle, .. } =
            self;
        writeln!(f, "seed {seed}: {relays} relays, {consumers} consumers, {max_in_flight_per_key:?}")?;
        writeln!(f, "  keys exclusive: {is_key_exclusive}, batch: {batch:?}, shuffle {shuffle:.2}")?;
        writeln!(
            f,
            "  window {}, page {}, submission {}",
            self.window_entries, self.page_entries, self.submission_len
        )?;
        writeln!(
            f,
            "  window {} bytes, page {} bytes, {} unstored, {} per checkpoint, commits take {} ms longer",
            self.window_bytes, self.page_bytes, self.unstored_max, self.checkpoint_changes, self.commit_ms
        )?;
        for Transaction { begins_at, ends_at, ending, messages } in &self.transactions {
            writeln!(f, "  {begins_at:>5}..{ends_at:<5} ms  transaction, {ending:?}")?;
            for Draft { number, enqueued_at, key, topic, deliver_after, defect } in messages {
                write!(f, "        {enqueued_at:>5} ms  m{number} to t{topic}")?;
                key.map_or(Ok(()), |key| write!(f, " key k{key}"))?;
                deliver_after.map_or(Ok(()), |after| write!(f, " after {after} ms"))?;
                writeln!(
                    f,
                    "{}",
                    if *defect == Defect::None { String::new() } else { format!(" {defect:?}") }
                )?;
            }
        }
        self.faults.iter().try_for_each(|fault| writeln!(f, "  {:>5} ms  {:?}", fault.at, fault.kind))
    }
}
