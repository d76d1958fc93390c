//! A package with nothing but dependencies. Packages ask for different features, so a build of
//! `outbox-toolkit-relay` alone would use other copies of tokio, hyper and everything above them
//! than `cargo test --workspace`. Selected beside another package, this one asks for the features
//! of the whole workspace, so each dependency is built once. `cargo xtask` selects it for builds
//! without optimisation.

fn main() {}
