//! Toolkit and relay with selections of their features, compiled and documented. This shows code
//! that relies on dependencies of another feature, and links to missing items.

use crate::{
    cargo::{cargo, printed, step},
    workspace,
};

/// The features of the crate `outbox-toolkit`, each with a database if it needs one.
const FEATURES: [&str; 15] = [
    "postgres",
    "sqlite",
    "postgres,kafka",
    "sqlite,rabbitmq",
    "postgres,sqs",
    "sqlite,memory",
    "sqlite,relay,webhooks",
    "postgres,keys",
    "sqlite,http",
    "postgres,relay",
    "postgres,page",
    "postgres,saga",
    "sqlite,saga",
    "sqlite,otel",
    "testkit",
];

/// The same for the relay's program, which always has SQLite.
const RELAY_FEATURES: [&str; 8] =
    ["demo", "kafka", "postgres,kafka", "rabbitmq", "sqs", "http", "otlp,kafka", "page,rabbitmq"];

/// Compiles and documents each selection of features, and returns every failure.
pub(crate) fn check() -> Result<(), String> {
    let toolkit = FEATURES.iter().map(|features| ("outbox-toolkit", *features));
    let relay = RELAY_FEATURES.iter().map(|features| ("outbox-toolkit-relay", *features));
    let failures: Vec<String> = toolkit
        .chain(relay)
        .filter_map(|(package, features)| check_selection(package, features).err())
        .collect();
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

fn check_selection(package: &str, features: &str) -> Result<(), String> {
    let what = format!("{package}: features {features}");
    let selected = ["--package", package, "--no-default-features", "--features", features];
    step(&what, cargo(["clippy"])?.args(selected).args(["--", "-D", "warnings"]))?;
    // Only selected crates are documented. With several packages, each feature needs the name of
    // its package.
    let ours = ours(selected)?;
    let features: Vec<String> = features.split(',').map(|name| format!("{package}/{name}")).collect();
    let mut doc = cargo(["doc", "--no-deps", "--no-default-features", "--features", &features.join(",")])?;
    doc.args(ours.iter().flat_map(|name| ["--package", name])).env("RUSTDOCFLAGS", "-D warnings");
    step(&format!("{what}: documentation of {} crates", ours.len()), &mut doc)
}

/// Returns our crates in a selection.
fn ours(selected: [&str; 5]) -> Result<Vec<String>, String> {
    let tree = ["tree", "--edges", "normal", "--prefix", "none", "--format", "{p}"];
    let lines = printed(cargo(tree)?.args(selected))?;
    let ours = format!("({}", workspace::root()?.display());
    let names = lines.lines().filter(|line| line.contains(&ours)).filter_map(|line| line.split(' ').next());
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort_unstable();
    names.dedup();
    // A crate that is not recognised would silently go undocumented.
    if names.iter().any(|name| name == selected[1]) {
        Ok(names)
    } else {
        Err(format!("`cargo tree` names no crate of {ours}):\n{lines}"))
    }
}
