//! Many schedules, on every core.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::breakage::Breakage;
use crate::run::{Outcome, run};
use crate::schedule::Schedule;

/// The outcome of many schedules.
#[derive(Debug, Default)]
pub struct Found {
    /// Number of schedules that were run.
    pub schedules: u64,
    /// Number of their events.
    pub events: u64,
    /// Simulated time in total.
    pub simulated: Duration,
    /// Real time that it took.
    pub took: Duration,
    /// The first seed that failed, and how.
    pub failed: Option<(u64, Outcome)>,
}

/// Runs the schedules of these seeds until one fails. Calls `progress` for each that held.
pub fn search(seeds: Range<u64>, breakage: Option<Breakage>, progress: impl Fn() + Sync) -> Found {
    let begun_at = Instant::now();
    let next = AtomicU64::new(seeds.start);
    let is_over = AtomicBool::new(false);
    let found = Mutex::new(Found::default());
    let work = || {
        while !is_over.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let outcome = run(&Schedule::of(seed), breakage, false);
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            found.schedules += 1;
            found.events += outcome.events;
            found.simulated += outcome.lasted;
            if outcome.failures.is_empty() {
                drop(found);
                progress();
            } else {
                is_over.store(true, Ordering::Relaxed);
                if found.failed.as_ref().is_none_or(|(first, _)| seed < *first) {
                    found.failed = Some((seed, outcome));
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    Found { took: begun_at.elapsed(), ..found }
}
