//! The command line.
//!
//! | module | what it holds |
//! |---|---|
//! | `run` | `relay run`: the daemon |
//! | `reload` | SIGHUP: which settings apply at once |
//! | `signals` | SIGTERM, SIGINT and SIGHUP; copies of a signal |
//! | `systemd` | messages to the service manager |
//! | `preflight` | checks before anything starts, and failures that no wait can heal |
//! | `once` | `relay run --once`: detects when everything has left |
//! | `migrate` | `relay migrate up`, `status`, `sql` |
//! | `roles` | `relay migrate roles` |
//! | `adopt` | `relay adopt`, for PostgreSQL: takes over a foreign outbox table |
//! | `status` | `relay status` |
//! | `consumers` | `relay consumers`: the work of consumers, according to their inboxes |
//! | `retention`, `forget` | `relay retention`, `relay forget`: history, and relays that hold it back |
//! | `erase` | `relay erase`: removes what is stored of a subject |
//! | `verify` | `relay verify`: compares outbox, broker and inboxes |
//! | `doctor` | `relay doctor`: checks of database, broker and inboxes, with remedies |
//! | `demo` | `relay demo`, with the feature of this name |
//! | `dead` | `relay dead list`, `show`, `requeue`, `discard`, `edit`, `audit`: outboxes and inboxes |
//! | `audit` | `relay audit` |
//! | `pause` | `relay pause`, `relay resume` |
//! | `show` | `relay show`: the story of a message |
//! | `search` | `relay search`: messages by topic, key or header |
//! | `replay` | `relay replay` |
//! | `lag`, `tail` | `relay lag`, `relay tail` |
//! | `keys` | `relay keys list`, `release`, `discard`, `audit` |
//! | `init` | `relay init`: a configuration from flags or questions |
//! | `check` | `relay check`: configuration and connections |
//! | `man` | `relay man`: man pages |
//! | `config` | `relay config check`, `show`, `schema`, and where the configuration comes from |
//! | `sessions` | `relay sessions list`, `revoke`: logins to the page |
//! | `sagas` | `relay sagas list`, `show`, `stuck`, `retry`, `cancel`, `skip`, `audit` |
//! | `log` | set-up of logging |
//! | `output` | standard output: tables and JSON |
//! | `progress` | progress of commands that take long |
//! | `help`, `examples` | the help of each command, with examples |
//! | `hint` | suggested commands that can be pasted |
//! | `visible` | refusal of passwords in arguments |
//! | `misread` | command lines that cannot be read |
//! | `export` | `--export`: the whole of a list as CSV or JSON |
//! | `places` | outboxes and inboxes that a command searches |
//! | `operator` | the operator of commands that only read |
//! | `signature` | the author of a decision, and the reason |
//! | `confirm` | a question at the terminal |
//! | `note` | lines on standard error |
//! | `failure`, `exit` | errors of commands, and exit codes |

// First: its macros are for the modules below.
#[macro_use]
mod note;

#[cfg(feature = "postgres")]
mod adopt;
mod audit;
mod check;
mod config;
mod confirm;
mod consumers;
mod database;
mod dead;
#[cfg(feature = "demo")]
mod demo;
mod doctor;
mod erase;
mod examples;
mod exit;
mod export;
mod failure;
mod forget;
mod help;
mod hint;
mod init;
mod keys;
mod lag;
mod log;
mod man;
mod migrate;
mod misread;
mod observe;
mod once;
mod operator;
mod output;
mod pause;
mod places;
mod preflight;
mod progress;
mod reload;
mod replay;
mod retention;
mod roles;
mod run;
mod sagas;
mod search;
mod sessions;
mod show;
mod signals;
mod signature;
mod status;
mod systemd;
mod tail;
mod verify;
mod visible;

use std::ffi::OsString;

use clap::{FromArgMatches as _, Parser, Subcommand};
use clap_complete::Shell;

pub use exit::Exit;
pub use failure::Failure;
pub(crate) use output::Format;

#[cfg(feature = "fuzzing")]
pub(crate) use dead::edited_headers;

