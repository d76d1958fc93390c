//! One key has a burst of messages, and the broker is slow to answer for them. Messages of other
//! keys, which come afterwards, must not wait for the burst.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::fault::{Call, Fault, FaultKind, Moment, Slot};
use crate::run::{Outcome, run};
use crate::schedule::{Defect, Draft, Ending, Schedule, Transaction};

/// The key with the burst.
const BUSY: u8 = 0;

/// Number of messages in the burst.
const LEN: u32 = 600;

/// How much later the broker answers for a message of the burst, in milliseconds. All of them would
/// take a minute.
const SLOW_MS: u32 = 100;

/// When the other messages are enqueued, in milliseconds: one every 10.
const OTHERS: std::ops::Range<u32> = 600..2_400;

/// The load.
#[derive(Debug, Clone, Copy)]
pub struct Burst {
    /// Source of all random numbers.
    pub seed: u64,
    /// Whether all messages are scheduled: those of the burst for the same time, the others for
    /// times after it.
    pub is_scheduled: bool,
    /// Maximum number of changes of exceptions that the relay has not stored yet.
    pub unstored_max: u16,
    /// Whether relays crash, are taken over and lose their sessions meanwhile.
    pub is_troubled: bool,
}

/// Delays of the messages of other keys.
#[derive(Debug)]
pub struct Delayed {
    /// The longest time that one waited, in milliseconds; `None` if one was not confirmed while the
    /// load lasted.
    pub longest: Option<u64>,
    /// Number of messages of the burst that were confirmed meanwhile.
    pub busy: usize,
    /// The outcome of the run.
    pub outcome: Outcome,
}

impl Burst {
    /// Runs the load.
    #[must_use]
    pub fn run(self) -> Delayed {
        let schedule = self.schedule();
        let outcome = run(&schedule, None, false);
        let during = || outcome.confirmed.iter().filter(|(at, _)| *at < crate::schedule::HEALED_AT.into());
        let mut longest = Some(0);
        for draft in schedule.transactions.iter().flat_map(|transaction| &transaction.messages) {
            if draft.key == Some(BUSY) {
                continue;
            }
            let ready_at = u64::from(draft.enqueued_at + draft.deliver_after.unwrap_or_default());
            let confirmed = during().find(|(_, number)| *number == draft.number);
            let waited = confirmed.map(|(at, _)| at.saturating_sub(ready_at));
            longest = longest.zip(waited).map(|(longest, waited)| longest.max(waited));
        }
        let busy = during().filter(|(_, number)| *number <= LEN).count();
        Delayed { longest, busy, outcome }
    }

    fn schedule(self) -> Schedule {
        let mut rng = SmallRng::seed_from_u64(self.seed);
        let deliver = |after: u32| self.is_scheduled.then_some(after);
        let draft = |number: u32, enqueued_at: u32, key: u8, after: u32| Draft {
            number,
            enqueued_at,
            key: Some(key),
            topic: 0,
            deliver_after: deliver(after),
            defect: Defect::None,
        };
        let burst = (1..=LEN).map(|number| draft(number, 100, BUSY, 300));
        let committed = |at: u32, messages: Vec<Draft>| Transaction {
            begins_at: at,
            ends_at: at,
            ending: Ending::Committed,
            messages,
        };
        let mut transactions = vec![committed(100, burst.collect())];
        transactions.extend((LEN + 1..).zip(OTHERS.step_by(10)).map(|(number, at)| {
            // A scheduled one is enqueued with the burst.
            let (enqueued_at, after) = if self.is_scheduled { (200, at - 200) } else { (at, 0) };
            committed(enqueued_at, vec![draft(number, enqueued_at, rng.random_range(1..10), after)])
        }));
        let mut faults = vec![Fault { at: 0, kind: FaultKind::KeySlow { key: BUSY, by_ms: SLOW_MS } }];
        if self.is_troubled {
            faults.extend(troubles(&mut rng));
        }
        let calm = Schedule::calm(self.seed, transactions);
        Schedule { relays: 2, unstored_max: self.unstored_max, faults, ..calm }
    }
}

/// Returns troubles of the relays while the burst is held and read back.
fn troubles(rng: &mut SmallRng) -> Vec<Fault> {
    let slot = Slot::Relay(0);
    let kinds = [
        FaultKind::Crash { slot, turns: rng.random_range(0..60) },
        FaultKind::Sever,
        FaultKind::Zombie { moment: Moment::Checkpoint, for_ms: 1_000 },
        FaultKind::Database { call: Call::Checkpoint, is_applied: rng.random() },
        FaultKind::Database { call: Call::Held, is_applied: rng.random() },
        FaultKind::Crash { slot: Slot::Relay(1), turns: rng.random_range(0..60) },
        FaultKind::BrokerDown { for_ms: rng.random_range(10..400) },
        FaultKind::Stop { slot },
    ];
    let times = std::iter::repeat_with(|| rng.random_range(200..2_800)).take(kinds.len());
    let mut times: Vec<u32> = times.collect();
    times.sort_unstable();
    times.into_iter().zip(kinds).map(|(at, kind)| Fault { at, kind }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maximum time that a message of another key waits, in milliseconds. A poll takes up to 100, a
    /// call or an answer up to 60, a look at full windows comes every 200, and the relay waits for
    /// one answer of the busy key.
    const WAIT_MAX: u64 = 1_000;

    #[test]
    fn a_burst_of_a_slow_key_delays_no_other_key() {
        for (seed, is_scheduled, unstored_max) in
            [(0, false, 8_000), (1, false, 200), (2, true, 8_000), (3, true, 200), (4, false, 300)]
        {
            let load = Burst { seed, is_scheduled, unstored_max, is_troubled: false };
            let Delayed { longest, busy, outcome } = load.run();
            assert!(outcome.failures.is_empty(), "seed {seed}: {:#?}", outcome.failures);
            eprintln!("seed {seed}: others waited for {longest:?} ms at most, {busy} of the burst left");
            assert!(longest.is_some_and(|longest| longest <= WAIT_MAX), "seed {seed}: {longest:?} ms");
            // The burst leaves at its own pace meanwhile: it is not put off.
            assert!((15..40).contains(&busy), "seed {seed}: {busy} of the burst");
        }
    }

    /// Goal: crashes, takeovers and lost sessions neither lose nor reorder a message of the burst.
    /// Oracle: every promise, which the run checks.
    #[test]
    fn a_burst_is_complete_and_in_order_whatever_ends_the_relays_meanwhile() {
        for seed in 0..8 {
            let is_scheduled = seed % 4 == 3;
            let load = Burst { seed, is_scheduled, unstored_max: 300, is_troubled: true };
            let outcome = load.run().outcome;
            assert!(outcome.failures.is_empty(), "seed {seed}: {:#?}", outcome.failures);
        }
    }
}
