//! `cargo xtask demo`: the relay's demo, as often as requested. Every run must end in "every
//! promise held".

use crate::{
    cargo::{self, cargo},
    report::{self, Output},
};
use clap::Args;
use serde::Serialize;
use std::{
    collections::BTreeMap,
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// Build the relay and run its demo again and again. Exits with 0 if every promise held in every
/// run.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Number of runs, each with a seed of its own.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    repeat: u64,
    /// The seed of the first run; each later run uses the next number [default: the time].
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Build optimised.
    #[arg(long)]
    release: bool,
    /// Build the relay with every database and broker.
    #[arg(skip)]
    with_everything: bool,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
    /// Passed to the demo, such as `--messages 2000`; `-- --help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl Demo {
    /// Returns the options of the night: twenty runs, with the relay that the tests start. The
    /// check of features compiles what `cargo demo` builds.
    pub(crate) fn nightly() -> Self {
        let (release, with_everything) = (false, true);
        Self {
            repeat: 20,
            seed: None,
            release,
            with_everything,
            output: Output::Table,
            arguments: Vec::new(),
        }
    }
}

pub(crate) fn run(options: &Demo) -> Result<ExitCode, String> {
    let runs = execute(options)?;
    match options.output {
        Output::Table => println!("{}", table(&runs)),
        Output::Json => report::json(&json(&runs)?),
    }
    Ok(if runs.iter().all(Run::held) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the demo as a check of CI.
pub(crate) fn check(options: &Demo) -> Result<(), String> {
    let runs = execute(options)?;
    println!("{}", table(&runs));
    if runs.iter().all(Run::held) {
        Ok(())
    } else {
        Err("a demo did not end in \"every promise held\"".into())
    }
}

/// The verdict of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    Held,
    Broken,
    /// The run came to no result.
    None,
}

impl Verdict {
    /// Reads the verdict of a run. Only its own report counts, and only if its exit code agrees.
    fn of(succeeded: bool, report: &[u8]) -> Self {
        let report: Option<serde_json::Value> = serde_json::from_slice(report).ok();
        match report.and_then(|report| report["ok"].as_bool()) {
            Some(true) if succeeded => Self::Held,
            Some(false) => Self::Broken,
            _ => Self::None,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Held => "every promise held",
            Self::Broken => "a promise was broken",
            Self::None => "no verdict",
        }
    }
}

/// One run.
#[derive(Debug, Serialize)]
struct Run {
    seed: u64,
    verdict: Verdict,
    seconds: f64,
    /// The exit status and the output of the process; `None` when every promise held.
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<String>,
}

impl Run {
    fn held(&self) -> bool {
        self.verdict == Verdict::Held
    }
}

fn execute(options: &Demo) -> Result<Vec<Run>, String> {
    let relay = build(options)?;
    if options.arguments.iter().any(|argument| matches!(argument.as_str(), "--help" | "-h")) {
        let shown = Command::new(&relay).args(["demo", "--help"]).status();
        return shown.map(|_| Vec::new()).map_err(|error| format!("cannot run the demo: {error}"));
    }
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let first = options.seed.unwrap_or(seconds);
    let mut runs = Vec::new();
    for number in 0..options.repeat {
        let mut demo = Command::new(&relay);
        demo.args(["demo", "--output", "json", "--seed"]).arg(first.wrapping_add(number).to_string());
        let run = once(demo.args(&options.arguments), first.wrapping_add(number))?;
        let text = run.verdict.text();
        eprintln!(
            "run {} of {}, seed {}: {text}, {:.0} s",
            number + 1,
            options.repeat,
            run.seed,
            run.seconds
        );
        if let Some(trouble) = &run.trouble {
            eprintln!("{trouble}");
        }
        runs.push(run);
    }
    Ok(runs)
}

/// Builds the relay as `cargo demo` does. If it is optimised, or a database or broker is named, it
/// is built with all of them.
fn build(options: &Demo) -> Result<PathBuf, String> {
    let is_given = |argument: &String| ["--database", "--broker"].iter().any(|it| argument.starts_with(it));
    let is_set = |variable| std::env::var_os(variable).is_some();
    let is_named = options.arguments.iter().any(is_given)
        || ["RELAY_DEMO_DATABASE", "RELAY_DEMO_BROKER"].into_iter().any(is_set);
    let mut build =
        cargo(["build", "--package", "outbox-toolkit-relay", "--features", "outbox-toolkit-relay/demo"])?;
    let programs = if options.release {
        build.arg("--release");
        cargo::programs(true)?
    } else if is_named || options.with_everything {
        build.args(["--bin", "relay"]).args(cargo::SHARED);
        cargo::programs(false)?
    } else {
        build.args(["--no-default-features", "--profile", "demo"]);
        cargo::programs(false)?.with_file_name("demo")
    };
    // stdout belongs to the result.
    let built = build.stdout(Stdio::null()).status();
    let built = built.map_err(|error| format!("cannot run cargo: {error}"))?;
    if !built.success() {
        return Err(format!("the relay could not be built ({built})"));
    }
    Ok(programs.join("relay"))
}

fn once(demo: &mut Command, seed: u64) -> Result<Run, String> {
    let begun = Instant::now();
    let output =
        demo.stdin(Stdio::null()).output().map_err(|error| format!("cannot run the demo: {error}"))?;
    let verdict = Verdict::of(output.status.success(), &output.stdout);
    let trouble = (verdict != Verdict::Held).then(|| {
        let said =
            [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).trim().to_owned());
        format!("{}\n{}", output.status, said.join("\n"))
    });
    Ok(Run { seed, verdict, seconds: begun.elapsed().as_secs_f64(), trouble })
}