/// Publishes every committed outbox row to Kafka, RabbitMQ, SQS or HTTP endpoints, at least once
/// and in order per key.
#[derive(Debug, Parser)]
#[command(name = "relay", version, propagate_version = true, after_help = Exit::help(), disable_help_subcommand = true)]
pub struct Cli {
    /// Format of the results.
    #[arg(long, global = true, value_enum, value_name = "FORMAT", default_value_t, env = "RELAY_OUTPUT")]
    pub output: Format,

    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run every pipeline of the configuration until a signal stops it.
    ///
    /// At the first SIGTERM or SIGINT, the relay stops reading, waits for outstanding confirmations
    /// (shutdown_grace), stores the cursors and releases the leases. A second signal ends the
    /// process immediately. SIGHUP reloads the configuration.
    ///
    /// Each pipeline waits for problems that can be repaired: an unreachable database or broker, a
    /// wrong password, missing tables or files. Listeners wait for an address that is in use. If
    /// the configuration is wrong, the command exits with 2. If a pipeline cannot recover by
    /// waiting, the others run, and the command exits with 2 when it is stopped.
    Run(run::Run),
    /// Create and update the tables of outbox, inbox, idempotency keys and sagas.
    #[command(subcommand)]
    Migrate(migrate::Migrate),
    /// Move from another outbox table in PostgreSQL to this outbox without changing the producers,
    /// or move back.
    #[cfg(feature = "postgres")]
    #[command(subcommand)]
    Adopt(adopt::Adopt),
    /// Show which process leads, and which messages wait or are parked. Changes nothing.
    ///
    /// Exits with 3 if a database is unreachable, or if messages are held, retrying or dead; with 2
    /// if a schema does not match this build. The other pipelines are always shown.
    Status(status::Status),
    /// Show the work of consumers according to their inboxes, and what waits. Changes nothing.
    ///
    /// Lists the inboxes of the configuration (`[[verify.inbox]]`). A consumer that has applied
    /// nothing for five minutes is compared with its outbox: a published message that it does not
    /// know is named. Exits with 3 if dead letters are open, if a consumer applies nothing, or if a
    /// database is unreachable.
    Consumers(consumers::Consumers),
    /// Write a commented configuration. Asks on a terminal for missing values, and tests database
    /// and broker.
    ///
    /// Never overwrites a file. The result passes `relay check`.
    Init(init::Init),
    /// Check the configuration and the access to databases and brokers.
    ///
    /// Fast enough for CI and for use before a start. Publishes nothing. Exits with 2 if you must
    /// change something, with 3 if a database or broker does not answer.
    Check(check::Check),
    /// Check database, broker and inboxes. Prints the measured value and the remedy of each check,
    /// and the go-live checklist.
    ///
    /// Changes nothing. Exits with 0 if no check failed, with 2 if you must change something (with
    /// --strict also on warnings), with 3 if the only failures are services that do not answer.
    Doctor(doctor::Doctor),
    /// Compare outbox, broker and inboxes: check that every message took effect once, and list
    /// those that did not.
    ///
    /// Only reads and does not disturb consumers: it joins no consumer group and settles no
    /// deliveries. Exits with 0 if it finds no problem, with 1 if it finds one, with 2 or 3 if it
    /// could not compare everything.
    Verify(verify::Verify),
    /// Delete messages older than their retention that every relay has passed. Shows what is kept,
    /// and why.
    ///
    /// `relay run` does the same once a minute. Never deletes a message that is parked or that a
    /// relay has not published yet. Exits with 3 if messages that are old enough cannot be deleted.
    Retention(retention::Retention),
    /// Forget a relay that will not return, so that retention no longer waits for it.
    ///
    /// Its cursor is deleted. If a relay with this name starts again, it publishes every message
    /// that the outbox still has.
    Forget(forget::Forget),
    /// Erase what is stored of a subject: messages, results, dead letters, answers and sagas.
    ///
    /// Ids and fingerprints stay, so nothing takes effect again. A message that was not published
    /// yet, or has had no effect yet, is left. Shows what it would erase, and asks. What is at the
    /// broker, in backups and in your own tables is out of its reach. Needs the rights of the owner
    /// of the tables. If it was interrupted, run it again. Exits with 3 if something is left.
    Erase(erase::Erase),
    /// Show messages that relays could not publish or consumers could not apply, and requeue,
    /// discard or edit them.
    #[command(subcommand)]
    Dead(dead::Dead),
    /// Show who decided, paused, replayed or viewed payloads, when and why. Changes nothing.
    ///
    /// Reads the audits of the outboxes, inboxes, idempotency keys and sagas of the configuration.
    /// A decision is one line, with the number of its messages. Keys and sagas are left out with
    /// --pipeline, --source and --topic. Exits with 3 if a database is unreachable; the decisions
    /// of the others are always shown.
    Audit(audit::Audit),
    /// Stop publishing a topic, an ordering key or everything, until it is resumed.
    ///
    /// Takes effect within a second. Messages that the relay has already queued for its broker, up
    /// to a window of them, still go out (`relay_in_flight_messages`); ending the relay process
    /// stops them. Paused messages wait in order, and others are published.
    Pause(pause::Pause),
    /// Resume publishing a topic, an ordering key or everything.
    Resume(pause::Pause),
    /// Show the history of a message: when it was enqueued, when it was published or why it is
    /// waiting, and which consumers applied it.
    ///
    /// Reads the outboxes and inboxes of the configuration, and changes nothing. Payloads are never
    /// shown.
    Show(show::Show),
    /// Search messages by topic, ordering key or header, newest first; without a condition, list
    /// the latest ones. Changes nothing.
    ///
    /// Finds published messages as well as waiting ones, until retention deletes them. The log has
    /// no index for this: a search looks at up to 100,000 messages of each pipeline (20,000 by a
    /// header), then prints the command that continues it. To find a message by its id, use `relay
    /// show`.
    Search(search::Search),
    /// Show the number of unpublished messages by topic. Changes nothing.
    Lag(lag::Lag),
    /// Print messages as the relay publishes or parks them, until a signal stops it.
    ///
    /// Payloads are shown only with --payloads, and the audit records each use.
    Tail(tail::Tail),
    /// Publish messages again that were already published, with the same ids.
    ///
    /// Never sends messages that are not published yet, were discarded, or were deleted by
    /// retention. Works with or without a running relay. If a replay was interrupted, run it again.
    /// Exits with 3 if the broker is unavailable for a minute, or if a signal stops the command.
    Replay(replay::Replay),
    /// Show idempotency keys whose holder has disappeared, and release or discard them.
    #[command(subcommand)]
    Keys(keys::Keys),
    /// Show sagas, and retry, cancel or skip those that are stuck.
    #[command(subcommand)]
    Sagas(sagas::Sagas),
    /// Show who is logged in to the page, and end sessions before their time.
    #[command(subcommand)]
    Sessions(sessions::Sessions),
    /// Demonstrate exactly-once effects despite crashes, on this machine, without installing
    /// anything.
    #[cfg(feature = "demo")]
    Demo(::demo::Args),
    /// A consumer of the demo, in its own process.
    #[cfg(feature = "demo")]
    #[command(hide = true)]
    DemoConsumer {
        /// The file that describes its task.
        task: std::path::PathBuf,
    },
    /// Check the configuration, show the effective settings, or print the schema.
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write a man page for each command.
    Man(man::Man),
}

