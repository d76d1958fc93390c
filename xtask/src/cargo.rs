//! Running cargo.

use crate::workspace;
use std::{
    ffi::OsString,
    path::PathBuf,
    process::{Command, ExitCode},
    time::Instant,
};

/// The cargo that runs us, in the workspace's root.
pub(crate) fn cargo<const N: usize>(arguments: [&str; N]) -> Result<Command, String> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(program);
    command.args(arguments).current_dir(workspace::root()?);
    Ok(command)
}

/// Runs a command with a headline before and its time after.
pub(crate) fn step(what: &str, command: &mut Command) -> Result<(), String> {
    println!("\n── {what}");
    let begun = Instant::now();
    let status = command.status().map_err(|error| format!("{what}: cannot run cargo: {error}"))?;
    println!("── {what}: {:.0} s", begun.elapsed().as_secs_f64());
    if status.success() { Ok(()) } else { Err(format!("{what} failed ({status})")) }
}

/// The exit code of a command that stands for ours.
pub(crate) fn exit_code(command: &mut Command) -> Result<ExitCode, String> {
    let status = command.status().map_err(|error| format!("cannot run cargo: {error}"))?;
    // Killed by a signal: no code.
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Where cargo puts programs.
pub(crate) fn programs(release: bool) -> Result<PathBuf, String> {
    let profile = if release { "release" } else { "debug" };
    let target = match std::env::var_os("CARGO_TARGET_DIR").filter(|folder| !folder.is_empty()) {
        Some(folder) => workspace::root()?.join(folder),
        None => workspace::root()?.join("target"),
    };
    Ok(target.join(profile))
}
