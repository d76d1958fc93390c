//! The command line.
//!
//! | module | what it holds |
//! |---|---|
//! | `run` | `relay run`: the daemon |
//! | `reload` | SIGHUP: which settings apply at once |
//! | `systemd` | messages to the service manager |
//! | `preflight` | checks before anything starts, and failures that no wait can heal |
//! | `attend` | one pipeline of the daemon, kept running |
//! | `once` | `relay run --once`: detects when everything has left |
//! | `migrate` | `relay migrate up`, `status`, `sql` |
//! | `roles` | `relay migrate roles` |
//! | `adopt` | `relay adopt`, for PostgreSQL: takes over a foreign outbox table |
//! | `status` | `relay status` |
//! | `retention`, `forget` | `relay retention`, `relay forget`: history, and relays that hold it back |
//! | `verify` | `relay verify`: compares outbox, broker and inboxes |
//! | `doctor` | `relay doctor`: checks of database, broker and inboxes, with remedies |
//! | `demo` | `relay demo`, with the feature of this name |
//! | `dead` | `relay dead list`, `show`, `requeue`, `discard`, `edit`, `audit`: outboxes and inboxes |
//! | `pause` | `relay pause`, `relay resume` |
//! | `show` | `relay show`: the story of a message |
//! | `replay` | `relay replay` |
//! | `lag`, `tail` | `relay lag`, `relay tail` |
//! | `keys` | `relay keys list`, `release`, `discard`, `audit` |
//! | `init` | `relay init`: a configuration from flags or questions |
//! | `check` | `relay check`: configuration and connections |
//! | `man` | `relay man`: man pages |
//! | `config` | `relay config check`, `show`, `schema`, and where the configuration comes from |
//! | `sagas` | `relay sagas list`, `show`, `stuck`, `retry`, `cancel`, `skip`, `audit` |
//! | `log` | set-up of logging |
//! | `output` | standard output: tables and JSON |
//! | `visible` | refusal of passwords in arguments |
//! | `signature` | the author of a decision, and the reason |
//! | `failure`, `exit` | errors of commands, and exit codes |

#[cfg(feature = "postgres")]
mod adopt;
mod attend;
mod check;
mod config;
mod database;
mod dead;
#[cfg(feature = "demo")]
mod demo;
mod doctor;
mod exit;
mod failure;
mod forget;
mod init;
mod keys;
mod lag;
mod log;
mod man;
mod migrate;
mod observe;
mod once;
mod output;
mod pause;
mod preflight;
mod reload;
mod replay;
mod retention;
mod roles;
mod run;
mod sagas;
mod show;
mod signature;
mod status;
mod systemd;
mod tail;
mod verify;
mod visible;

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

pub use exit::Exit;
pub use failure::Failure;
pub use output::Format;

#[cfg(feature = "fuzzing")]
pub(crate) use dead::edited_headers;

