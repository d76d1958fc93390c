//! Schedules in which every two settings meet, each in several courses of events.

use simulation::schedule::FACTORS;
use simulation::{Schedule, run, shrink};
use tests::pairs;

/// Number of courses of each row of settings.
const COURSES: u64 = 8;

fn levels() -> Vec<usize> {
    FACTORS.iter().map(|(_, levels)| levels.len()).collect()
}

/// Goal: settings that hold alone hold together. Oracle: every promise, for rows in which every two
/// levels meet.
#[test]
fn every_promise_holds_where_settings_meet() {
    let rows = pairs::rows(&levels());
    for (number, row) in (0_u64..).zip(&rows) {
        for course in 0..COURSES {
            let seed = number * COURSES + course;
            let schedule = Schedule::of_levels(seed, row);
            let outcome = run(&schedule, None, false);
            let Some(failure) = outcome.failure() else { continue };
            let small = shrink(&schedule, None, failure);
            let again = run(&small, None, true);
            panic!(
                "row {number} {row:?}, seed {seed}: {:#?}\n\nmade small:\n{small}\n{}\n{:#?}",
                outcome.failures,
                again.lines.join("\n"),
                again.failures
            );
        }
    }
    let met = pairs::pairs(&levels()).len();
    eprintln!("{met} pairs in {} rows, {COURSES} courses of each", rows.len());
}

/// Goal: no setting is left out because its name was misspelt. Oracle: each level makes another
/// plan of the same seed.
#[test]
fn every_level_makes_a_plan_of_its_own() {
    let first = vec![0; FACTORS.len()];
    for (at, (name, levels)) in FACTORS.iter().enumerate() {
        let mut plans = Vec::new();
        for level in 0..levels.len() {
            let mut row = first.clone();
            row[at] = level;
            let plan = Schedule::of_levels(7, &row);
            assert!(!plans.contains(&plan), "{name}: {}", levels[level]);
            plans.push(plan);
        }
    }
}
