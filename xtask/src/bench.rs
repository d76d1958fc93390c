//! `cargo xtask bench`: the benchmarks against the real components.

use crate::{
    backends::{Backends, Extent},
    cargo::{self, cargo},
    services,
};
use clap::Args;
use std::process::{Command, ExitCode};

/// Bring the services up and run the benchmarks, optimised.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// Passed to the benchmarks, such as `--quick` or `relay_drain --output json`; `-- --help`
    /// lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

pub(crate) fn run(options: &Bench) -> Result<ExitCode, String> {
    let backends = Backends::up(Extent::Everything)?;
    // stdout belongs to the benchmarks: it may be JSON.
    eprintln!("{}", backends.table());
    let code = execute(&backends, Profile::Release, &options.arguments);
    backends.release();
    code
}

/// Runs every benchmark once, with little data.
pub(crate) fn quick() -> Result<(), String> {
    let backends = Backends::up(Extent::Everything)?;
    let code = execute(&backends, Profile::Dev, &["--quick".to_owned()]);
    backends.release();
    if code? == ExitCode::SUCCESS { Ok(()) } else { Err("a benchmark failed".to_owned()) }
}

/// The build profile of the benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Profile {
    /// For figures.
    Release,
    /// Proves that they run, and saves a second build of everything.
    Dev,
}

/// Builds the benchmarks and the relay, which some of them start, and runs them.
fn execute(backends: &Backends, profile: Profile, arguments: &[String]) -> Result<ExitCode, String> {
    let mut build = cargo(["build", "--package", "outbox-toolkit-relay", "--package", "benches"])?;
    match profile {
        Profile::Release => build.arg("--release"),
        Profile::Dev => build.args(["--bin", "relay", "--bin", "benches"]).args(cargo::SHARED),
    };
    let built = cargo::exit_code(&mut build)?;
    if built != ExitCode::SUCCESS {
        return Err("the benchmarks could not be built".to_owned());
    }
    // Not `cargo run`: with other packages selected it would build the relay again, with other
    // features.
    let mut command = Command::new(cargo::programs(profile == Profile::Release)?.join("benches"));
    command.args(arguments);
    command.env(VERSIONS_VARIABLE, backends.versions());
    backends.hand_over(&mut command)?;
    // Debezium can read PostgreSQL's log only at the level `logical`.
    if !services::wal_is_logical().map_err(|fault| fault.to_string())? {
        command.env_remove(services::debezium::JARS_VARIABLE);
    }
    cargo::exit_code(&mut command)
}

/// Brokers do not report their versions to clients, and figures mean nothing without them.
const VERSIONS_VARIABLE: &str = "OUTBOX_SERVICE_VERSIONS";
