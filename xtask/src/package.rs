//! The packages of the registry: their names, and whether they can be packed.

use crate::{
    cargo::{cargo, printed, step},
    workspace,
};
use std::{fs, path::Path};

/// The crate that users depend on, and the prefix of the packages below it.
const TOOLKIT: &str = "outbox-toolkit";

/// The published libraries, each in a package of its own; the manifests say `publish = true`.
const LIBRARIES: [&str; 21] = [
    "adopt",
    "brokers",
    "checker",
    "conformance",
    "demo",
    "engine",
    "harness",
    "idempotency",
    "inbox",
    "message",
    "migrations",
    "oauthbearer",
    "operate",
    "outbox",
    "outbox-log",
    "proxy",
    "relay",
    "saga",
    "statements",
    "testkit",
    "web",
];

/// Files that every package needs besides its code.
const REQUIRED: [&str; 2] = ["LICENSE", "README.md"];

/// The maximum size of one packed package, in bytes. They have 20 to 230 KB; test data would be far
/// more.
const MAX_PACKED: u64 = 1 << 20;

/// Returns the package of a library. A published one has a name that no other project has.
pub(crate) fn name(library: &str) -> String {
    if LIBRARIES.contains(&library) { format!("{TOOLKIT}-{library}") } else { library.to_owned() }
}

/// Packs every published package without compiling it, and checks its content.
pub(crate) fn check() -> Result<(), String> {
    let mut expected: Vec<String> = LIBRARIES.iter().map(|library| name(library)).collect();
    expected.push(TOOLKIT.to_owned());
    expected.sort();
    let published = published()?;
    if published != expected {
        return Err(format!(
            "these packages say `publish = true`: {}; expected are {} (LIBRARIES in xtask/src/package.rs)",
            published.join(", "),
            expected.join(", ")
        ));
    }
    let mut pack = cargo(["package", "--no-verify", "--allow-dirty", "--quiet"])?;
    step("packing", pack.args(published.iter().flat_map(|package| ["--package", package])))?;
    let packed = workspace::target()?.join("package");
    let checked = published.iter().try_for_each(|package| check_content(package, &packed));
    // They are not needed: a release packs again.
    fs::remove_dir_all(&packed).map_err(|error| format!("cannot remove {}: {error}", packed.display()))?;
    checked
}

fn check_content(package: &str, packed: &Path) -> Result<(), String> {
    let files = printed(&mut cargo(["package", "--list", "--allow-dirty", "--package", package])?)?;
    for required in REQUIRED {
        if !files.lines().any(|file| file == required) {
            return Err(format!("the package {package} has no {required}: add it to its folder"));
        }
    }
    let mut bytes = 0;
    let failed = |error: std::io::Error| format!("cannot read {}: {error}", packed.display());
    for entry in fs::read_dir(packed).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let version = name.strip_prefix(package).and_then(|rest| rest.strip_prefix('-'));
        if version.is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit())) {
            bytes = entry.metadata().map_err(failed)?.len();
        }
    }
    println!("{package}: {} files, {} KB packed", files.lines().count(), bytes.div_ceil(1000));
    match bytes {
        0 => Err(format!("the package {package} was not packed into {}", packed.display())),
        bytes if bytes > MAX_PACKED => Err(format!(
            "the package {package} has {bytes} bytes, more than {MAX_PACKED}: `exclude` in its Cargo.toml leaves out \
             what users do not need"
        )),
        _ => Ok(()),
    }
}

/// Returns the packages that may be published, sorted by name.
fn published() -> Result<Vec<String>, String> {
    let metadata = printed(&mut cargo(["metadata", "--no-deps", "--format-version", "1"])?)?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)
        .map_err(|error| format!("`cargo metadata` printed no valid JSON: {error}"))?;
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    // `publish = false` is an empty list of registries.
    let published = packages.iter().filter(|package| package["publish"].is_null());
    let mut names: Vec<String> =
        published.filter_map(|package| package["name"].as_str()).map(str::to_owned).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_published_libraries_have_a_prefix() {
        assert_eq!(name("relay"), "outbox-toolkit-relay");
        assert_eq!(name("storm"), "storm");
    }
}
