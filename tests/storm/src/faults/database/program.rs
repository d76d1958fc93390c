//! PostgreSQL's own programs.

use std::process::Stdio;

use tokio::process::Command;

use super::session;
use crate::Failure;

/// Runs a program to its end, and kills it with the fault. Its sessions have the name of a fault's
/// sessions.
pub(super) async fn run(command: &mut Command) -> Result<(), Failure> {
    command.env("PGAPPNAME", session::APPLICATION);
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let program = command.as_std().get_program().display().to_string();
    Err(format!("{program} failed ({}): {}", output.status, errors.trim()).into())
}