impl Cli {
    /// Reads the command line of the process. On an error or a request for help, prints the text
    /// and ends the process.
    ///
    /// # Errors
    /// [`Failure`] for a password in an argument, and for options that exclude each other.
    pub fn of_process() -> Result<Self, Failure> {
        Self::read(std::env::args_os())
    }

    fn read(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Self, Failure> {
        let mut command = help::command();
        let matches = match command.try_get_matches_from_mut(words) {
            Ok(matches) => matches,
            Err(error) => match misread::conflict(&error) {
                Some(refusal) => return Err(refusal),
                None => misread::with_the_closest(error).exit(),
            },
        };
        visible::refuse_passwords(&command, &matches)?;
        Ok(Self::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit()))
    }

    /// Runs the command.
    ///
    /// # Errors
    /// [`Failure`]: the text for the person, and the exit code.
    pub async fn execute(self) -> Result<Exit, Failure> {
        let format = self.output;
        match self.command {
            Command::Run(run) => run.execute().await,
            Command::Migrate(migrate) => migrate.execute(format).await,
            #[cfg(feature = "postgres")]
            Command::Adopt(adopt) => adopt.execute(format).await,
            Command::Status(status) => status.execute(format).await,
            Command::Consumers(consumers) => consumers.execute(format).await,
            Command::Init(init) => init.execute().await,
            Command::Check(check) => check.execute(format).await,
            Command::Doctor(doctor) => doctor.execute(format).await,
            Command::Verify(verify) => verify.execute(format).await,
            Command::Retention(retention) => retention.execute(format).await,
            Command::Forget(forget) => forget.execute().await,
            Command::Erase(erase) => Box::pin(erase.execute(format)).await,
            Command::Dead(dead) => Box::pin(dead.execute(format)).await,
            Command::Audit(audit) => Box::pin(audit.execute(format)).await,
            Command::Pause(pause) => pause.pause(format).await,
            Command::Resume(pause) => pause.resume(format).await,
            Command::Show(show) => show.execute(format).await,
            Command::Search(search) => search.execute(format).await,
            Command::Lag(lag) => lag.execute(format).await,
            Command::Tail(tail) => tail.execute(format).await,
            Command::Replay(replay) => replay.execute(format).await,
            Command::Keys(keys) => keys.execute(format).await,
            Command::Sagas(sagas) => Box::pin(sagas.execute(format)).await,
            Command::Sessions(sessions) => Box::pin(sessions.execute(format)).await,
            #[cfg(feature = "demo")]
            Command::Demo(args) => demo::execute(args, format).await,
            #[cfg(feature = "demo")]
            Command::DemoConsumer { task } => demo::execute_consumer(&task).await,
            Command::Config(command) => command.execute(format),
            Command::Completions { shell } => completions(shell),
            Command::Man(man) => man.execute(),
        }
    }
}

fn completions(shell: Shell) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut help::command(), "relay", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Success)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_every_exit_code() {
        let help = help::command().render_long_help().to_string();
        for code in ["  0  ", "  1  ", "  2  ", "  3  ", "130  "] {
            assert!(help.contains(code), "{help}");
        }
    }
}
