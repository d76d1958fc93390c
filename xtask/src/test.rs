//! `cargo xtask test`: all tests of the workspace against the real components.

use crate::{
    adapter,
    backends::Backends,
    cargo::{self, cargo},
    cargo_output::{Suite, Suites},
    report,
    require::Require,
    workspace,
};
use clap::Args;
use std::{
    fmt, fs,
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Command, ExitCode},
};

/// With the value `all`, a test whose service is missing fails instead of being ignored.
const REQUIRE_VARIABLE: &str = "OUTBOX_REQUIRE";

/// The relay that tests start, and the folder of the examples that they start: nobody builds them
/// then.
const RELAY_VARIABLE: &str = "OUTBOX_RELAY";
const EXAMPLES_VARIABLE: &str = "OUTBOX_EXAMPLES";

/// Bring the services up, run every test of the workspace, end with `N passed, N failed, N
/// skipped`.
#[derive(Debug, Args)]
pub(crate) struct Test {
    /// Start nothing: use only the services that the environment names.
    #[arg(long)]
    no_services: bool,
    /// Fail when one of these services is missing: all, none, or names separated by commas
    /// [default: all if CI=true, else none].
    #[arg(long)]
    require: Option<Require>,
    /// Only tests whose name contains this.
    filter: Option<String>,
    /// Arguments for the test binaries.
    #[arg(last = true)]
    arguments: Vec<String>,
}

impl Test {
    /// Every test, on every service.
    pub(crate) fn all_required() -> Self {
        Self { no_services: false, require: Some(Require::All), filter: None, arguments: Vec::new() }
    }
}

/// The counts of a whole run. Its text is the line that CI looks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl fmt::Display for Summary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

impl Summary {
    pub(crate) fn is_success(&self) -> bool {
        self.failed == 0
    }

    fn of(suites: &[Suite]) -> Self {
        suites.iter().fold(Self::default(), |sum, suite| Self {
            passed: sum.passed + suite.passed,
            failed: sum.failed + suite.failed,
            skipped: sum.skipped + suite.ignored,
        })
    }
}

