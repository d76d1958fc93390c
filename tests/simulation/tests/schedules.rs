//! Hundreds of schedules, one course of events for each seed, and every breakage.

use simulation::{Breakage, Schedule, run, search, shrink};

/// Number of schedules in every test run. `cargo run --release -p simulation` runs any number.
const SCHEDULES: u64 = 250;

/// Maximum number of schedules in which a breakage must be found.
const BREAKAGE_SCHEDULES: u64 = 2_000;

#[test]
fn every_promise_holds() {
    let found = search(0..SCHEDULES, None, || ());
    if let Some((seed, outcome)) = found.failed {
        let schedule = Schedule::of(seed);
        let schedule = outcome.failure().map_or(schedule.clone(), |failure| shrink(&schedule, None, failure));
        let again = run(&schedule, None, true);
        panic!(
            "seed {seed} fails: {:#?}\n\nmade small:\n{schedule}\n{}\n{:#?}",
            outcome.failures,
            again.lines.join("\n"),
            again.failures
        );
    }
    assert_eq!(found.schedules, SCHEDULES);
    eprintln!("{} schedules in {:.1?}, {} events", found.schedules, found.took, found.events);
}

#[test]
fn one_seed_takes_one_course() {
    let hashes = |seed| {
        let schedule = Schedule::of(seed);
        [run(&schedule, None, false).hash, run(&schedule, None, true).hash]
    };
    let mut all = Vec::new();
    for seed in 0..20 {
        let [one, other] = hashes(seed);
        assert_eq!(one, other, "seed {seed} takes two courses");
        all.push(one);
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 20, "every seed takes a course of its own");
}

#[test]
fn every_breakage_is_found() {
    for breakage in Breakage::all().iter().filter(|breakage| !breakage.is_delay()) {
        let found = search(0..BREAKAGE_SCHEDULES, Some(*breakage), || ());
        let Some((seed, outcome)) = &found.failed else {
            panic!("{breakage} was not found in {} schedules", found.schedules);
        };
        eprintln!(
            "{breakage:<24} found after {:>4} schedules, {:>8.1?}, seed {seed}: {}",
            found.schedules,
            found.took,
            outcome.failures.first().map_or("", |(_, text)| text)
        );
    }
}
