//! `cargo xtask storm`: faults at random against private instances of the services.
//!
//! The storm stops and crashes its servers. They are therefore its own, on ports and in a folder of their own; it
//! starts those that it needs, and they go when it is over.

use crate::{
    cargo::{cargo, exit_code},
    services::{self, DIR_VARIABLE, DOWNLOADS_VARIABLE, Name},
    workspace,
};
use clap::Args;
use std::{
    collections::BTreeMap,
    path::PathBuf,
    process::{Command, ExitCode},
};

/// Build producers, relays and consumers with their crash points, and run storms of faults over them.
#[derive(Debug, Args)]
pub(crate) struct Storm {
    /// The first of twelve ports in a row for the storm's own services.
    #[arg(long, default_value_t = 21_400)]
    port_base: u16,
    /// Build optimised.
    #[arg(long)]
    release: bool,
    /// Handed to the storm, such as `--minutes 30 --database postgres --broker kafka`; `-- --help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl Storm {
    /// Some seconds over every pair, as CI does.
    pub(crate) fn short() -> Self {
        let arguments = ["--minutes", SHORT_MINUTES].map(str::to_owned).to_vec();
        Self { port_base: 21_400, release: false, arguments }
    }
}

/// For each pair.
const SHORT_MINUTES: &str = "0.12";

/// What the services listen on, counted from the first port.
const PORTS: [&str; 7] = [
    "OUTBOX_POSTGRES_PORT",
    "OUTBOX_KAFKA_PORT",
    "OUTBOX_KAFKA_CONTROLLER_PORT",
    "OUTBOX_RABBITMQ_PORT",
    "OUTBOX_RABBITMQ_DIST_PORT",
    "OUTBOX_RABBITMQ_EPMD_PORT",
    "OUTBOX_SQS_PORT",
];
/// Those of Kafka's listeners behind proxies, counted as well.
const PROXIED: u16 = 8;

pub(crate) fn run(options: &Storm) -> Result<ExitCode, String> {
    let mut environment = environment(options.port_base)?;
    match services::faketime::library(&|phase| eprintln!("libfaketime: {phase}")) {
        Ok(library) => drop(environment.insert("OUTBOX_FAKETIME".to_owned(), library.display().to_string())),
        Err(fault) => eprintln!("libfaketime: {fault}"),
    }
    // Looked up before anything is built: building may replace the file.
    let xtask =
        std::env::current_exe().map_err(|error| format!("cannot find xtask's own program: {error}"))?;
    let mut build = cargo(["build", "--package", "storm", "--package", "relay"])?;
    build.args(["--features", "storm/crash-points,relay/crash-points"]);
    if options.release {
        build.arg("--release");
    }
    let built = build.status().map_err(|error| format!("cannot run cargo: {error}"))?;
    if !built.success() {
        return Err(format!("the storm could not be built ({built})"));
    }
    let mut storm = Command::new(programs(options.release)?.join("storm"));
    storm.arg("run").args(&options.arguments).envs(&environment).env("OUTBOX_XTASK", &xtask);
    storm.current_dir(workspace::root()?);
    let code = exit_code(&mut storm);
    let mut down = Command::new(&xtask);
    down.args(["services", "down", "--purge"]).envs(&environment).stdout(std::process::Stdio::null());
    match down.status() {
        Ok(status) if status.success() => {}
        Ok(status) => eprintln!("the storm's services could not be stopped ({status})"),
        Err(error) => eprintln!("the storm's services could not be stopped: {error}"),
    }
    code
}

/// Where the storm's own services are, for whoever starts them and whoever connects.
fn environment(base: u16) -> Result<BTreeMap<String, String>, String> {
    let port = |number: u16| {
        base.checked_add(number).filter(|port| *port > 1024).ok_or_else(|| {
            format!("--port-base {base}: choose one between 1024 and 65000, twelve ports follow")
        })
    };
    let mut environment = BTreeMap::new();
    for (variable, number) in PORTS.into_iter().zip(0..) {
        environment.insert(variable.to_owned(), port(number)?.to_string());
    }
    for name in Name::ALL {
        let variable = name.service().client_port().variable;
        let number =
            PORTS.into_iter().zip(0..).find(|(known, _)| *known == variable).map_or(0, |(_, number)| number);
        environment.insert(name.variable().to_owned(), name.service().url(port(number)?));
    }
    let [first, second] = [0, 2].map(|more| -> Result<String, String> {
        Ok(format!("{}:{}", port(PROXIED + more)?, port(PROXIED + more + 1)?))
    });
    environment.insert("OUTBOX_KAFKA_PROXIED".to_owned(), format!("{},{}", first?, second?));
    let shared = services::services_dir().map_err(|fault| fault.to_string())?;
    let own = shared.join(format!("storm-{base}"));
    environment.insert(DIR_VARIABLE.to_owned(), own.display().to_string());
    // What the faults need: see `storm::faults`.
    environment.insert("OUTBOX_POSTGRES_WAL_SEGMENT_MB".to_owned(), "1".to_owned());
    environment.insert("OUTBOX_SQS_DURABLE".to_owned(), "true".to_owned());
    environment.insert(DOWNLOADS_VARIABLE.to_owned(), shared.display().to_string());
    Ok(environment)
}

/// Where cargo puts programs.
fn programs(release: bool) -> Result<PathBuf, String> {
    let profile = if release { "release" } else { "debug" };
    let target = match std::env::var_os("CARGO_TARGET_DIR").filter(|folder| !folder.is_empty()) {
        Some(folder) => workspace::root()?.join(folder),
        None => workspace::root()?.join("target"),
    };
    Ok(target.join(profile))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_service_has_a_port_of_its_own() {
        let environment = environment(21_400).unwrap();
        assert_eq!(environment["OUTBOX_POSTGRES_PORT"], "21400");
        assert!(environment["OUTBOX_POSTGRES_URL"].contains("127.0.0.1:21400"));
        assert_eq!(environment["OUTBOX_KAFKA_BROKERS"], "127.0.0.1:21401");
        assert!(environment["OUTBOX_SQS_ENDPOINT"].contains(":21406"));
        assert_eq!(environment["OUTBOX_KAFKA_PROXIED"], "21408:21409,21410:21411");
        assert!(environment[DIR_VARIABLE].ends_with("storm-21400"));
        assert!(super::environment(65_530).is_err());
    }
}
