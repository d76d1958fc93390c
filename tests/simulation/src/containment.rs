//! One topic falls silent or becomes slow under a steady load, and the others must not suffer. The
//! same schedule runs with the silence and without it, and the confirmations of the other topics
//! are counted while it lasts.

use std::ops::Range;

use message::MaxInFlightPerKey;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::breakage::Breakage;
use crate::fault::{Fault, FaultKind};
use crate::run::{Outcome, run};
use crate::schedule::{Defect, Draft, Ending, Schedule, Transaction};

/// Number of topics; the load is spread evenly over them.
const TOPICS: u8 = 3;

/// Number of ordering keys of each topic. Topics share no keys.
const KEYS: u8 = 4;

/// Milliseconds between two messages.
const EVERY: u32 = 5;

/// Minimum share of the confirmations that a silent topic must leave to the others.
pub const SHARE_MIN: f64 = 0.9;

/// Maximum number of sends of a message because its topic is silent: the first ones, and one in the
/// session that shows the relay that the broker itself works.
pub const COPIES_MAX: u32 = 3;

/// Number of messages for which a slow destination has room.
const ROOM: u8 = 3;

/// The effect of a silent or slow topic on the others.
#[derive(Debug)]
pub struct Contained {
    /// Messages of other topics that were confirmed while one was silent.
    pub others: usize,
    /// The same number without the silence.
    pub others_alone: usize,
    /// Maximum number of sends of one message.
    pub copies: u32,
    /// The run with the silence.
    pub outcome: Outcome,
}

impl Contained {
    /// Returns the problems in words; empty if the silence was contained and every promise held.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let Self { others, others_alone, copies, outcome } = self;
        let mut problems: Vec<String> = outcome.failures.iter().map(|(_, text)| text.clone()).collect();
        if (*others as f64) < SHARE_MIN * (*others_alone as f64) {
            problems.push(format!(
                "{others} messages of other topics were confirmed during the silence, {others_alone} without it"
            ));
        }
        if *copies > COPIES_MAX {
            problems.push(format!("a message was sent {copies} times"));
        }
        problems
    }
}

/// Runs the load of a seed with and without a silent topic.
#[must_use]
pub fn contain(seed: u64, breakage: Option<Breakage>) -> Contained {
    let mut schedule = load(seed);
    let alone = run(&schedule, breakage, false);
    let Silence { at, topic, for_ms, is_stored } = Silence::of(seed);
    schedule.faults.push(Fault { at, kind: FaultKind::TopicSilent { topic, for_ms, is_stored } });
    let outcome = run(&schedule, breakage, false);
    let during = at.into()..u64::from(at + for_ms);
    Contained {
        others: others(&schedule, &outcome, topic, &during),
        others_alone: others(&schedule, &alone, topic, &during),
        copies: outcome.sent.values().copied().max().unwrap_or_default(),
        outcome,
    }
}

/// Runs the load of a seed with a topic whose messages come faster than its destination takes them,
/// as an endpoint of HTTP may be, and without it.
#[must_use]
pub fn contain_slow(seed: u64) -> Contained {
    let mut schedule = load(seed);
    schedule.max_in_flight_per_key = MaxInFlightPerKey::One;
    let alone = run(&schedule, None, false);
    let Silence { at, topic, for_ms, .. } = Silence::of(seed);
    schedule.faults.push(Fault { at, kind: FaultKind::TopicSlow { topic, for_ms, room: ROOM } });
    let outcome = run(&schedule, None, false);
    let during = at.into()..u64::from(at + for_ms);
    Contained {
        others: others(&schedule, &outcome, topic, &during),
        others_alone: others(&schedule, &alone, topic, &during),
        // A message that finds no room is handed over again, which sends nothing.
        copies: 1,
        outcome,
    }
}

/// Returns how many messages of other topics were confirmed.
fn others(schedule: &Schedule, outcome: &Outcome, silent: u8, during: &Range<u64>) -> usize {
    let drafts = schedule.transactions.iter().flat_map(|transaction| &transaction.messages);
    let silent: Vec<u32> = drafts.filter(|draft| draft.topic == silent).map(|draft| draft.number).collect();
    let is_other = |(at, number): &&(u64, u32)| during.contains(at) && silent.binary_search(number).is_err();
    outcome.confirmed.iter().filter(is_other).count()
}

/// Returns a steady load without faults.
fn load(seed: u64) -> Schedule {
    let mut rng = SmallRng::seed_from_u64(seed);
    let times = (1..).zip((0..2_500).step_by(EVERY as usize));
    let transactions = times.map(|(number, at)| {
        let topic = rng.random_range(0..TOPICS);
        let key = rng.random_bool(0.9).then(|| topic * KEYS + rng.random_range(0..KEYS));
        let draft = Draft { number, enqueued_at: at, key, topic, deliver_after: None, defect: Defect::None };
        Transaction { begins_at: at, ends_at: at, ending: Ending::Committed, messages: vec![draft] }
    });
    let transactions = transactions.collect();
    Schedule {
        max_in_flight_per_key: if rng.random() {
            MaxInFlightPerKey::One
        } else {
            MaxInFlightPerKey::Pipelined
        },
        submission_len: 5,
        window_entries: rng.random_range(40..=80),
        page_entries: 10,
        ..Schedule::calm(seed, transactions)
    }
}

/// The silence of a topic: when it begins, how long it lasts, and its kind.
struct Silence {
    at: u32,
    topic: u8,
    for_ms: u32,
    is_stored: bool,
}

impl Silence {
    fn of(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(!seed);
        Self {
            at: rng.random_range(200..500),
            topic: rng.random_range(0..TOPICS),
            for_ms: rng.random_range(1_200..2_000),
            is_stored: rng.random(),
        }
    }
}
