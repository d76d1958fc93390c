//! `cargo xtask storm`: faults at random against private instances of the services.
//!
//! The storm stops and crashes its servers. Therefore they are its own, with their own ports and
//! folder. It starts those that it needs, and removes them at the end.

use crate::{
    cargo::{self, cargo, exit_code},
    services::{self, DIR_VARIABLE, DOWNLOADS_VARIABLE, Name},
    workspace,
};
use clap::Args;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

/// Build producers, relays and consumers with their crash points, and run storms of faults over
/// them.
#[derive(Debug, Args)]
pub(crate) struct Storm {
    /// The first of fifteen ports in a row for the storm's own services.
    #[arg(long, default_value_t = DEFAULT_PORT_BASE)]
    port_base: u16,
    /// Build optimised.
    #[arg(long)]
    release: bool,
    /// Passed to the storm, such as `--minutes 30 --database postgres --broker kafka`; `-- --help`
    /// lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Runs the storms of the night. The first goes over every pair of a database and a broker, for a
/// minute each. The second runs at the full rate: members of consumer groups come and go while the
/// database is slow. In the last one the inbox's guard is off, which must be detected.
pub(crate) fn nightly() -> Result<(), String> {
    let stage = Stage::build(DEFAULT_PORT_BASE, false)?;
    let whole = [("over every pair", &PAIRS[..]), ("at the full rate", &LOADED[..])];
    let ended = whole.map(|(name, arguments)| stage.expect_to_hold(name, arguments));
    let planted = find_out(|| {
        let ended = stage.storm(&PLANTED).stderr(Stdio::inherit()).output();
        ended.map(|ended| ended.stdout).map_err(|error| format!("cannot run the storm: {error}"))
    });
    stage.clear();
    let wrong: Vec<String> = ended.into_iter().filter_map(Result::err).collect();
    if !wrong.is_empty() {
        return Err(wrong.join("\n"));
    }
    println!("without the inbox's guard: {} messages took effect twice, and the storm found them", planted?);
    Ok(())
}

/// Without names of databases and brokers, all of them.
const PAIRS: [&str; 4] = ["--minutes", "1", "--require", "all"];

/// It takes load to lose a partition: a group's session ends while its reader waits for the
/// database.
const LOADED: [&str; 8] = [
    "--minutes",
    "1",
    "--database",
    "postgres",
    "--broker",
    "kafka",
    "--fault",
    "group-rebalances,slow-commits,table-lock,pause,tcp-latency,tcp-bandwidth,tcp-partition,broker-restart",
];

/// Crashes make relays publish again.
const PLANTED: [&str; 11] = [
    "--minutes",
    "0.3",
    "--database",
    "sqlite",
    "--broker",
    "mock-kafka",
    "--fault",
    "kill,crash-point",
    "--without-inbox-guard",
    "--output",
    "json",
];

/// The maximum number of storms that are tried. In some storms (2 of 7, measured) no crash comes
/// between a publish and its confirm, or between an effect and its acknowledgement. Then there is
/// nothing to find.
const PLANTED_MAX: usize = 6;

/// Returns how many messages took effect twice, as reported by the first storm that reports any. If
/// none does, that is an error: the storm would find nothing.
fn find_out(mut storm: impl FnMut() -> Result<Vec<u8>, String>) -> Result<u64, String> {
    for _ in 0..PLANTED_MAX {
        let doubled = doubled(&storm()?)?;
        if doubled > 0 {
            return Ok(doubled);
        }
        eprintln!("the inbox's guard was off, and no message took effect twice");
    }
    Err(format!("the inbox's guard was off, and {PLANTED_MAX} storms did not find out"))
}

/// Returns how many messages took effect twice, from a report.
fn doubled(report: &[u8]) -> Result<u64, String> {
    let report: serde_json::Value = serde_json::from_slice(report)
        .map_err(|error| format!("the storm without the inbox's guard has no report: {error}"))?;
    let rulings = report["pairs"][0]["promises"]["rulings"].as_array();
    let ruling = rulings.into_iter().flatten().find(|ruling| ruling["promise"] == "at_most_once");
    let breached = ruling.and_then(|ruling| ruling["breached"].as_u64());
    breached.ok_or_else(|| "the storm without the inbox's guard does not say what was doubled".to_owned())
}

const DEFAULT_PORT_BASE: u16 = 21_400;

/// The variables of the ports on which the services listen, counted from the first port.
const PORTS: [&str; 11] = [
    "OUTBOX_POSTGRES_PORT",
    "OUTBOX_KAFKA_PORT",
    "OUTBOX_KAFKA_CONTROLLER_PORT",
    "OUTBOX_RABBITMQ_PORT",
    "OUTBOX_RABBITMQ_DIST_PORT",
    "OUTBOX_RABBITMQ_EPMD_PORT",
    "OUTBOX_SQS_PORT",
    "OUTBOX_KAFKA_TLS_PORT",
    "OUTBOX_KAFKA_SASL_PORT",
    "OUTBOX_RABBITMQ_TLS_PORT",
    "OUTBOX_PGBOUNCER_PORT",
];
/// The first of the ports of Kafka's listeners behind proxies, counted in the same way.
const PROXIED: u16 = 11;

pub(crate) fn run(options: &Storm) -> Result<ExitCode, String> {
    let stage = Stage::build(options.port_base, options.release)?;
    let arguments: Vec<&str> = options.arguments.iter().map(String::as_str).collect();
    let code = exit_code(&mut stage.storm(&arguments));
    stage.clear();
    code
}

/// The storm's own programs, which are not replaced while it starts them again and again, and the
/// addresses of its services.
struct Stage {
    environment: BTreeMap<String, String>,
    /// This program, which the storm calls to stop and start its services.
    xtask: PathBuf,
    storm: PathBuf,
    root: PathBuf,
}

impl Stage {
    fn build(port_base: u16, release: bool) -> Result<Self, String> {
        let mut environment = environment(port_base)?;
        match services::faketime::library(&|phase| eprintln!("libfaketime: {phase}")) {
            Ok(library) => {
                environment.insert("OUTBOX_FAKETIME".to_owned(), library.display().to_string());
            }
            Err(fault) => eprintln!("libfaketime: {fault}"),
        }
        // Looked up before anything is built: building may replace the file.
        let xtask =
            std::env::current_exe().map_err(|error| format!("cannot find xtask's own program: {error}"))?;
        let mut build = cargo(["build", "--bin", "storm", "--bin", "relay"])?;
        build.args(cargo::CRASH_POINTS);
        if release {
            build.arg("--release");
        } else {
            build.args(cargo::SHARED);
        }
        let built = build.status().map_err(|error| format!("cannot run cargo: {error}"))?;
        if !built.success() {
            return Err(format!("the storm could not be built ({built})"));
        }
        let programs = PathBuf::from(&environment[DIR_VARIABLE]).join("programs");
        fs::create_dir_all(&programs)
            .map_err(|error| format!("cannot create {}: {error}", programs.display()))?;
        let built = cargo::programs(release)?;
        for (from, name) in
            [(&xtask, "xtask"), (&built.join("storm"), "storm"), (&built.join("relay"), "relay")]
        {
            copy(from, &programs.join(name))?;
        }
        let [xtask, storm] = ["xtask", "storm"].map(|name| programs.join(name));
        Ok(Self { environment, xtask, storm, root: workspace::root()? })
    }

