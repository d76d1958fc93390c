//! A test with a deadline, an orderly end, and an honest listing when a backend is missing.

use std::collections::HashSet;
use std::error::Error;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

pub use conformance::{Failure, Outcome};
use futures_util::FutureExt as _;
use libtest_mimic::{Arguments, Failed, Trial};

use crate::backends::{Backend, all_are_required, missing};
use crate::copies;
use crate::stage::Stage;

/// The time limit of a test. Alone, each takes seconds; on a busy machine, ten times as long.
const DEADLINE: Duration = Duration::from_secs(600);

/// The time limit of a test of the night: some fill a million rows, or run a whole suite.
const DEADLINE_AT_NIGHT: Duration = Duration::from_secs(1_800);

/// More threads than processors, because tests mostly wait for services.
const THREADS: usize = 6;

/// Creates a test that needs some backends. When one is missing, the test is listed as ignored,
/// with the reason in its name. With `OUTBOX_REQUIRE=all` it fails instead.
pub fn trial<F>(
    name: impl Into<String>,
    needs: &[Backend],
    body: impl FnOnce(Stage) -> F + Send + 'static,
) -> Trial
where
    F: Future<Output = Outcome>,
{
    let name = name.into();
    match missing(needs) {
        None => Trial::test(name.clone(), move || attend(&name, body)),
        Some(reason) => cannot_run(name, &reason),
    }
}

/// Lists a test as ignored, with the reason why it cannot run on this machine in its name. With
/// `OUTBOX_REQUIRE=all` it fails instead.
#[must_use]
pub fn cannot_run(name: impl Into<String>, reason: &str) -> Trial {
    let name = name.into();
    if all_are_required() {
        let problem = format!("required, but {reason}");
        return Trial::test(name, || Err(Failed::from(problem)));
    }
    Trial::test(format!("{name} [{reason}]"), || Ok(())).with_ignored_flag(true)
}

/// Marks tests that take long, wait for a clock or need more than the four servers. `cargo xtask
/// night` runs them, and `cargo xtask test` leaves them out.
#[must_use]
pub fn at_night(trials: Vec<Trial>) -> Vec<Trial> {
    trials.into_iter().map(|trial| trial.with_kind(NIGHT)).collect()
}

/// The mark of tests of the night.
const NIGHT: &str = "night";

/// The names of this binary's tests of the night, which have a longer time limit however they were
/// selected.
static NIGHT_NAMES: OnceLock<HashSet<String>> = OnceLock::new();

fn names_at_night(trials: &[Trial]) -> HashSet<String> {
    let at_night = trials.iter().filter(|trial| trial.kind() == NIGHT);
    at_night.map(|trial| trial.name().to_owned()).collect()
}

/// Returns the time limit of the test with this name.
fn deadline(name: &str, at_night: Option<&HashSet<String>>) -> Duration {
    let is_night = at_night.is_some_and(|names| names.contains(name));
    if is_night { DEADLINE_AT_NIGHT } else { DEADLINE }
}

/// The variable that selects the tests: `gate` or `night`. Unset, all tests run.
const CASES: &str = "OUTBOX_CASES";

/// Returns whether the value of `OUTBOX_CASES` selects tests with this mark.
fn is_asked_for(cases: Option<&str>, kind: &str) -> bool {
    match cases {
        Some("gate") => kind != NIGHT,
        Some("night") => kind == NIGHT,
        _ => true,
    }
}

/// Runs all tests of a binary, several at once.
#[must_use]
pub fn run(trials: Vec<Trial>) -> ExitCode {
    run_on(trials, THREADS)
}

/// Runs all tests of a binary one by one, because they stop services that other tests need.
#[must_use]
pub fn run_alone(trials: Vec<Trial>) -> ExitCode {
    run_on(trials, 1)
}

fn run_on(trials: Vec<Trial>, threads: usize) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(threads);
    let cases = std::env::var(CASES).ok();
    let _ = NIGHT_NAMES.set(names_at_night(&trials));
    let trials = trials.into_iter().filter(|trial| is_asked_for(cases.as_deref(), trial.kind())).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    tell_slowest(&mut SECONDS.lock().unwrap_or_else(PoisonError::into_inner));
    if let Err(problems) = copies::clean_up() {
        eprintln!("{problems}");
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}

/// How long each test of this binary took, beside the others that ran with it.
static SECONDS: Mutex<Vec<(f64, String)>> = Mutex::new(Vec::new());

/// The number of slow tests that are listed at the end of a run.
const SLOWEST: usize = 10;

/// Names the slowest tests: to shorten the gate, begin with these.
fn tell_slowest(tests: &mut [(f64, String)]) {
    tests.sort_by(|one, other| other.0.total_cmp(&one.0));
    if tests.len() > SLOWEST {
        println!("the slowest, in seconds:");
        tests.iter().take(SLOWEST).for_each(|(seconds, name)| println!("{seconds:8.1}  {name}"));
    }
}

fn attend<F: Future<Output = Outcome>>(name: &str, body: impl FnOnce(Stage) -> F) -> Result<(), Failed> {
    let begun_at = Instant::now();
    let verdict = carry_out(name, body);
    let taken = (begun_at.elapsed().as_secs_f64(), name.to_owned());
    SECONDS.lock().unwrap_or_else(PoisonError::into_inner).push(taken);
    verdict
}

fn carry_out<F: Future<Output = Outcome>>(name: &str, body: impl FnOnce(Stage) -> F) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let stage = Stage::new(name)?;
        let deadline = deadline(name, NIGHT_NAMES.get());
        let body = AssertUnwindSafe(body(stage.clone())).catch_unwind();
        let verdict = match tokio::time::timeout(deadline, body).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(failure))) => Err(chain(failure.as_ref())),
            Ok(Err(panic)) => Err(panic_text(panic.as_ref())),
            Err(_) => Err(format!("not finished after {deadline:?}")),
        };
        // Repeated after the evidence, for readers who see only the end of a long output.
        let verdict = verdict.map_err(|problem| format!("{problem}\n{}{problem}", stage.evidence()));
        let cleaned_up = stage.clean_up().await;
        verdict.and(cleaned_up).map_err(Failed::from)
    })
}

/// The commit has begun an empty transaction, which the pool rolls back with its ping.
#[must_use]
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(&format!(": {error}"));
        source = error.source();
    }
    text
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a text").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_and_night_are_all_tests_and_none_twice() {
        let trials = || [Trial::test("a", || Ok(())), at_night(vec![Trial::test("b", || Ok(()))]).remove(0)];
        let asked = |cases: Option<&str>| {
            let trials = trials().into_iter().filter(|trial| is_asked_for(cases, trial.kind()));
            trials.map(|trial| trial.name().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(asked(Some("gate")), ["a"]);
        assert_eq!(asked(Some("night")), ["b"]);
        assert_eq!(asked(None), ["a", "b"]);
    }

    #[test]
    fn a_test_of_the_night_has_its_time_limit_however_it_was_selected() {
        let names = names_at_night(&[
            Trial::test("a", || Ok(())),
            at_night(vec![Trial::test("b", || Ok(()))]).remove(0),
        ]);
        assert_eq!(["a", "b"].map(|name| deadline(name, Some(&names))), [DEADLINE, DEADLINE_AT_NIGHT]);
    }
}
