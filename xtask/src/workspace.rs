//! The folders of the checkout and of its build.

use std::path::{Path, PathBuf};

/// Returns the folder of the workspace's `Cargo.toml`: the nearest one above the current folder, or
/// above the package that cargo is running, so that it also works from a test's working folder.
pub(crate) fn root() -> Result<PathBuf, String> {
    let here = std::env::current_dir().map_err(|error| format!("cannot read the current folder: {error}"))?;
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    std::iter::once(here.clone())
        .chain(package)
        .find_map(|start| start.ancestors().find(|folder| is_root(folder)).map(Path::to_path_buf))
        .ok_or_else(|| format!("no workspace above {}: run xtask inside the checkout", here.display()))
}

/// Returns the folder that cargo builds into.
pub(crate) fn target() -> Result<PathBuf, String> {
    match std::env::var_os("CARGO_TARGET_DIR").filter(|folder| !folder.is_empty()) {
        // Relative paths count from where we run cargo.
        Some(folder) => Ok(root()?.join(folder)),
        None => Ok(root()?.join("target")),
    }
}

fn is_root(folder: &Path) -> bool {
    std::fs::read_to_string(folder.join("Cargo.toml"))
        .is_ok_and(|text| text.lines().any(|line| line.trim() == "[workspace]"))
}

/// Whether this is continuous integration (`CI=true`, as every CI system sets it).
pub(crate) fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true" || value == "1")
}