    /// Runs a storm that must hold. Its folders outlive a clone of the tree. The error of a storm
    /// that did not hold contains its reports, for readers who have only the last lines of a log.
    fn expect_to_hold(&self, name: &str, arguments: &[&str]) -> Result<(), String> {
        let folder = Path::new(&self.environment[DIR_VARIABLE]).join(name.replace(' ', "-"));
        services::remove(&folder).map_err(|fault| fault.to_string())?;
        let ended = self.storm(arguments).arg("--folder").arg(&folder).status();
        let ended = ended.map_err(|error| format!("cannot run the storm {name}: {error}"))?;
        let wrong = match ended.code() {
            Some(0) => return Ok(()),
            Some(1) => "found something broken".to_owned(),
            Some(3) => "has no verdict: something was still on its way".to_owned(),
            _ => format!("could not be run ({ended})"),
        };
        Err(format!("the storm {name} {wrong}\n{}", reports(&folder)).trim_end().to_owned())
    }

    fn storm(&self, arguments: &[&str]) -> Command {
        // A storm that lost its task runner would go on, and nothing would clear up after it: so it
        // is asked to stop.
        let mut storm = Command::new("setpriv");
        storm.args(["--pdeathsig", "TERM", "--"]).arg(&self.storm);
        storm.arg("run").args(arguments).envs(&self.environment).env("OUTBOX_XTASK", &self.xtask);
        storm.current_dir(&self.root);
        storm
    }

