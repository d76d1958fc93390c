//! Schedules with chosen settings: pairs of settings that a random plan seldom brings together.

use message::MaxInFlightPerKey;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::{Schedule, burst, faults, goes_back, late_commit, to_endpoints, to_missing_topic, transactions};

/// A setting and its levels.
pub type Factor = (&'static str, &'static [&'static str]);

/// The settings of a schedule, and the kinds of events that only some schedules have. Endpoints
/// take one message of a key at a time, so they are a level of that setting.
pub const FACTORS: [Factor; 18] = [
    ("relays", &["one", "two", "three"]),
    ("consumers", &["one", "two"]),
    ("messages of a key in flight", &["one", "many", "one, to endpoints"]),
    ("submission", &["of one", "of five"]),
    ("keys", &["shared by consumers", "exclusive"]),
    ("batches", &["none", "of four"]),
    ("tasks", &["in turn", "shuffled"]),
    ("window", &["small", "large"]),
    ("window in bytes", &["small", "large"]),
    ("page", &["small", "large"]),
    ("page in bytes", &["small", "large"]),
    ("unstored changes", &["few", "many"]),
    ("changes of a checkpoint", &["few", "many"]),
    ("commits", &["quick", "slow"]),
    ("late commit", &["none", "one"]),
    ("missing topic", &["none", "one"]),
    ("burst", &["none", "one"]),
    ("restore", &["none", "one"]),
];

impl Schedule {
    /// Returns the plan of a seed with these levels, one for each of [`FACTORS`], in their order.
    /// The transactions and the other faults come from the seed.
    ///
    /// # Panics
    /// If a level is missing or does not exist.
    #[must_use]
    pub fn of_levels(seed: u64, levels: &[usize]) -> Self {
        let level = |name: &str| {
            let at = FACTORS.iter().position(|(factor, _)| *factor == name);
            at.map_or(usize::MAX, |at| levels[at])
        };
        let is_on = |name: &str| level(name) == 1;
        let mut rng = SmallRng::seed_from_u64(seed);
        let relays = [1, 2, 3][level("relays")];
        let consumers = [1, 2][level("consumers")];
        let mut transactions = transactions(&mut rng);
        let mut faults = faults(&mut rng, relays, consumers);
        if is_on("late commit") {
            late_commit(&mut rng, &mut transactions, &mut faults);
        }
        let one = MaxInFlightPerKey::One;
        let in_flight = [one, MaxInFlightPerKey::Pipelined, one];
        let window_bytes = [2_000, 12 << 20][level("window in bytes")];
        let mut schedule = Self {
            seed,
            relays,
            consumers,
            max_in_flight_per_key: in_flight[level("messages of a key in flight")],
            submission_len: [1, 5][level("submission")],
            is_key_exclusive: is_on("keys"),
            batch: is_on("batches").then_some(4),
            shuffle: [0.0, 0.4][level("tasks")],
            window_entries: [3, 40][level("window")],
            window_bytes,
            page_entries: [1, 10][level("page")],
            page_bytes: [300, 2 << 20][level("page in bytes")].min(window_bytes),
            unstored_max: [4, 8_000][level("unstored changes")],
            checkpoint_changes: [3, 1_000][level("changes of a checkpoint")],
            commit_ms: [0, 20][level("commits")],
            transactions,
            faults,
        };
        if is_on("missing topic") {
            to_missing_topic(&mut rng, &mut schedule.transactions);
        }
        if is_on("burst") {
            burst(&mut rng, &mut schedule);
        }
        if is_on("restore") {
            goes_back(&mut rng, &mut schedule.faults);
        }
        if level("messages of a key in flight") == 2 {
            to_endpoints(&mut rng, &mut schedule.faults);
        }
        schedule
    }
}
