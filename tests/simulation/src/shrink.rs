//! Shrinks a failing schedule: removes everything that is not needed for the failure.

use crate::breakage::Breakage;
use crate::run::{Failure, run};
use crate::schedule::Schedule;

/// Maximum number of runs to shrink a schedule.
pub const ATTEMPTS_MAX: usize = 2_000;

/// Returns the smallest schedule found that fails in the same way.
#[must_use]
pub fn shrink(schedule: &Schedule, breakage: Option<Breakage>, failure: Failure) -> Schedule {
    let mut attempts = 0;
    let mut smallest = schedule.clone();
    loop {
        let before = smallest.clone();
        for candidate in simpler(&smallest) {
            try_out(&mut smallest, candidate, breakage, failure, &mut attempts);
        }
        leave_out(&mut smallest, breakage, failure, &mut attempts, |schedule| &mut schedule.faults);
        leave_out(&mut smallest, breakage, failure, &mut attempts, |schedule| &mut schedule.transactions);
        for transaction in 0..smallest.transactions.len() {
            leave_out(&mut smallest, breakage, failure, &mut attempts, |schedule| {
                &mut schedule.transactions[transaction].messages
            });
        }
        if smallest == before || attempts >= ATTEMPTS_MAX {
            return smallest;
        }
    }
}

/// Returns variants with fewer processes, less shuffling, or faster commits.
fn simpler(schedule: &Schedule) -> Vec<Schedule> {
    let change = |change: fn(&mut Schedule)| {
        let mut changed = schedule.clone();
        change(&mut changed);
        changed
    };
    vec![
        change(|schedule| schedule.relays = 1),
        change(|schedule| schedule.relays = 2),
        change(|schedule| schedule.consumers = 1),
        change(|schedule| schedule.batch = None),
        change(|schedule| schedule.shuffle = 0.0),
        change(|schedule| schedule.commit_ms = 0),
    ]
}

fn try_out(
    smallest: &mut Schedule,
    candidate: Schedule,
    breakage: Option<Breakage>,
    failure: Failure,
    attempts: &mut usize,
) -> bool {
    if candidate == *smallest || *attempts >= ATTEMPTS_MAX || candidate.relays > smallest.relays {
        return false;
    }
    *attempts += 1;
    let fails = run(&candidate, breakage, false).failures.iter().any(|(found, _)| *found == failure);
    if fails {
        *smallest = candidate;
    }
    fails
}

/// Leaves out items, first in long runs, then one by one.
fn leave_out<T>(
    smallest: &mut Schedule,
    breakage: Option<Breakage>,
    failure: Failure,
    attempts: &mut usize,
    items: impl Fn(&mut Schedule) -> &mut Vec<T>,
) {
    let mut len = items(smallest).len();
    while len > 0 {
        let mut from = 0;
        while from < items(smallest).len() {
            let mut candidate = smallest.clone();
            let all = items(&mut candidate);
            let to = (from + len).min(all.len());
            all.drain(from..to);
            if !try_out(smallest, candidate, breakage, failure, attempts) {
                from += len;
            }
        }
        len /= 2;
    }
}
