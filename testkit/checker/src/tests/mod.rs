//! Every promise against a history that keeps it and against histories that break it.

mod broken;
mod forgotten;
mod generated;
mod sample;
mod unchecked;

use crate::{History, Promise, Verdict, Violation};

/// Returns the violations in a history, sorted, without repetition.
fn violations(history: &History) -> Vec<Violation> {
    let mut violations: Vec<_> = Verdict::of(history).breaches().map(|breach| breach.violation).collect();
    violations.sort_unstable();
    violations.dedup();
    violations
}

/// Returns the broken promises.
fn broken(history: &History) -> Vec<Promise> {
    let verdict = Verdict::of(history);
    verdict.rulings.iter().filter(|ruling| ruling.breached > 0).map(|ruling| ruling.promise).collect()
}
