//! `relay migrate roles`: prints or applies the script of least privilege on PostgreSQL.

use clap::Args;
use migrations::{Identifier, Line, Roles};
use outbox_log::LogOptions;

use super::database::{DatabaseUrl, Goal};
use super::exit::Exit;
use super::failure::Failure;
use super::migrate::{LineName, run_script};
use super::output;
use super::progress::during;

/// The roles and their names.
#[derive(Debug, Args)]
pub struct RolesScript {
    /// Only the roles for these tables. Can be repeated. Default: all.
    #[arg(long = "line", value_enum, value_name = "LINE")]
    lines: Vec<LineName>,

    /// Create the roles of one service with its own schema for inbox, idempotency keys and sagas:
    /// NAME_inbox_consumer, NAME_idempotency_claimant and NAME_saga_worker. Default for --schema:
    /// NAME. If the service does not use all three, select them with --line.
    #[arg(long, value_name = "NAME")]
    service: Option<Identifier>,

    /// Run the script on the database of --database, as the owner of the tables, instead of
    /// printing it.
    #[arg(long)]
    apply: bool,

    /// The database for --apply.
    #[command(flatten)]
    owner: DatabaseUrl,

    /// Accept an unencrypted connection to another machine. Only with --apply.
    #[arg(long, requires = "apply")]
    allow_plaintext: bool,

    /// The PostgreSQL schema of the tables. Default: the search_path of the user that runs the
    /// script.
    #[arg(long, value_name = "NAME")]
    schema: Option<Identifier>,

    /// The role that migrates.
    #[arg(long, value_name = "NAME", default_value = "outbox_migrator")]
    migrator: Identifier,

    /// The role that enqueues.
    #[arg(long, value_name = "NAME", default_value = "outbox_producer")]
    producer: Identifier,

    /// The role that runs the relay and decides about dead messages.
    #[arg(long, value_name = "NAME", default_value = "outbox_relay")]
    relay: Identifier,

    /// The role that consumes. Default: inbox_consumer, or with --service the service's role.
    #[arg(long, value_name = "NAME")]
    consumer: Option<Identifier>,

    /// The role that claims idempotency keys. Default: idempotency_claimant, or with --service the
    /// service's role.
    #[arg(long, value_name = "NAME")]
    claimant: Option<Identifier>,

    /// The role that starts and runs sagas. Default: saga_worker, or with --service the service's
    /// role.
    #[arg(long, value_name = "NAME")]
    worker: Option<Identifier>,

    /// The role that reads states, ids and names.
    #[arg(long, value_name = "NAME", default_value = "outbox_observer")]
    observer: Identifier,
}

impl RolesScript {
    /// Prints the script, or runs it.
    pub(crate) async fn execute(self) -> Result<Exit, Failure> {
        if !self.apply {
            output::print(&self.scripts()?.join("\n"))?;
            return Ok(Exit::Success);
        }
        let url = self.owner.read()?.ok_or_else(|| {
            let text =
                "--apply needs a database: set RELAY_DATABASE_URL, or pass --database-file or --database";
            Failure::new(Exit::Usage, text)
        })?;
        let options = LogOptions::default().allow_plaintext(self.allow_plaintext);
        let goal = Goal::new(url, options);
        for script in self.scripts()? {
            during("creating the roles", run_script(&goal, script)).await?;
        }
        Ok(Exit::Success)
    }

    /// Returns the script of each line.
    fn scripts(self) -> Result<Vec<String>, Failure> {
        let mut roles = match &self.service {
            Some(service) => Roles::of_service(service).map_err(|error| Failure::new(Exit::Usage, error))?,
            None => Roles::standard(),
        };
        roles.migrator = self.migrator;
        roles.producer = self.producer;
        roles.relay = self.relay;
        roles.consumer = self.consumer.unwrap_or(roles.consumer);
        roles.claimant = self.claimant.unwrap_or(roles.claimant);
        roles.worker = self.worker.unwrap_or(roles.worker);
        roles.observer = self.observer;
        let lines = match (&self.service, &self.lines[..]) {
            (Some(_), []) => vec![Line::Inbox, Line::Idempotency, Line::Saga],
            (_, lines) => LineName::chosen(lines),
        };
        let schema = self.schema.or(self.service);
        let script = |line: Line| roles.script(line, schema.as_ref()).to_string();
        Ok(lines.into_iter().map(script).collect())
    }
}
