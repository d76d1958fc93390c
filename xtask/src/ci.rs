//! `cargo xtask ci`: every check that must pass before a merge.

use crate::{
    adapter, bench,
    cargo::{cargo, step},
    demo, deny, features, fuzz, mutants, package,
    part::Part,
    report, storm, test,
};
use clap::{Args, ValueEnum};
use std::{process::ExitCode, time::Instant};

/// Run all checks of CI, or only the named ones. All of them run, even when one fails.
#[derive(Debug, Args)]
pub(crate) struct Ci {
    #[arg(value_enum)]
    checks: Vec<Check>,
    /// Also what otherwise only one commit in four does: all selections of features, all breakages.
    #[arg(long)]
    whole: bool,
}

/// In the order in which they run: what fails quickly first; the tests last, so that their line
/// ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Check {
    /// Formatting.
    Fmt,
    /// Lints, warnings are errors.
    Clippy,
    /// Features of the toolkit by themselves, compiled and documented: a quarter of the selections,
    /// another one with each commit.
    Features,
    /// Documentation of our crates, warnings are errors.
    Doc,
    /// Every published package packed, without compiling it, and what is in it.
    Package,
    /// Licences, bans, sources and known vulnerabilities of all dependencies.
    Deny,
    /// Every fuzz target for five seconds.
    Fuzz,
    /// Every benchmark, small and once, so that they cannot rot.
    Bench,
    /// The demo with few messages.
    Demo,
    /// A short storm of faults over every broker and database.
    Storm,
    /// The code broken on purpose: a quarter of what the simulation and unit tests must find,
    /// another one with each commit.
    Mutants,
    /// `cargo xtask test --require all`.
    Test,
}

/// A part of a check that could not run: neither passed nor failed.
struct Ignored {
    what: &'static str,
    why: String,
}

pub(crate) fn run(options: &Ci) -> Result<ExitCode, String> {
    let mut rows = Vec::new();
    let mut failures = Vec::new();
    let mut summary = None;
    for &check in Check::value_variants() {
        if !options.checks.is_empty() && !options.checks.contains(&check) {
            continue;
        }
        let begun = Instant::now();
        let result = check.run(options.whole, &mut summary);
        let seconds = format!("{:.0}", begun.elapsed().as_secs_f64());
        if let Err(error) = &result {
            eprintln!("error: {error}");
            failures.push(format!("{}: {error}", check.name()));
        }
        rows.push([check.name(), if result.is_ok() { "passed" } else { "FAILED" }.to_owned(), seconds]);
        for Ignored { what, why } in result.unwrap_or_default() {
            rows.push([format!("{}: {what}", check.name()), format!("ignored: {why}"), String::new()]);
        }
    }
    println!("\n{}", report::table(["check", "result", "seconds"], rows));
    for failure in &failures {
        println!("{failure}");
    }
    if let Some(summary) = summary {
        println!("\n{summary}");
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Check {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Runs the check and returns the parts that could not run; usually there are none.
    fn run(self, whole: bool, summary: &mut Option<test::Summary>) -> Result<Vec<Ignored>, String> {
        match self {
            Self::Fmt => {
                step("formatting", &mut cargo(["fmt", "--all", "--check"])?)?;
                step("formatting of the adapter", &mut adapter::cargo(["fmt", "--check"])?)
            }
            Self::Clippy => {
                step(
                    "lints",
                    &mut cargo(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?,
                )?;
                let lints = ["clippy", "--all-targets", "--", "-D", "warnings"];
                step("lints of the adapter", &mut adapter::cargo(lints)?)
            }
            Self::Features => features::check(part(whole)?),
            Self::Doc => step(
                "documentation",
                cargo(["doc", "--workspace", "--no-deps"])?.env("RUSTDOCFLAGS", "-D warnings"),
            ),
            Self::Package => package::check(),
            Self::Deny => {
                let ignored = deny::run()?.map(|why| Ignored { what: "advisories", why });
                return Ok(ignored.into_iter().collect());
            }
            Self::Fuzz => fuzz::execute(&fuzz::Fuzz::briefly()),
            Self::Bench => {
                println!("\n── benchmarks, unoptimised");
                bench::quick()
            }
            Self::Demo => {
                println!("\n── demo");
                demo::check(&demo::Demo::briefly())
            }
            Self::Storm => {
                println!("\n── storm");
                storm::short()
            }
            Self::Mutants => {
                println!("\n── mutants");
                mutants::check(&mutants::Mutants::quick(part(whole)?))
            }
            Self::Test => {
                let found = test::execute(&test::Test::all_required())?;
                *summary = Some(found);
                if found.is_success() { Ok(()) } else { Err(found.to_string()) }
            }
        }?;
        Ok(Vec::new())
    }
}

/// The part that one commit does.
fn part(whole: bool) -> Result<Option<Part>, String> {
    if whole { Ok(None) } else { Part::of_commit(4).map(Some) }
}
