//! Runs test programs against the real components and counts what they report.

use super::{
    memory::Memory,
    outcome::Outcome,
    programs::{Programs, TestProgram},
};
use crate::{
    backends::Backends,
    cargo::cargo,
    cargo_output::{Suite, Suites},
    outside, report,
    require::Require,
};
use std::{
    io::{BufRead, BufReader, Write},
    process::Command,
};

/// With the value `all`, a test whose service is missing fails instead of being ignored.
const REQUIRE_VARIABLE: &str = "OUTBOX_REQUIRE";

/// `gate` or `night`: the cases of a suite that run. Unset, all of them do.
const CASES_VARIABLE: &str = "OUTBOX_CASES";

/// The relay that tests start, and the folder of the examples that they start. With these set,
/// tests build neither.
const RELAY_VARIABLE: &str = "OUTBOX_RELAY";
const EXAMPLES_VARIABLE: &str = "OUTBOX_EXAMPLES";

/// The cases of a suite that run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cases {
    All,
    Gate,
    Night,
}

/// The options for running test programs.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) require: Require,
    pub(super) cases: Cases,
    /// Passed to each program: a filter, `--skip NAME`, `--nocapture`.
    pub(super) arguments: Vec<String>,
}

/// Runs the programs for which `wanted` holds, one after the other. It is an error if there are no
/// such programs, or if none of their tests ran: a suite or test that was renamed must not pass.
pub(super) fn run(
    options: &Options,
    backends: &Backends,
    wanted: impl Fn(&TestProgram) -> bool,
) -> Result<Outcome, String> {
    let programs = Programs::of_this_run()?;
    let memory = (options.cases == Cases::Gate).then(Memory::new).flatten();
    let mut suites = Suites::default();
    let mut has_run = false;
    for program in programs.tests.iter().filter(|program| wanted(program)) {
        has_run = true;
        let mut command = command(program, &programs, options);
        if let Some(memory) = &memory {
            command.env("TMPDIR", memory.path());
        }
        backends.hand_over(&mut command)?;
        let file = program.file.display();
        let headline = format!("     Running unittests {} ({file})", program.source.display());
        println!("{headline}");
        suites.read(&headline);
        let succeeded = stream(command, &mut suites, &mut std::io::stdout())?;
        suites.end_of_program(succeeded);
    }
    if !has_run {
        return Err("there is no such test program".to_owned());
    }
    outcome(&suites.finish(true)).of_tests()
}

/// Runs a cargo command that tests: doc tests, or the tests of another workspace.
pub(super) fn run_cargo(command: Command) -> Result<Outcome, String> {
    let mut suites = Suites::default();
    let succeeded = stream(command, &mut suites, &mut std::io::stdout())?;
    outcome(&suites.finish(succeeded)).of_tests()
}

/// Runs the doc tests of the workspace.
pub(super) fn doc_tests() -> Result<Outcome, String> {
    run_cargo(cargo(["test", "--workspace", "--doc", "--no-fail-fast"])?)
}

/// Runs the tests of an example outside the workspace.
pub(super) fn outside(example: &str, backends: &Backends) -> Result<Outcome, String> {
    let mut command = outside::cargo(example, ["test", "--no-fail-fast"])?;
    backends.hand_over(&mut command)?;
    run_cargo(command)
}

fn command(program: &TestProgram, programs: &Programs, options: &Options) -> Command {
    let mut command = Command::new(&program.file);
    command.current_dir(&program.folder).env("CARGO_MANIFEST_DIR", &program.folder).args(&options.arguments);
    command.env(RELAY_VARIABLE, programs.started.join("relay")).env(EXAMPLES_VARIABLE, &programs.started);
    match options.cases {
        Cases::All => command.env_remove(CASES_VARIABLE),
        Cases::Gate => command.env(CASES_VARIABLE, "gate"),
        Cases::Night => command.env(CASES_VARIABLE, "night"),
    };
    if options.require == Require::All {
        command.env(REQUIRE_VARIABLE, "all");
    }
    command
}

/// Runs a command, shows and reads its output as it comes, and returns whether it succeeded. Both
/// streams share one pipe: cargo names the binary on stderr, the binary reports on stdout, and only
/// their order shows which belongs to which.
fn stream(mut command: Command, suites: &mut Suites, screen: &mut dyn Write) -> Result<bool, String> {
    let failed = |error: std::io::Error| format!("cannot run {command:?}: {error}");
    let (reader, writer) = std::io::pipe().map_err(failed)?;
    let second = writer.try_clone().map_err(failed)?;
    let failed = |error: std::io::Error| format!("cannot run the tests: {error}");
    command.stdout(second).stderr(writer);
    let mut child = command.spawn().map_err(failed)?;
    // The command still holds the pipe's writing ends; without this the reader would never see the
    // end.
    drop(command);
    for line in BufReader::new(reader).split(b'\n') {
        let mut line = line.map_err(failed)?;
        suites.read(&String::from_utf8_lossy(&line));
        line.push(b'\n');
        screen.write_all(&line).and_then(|()| screen.flush()).map_err(failed)?;
    }
    Ok(child.wait().map_err(failed)?.success())
}

/// Prints the table of some programs and returns the sum of their counts.
fn outcome(suites: &[Suite]) -> Outcome {
    println!("\n{}", table(suites));
    let mut outcome = Outcome::default();
    for suite in suites {
        outcome.passed += suite.passed;
        outcome.failed += suite.failed;
        outcome.skipped += suite.ignored;
        if suite.failed > 0 {
            outcome.failures.push(format!("=== {} failed\n{}", suite.name, suite.failures.join("\n")));
        }
    }
    outcome
}

/// Lists the programs that hold tests; the many empty ones are only noise.
fn table(suites: &[Suite]) -> String {
    let rows = suites.iter().filter(|suite| suite.passed + suite.failed + suite.ignored > 0).map(|suite| {
        [
            suite.name.clone(),
            suite.passed.to_string(),
            suite.failed.to_string(),
            suite.ignored.to_string(),
            format!("{:.1}", suite.seconds),
        ]
    });
    report::table(["test binary", "passed", "failed", "ignored", "seconds"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_streams_are_read_in_order_and_to_the_end() {
        let script = "echo '   Running unittests src/lib.rs (deps/a-1)' >&2
            echo 'test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s'
            echo '   Running unittests src/lib.rs (deps/b-1)' >&2
            exit 101";
        let mut command = Command::new("sh");
        let mut shown = Vec::new();
        let mut suites = Suites::default();
        command.args(["-c", script]);
        let succeeded = stream(command, &mut suites, &mut shown).expect("streamed");
        assert!(!succeeded);
        let outcome = outcome(&suites.finish(succeeded));
        assert_eq!((outcome.passed, outcome.failed), (1, 1));
        assert!(outcome.failures[0].contains("b (src/lib.rs)"), "{outcome:?}");
        assert_eq!(String::from_utf8_lossy(&shown).lines().count(), 3);
    }
}