pub(crate) fn run(options: &Test) -> Result<ExitCode, String> {
    let summary = execute(options)?;
    println!("\n{summary}");
    Ok(if summary.is_success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The run without its last line.
pub(crate) fn execute(options: &Test) -> Result<Summary, String> {
    let backends = if options.no_services { Backends::from_environment()? } else { Backends::up()? };
    let summary = run_against(options, &backends);
    backends.release();
    summary
}

fn run_against(options: &Test, backends: &Backends) -> Result<Summary, String> {
    println!("{}", backends.table());
    let default = if workspace::is_ci() { Require::All } else { Require::None };
    let require = options.require.as_ref().unwrap_or(&default);
    backends.require(require)?;

    let mut build = cargo(["test", "--workspace", "--no-run"])?;
    backends.hand_over(&mut build)?;
    cargo::step("building the tests", &mut build)?;

    // Beforehand: a test that built them itself would have the time of one test for it.
    let mut relay = cargo(["build", "--package", "outbox-toolkit-relay", "--bin", "relay"])?;
    cargo::step("building the relay", relay.args(cargo::SHARED))?;
    let mut build = cargo(["build"])?;
    build.args(cargo::CRASH_POINTS).args(cargo::SHARED);
    for example in examples()? {
        build.args(["--bin", &example]);
    }
    cargo::step("building the examples", &mut build)?;

    let mut tests = cargo(["test", "--workspace", "--no-fail-fast"])?;
    let folder = keep_programs()?;
    tests.env(RELAY_VARIABLE, folder.join("relay")).env(EXAMPLES_VARIABLE, folder);
    tests.args(&options.filter);
    if !options.arguments.is_empty() {
        tests.arg("--").args(&options.arguments);
    }
    backends.hand_over(&mut tests)?;
    if *require == Require::All {
        tests.env(REQUIRE_VARIABLE, "all");
    }
    let mut suites = stream(tests, &mut std::io::stdout())?;
    // The conformance suite on an adapter outside the workspace.
    let mut tests = adapter::cargo(["test", "--no-fail-fast"])?;
    tests.args(&options.filter);
    if !options.arguments.is_empty() {
        tests.arg("--").args(&options.arguments);
    }
    suites.extend(stream(tests, &mut std::io::stdout())?);
    println!("\n{}", table(&suites));
    print!("{}", failures(&suites));
    Ok(Summary::of(&suites))
}

/// The names of the examples that are programs.
fn examples() -> Result<Vec<String>, String> {
    let folder = workspace::root()?.join("examples/src/bin");
    let failed = |error: std::io::Error| format!("cannot list {}: {error}", folder.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
    }
    Ok(names)
}

/// Keeps the programs that were built where cargo does not put those of the same name that it
/// builds for `cargo test`: they are built with other features.
fn keep_programs() -> Result<PathBuf, String> {
    let built = cargo::programs(false)?;
    let kept = built.join("tested");
    let failed = |error: std::io::Error| format!("cannot keep programs in {}: {error}", kept.display());
    if kept.exists() {
        fs::remove_dir_all(&kept).map_err(failed)?;
    }
    fs::create_dir_all(&kept).map_err(failed)?;
    for entry in fs::read_dir(&built).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let is_program = entry.path().extension().is_none() && entry.file_type().map_err(failed)?.is_file();
        if is_program {
            fs::hard_link(entry.path(), kept.join(entry.file_name())).map_err(failed)?;
        }
    }
    Ok(kept)
}

/// Runs `cargo test`, shows its output as it comes and reads it. Both streams share one pipe: cargo
/// names the binary on stderr, the binary reports on stdout, and only their order tells which
/// belongs to which.
fn stream(mut command: Command, screen: &mut dyn Write) -> Result<Vec<Suite>, String> {
    let failed = |error: std::io::Error| format!("cannot run cargo test: {error}");
    let (reader, writer) = std::io::pipe().map_err(failed)?;
    command.stdout(writer.try_clone().map_err(failed)?).stderr(writer);
    let mut child = command.spawn().map_err(failed)?;
    // The command still holds the pipe's writing ends; without this the reader would never see the
    // end.
    drop(command);
    let mut suites = Suites::default();
    for line in BufReader::new(reader).split(b'\n') {
        let mut line = line.map_err(failed)?;
        suites.read(&String::from_utf8_lossy(&line));
        line.push(b'\n');
        screen.write_all(&line).and_then(|()| screen.flush()).map_err(failed)?;
    }
    let status = child.wait().map_err(failed)?;
    Ok(suites.finish(status.success()))
}

/// The suites that hold tests; the many empty ones are only noise.
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

/// The reports on failed tests once more: who reads only the end of a long output sees why it
/// failed.
fn failures(suites: &[Suite]) -> String {
    let failed = suites.iter().filter(|suite| suite.failed > 0);
    failed.map(|suite| format!("\n=== {} failed\n{}\n", suite.name, suite.failures.join("\n"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_one_plain_line() {
        let suite = |passed, failed, ignored| Suite { passed, failed, ignored, ..Suite::default() };
        let summary = Summary::of(&[suite(3, 0, 1), suite(4, 2, 0)]);
        assert_eq!(summary.to_string(), "7 passed, 2 failed, 1 skipped");
    }

    #[test]
    fn both_streams_are_read_in_order_and_to_the_end() {
        let script = "echo '   Running unittests src/lib.rs (deps/a-1)' >&2
            echo 'test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s'
            echo '   Running unittests src/lib.rs (deps/b-1)' >&2
            exit 101";
        let mut command = Command::new("sh");
        let mut shown = Vec::new();
        command.args(["-c", script]);
        let suites = stream(command, &mut shown).expect("streamed");
        let counts: Vec<_> =
            suites.iter().map(|suite| (suite.name.as_str(), suite.passed, suite.failed)).collect();
        assert_eq!(counts, [("a (src/lib.rs)", 1, 0), ("b (src/lib.rs)", 0, 1)]);
        assert_eq!(String::from_utf8_lossy(&shown).lines().count(), 3);
    }
}
