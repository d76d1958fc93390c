//! Toolkit and relay with selections of their features, compiled and documented: code that leans on
//! another one's dependencies shows, and links that lead to what is not there.

use crate::{
    cargo::{cargo, printed, step},
    workspace,
};

/// The features of the crate `outbox-toolkit`, each with the database that it needs at least.
const FEATURES: [&str; 13] = [
    "postgres",
    "sqlite",
    "postgres,kafka",
    "sqlite,rabbitmq",
    "postgres,sqs",
    "sqlite,memory",
    "postgres,keys",
    "sqlite,http",
    "postgres,relay",
    "postgres,saga",
    "sqlite,saga",
    "sqlite,otel",
    "testkit",
];

/// The same of the relay's program, which has SQLite always.
const RELAY_FEATURES: [&str; 7] =
    ["demo", "kafka", "postgres,kafka", "rabbitmq", "sqs", "otlp,kafka", "page,rabbitmq"];

/// Does so with each selection of features.
pub(crate) fn check() -> Result<(), String> {
    let toolkit = FEATURES.iter().map(|features| ("outbox-toolkit", *features));
    let relay = RELAY_FEATURES.iter().map(|features| ("outbox-toolkit-relay", *features));
    for (package, features) in toolkit.chain(relay) {
        let what = format!("{package}: features {features}");
        let selected = ["--package", package, "--no-default-features", "--features", features];
        step(&what, cargo(["clippy"])?.args(selected).args(["--", "-D", "warnings"]))?;
        // Only what is selected is documented, and where several packages are, a feature says whose
        // it is.
        let ours = ours(selected)?;
        let features: Vec<String> = features.split(',').map(|name| format!("{package}/{name}")).collect();
        let mut doc =
            cargo(["doc", "--no-deps", "--no-default-features", "--features", &features.join(",")])?;
        doc.args(ours.iter().flat_map(|name| ["--package", name])).env("RUSTDOCFLAGS", "-D warnings");
        step(&format!("{what}: documentation of {} crates", ours.len()), &mut doc)?;
    }
    Ok(())
}

/// Our crates that a selection takes.
fn ours(selected: [&str; 5]) -> Result<Vec<String>, String> {
    let tree = ["tree", "--edges", "normal", "--prefix", "none", "--format", "{p}"];
    let lines = printed(cargo(tree)?.args(selected))?;
    let ours = format!("({}", workspace::root()?.display());
    let names = lines.lines().filter(|line| line.contains(&ours)).filter_map(|line| line.split(' ').next());
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort_unstable();
    names.dedup();
    // A crate that is not recognised would go undocumented in silence.
    match names.iter().any(|name| name == selected[1]) {
        true => Ok(names),
        false => Err(format!("`cargo tree` names no crate of {ours}):\n{lines}")),
    }
}
