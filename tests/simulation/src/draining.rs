//! One topic comes back under a steady load with slow commits. The entries that were held meanwhile
//! must be published while new messages of the same keys keep arriving.

use message::MaxInFlightPerKey;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::fault::{Fault, FaultKind};
use crate::run::{Outcome, run};
use crate::schedule::{Defect, Draft, Ending, HEALED_AT, Schedule, Transaction};

/// Number of ordering keys of the load.
const KEYS: u8 = 40;

/// Milliseconds between two messages.
const EVERY: u32 = 4;

/// When the topic goes missing, and when it comes back, in milliseconds.
const AWAY: std::ops::Range<u32> = 100..700;

/// How the held entries of a load drained.
#[derive(Debug)]
pub struct Drained {
    /// Maximum number of held entries.
    pub most: usize,
    /// When the last one was published, in milliseconds; `None` if some were held until the end of
    /// the load.
    pub at: Option<u64>,
    /// The outcome of the run.
    pub outcome: Outcome,
}

impl Drained {
    /// Returns the problems in words.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems: Vec<String> = self.outcome.failures.iter().map(|(_, text)| text.clone()).collect();
        if self.at.is_none() {
            let left = self.outcome.held.iter().rev().find(|(at, _)| *at < HEALED_AT.into());
            problems.push(format!(
                "{} entries were held at most, and {} when the load ended",
                self.most,
                left.map_or(0, |(_, held)| *held)
            ));
        }
        problems
    }
}

/// Runs the load of a seed, with commits that take this many milliseconds longer.
#[must_use]
pub fn drain(seed: u64, commit_ms: u8) -> Drained {
    let outcome = run(&load(seed, commit_ms), None, false);
    let most = outcome.held.iter().map(|(_, held)| *held).max().unwrap_or_default();
    let during = u64::from(AWAY.end)..HEALED_AT.into();
    let empty = outcome.held.iter().find(|(at, held)| during.contains(at) && *held == 0);
    Drained { most, at: empty.map(|(at, _)| *at), outcome }
}

fn load(seed: u64, commit_ms: u8) -> Schedule {
    let mut rng = SmallRng::seed_from_u64(seed);
    let times = (1..).zip((0..HEALED_AT).step_by(EVERY as usize));
    let transactions = times.map(|(number, at)| {
        let key = Some(rng.random_range(0..KEYS));
        let (deliver_after, defect) = (None, Defect::None);
        let draft = Draft { number, enqueued_at: at, key, topic: 0, deliver_after, defect };
        Transaction { begins_at: at, ends_at: at, ending: Ending::Committed, messages: vec![draft] }
    });
    let transactions = transactions.collect();
    let kind = FaultKind::TopicMissing { topic: 0, for_ms: AWAY.end - AWAY.start };
    Schedule {
        max_in_flight_per_key: if rng.random() {
            MaxInFlightPerKey::One
        } else {
            MaxInFlightPerKey::Pipelined
        },
        commit_ms,
        faults: vec![Fault { at: AWAY.start, kind }],
        ..Schedule::calm(seed, transactions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_stay_bounded_while_held_entries_leave_faster_than_they_are_stored() {
        for seed in 0..4 {
            let bounds = Schedule { unstored_max: 20, checkpoint_changes: 5, ..load(seed, 30) };
            let outcome = run(&Schedule { window_entries: 20, page_entries: 5, ..bounds }, None, false);
            assert!(outcome.failures.is_empty(), "seed {seed}: {:#?}", outcome.failures);
        }
    }

    #[test]
    fn held_entries_leave_while_others_of_their_keys_arrive() {
        for (seed, commit_ms) in [(0, 10), (1, 20), (2, 10), (3, 20)] {
            let drained = drain(seed, commit_ms);
            let problems = drained.problems();
            assert!(problems.is_empty(), "seed {seed}, commits of {commit_ms} ms: {problems:#?}");
            eprintln!(
                "commits of {commit_ms} ms: {} held at most, none {} ms after the topic came back",
                drained.most,
                drained.at.map_or(0, |at| at - u64::from(AWAY.end))
            );
        }
    }
}
