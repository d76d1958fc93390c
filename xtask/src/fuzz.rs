//! `cargo xtask fuzz`: libFuzzer on everything that reads bytes from outside.
//!
//! Needs no nightly compiler and no cargo-fuzz: `tests/fuzz/instrument.sh` makes the crates of the
//! workspace count their branches, and the targets are programs like any other. Findings are kept
//! below the build folder and reused by the next run; `tests/fuzz/corpus` holds the shared seeds.

use crate::{cargo, report, workspace};
use clap::Args;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Instant,
};

/// Bounds of one input: bytes, memory, seconds.
const BOUNDS: [&str; 4] = ["-max_len=16384", "-malloc_limit_mb=64", "-rss_limit_mb=1024", "-timeout=10"];

/// Feed mutated inputs to the code that reads bytes from outside, until something breaks or the
/// time is over.
#[derive(Debug, Args)]
pub(crate) struct Fuzz {
    /// The target [default: all of them, one after another].
    target: Option<String>,
    /// How long each target runs.
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// The random seed; by default each run has a different one.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u32,
    /// Run one input, such as one that broke a target before.
    #[arg(long, value_name = "FILE", requires = "target")]
    input: Option<PathBuf>,
    /// Show neither progress nor statistics.
    #[arg(long)]
    quiet: bool,
}

impl Fuzz {
    /// Returns the options of the night: every target for half a minute, each time with another
    /// seed.
    pub(crate) fn nightly() -> Self {
        Self { target: None, seconds: 30, seed: 0, input: None, quiet: true }
    }
}

pub(crate) fn run(options: &Fuzz) -> Result<ExitCode, String> {
    execute(options).map(|()| ExitCode::SUCCESS)
}

/// Builds and runs the targets; an error names the broken targets.
pub(crate) fn execute(options: &Fuzz) -> Result<(), String> {
    let fuzz = workspace::root()?.join("tests/fuzz");
    let targets = chosen(&fuzz, options.target.as_deref())?;
    build(&fuzz, &targets)?;
    let programs = workspace::target()?.join("debug");
    let work = workspace::target()?.join("fuzz");
    let mut rows = Vec::new();
    let mut broken = Vec::new();
    for target in &targets {
        let begun = Instant::now();
        println!("\n── fuzzing {target}");
        let mut command = Command::new(programs.join(target));
        let folders = Folders::of(&fuzz, &work, target)?;
        command.args(BOUNDS).arg(format!("-artifact_prefix={}/", folders.broken.display()));
        match &options.input {
            Some(file) => command.arg(file),
            None => command
                .arg(format!("-max_total_time={}", options.seconds))
                .arg(format!("-seed={}", options.seed))
                .arg(if options.quiet { "-verbosity=0" } else { "-print_final_stats=1" })
                // libFuzzer writes new inputs to the first of them.
                .args([&folders.found, &folders.seeds]),
        };
        let status = command.status().map_err(|error| format!("cannot run {target}: {error}"))?;
        if !status.success() {
            broken.push(target.as_str());
            println!(
                "it broke; run it again with: cargo xtask fuzz {target} --input {}/…",
                folders.broken.display()
            );
        }
        let result = if status.success() { "passed" } else { "BROKEN" };
        rows.push([target.clone(), result.to_owned(), format!("{:.0}", begun.elapsed().as_secs_f64())]);
    }
    println!("\n{}", report::table(["target", "result", "seconds"], rows));
    if broken.is_empty() { Ok(()) } else { Err(format!("broken targets: {}", broken.join(", "))) }
}

/// Returns the target with this name, or all targets.
fn chosen(fuzz: &Path, wanted: Option<&str>) -> Result<Vec<String>, String> {
    let folder = fuzz.join("fuzz_targets");
    let failed = |error: std::io::Error| format!("cannot read {}: {error}", folder.display());
    let mut known = Vec::new();
    for file in fs::read_dir(&folder).map_err(failed)? {
        let path = file.map_err(failed)?.path();
        known.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
    }
    known.sort();
    match wanted {
        None => Ok(known),
        Some(name) if known.iter().any(|known| known == name) => Ok(vec![name.to_owned()]),
        Some(name) => Err(format!("no target is called {name}; known are {}", known.join(", "))),
    }
}

fn build(fuzz: &Path, targets: &[String]) -> Result<(), String> {
    let mut build = cargo::cargo(["build", "--package", "fuzz"])?;
    build.args(cargo::SHARED);
    for target in targets {
        build.args(["--bin", target]);
    }
    build.env("RUSTC_WORKSPACE_WRAPPER", fuzz.join("instrument.sh"));
    cargo::step("building the fuzz targets", &mut build)
}

/// The folders of inputs.
struct Folders {
    /// In the repository.
    seeds: PathBuf,
    /// Found on this machine. Each follows a path through the code that no other input follows.
    found: PathBuf,
    /// Inputs that broke the target.
    broken: PathBuf,
}

impl Folders {
    fn of(fuzz: &Path, work: &Path, target: &str) -> Result<Self, String> {
        let folders = Self {
            seeds: fuzz.join("corpus").join(target),
            found: work.join("corpus").join(target),
            broken: work.join("broken").join(target),
        };
        for folder in [&folders.found, &folders.broken] {
            fs::create_dir_all(folder)
                .map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
        }
        Ok(folders)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_target_is_named_with_the_known_ones() {
        let fuzz = workspace::root().expect("a workspace").join("tests/fuzz");
        let all = chosen(&fuzz, None).expect("targets");
        assert!(all.len() > 5 && all.is_sorted(), "{all:?}");
        assert_eq!(chosen(&fuzz, Some("sqs")).expect("known"), ["sqs"]);
        let error = chosen(&fuzz, Some("sqz")).expect_err("unknown");
        assert!(error.contains("sqz") && error.contains("kafka"), "{error}");
    }
}
