//! Test programs, and the programs that tests start: built once, for any number of checks.

use crate::{
    cargo::{self, cargo},
    workspace,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

/// Names the file that lists the programs. A check that finds it builds nothing.
pub(super) const FILE_VARIABLE: &str = "OUTBOX_TEST_PROGRAMS";

/// Packages whose own tests need no real component and change rarely. They are left to the night,
/// because building them takes longer than most suites of the gate: `examples` alone has twenty
/// programs. The lints compile them anyway.
pub(super) const LEFT_TO_THE_NIGHT: [&str; 5] = ["benches", "examples", "fuzz", "model", "storm"];

/// The packages with tests that read documents: configuration and its examples, the runbook's
/// headings, links and names.
const DOCUMENT_PACKAGES: [&str; 3] = ["xtask", "outbox-toolkit-relay", "outbox-toolkit-operate"];

/// A test program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TestProgram {
    pub(super) package: String,
    /// The name of the library, program or suite.
    pub(super) target: String,
    /// `lib`, `bin` or `test`.
    pub(super) kind: String,
    /// The source file, relative to the folder of its package.
    pub(super) source: PathBuf,
    /// The folder of its package, which is its working folder.
    pub(super) folder: PathBuf,
    pub(super) file: PathBuf,
}

/// The test programs, and the programs that tests start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Programs {
    pub(super) tests: Vec<TestProgram>,
    /// The folder with the relay and the examples that tests start.
    pub(super) started: PathBuf,
}

/// The extent of a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// The tests that read documents.
    Documents,
    /// The tests of the gate.
    Gate,
    /// Every test of the workspace, and the examples that tests start.
    Whole,
}

impl Programs {
    /// Returns the programs that a run has built for all of its checks. In a check that runs alone,
    /// builds them.
    pub(super) fn of_this_run() -> Result<Self, String> {
        match std::env::var_os(FILE_VARIABLE) {
            Some(file) => Self::read(Path::new(&file)),
            None => Self::build(Extent::Whole),
        }
    }

    pub(super) fn build(extent: Extent) -> Result<Self, String> {
        let mut build = cargo(["test", "--no-run", "--message-format=json-render-diagnostics"])?;
        match extent {
            Extent::Gate => {
                build.arg("--workspace");
                build.args(LEFT_TO_THE_NIGHT.iter().flat_map(|package| ["--exclude", package]));
            }
            Extent::Documents => {
                build.args(DOCUMENT_PACKAGES.iter().flat_map(|package| ["--package", package]));
                build.args(cargo::SHARED);
            }
            Extent::Whole => {
                build.arg("--workspace");
            }
        }
        let tests = test_programs(&printed(&mut build, "building the tests")?);

        if extent == Extent::Documents {
            return Ok(Self { tests, started: keep(&[])? });
        }
        // Built beforehand: a test that built them would have to do so within its own time limit.
        let mut relay = cargo(["build", "--package", "outbox-toolkit-relay", "--bin", "relay"])?;
        cargo::step("building the relay", relay.args(cargo::SHARED))?;
        let mut names = vec!["relay".to_owned()];
        if extent == Extent::Whole {
            let examples = examples()?;
            let mut build = cargo(["build"])?;
            build.args(cargo::CRASH_POINTS).args(cargo::SHARED);
            build.args(examples.iter().flat_map(|example| ["--bin", example]));
            cargo::step("building the examples", &mut build)?;
            names.extend(examples);
        }
        Ok(Self { tests, started: keep(&names)? })
    }

    pub(super) fn write(&self, file: &Path) -> Result<(), String> {
        let failed = |error: &dyn std::fmt::Display| format!("cannot write {}: {error}", file.display());
        fs::write(file, serde_json::to_string(self).map_err(|error| failed(&error))?)
            .map_err(|error| failed(&error))
    }

    fn read(file: &Path) -> Result<Self, String> {
        let failed = |error: &dyn std::fmt::Display| format!("cannot read {}: {error}", file.display());
        let text = fs::read_to_string(file).map_err(|error| failed(&error))?;
        serde_json::from_str(&text).map_err(|error| failed(&error))
    }
}

