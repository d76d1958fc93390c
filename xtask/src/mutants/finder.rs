//! Programs that can find a breakage.

use super::copy::Copy;
use crate::{
    backends::Backends,
    cargo::{CRASH_POINTS, SHARED},
    child, package,
};
use std::{
    fmt,
    process::{Command, Output},
    time::{Duration, Instant},
};

/// Time limit of a build or a search. Most take seconds, a storm some minutes, and a breakage may
/// hang a test for ever.
const PATIENCE: Duration = Duration::from_secs(30 * 60);

/// A program that looks for broken promises: its word, and its arguments.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Finder {
    kind: Kind,
    arguments: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// The random schedules of the simulation.
    Simulation,
    /// Unit tests: a crate, and a part of the names of its tests.
    Unit,
    /// The cases of this suite of the package `tests` whose names contain the argument.
    Suite(&'static str),
    /// A storm: a database, a broker, and optionally the only faults to inject.
    Storm,
}

/// A search for a breakage, and its outcome. The default is a search that has not run.
#[derive(Debug, Clone, Default)]
pub(super) struct Look {
    pub(super) verdict: Verdict,
    /// The duration of the build.
    pub(super) built: Duration,
    /// The duration of the look itself.
    pub(super) took: Duration,
    /// The number of schedules that the simulation ran.
    pub(super) schedules: Option<u64>,
    /// The output of the last command.
    pub(super) printed: String,
}

/// The outcome of a look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It ran to its end and found nothing.
    Quiet,
    /// It found a broken promise.
    Found,
    /// The program that searches could not be built.
    NotBuilt,
    /// It failed for another reason than a broken promise, or did not come to an end: it shows
    /// nothing about the breakage.
    #[default]
    Unclear,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Quiet => "NOT FOUND",
            Self::Found => "found",
            Self::NotBuilt => "DOES NOT COMPILE",
            Self::Unclear => "UNCLEAR",
        })
    }
}

impl fmt::Display for Finder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())?;
        self.arguments.iter().try_for_each(|argument| write!(f, " {argument}"))
    }
}

impl Finder {
    /// Reads a finder from its notation: a word and arguments.
    pub(super) fn read(notation: &str) -> Result<Self, String> {
        let mut words = notation.split_whitespace().map(str::to_owned);
        let word = words.next().unwrap_or_default();
        let kind = Kind::ALL.into_iter().find(|kind| kind.word() == word).ok_or_else(|| {
            let known = Kind::ALL.map(Kind::word).join(", ");
            format!("{word:?} finds nothing; known are {known}")
        })?;
        let mut arguments: Vec<String> = words.collect();
        let expected = match kind {
            Kind::Simulation => 0..=0,
            Kind::Suite(_) => 1..=1,
            Kind::Unit => 2..=2,
            Kind::Storm => 2..=3,
        };
        if !expected.contains(&arguments.len()) {
            return Err(format!("{word} takes {} to {} arguments", expected.start(), expected.end()));
        }
        if kind == Kind::Unit {
            arguments[0] = package::name(&arguments[0]);
        }
        Ok(Self { kind, arguments })
    }

