//! Calls of git.

use std::{path::Path, process::Command};

/// Runs git in a folder and returns its output.
pub(crate) fn answer<const N: usize>(root: &Path, arguments: [&str; N]) -> Result<String, String> {
    run(Command::new("git").args(arguments).current_dir(root))
}

/// Runs a command of git and returns its output; the error is git's message.
pub(crate) fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("cannot run git: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}
