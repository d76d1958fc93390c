//! The storm's program; `cargo xtask storm` builds it, starts the services, and runs it.

fn main() {}