    /// Returns the word of the finder.
    pub(super) fn word(&self) -> &'static str {
        self.kind.word()
    }

    /// Returns package and test of a finder among the unit tests.
    #[cfg(test)]
    pub(super) fn unit_test(&self) -> Option<(&str, &str)> {
        match (self.kind, self.arguments.as_slice()) {
            (Kind::Unit, [package, test]) => Some((package, test)),
            _ => None,
        }
    }

    /// Whether it needs real databases and brokers.
    pub(super) fn needs_services(&self) -> bool {
        matches!(self.kind, Kind::Suite(_))
    }

    /// Builds the finder in the copy, runs it, and returns what it found and how long both took.
    pub(super) fn look(&self, copy: &Copy, backends: Option<&Backends>) -> Result<Look, String> {
        let begun_at = Instant::now();
        let build = run(copy.cargo(&self.build()), backends)?;
        let built = begun_at.elapsed();
        let ended = |verdict, took, printed| Look { verdict, built, took, schedules: None, printed };
        let Some(build) = build else {
            return Ok(ended(Verdict::Unclear, Duration::ZERO, too_long("the build")));
        };
        if !build.status.success() {
            return Ok(ended(Verdict::NotBuilt, Duration::ZERO, printed(&build)));
        }
        let begun_at = Instant::now();
        // `cargo run` selects one package only.
        let command = match self.kind {
            Kind::Simulation => copy.program("simulation", &self.command()),
            _ => copy.cargo(&self.command()),
        };
        let Some(output) = run(command, backends)? else {
            return Ok(ended(Verdict::Unclear, begun_at.elapsed(), too_long("the look")));
        };
        let verdict = self.kind.verdict(&output);
        let report: Option<serde_json::Value> = serde_json::from_slice(&output.stdout).ok();
        let schedules = report.and_then(|report| report["schedules"].as_u64());
        Ok(Look { schedules, ..ended(verdict, begun_at.elapsed(), printed(&output)) })
    }

    fn build(&self) -> Vec<&str> {
        let words = match self.kind {
            Kind::Simulation => "build --package simulation --bin simulation",
            Kind::Unit => "test --lib --no-run --package",
            Kind::Suite(_) => "test --package tests --no-run",
            Kind::Storm => "build --bin storm --bin relay",
        };
        let mut build: Vec<&str> = words.split(' ').collect();
        match self.kind {
            Kind::Unit => build.extend(self.arguments.first().map(String::as_str)),
            Kind::Suite(suite) => build.extend(["--test", suite]),
            Kind::Storm => build.extend(CRASH_POINTS),
            Kind::Simulation => {}
        }
        build.extend(SHARED);
        build
    }

    /// Returns the arguments: of the program for the simulation, of cargo for all others.
    fn command(&self) -> Vec<&str> {
        let mut command = match self.kind {
            Kind::Simulation => {
                vec!["--no-shrink", "--output", "json", "--schedules", "1000"]
            }
            Kind::Unit => ["test", "--lib"].into_iter().chain(SHARED).chain(["--package"]).collect(),
            Kind::Suite(suite) => {
                let test = ["test", "--package", "tests", "--test", suite];
                test.into_iter().chain(SHARED).chain(["--"]).collect()
            }
            Kind::Storm => vec!["xtask", "storm", "--minutes", "1", "--output", "json"],
        };
        match (self.kind, self.arguments.as_slice()) {
            (Kind::Storm, [database, broker, faults @ ..]) => {
                command.extend(["--database", database, "--broker", broker]);
                command.extend(faults.iter().flat_map(|faults| ["--fault", faults]));
            }
            (_, arguments) => command.extend(arguments.iter().map(String::as_str)),
        }
        command
    }
}

impl Kind {
    const ALL: [Self; 6] = [
        Self::Simulation,
        Self::Unit,
        Self::Suite("conformance"),
        Self::Suite("brokers"),
        Self::Suite("disruptive"),
        Self::Storm,
    ];

    /// Returns the verdict in an output. A failure counts as found only if it names what is broken:
    /// a service that is unavailable, a port that is taken or a folder that cannot be removed fails
    /// as well.
    fn verdict(self, output: &Output) -> Verdict {
        let has_spoken = match self {
            Self::Unit | Self::Suite(_) if output.status.success() => has_run_a_test(output),
            Self::Unit | Self::Suite(_) => names_a_failed_test(output),
            Self::Simulation => matches!(output.status.code(), Some(0 | 1)),
            Self::Storm => output.status.success() || reports_a_breach(output),
        };
        match (has_spoken, output.status.success()) {
            (false, _) => Verdict::Unclear,
            (true, false) => Verdict::Found,
            (true, true) => Verdict::Quiet,
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Simulation => "simulation",
            Self::Unit => "unit",
            Self::Suite(suite) => suite,
            Self::Storm => "storm",
        }
    }
}

/// Runs a command up to the first test that fails, and returns nothing if it was ended because it
/// took too long. A finder fails on purpose, so its output is withheld: it would look like failing
/// tests.
fn run(mut command: Command, backends: Option<&Backends>) -> Result<Option<Output>, String> {
    if let Some(backends) = backends {
        backends.hand_over(&mut command)?;
    }
    child::output(command, PATIENCE, is_failed_test)
}

