//! `cargo xtask services …`: what each command prints and how it exits.

use super::{
    Name, Outcome, Stop, UpReport,
    certificates::{self, Certificates},
    faketime,
    fault::Fault,
    home::Home,
    manager::{self, Stopped},
    progress::Progress,
    settings,
};
use crate::{
    report::{self, Output},
    require::Require,
};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::{path::PathBuf, process::ExitCode};

/// Private instances of PostgreSQL, `PgBouncer`, Kafka, RabbitMQ and SQS on this machine, without
/// Docker.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Install what is missing, start what is not running, wait until everything answers.
    ///
    /// Exit code 0: all services are there. 1: a service failed, or a required service is missing.
    /// 3: a service is not available here.
    Up {
        #[command(flatten)]
        selection: Selection,
        /// Fail (1) when one of these is not available: all, none, or names separated by commas.
        #[arg(long, default_value = "none")]
        require: Require,
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
    /// Stop everything; data stays.
    Down {
        #[command(flatten)]
        selection: Selection,
        /// Delete data and logs as well (downloads stay).
        #[arg(long)]
        purge: bool,
    },
    /// Show what runs, where, and with which data.
    Status {
        #[command(flatten)]
        selection: Selection,
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
    /// Print running services' addresses as `export` lines: eval "$(cargo xtask services env)".
    Env {
        #[command(flatten)]
        selection: Selection,
        #[arg(long, value_enum, default_value_t)]
        output: Output,
    },
    /// Start one service and wait until it answers.
    Start { name: Name },
    /// Stop one service.
    Stop {
        name: Name,
        /// As in a crash: nothing is flushed.
        #[arg(long)]
        immediate: bool,
    },
    /// Install libfaketime, which gives one process another wall clock, and print its file.
    Faketime,
    /// Stop one service, start it again and wait until it answers.
    Restart {
        name: Name,
        /// As in a crash: nothing is flushed.
        #[arg(long)]
        immediate: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Selection {
    /// Only these services, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Name>,
}

impl Selection {
    fn names(&self) -> Vec<Name> {
        Name::ALL.into_iter().filter(|name| self.only.is_empty() || self.only.contains(name)).collect()
    }
}

pub(crate) fn run(command: &Command) -> Result<ExitCode, String> {
    match command {
        Command::Up { selection, require, output } => Ok(up(&selection.names(), require, *output)),
        Command::Down { selection, purge } => Ok(down(&selection.names(), *purge)),
        Command::Status { selection, output } => status(&selection.names(), *output),
        Command::Env { selection, output } => env(&selection.names(), *output),
        Command::Start { name } => start(*name),
        Command::Stop { name, immediate } => stop(*name, *immediate),
        Command::Faketime => faketime(),
        Command::Restart { name, immediate } => stop(*name, *immediate).and_then(|_| start(*name)),
    }
}

fn up(names: &[Name], require: &Require, output: Output) -> ExitCode {
    let reports = manager::up(names);
    match output {
        Output::Json => report::json(&reports.iter().map(up_json).collect()),
        Output::Table => {
            println!("{}", report::table(["service", "state", "address"], reports.iter().map(up_row)));
        }
    }
    for (name, fault) in reports.iter().filter_map(missing) {
        eprintln!("{name}: {fault}");
    }
    ExitCode::from(exit_code(&reports, require))
}

/// The exit code when a service is not available on this machine and everything else works.
const NOT_AVAILABLE: u8 = 3;

/// Returns 1 for a failure or a missing required service, 3 for an unavailable service, else 0.
fn exit_code(reports: &[UpReport], require: &Require) -> u8 {
    let failed =
        |&(name, fault): &(Name, &Fault)| matches!(fault, Fault::Failed(_)) || require.includes(name);
    let missing: Vec<_> = reports.iter().filter_map(missing).collect();
    if missing.is_empty() {
        0
    } else if missing.iter().any(failed) {
        1
    } else {
        NOT_AVAILABLE
    }
}

fn missing(report: &UpReport) -> Option<(Name, &Fault)> {
    match &report.outcome {
        Outcome::Missing(fault) => Some((report.name, fault)),
        _ => None,
    }
}

fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Started => "started",
        Outcome::AlreadyRunning => "already running",
        Outcome::External(_) => "external",
        Outcome::Missing(Fault::Unavailable(_)) => "not available",
        Outcome::Missing(Fault::Failed(_)) => "failed",
    }
}

fn up_row(report: &UpReport) -> [String; 3] {
    let address =
        report.address().map_or_else(|| "-".to_owned(), |address| report::without_password(&address));
    [report.name.to_string(), word(&report.outcome).to_owned(), address]
}

fn up_json(report: &UpReport) -> Value {
    let reason = missing(report).map(|(_, fault)| fault.to_string());
    json!({ "service": report.name, "state": word(&report.outcome), "address": report.address(), "reason": reason })
}

fn down(names: &[Name], purge: bool) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for (name, result) in manager::down(names, purge) {
        match result {
            Ok(Stopped::Stopped) => println!("{name:10} stopped"),
            Ok(Stopped::WasNotRunning) => println!("{name:10} was not running"),
            Err(fault) => {
                eprintln!("{name:10} {fault}");
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}

/// One service as `status` shows it.
struct Row {
    name: Name,
    state: &'static str,
    version: Option<String>,
    address: Option<String>,
    pid: Option<u32>,
    data: Option<String>,
}

fn look(name: Name) -> Result<Row, Fault> {
    let nothing = Row { name, state: "stopped", version: None, address: None, pid: None, data: None };
    if let Some(address) = manager::external(name)? {
        return Ok(Row { state: "external", address: Some(address), ..nothing });
    }
    let home = Home::of(name)?;
    let Some(state) = home.state()? else {
        let data = name.service().data(&home)?;
        return Ok(Row { data: data.exists().then(|| data.display().to_string()), ..nothing });
    };
    let alive = state.process.is_alive();
    Ok(Row {
        name,
        state: match (alive, alive.then(|| name.service().probe(state.port))) {
            (true, Some(Ok(()))) => "running",
            (true, _) => "not answering",
            (false, _) => "crashed",
        },
        version: Some(state.version),
        address: alive.then(|| name.service().url(state.port)),
        pid: alive.then_some(state.process.pid),
        data: state.data.exists().then(|| state.data.display().to_string()),
    })
}

fn status(names: &[Name], output: Output) -> Result<ExitCode, String> {
    let rows = names
        .iter()
        .map(|&name| look(name))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|fault| fault.to_string())?;
    match output {
        Output::Json => report::json(
            &rows
                .iter()
                .map(|row| {
                    json!({ "service": row.name, "state": row.state, "version": row.version,
                            "address": row.address, "pid": row.pid, "data": row.data })
                })
                .collect(),
        ),
        Output::Table => {
            let dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
            let rows = rows.into_iter().map(|row| {
                [
                    row.name.to_string(),
                    row.state.to_owned(),
                    dash(row.version),
                    dash(row.address.as_deref().map(report::without_password)),
                    dash(row.pid.map(|pid| pid.to_string())),
                    dash(row.data),
                ]
            });
            println!("{}", report::table(["service", "state", "version", "address", "pid", "data"], rows));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn env(names: &[Name], output: Output) -> Result<ExitCode, String> {
    let shown = |path: Result<PathBuf, Fault>| {
        Ok::<_, String>(path.map_err(|f| f.to_string())?.display().to_string())
    };
    let mut variables = vec![
        (settings::DIR_VARIABLE, shown(settings::services_dir())?),
        (certificates::DIR_VARIABLE, shown(Certificates::folder())?),
    ];
    for &name in names {
        let row = look(name).map_err(|fault| fault.to_string())?;
        match row.address {
            Some(address) => {
                variables.push((name.variable(), address));
                if row.state != "external" {
                    variables.extend(manager::secure_addresses(name).map_err(|fault| fault.to_string())?);
                }
            }
            None => eprintln!("{name} is {}: {} is left out", row.state, name.variable()),
        }
    }
    match output {
        Output::Json => report::json(
            &variables
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value.into()))
                .collect::<serde_json::Map<_, _>>()
                .into(),
        ),
        Output::Table => variables.iter().for_each(|(key, value)| println!("export {key}={}", quoted(value))),
    }
    Ok(ExitCode::SUCCESS)
}

/// Quotes one word for a POSIX shell.
fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\'', r"'\''"))
}

