//! The examples outside the workspace: workspaces of their own, like the crates of other people.

use crate::{cargo, workspace};
use std::{fs, process::Command};

/// The folders of these examples, below `examples`.
pub(crate) const ALL: [&str; 2] = [ADAPTER, DRIVERS];

/// The adapter of a broker.
pub(crate) const ADAPTER: &str = "adapter";

/// The drivers of PostgreSQL besides sqlx.
pub(crate) const DRIVERS: &str = "drivers";

/// Returns cargo in the folder of an example, with the versions and the build folder of the
/// workspace.
pub(crate) fn cargo<const N: usize>(example: &str, arguments: [&str; N]) -> Result<Command, String> {
    let root = workspace::root()?;
    let folder = root.join("examples").join(example);
    // Otherwise cargo would resolve, and compile, newer versions.
    fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock"))
        .map_err(|error| format!("cannot copy Cargo.lock to {}: {error}", folder.display()))?;
    let mut command = cargo::cargo(arguments)?;
    command.current_dir(folder).env("CARGO_TARGET_DIR", workspace::target()?);
    Ok(command)
}
