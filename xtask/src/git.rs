//! Asking git.

use std::{path::Path, process::Command};

/// The answer of git in a folder.
pub(crate) fn answer<const N: usize>(root: &Path, arguments: [&str; N]) -> Result<String, String> {
    run(Command::new("git").args(arguments).current_dir(root))
}

/// The output of a command of git; an error is what git said.
pub(crate) fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("cannot run git: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}
