//! Runs every case as a test of a program, like `cargo test`.

use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};

use crate::{Broker, Capabilities, Case, Failure, cases};

/// More threads than processors, because cases spend their time waiting for the broker.
const THREADS: usize = 6;

/// Runs every case on brokers from `open`, and returns the exit code of the test program. `name` is
/// the broker's name in the names of tests:
/// `publisher/directory/a_close_answers_what_is_in_flight`. A case that needs more than
/// `capabilities` is left out; a line on standard error reports it with the reason.
///
/// Reads the arguments of the program like every test program: a part of a name as a filter,
/// `--list`, `--test-threads`. For a target with `harness = false`.
pub fn main<F>(
    name: &str,
    capabilities: Capabilities,
    open: impl Fn() -> F + Clone + Send + 'static,
) -> ExitCode
where
    F: Future<Output = Result<Arc<dyn Broker>, Failure>>,
{
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS);
    let mut trials = Vec::new();
    for case in cases() {
        match case.lacks(&capabilities) {
            Some(reason) => eprintln!("left out: {}/{name}/{}: {reason}", case.suite, case.name),
            None => trials.push(trial(name, capabilities, case, open.clone())),
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial<F>(
    broker: &str,
    capabilities: Capabilities,
    case: Case,
    open: impl Fn() -> F + Send + 'static,
) -> Trial
where
    F: Future<Output = Result<Arc<dyn Broker>, Failure>>,
{
    let name = format!("{}/{broker}/{}", case.suite, case.name);
    Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(async { case.run(open().await?, capabilities).await }).map_err(chain)
    })
}

/// Returns an error and its sources in one line.
fn chain(failure: Failure) -> Failed {
    let mut text = failure.to_string();
    let mut source = failure.source();
    while let Some(error) = source {
        text.push_str(&format!(": {error}"));
        source = error.source();
    }
    Failed::from(text)
}
