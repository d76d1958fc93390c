//! `cargo xtask bench`: the benchmarks against the real components.

use crate::{
    backends::Backends,
    cargo::{self, cargo},
};
use clap::Args;
use std::process::ExitCode;

/// Bring the services up and run the benchmarks, optimised.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// Handed to the benchmarks, such as `relay_drain --quick --output json`; `-- --help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

pub(crate) fn run(options: &Bench) -> Result<ExitCode, String> {
    let backends = Backends::up()?;
    // stdout belongs to the benchmarks: it may be JSON.
    eprintln!("{}", backends.table());
    let mut command = cargo(["run", "--release", "--package", "benches", "--"])?;
    command.args(&options.arguments);
    let code = backends.hand_over(&mut command).and_then(|()| cargo::exit_code(&mut command));
    backends.release();
    code
}