/// Publishes every committed outbox row to Kafka, RabbitMQ or SQS, at least once and in order per
/// key.
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
    /// The first SIGTERM or SIGINT stops reading, waits for outstanding confirmations
    /// (shutdown_grace), stores the cursors and releases the leases. A second one ends the process
    /// at once. SIGHUP reloads the configuration.
    ///
    /// Each pipeline waits for what can recover: an unreachable database or broker, a wrong
    /// password, missing tables or files. Listeners wait for an address that is in use. A wrong
    /// configuration ends the command with 2. After a pipeline that no wait can heal, the command
    /// also ends with 2 once it stops.
    Run(run::Run),
    /// Create and update the tables of outbox, inbox, idempotency keys and sagas.
    #[command(subcommand)]
    Migrate(migrate::Migrate),
    /// Move a foreign outbox table of PostgreSQL to this outbox without changing its producers, and
    /// back.
    #[cfg(feature = "postgres")]
    #[command(subcommand)]
    Adopt(adopt::Adopt),
    /// Show which process leads, what waits and what is parked. Reads only.
    ///
    /// Exits with 3 when a database is unreachable, or when messages are held, retrying or dead;
    /// with 2 when a database does not fit this build. Other pipelines are shown in any case.
    Status(status::Status),
    /// Write a commented configuration from flags or questions, and test database and broker on the
    /// way.
    ///
    /// Overwrites nothing. The result passes `relay check`.
    Init(init::Init),
    /// Check the configuration, and the access to databases and brokers.
    ///
    /// Quick enough for CI and before a start; publishes nothing. Exits with 2 when something must
    /// be changed, with 3 when something does not answer.
    Check(check::Check),
    /// Check database, broker and inboxes. Prints one line per check with the measured value and
    /// the remedy, and the go-live checklist.
    ///
    /// Changes nothing. Exits with 0 when nothing failed, with 2 when something must be changed
    /// (with --strict also on warnings), with 3 when the only failures are services that do not
    /// answer.
    Doctor(doctor::Doctor),
    /// Compare outbox, broker and inboxes: prove that every message took effect once, or name those
    /// that did not.
    ///
    /// Reads only and does not disturb consumers: it joins no consumer group and settles nothing.
    /// Exits with 0 when nothing is wrong, with 1 when something is wrong, with 2 or 3 when it
    /// could not find out.
    Verify(verify::Verify),
    /// Remove history that every relay has passed and that is past its retention; show what stays,
    /// and why.
    ///
    /// `relay run` does the same once a minute. Never removes a message that a relay has yet to
    /// publish or that is parked. Exits with 3 when something old enough to be removed is held
    /// back.
    Retention(retention::Retention),
    /// Forget a relay that is gone for good, so that it no longer holds back history.
    ///
    /// Its cursor is removed. If a relay of this name starts again, it publishes everything that is
    /// still there.
    Forget(forget::Forget),
    /// Look at messages that relays could not publish or consumers could not apply, and decide
    /// about them.
    #[command(subcommand)]
    Dead(dead::Dead),
    /// Stop publishing a topic, an ordering key or everything, until it is resumed.
    ///
    /// A running relay and its successors apply this within a second. Paused messages wait in
    /// order; others flow.
    Pause(pause::Pause),
    /// Resume publishing a topic, an ordering key or everything.
    Resume(pause::Pause),
    /// Show the whole story of a message: when it was enqueued, when it was published or why it is
    /// held, and which consumers applied it.
    ///
    /// Reads the outboxes and inboxes of the configuration, and changes nothing. Payloads are never
    /// shown.
    Show(show::Show),
    /// Show how far topics lag: unpublished messages by topic. Reads only.
    Lag(lag::Lag),
    /// Print messages as the relay passes them, until a signal stops it.
    ///
    /// Payloads are shown only on request, and the audit records that.
    Tail(tail::Tail),
    /// Publish messages again that were already published, with the same ids.
    ///
    /// Never sends messages that have not left yet, were given up, or were removed by retention.
    /// Works with and without a running relay. An interrupted replay can be repeated. Exits with 3
    /// when the broker is away for a minute, or when a signal stops it.
    Replay(replay::Replay),
    /// Look at idempotency keys whose holder is gone, and decide about them.
    #[command(subcommand)]
    Keys(keys::Keys),
    /// Look at sagas, and decide about those that are stuck.
    #[command(subcommand)]
    Sagas(sagas::Sagas),
    /// See exactly-once effects survive crashes, on this machine, with nothing installed.
    #[cfg(feature = "demo")]
    Demo(::demo::Args),
    /// A consumer of the demo, in a process of its own.
    #[cfg(feature = "demo")]
    #[command(hide = true)]
    DemoConsumer {
        /// The file that describes its task.
        task: std::path::PathBuf,
    },
    /// Check the configuration, show the settings in force, print the schema.
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write man pages, one for each command.
    Man(man::Man),
}

impl Cli {
    /// Reads the command line of the process. On an error or a request for help, prints the text
    /// and ends the process.
    ///
    /// # Errors
    /// [`Failure`] for a password in an argument.
    pub fn of_process() -> Result<Self, Failure> {
        Self::read(std::env::args_os())
    }

    fn read(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Self, Failure> {
        let mut command = Self::command();
        let matches = command.try_get_matches_from_mut(words).unwrap_or_else(|error| error.exit());
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
            Command::Init(init) => init.execute().await,
            Command::Check(check) => check.execute(format).await,
            Command::Doctor(doctor) => doctor.execute(format).await,
            Command::Verify(verify) => verify.execute(format).await,
            Command::Retention(retention) => retention.execute(format).await,
            Command::Forget(forget) => forget.execute().await,
            Command::Dead(dead) => dead.execute(format).await,
            Command::Pause(pause) => pause.pause(format).await,
            Command::Resume(pause) => pause.resume(format).await,
            Command::Show(show) => show.execute(format).await,
            Command::Lag(lag) => lag.execute(format).await,
            Command::Tail(tail) => tail.execute(format).await,
            Command::Replay(replay) => replay.execute(format).await,
            Command::Keys(keys) => keys.execute(format).await,
            Command::Sagas(sagas) => Box::pin(sagas.execute(format)).await,
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
    clap_complete::generate(shell, &mut Cli::command(), "relay", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Success)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_help_names_every_exit_code() {
        let help = Cli::command().render_long_help().to_string();
        for code in ["  0  ", "  1  ", "  2  ", "  3  ", "130  "] {
            assert!(help.contains(code), "{help}");
        }
    }
}