/// Lists, for each verdict, the number of runs, their durations, and the seeds of those that did
/// not hold.
fn table(runs: &[Run]) -> String {
    let mut kinds: BTreeMap<Verdict, Vec<&Run>> = BTreeMap::new();
    for run in runs {
        kinds.entry(run.verdict).or_default().push(run);
    }
    let row = |(verdict, runs): (Verdict, Vec<&Run>)| {
        let seconds = runs.iter().map(|run| run.seconds);
        let (shortest, longest) =
            (seconds.clone().fold(f64::INFINITY, f64::min), seconds.fold(0.0, f64::max));
        let seeds: Vec<String> = runs.iter().map(|run| run.seed.to_string()).collect();
        let seeds = if verdict == Verdict::Held { String::new() } else { seeds.join(" ") };
        [verdict.text().into(), runs.len().to_string(), format!("{shortest:.0} to {longest:.0}"), seeds]
    };
    report::table(["verdict", "runs", "seconds", "seeds"], kinds.into_iter().map(row))
}

fn json(runs: &[Run]) -> Result<serde_json::Value, String> {
    let held = runs.iter().filter(|run| run.held()).count();
    let runs = serde_json::to_value(runs).map_err(|error| format!("cannot write the result: {error}"))?;
    Ok(serde_json::json!({ "held": held, "runs": runs }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_report_with_a_matching_exit_code_is_a_verdict() {
        assert_eq!(Verdict::of(true, br#"{"ok": true}"#), Verdict::Held);
        assert_eq!(Verdict::of(false, br#"{"ok": false}"#), Verdict::Broken);
        for (succeeded, report) in [(false, r#"{"ok": true}"#), (true, ""), (false, "aborted"), (true, "{}")]
        {
            assert_eq!(Verdict::of(succeeded, report.as_bytes()), Verdict::None, "{succeeded} {report}");
        }
    }

    #[test]
    fn the_table_counts_verdicts_and_names_the_seeds_to_run_again() {
        let run = |seed, verdict| Run { seed, verdict, seconds: 13.2, trouble: None };
        let text = table(&[run(7, Verdict::Held), run(8, Verdict::None), run(9, Verdict::None)]);
        assert!(text.contains("every promise held") && text.contains("13 to 13"), "{text}");
        assert!(text.contains("no verdict") && text.contains("8 9") && !text.contains(" 7 "), "{text}");
    }
}