    /// Stops the services and deletes their data.
    fn clear(&self) {
        let mut down = Command::new(&self.xtask);
        down.args(["services", "down", "--purge"]).envs(&self.environment).stdout(Stdio::null());
        match down.status() {
            Ok(status) if status.success() => {}
            Ok(status) => eprintln!("the storm's services could not be stopped ({status})"),
            Err(error) => eprintln!("the storm's services could not be stopped: {error}"),
        }
    }
}

/// Returns the reports of the pairs that did not hold: their folders are still there. Each report
/// is in the file that the storm calls `report::TEXT_FILE`.
fn reports(folder: &Path) -> String {
    let mut pairs: Vec<PathBuf> = fs::read_dir(folder)
        .map(|entries| entries.filter_map(Result::ok).map(|entry| entry.path()).collect())
        .unwrap_or_default();
    pairs.sort();
    let text = |pair: PathBuf| {
        let report = pair.join("report.txt");
        fs::read_to_string(&report).unwrap_or_else(|error| format!("{}: {error}", report.display()))
    };
    pairs.into_iter().map(text).collect::<Vec<_>>().join("\n")
}

/// Copies a program. A process that still runs the old file keeps it.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    services::remove(to).map_err(|fault| fault.to_string())?;
    let failed = |error| format!("cannot copy {} to {}: {error}", from.display(), to.display());
    fs::copy(from, to).map(drop).map_err(failed)
}

/// Returns the variables of the storm's own services, for starting them and for connecting to them.
fn environment(base: u16) -> Result<BTreeMap<String, String>, String> {
    let port = |number: u16| {
        base.checked_add(number).filter(|port| *port > 1024).ok_or_else(|| {
            format!("--port-base {base}: choose one between 1024 and 65000, fifteen ports follow")
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
    // Settings that the faults need: see `storm::faults`.
    environment.insert("OUTBOX_POSTGRES_WAL_SEGMENT_MB".to_owned(), "1".to_owned());
    environment.insert("OUTBOX_SQS_DURABLE".to_owned(), "true".to_owned());
    // Relays refuse the other mode.
    environment.insert("OUTBOX_PGBOUNCER_MODE".to_owned(), "session".to_owned());
    environment.insert(DOWNLOADS_VARIABLE.to_owned(), shared.display().to_string());
    Ok(environment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_that_finds_nothing_is_no_proof() {
        let report = |breached: u64| {
            let rulings = serde_json::json!([{ "promise": "at_most_once", "breached": breached }]);
            serde_json::json!({ "pairs": [{ "promises": { "rulings": rulings } }] }).to_string().into_bytes()
        };
        let after = |reports: Vec<Vec<u8>>| {
            let mut reports = reports.into_iter();
            find_out(|| reports.next().ok_or_else(|| "one storm too many".to_owned()))
        };
        assert_eq!(after(vec![report(3)]), Ok(3));
        assert_eq!(after(vec![report(0), report(0), report(2)]), Ok(2));
        assert!(after(vec![report(0); PLANTED_MAX]).unwrap_err().contains("6 storms"));
        assert!(after(vec![b"{}".to_vec()]).is_err() && after(vec![Vec::new()]).is_err());
    }

    #[test]
    fn storms_that_did_not_hold_are_told_with_their_reports() {
        let folder = std::env::temp_dir().join(format!("xtask-storms-{}", std::process::id()));
        assert_eq!(reports(&folder), "");
        let [told, silent] = ["a", "b"].map(|pair| folder.join(pair));
        fs::create_dir_all(&silent).unwrap();
        fs::create_dir_all(&told).unwrap();
        fs::write(told.join("report.txt"), "postgres × kafka: BROKEN").unwrap();
        let text = reports(&folder);
        fs::remove_dir_all(&folder).unwrap();
        assert!(text.starts_with("postgres × kafka: BROKEN\n") && text.contains("b/report.txt"), "{text}");
    }

    #[test]
    fn every_service_has_a_port_of_its_own() {
        let environment = environment(21_400).unwrap();
        assert_eq!(environment["OUTBOX_POSTGRES_PORT"], "21400");
        assert!(environment["OUTBOX_POSTGRES_URL"].contains("127.0.0.1:21400"));
        assert_eq!(environment["OUTBOX_KAFKA_BROKERS"], "127.0.0.1:21401");
        assert!(environment["OUTBOX_SQS_ENDPOINT"].contains(":21406"));
        assert_eq!(environment["OUTBOX_KAFKA_PROXIED"], "21411:21412,21413:21414");
        assert!(environment[DIR_VARIABLE].ends_with("storm-21400"));
        assert!(super::environment(65_530).is_err());
    }
}
