//! Running cargo.

use crate::workspace;
use std::{
    ffi::OsString,
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
    time::Instant,
};

/// Returns the cargo that runs us, in the workspace's root. It builds into the folder in which we
/// look for programs, whatever the caller's configuration says.
pub(crate) fn cargo<const N: usize>(arguments: [&str; N]) -> Result<Command, String> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(program);
    command.args(arguments).current_dir(workspace::root()?);
    command.env("CARGO_TARGET_DIR", workspace::target()?).env_remove("CARGO_BUILD_TARGET");
    Ok(command)
}

/// Selects `tests/shared-build` beside an unoptimised build, so that each dependency is built once,
/// with the features that `cargo test --workspace` gives it.
pub(crate) const SHARED: [&str; 2] = ["--package", "shared-build"];

/// Selects the programs that have crash points. There is one selection for all of them, so that
/// their crates are built once; `--bin` says which programs are built.
pub(crate) const CRASH_POINTS: [&str; 8] = [
    "--package",
    "storm",
    "--package",
    "outbox-toolkit-relay",
    "--package",
    "examples",
    "--features",
    "storm/crash-points,outbox-toolkit-relay/crash-points,examples/crash-points",
];

/// Runs a command, with a headline before it and its duration after it.
pub(crate) fn step(what: &str, command: &mut Command) -> Result<(), String> {
    println!("\n── {what}");
    let begun = Instant::now();
    let status = command.status().map_err(|error| format!("{what}: cannot run cargo: {error}"))?;
    println!("── {what}: {:.0} s", begun.elapsed().as_secs_f64());
    if status.success() { Ok(()) } else { Err(format!("{what} failed ({status})")) }
}

/// Returns a command's standard output. Its standard error passes through.
pub(crate) fn printed(command: &mut Command) -> Result<String, String> {
    let output =
        command.stderr(Stdio::inherit()).output().map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?} failed ({})", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the exit code of a command, for use as our own.
pub(crate) fn exit_code(command: &mut Command) -> Result<ExitCode, String> {
    let status = command.status().map_err(|error| format!("cannot run cargo: {error}"))?;
    // Killed by a signal: no code.
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Returns the folder into which cargo puts programs.
pub(crate) fn programs(release: bool) -> Result<PathBuf, String> {
    let profile = if release { "release" } else { "debug" };
    Ok(workspace::target()?.join(profile))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Returns the third-party packages with their features, as cargo builds them for a selection.
    fn dependencies(selected: &[&str]) -> BTreeSet<String> {
        let tree = ["tree", "--offline", "--prefix", "none", "--format", "{p} [{f}]", "--edges"];
        let mut command = cargo(tree).expect("cargo");
        let output = command.args(selected).output().expect("cargo runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let lines = String::from_utf8(output.stdout).expect("text");
        let ours = format!("({}", workspace::root().expect("a workspace").display());
        let lines = lines.lines().filter(|line| !line.is_empty() && !line.contains(&ours));
        lines.map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
    }

    #[test]
    fn beside_shared_build_every_package_has_the_dependencies_of_the_tests() {
        let tests = dependencies(&["normal,build,dev", "--workspace"]);
        for package in ["outbox-toolkit-relay", "benches", "simulation", "examples", "storm", "fuzz"] {
            let [select, shared] = SHARED;
            let found = dependencies(&["normal,build", "--package", package, select, shared]);
            let others: Vec<&String> = found.difference(&tests).collect();
            assert!(
                others.is_empty(),
                "{package} is built with other copies: name what adds the feature in \
                 tests/shared-build/Cargo.toml: {others:?}"
            );
        }
    }
}
