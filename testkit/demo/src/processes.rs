//! The processes of a run: two relays, one of which is on standby, and a consumer. Each is
//! restarted however it ends.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use harness::processes::{Processes, Recipe, Role};

use crate::consumer::{CONSUMER_COMMAND, ConsumerTask};
use crate::error::DemoError;
use crate::target::{BrokerSpec, DatabaseSpec};
use crate::{RELAY, progress::Counts};

/// Timeout of an orderly stop.
const STOP: Duration = Duration::from_secs(15);
/// Maximum number of failures of a role. After more failures, its processes count as broken.
const FAILURES_MAX: u64 = 5;

const RELAYS: [&str; 2] = ["relay-1", "relay-2"];
const CONSUMER_PROCESS: &str = "consumer";

/// Starts `relay run` twice, with one configuration. The lease is short, so that a takeover is
/// quick.
///
/// # Errors
/// [`DemoError::Unavailable`] if the configuration cannot be written.
pub(crate) async fn start_relays(
    processes: &Processes,
    directory: &Path,
    database: &DatabaseSpec,
    broker: &BrokerSpec,
) -> Result<(), DemoError> {
    let what = "write the relays' configuration";
    let file = directory.join("relay.toml");
    std::fs::write(&file, configuration(database, broker)).map_err(DemoError::during(what))?;
    for name in RELAYS {
        let recipe = Recipe {
            program: program()?,
            arguments: vec!["run".into(), "--config".into(), file.display().to_string()],
            environment: BTreeMap::from([(
                String::from("RELAY_LOG"),
                String::from("info,lapin=error,aws=warn,rdkafka=error"),
            )]),
            log: log(directory, name),
        };
        processes.keep(name, Role::Relay, recipe).await;
    }
    Ok(())
}

fn configuration(database: &DatabaseSpec, broker: &BrokerSpec) -> String {
    let mut text =
        format!("[[pipeline]]\nname = {RELAY:?}\n\n[pipeline.database]\nurl = {:?}\n", database.url);
    if let Some(schema) = &database.schema {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "schema = {schema:?}");
    }
    let engine = "[pipeline.engine]\nlease_ttl = \"1500ms\"\ncheckpoint_interval = \"50ms\"\n\
                  shutdown_grace = \"5s\"\n";
    text + "\n" + &broker.section() + "\n" + engine
}

/// Starts the consumer.
///
/// # Errors
/// [`DemoError::Unavailable`] if its task cannot be written.
pub(crate) async fn start_consumer(
    processes: &Processes,
    directory: &Path,
    task: &ConsumerTask,
) -> Result<(), DemoError> {
    let what = "write the consumer's task";
    let file = directory.join("consumer.json");
    let text = serde_json::to_vec_pretty(task).map_err(DemoError::during(what))?;
    std::fs::write(&file, text).map_err(DemoError::during(what))?;
    let recipe = Recipe {
        program: program()?,
        arguments: vec![CONSUMER_COMMAND.into(), file.display().to_string()],
        environment: BTreeMap::new(),
        log: log(directory, CONSUMER_PROCESS),
    };
    processes.keep(CONSUMER_PROCESS, Role::Consumer, recipe).await;
    Ok(())
}

/// Stops all processes in order.
pub(crate) async fn stop(processes: &Processes) {
    tokio::join!(processes.stop(Role::Relay, STOP), processes.stop(Role::Consumer, STOP));
}

/// Checks that processes do not fail repeatedly.
///
/// # Errors
/// [`DemoError::Process`].
pub(crate) fn check(processes: &Processes, directory: &Path, counts: &Counts) -> Result<(), DemoError> {
    let starts = |role| processes.of(role).iter().map(|name| processes.starts(name)).sum::<u64>();
    let relays = starts(Role::Relay).saturating_sub(RELAYS.len() as u64 + counts.relay_kills);
    let consumers = starts(Role::Consumer).saturating_sub(1 + counts.consumer_crashes);
    for (process, failures, name) in
        [("the relay", relays, RELAYS[0]), ("the consumer", consumers, CONSUMER_PROCESS)]
    {
        // Each count may be one too low.
        if failures > FAILURES_MAX {
            return Err(DemoError::Process { process, failures, log: log(directory, name) });
        }
    }
    Ok(())
}

fn program() -> Result<PathBuf, DemoError> {
    std::env::current_exe().map_err(DemoError::during("find this program's file"))
}

fn log(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.log"))
}