fn too_long(what: &str) -> String {
    format!("{what} took longer than {} min and was ended", PATIENCE.as_secs() / 60)
}

/// Whether a test has failed by name, as Rust's test harness prints it.
fn names_a_failed_test(output: &Output) -> bool {
    String::from_utf8_lossy(&output.stdout).lines().any(is_failed_test)
}

fn is_failed_test(line: &str) -> bool {
    line.starts_with("test ") && line.trim_end().ends_with(" ... FAILED")
}

/// Whether a storm's report says that a promise was broken. A storm that could not run, or that
/// ended while something was still on its way, fails as well.
fn reports_a_breach(output: &Output) -> bool {
    let report: Option<serde_json::Value> = serde_json::from_slice(&output.stdout).ok();
    let pairs = report.and_then(|report| report["pairs"].as_array().cloned()).unwrap_or_default();
    let rulings = pairs.iter().flat_map(|pair| pair["promises"]["rulings"].as_array().into_iter().flatten());
    rulings.filter_map(|ruling| ruling["breached"].as_u64()).any(|breached| breached > 0)
}

/// Whether at least one test has begun: a test that is not compiled finds nothing, and passes.
fn has_run_a_test(output: &Output) -> bool {
    let begun = |line: &str| line.starts_with("running ") && !line.starts_with("running 0 ");
    String::from_utf8_lossy(&output.stdout).lines().any(begun)
}

fn printed(output: &Output) -> String {
    [&output.stderr, &output.stdout].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::ExitStatus;

    #[test]
    fn a_run_without_a_test_is_noticed() {
        let of = |stdout: &str| Output {
            status: ExitStatus::default(),
            stdout: stdout.into(),
            stderr: Vec::new(),
        };
        assert!(has_run_a_test(&of("\nrunning 1 test\ntest a ... ok\n")));
        assert!(names_a_failed_test(&of("\ntest a/b ... FAILED\n")));
        assert!(!names_a_failed_test(&of("running 1 test\ntest a ... ok\nerror: cannot remove")));
        assert!(!has_run_a_test(&of("\nrunning 0 tests\n\ntest result: ok.")));
        assert!(!has_run_a_test(&of("")));
    }

    #[test]
    fn a_storm_has_found_something_only_if_a_promise_was_broken() {
        use std::os::unix::process::ExitStatusExt as _;
        let of = |code: i32, breached: u64| {
            let rulings = serde_json::json!([{ "promise": "at_most_once", "breached": breached }]);
            let report = serde_json::json!({ "pairs": [{ "promises": { "rulings": rulings } }] });
            let (stdout, stderr) = (report.to_string().into_bytes(), Vec::new());
            Kind::Storm.verdict(&Output { status: ExitStatus::from_raw(code << 8), stdout, stderr })
        };
        assert_eq!([of(1, 2), of(1, 0), of(0, 0)], [Verdict::Found, Verdict::Unclear, Verdict::Quiet]);
    }

    #[test]
    fn a_notation_is_a_known_word_with_its_arguments() {
        let finder = Finder::read("storm postgres kafka").expect("read");
        assert!(finder.command().ends_with(&["--database", "postgres", "--broker", "kafka"]));
        let finder = Finder::read("storm postgres kafka kill,pause").expect("read");
        assert!(finder.command().ends_with(&["kafka", "--fault", "kill,pause"]));
        let finder = Finder::read("unit storm verdict").expect("read");
        let command = "test --lib --package shared-build --package storm verdict";
        assert_eq!(finder.command().join(" "), command);
        let build = "test --lib --no-run --package storm --package shared-build";
        assert_eq!(finder.build().join(" "), build);
        let finder = Finder::read("unit relay due").expect("read");
        assert!(finder.command().ends_with(&["--package", "outbox-toolkit-relay", "due"]));
        assert!(Finder::read("storm postgres").is_err());
        assert!(Finder::read("luck").unwrap_err().contains("luck"));
        assert!(Finder::read("").is_err());
    }
}