fn start(name: Name) -> Result<ExitCode, String> {
    refuse_external(name)?;
    let task = Progress::new().task(name);
    let outcome = manager::start(name, &task).map_err(|fault| format!("{name}: {fault}"))?;
    task.finish(word(&outcome));
    Ok(ExitCode::SUCCESS)
}

fn stop(name: Name, immediate: bool) -> Result<ExitCode, String> {
    refuse_external(name)?;
    let how = if immediate { Stop::Immediately } else { Stop::Gracefully };
    let stopped = manager::stop(name, how, false).map_err(|fault| format!("{name}: {fault}"))?;
    eprintln!("{name:10} {}", if stopped == Stopped::Stopped { "stopped" } else { "was not running" });
    Ok(ExitCode::SUCCESS)
}

fn faketime() -> Result<ExitCode, String> {
    match faketime::library(&|phase| eprintln!("libfaketime: {phase}")) {
        Ok(file) => {
            println!("{}", file.display());
            Ok(ExitCode::SUCCESS)
        }
        Err(Fault::Unavailable(why)) => {
            eprintln!("libfaketime: {why}");
            Ok(ExitCode::from(NOT_AVAILABLE))
        }
        Err(Fault::Failed(why)) => Err(format!("libfaketime: {why}")),
    }
}

fn refuse_external(name: Name) -> Result<(), String> {
    match manager::external(name).map_err(|fault| fault.to_string())? {
        Some(_) => {
            Err(format!("{name} is external ({} is set): start and stop it where it runs", name.variable()))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_words_survive_quotes() {
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }

    #[test]
    fn the_exit_code_tells_missing_from_failed() {
        let report = |fault| [UpReport { name: Name::Kafka, outcome: Outcome::Missing(fault) }];
        let unavailable = || report(Fault::Unavailable(String::new()));
        assert_eq!(exit_code(&[], &Require::All), 0);
        assert_eq!(exit_code(&unavailable(), &Require::None), NOT_AVAILABLE);
        assert_eq!(exit_code(&unavailable(), &Require::These(vec![Name::Sqs])), NOT_AVAILABLE);
        assert_eq!(exit_code(&unavailable(), &Require::These(vec![Name::Kafka])), 1);
        assert_eq!(exit_code(&report(Fault::Failed(String::new())), &Require::None), 1);
    }
}
