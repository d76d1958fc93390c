//! Nothing but dependencies: `cargo build --package outbox-toolkit-relay` builds other copies of
//! tokio, hyper and all that stands on them than `cargo test --workspace`, because others ask for
//! other features. Selected beside a package, this one asks for the features of the whole
//! workspace, and each dependency is built once. `cargo xtask` selects it for what is not
//! optimised.

fn main() {}
