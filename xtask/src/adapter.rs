//! The example of an adapter: a workspace of its own, like the crates of other people.

use crate::{cargo, workspace};
use std::{fs, process::Command};

/// Returns cargo in the adapter's folder, with the versions and the build folder of the workspace.
pub(crate) fn cargo<const N: usize>(arguments: [&str; N]) -> Result<Command, String> {
    let root = workspace::root()?;
    let folder = root.join("examples/adapter");
    // Otherwise cargo would resolve, and compile, newer versions.
    fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock"))
        .map_err(|error| format!("cannot copy Cargo.lock to {}: {error}", folder.display()))?;
    let mut command = cargo::cargo(arguments)?;
    command.current_dir(folder).env("CARGO_TARGET_DIR", workspace::target()?);
    Ok(command)
}