/// Returns the standard output of a build. Prints a headline before it and its duration after it.
fn printed(build: &mut std::process::Command, what: &str) -> Result<String, String> {
    println!("\n── {what}");
    let begun = std::time::Instant::now();
    let output =
        build.stderr(Stdio::inherit()).output().map_err(|error| format!("cannot run cargo: {error}"))?;
    println!("── {what}: {:.0} s", begun.elapsed().as_secs_f64());
    if !output.status.success() {
        return Err(format!("{what} failed ({})", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the test programs among cargo's messages, which are one JSON object per line.
fn test_programs(messages: &str) -> Vec<TestProgram> {
    messages.lines().filter_map(|line| test_program(&serde_json::from_str(line).ok()?)).collect()
}

fn test_program(message: &Value) -> Option<TestProgram> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let file = PathBuf::from(message["executable"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
    let target = &message["target"];
    let source = Path::new(target["src_path"].as_str()?);
    Some(TestProgram {
        package: package(message["package_id"].as_str()?),
        target: target["name"].as_str()?.to_owned(),
        kind: target["kind"][0].as_str()?.to_owned(),
        source: source.strip_prefix(&folder).unwrap_or(source).to_path_buf(),
        folder,
        file,
    })
}

/// Returns the package in `path+file:///checkout/inbox#outbox-toolkit-inbox@0.1.0`, or in
/// `…/tests/storm#0.1.0`, where the folder has its name.
fn package(id: &str) -> String {
    let (place, name) = id.rsplit_once('#').unwrap_or((id, id));
    match name.split_once('@') {
        Some((name, _)) => name.to_owned(),
        None => place.rsplit('/').next().unwrap_or(place).to_owned(),
    }
}

/// Returns the names of the examples that are programs.
fn examples() -> Result<Vec<String>, String> {
    let folder = workspace::root()?.join("examples/src/bin");
    let failed = |error: std::io::Error| format!("cannot list {}: {error}", folder.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}

/// Keeps the built programs in a place where cargo does not replace them with programs of the same
/// name but other features.
fn keep(names: &[String]) -> Result<PathBuf, String> {
    let built = cargo::programs(false)?;
    let kept = built.join("tested");
    let failed = |error: std::io::Error| format!("cannot keep programs in {}: {error}", kept.display());
    if kept.exists() {
        fs::remove_dir_all(&kept).map_err(failed)?;
    }
    fs::create_dir_all(&kept).map_err(failed)?;
    for name in names {
        fs::hard_link(built.join(name), kept.join(name)).map_err(failed)?;
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_among_the_messages() {
        let messages = r#"{"reason":"build-script-executed","package_id":"x"}
{"reason":"compiler-artifact","package_id":"path+file:///co/inbox#outbox-toolkit-inbox@0.1.0","manifest_path":"/co/inbox/Cargo.toml","target":{"kind":["lib"],"name":"inbox","src_path":"/co/inbox/src/lib.rs"},"profile":{"test":true},"executable":"/t/inbox-1"}
{"reason":"compiler-artifact","package_id":"path+file:///co/tests#0.1.0","manifest_path":"/co/tests/Cargo.toml","target":{"kind":["test"],"name":"tls","src_path":"/co/tests/suites/tls/main.rs"},"profile":{"test":true},"executable":"/t/tls-1"}
{"reason":"compiler-artifact","package_id":"path+file:///co/inbox#outbox-toolkit-inbox@0.1.0","manifest_path":"/co/inbox/Cargo.toml","target":{"kind":["lib"],"name":"inbox","src_path":"/co/inbox/src/lib.rs"},"profile":{"test":false},"executable":null}"#;
        let found = test_programs(messages);
        let names: Vec<_> =
            found.iter().map(|it| (it.package.as_str(), it.target.as_str(), it.kind.as_str())).collect();
        assert_eq!(names, [("outbox-toolkit-inbox", "inbox", "lib"), ("tests", "tls", "test")]);
        assert_eq!(found[1].source, Path::new("suites/tls/main.rs"));
        assert_eq!(found[1].folder, Path::new("/co/tests"));
    }
}
