//! `relay adopt`: takes over a foreign outbox table without changing its producers.

use std::time::Duration;

use adopt::{self, AdoptState, AdoptStatus, Adopted, OldTable};
use clap::{Args, Subcommand};
use operate::units::Time;
use outbox_log::LogOptions;

use super::config::OnePipeline;
use super::database::{DatabaseUrl, Goal};
use super::exit::Exit;
use super::failure::Failure;
use super::hint;
use super::operator::viewer;
use super::output::{self, Format, one_line, or_dash, table};
use super::progress::during;
use super::signature::Signature;

/// Actions on a foreign outbox table.
#[derive(Debug, Subcommand)]
pub enum Adopt {
    /// Check the table, and print the SQL that `over` would run, so that an administrator can run
    /// it.
    Plan(Plan),
    /// Install a trigger that hands each new row over to the outbox in the producer's own
    /// transaction, and import the waiting rows. Both happen in one transaction.
    ///
    /// Stop the old relay first, unless it is Debezium. Exits with 3 if open transactions lock the
    /// table for longer than --lock-timeout; then nothing has changed.
    Over(Decide),
    /// Give the table back to the old relay by removing the trigger. Nothing else changes.
    ///
    /// Stop the relay first. Afterwards `relay run --once` publishes the rows already handed over.
    Back(Decide),
    /// Show whether the trigger exists, is enabled and matches this configuration, how many rows
    /// wait, and which roles cannot insert. Reads only.
    ///
    /// Exits with 2 if new rows are not handed over or a role lacks rights, with 3 if rows still
    /// wait for the old relay.
    Status(Target),
}

/// The old table and its database.
#[derive(Debug, Args)]
pub struct Target {
    #[command(flatten)]
    pipeline: OnePipeline,

    /// The URL of the same database, with the owner of the old table as the user. Default: the
    /// pipeline's URL.
    #[command(flatten)]
    owner: DatabaseUrl,

    /// Accept an unencrypted connection to another machine. Only with --database or
    /// --database-file.
    #[arg(long, requires = "named_database")]
    allow_plaintext: bool,
}

/// The arguments of `relay adopt plan`.
#[derive(Debug, Args)]
pub struct Plan {
    #[command(flatten)]
    target: Target,

    /// Print the SQL that gives the table back.
    #[arg(long)]
    back: bool,
}

/// The arguments of `relay adopt over` and `back`.
#[derive(Debug, Args)]
pub struct Decide {
    #[command(flatten)]
    target: Target,

    #[command(flatten)]
    signature: Signature,

    /// How long to wait for open transactions that write to the table. New writes wait meanwhile.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration)]
    lock_timeout: Duration,
}

fn duration(text: &str) -> Result<Duration, String> {
    let Time(duration) = text.parse::<Time>().map_err(|error| error.to_string())?;
    // PostgreSQL treats zero as no limit, and counts in milliseconds.
    if (Duration::from_millis(1)..=Duration::from_secs(3_600)).contains(&duration) {
        Ok(duration)
    } else {
        Err(String::from("choose a value from 1ms to 1h"))
    }
}

impl Adopt {
    pub(crate) async fn execute(self, format: Format) -> Result<Exit, Failure> {
        match self {
            Self::Plan(plan) => plan.execute(format).await,
            Self::Over(decide) => {
                let (table, signed) = (decide.target.table()?, decide.signature.signed()?);
                let work = adopt::over(&table, &signed, decide.lock_timeout);
                told(&during("taking over", work).await?, format)
            }
            Self::Back(decide) => {
                let (table, signed) = (decide.target.table()?, decide.signature.signed()?);
                let work = adopt::back(&table, &signed, decide.lock_timeout);
                told(&during("giving back", work).await?, format)
            }
            Self::Status(target) => {
                let status = during("looking", adopt::status(&target.table()?, &viewer())).await?;
                format.print(&status, shown)?;
                Ok(exit(&status))
            }
        }
    }
}

impl Target {
    fn table(&self) -> Result<OldTable, Failure> {
        let (pipeline, adoption) = self.pipeline.read_with_adoption()?;
        let Some(adoption) = adoption else {
            let text = format!("the pipeline {} has no section [pipeline.adopt]", pipeline.name);
            let help =
                "add it: it describes the old table and its columns (docs/configuration.md#pipelineadopt)";
            return Err(Failure::with_help(Exit::Usage, text, help));
        };
        let schema = pipeline.database.schema().cloned();
        let tables = match self.owner.read()? {
            Some(url) => {
                let options = LogOptions::default().schema(schema).allow_plaintext(self.allow_plaintext);
                Goal::new(url, options)
            }
            None => Goal::new(pipeline.database.url()?, pipeline.database.options().clone()),
        };
        Ok(OldTable { pipeline: pipeline.name, adoption, tables })
    }
}

impl Plan {
    async fn execute(self, format: Format) -> Result<Exit, Failure> {
        let plan = during("looking", adopt::plan(&self.target.table()?, &viewer(), self.back)).await?;
        for grant in &plan.grants {
            note!("run this first, otherwise producers fail: {grant}");
        }
        if let (Some(waiting), false) = (plan.waiting, self.back) {
            note!("waiting rows: {waiting}");
        }
        match format {
            // For psql: nothing is escaped.
            Format::Table => output::print(&plan.sql)?,
            Format::Json => format.print(&plan, |_| String::new())?,
        }
        Ok(Exit::Success)
    }
}

/// Prints the outcome and the next step.
fn told(adopted: &Adopted, format: Format) -> Result<Exit, Failure> {
    format.print(adopted, |adopted| {
        let row = [
            adopted.pipeline.clone(),
            adopted.table.clone(),
            adopted.outcome.to_owned(),
            adopted.imported.to_string(),
            format!("{:.1}s", adopted.held_seconds),
        ];
        table(["pipeline", "table", "outcome", "imported", "writers held"], [row])
    })?;
    for name in &adopted.also_published_by {
        note!("the publication {name} still publishes the rows of {}", adopted.table);
    }
    match (adopted.outcome, &adopted.publication) {
        ("adopted", Some(_)) => {
            let status = hint::command(&["adopt", "status"]);
            note!("next: start the relay, but only when `{status}` shows that the slot is through");
        }
        ("adopted", None) => {
            note!("next: {}; it publishes the imported rows first", hint::command(&["run"]));
        }
        ("given back", _) => {
            let run = hint::command(&["run", "--once"]);
            note!("next: repeat {run} until it exits with 0, then start the old relay");
        }
        _ => {}
    }
    Ok(Exit::Success)
}

fn exit(status: &AdoptStatus) -> Exit {
    let waits = status.waiting.is_some_and(|rows| rows > 0);
    match status.state {
        AdoptState::Adopted if !status.lacking.is_empty() => Exit::Usage,
        AdoptState::Adopted if waits || status.slots.iter().any(|slot| !slot.is_through) => Exit::Unavailable,
        AdoptState::Adopted => Exit::Success,
        _ => Exit::Usage,
    }
}

fn shown(status: &AdoptStatus) -> String {
    let row = [
        status.pipeline.clone(),
        status.table.clone(),
        status.state.as_str().to_owned(),
        or_dash(status.waiting),
        or_dash(status.publication.as_ref()),
    ];
    let mut text = table(["pipeline", "table", "state", "waiting", "left publication"], [row]);
    if let Some(problem) = &status.problem {
        text.push_str(&format!("\n{}", one_line(problem)));
    }
    for slot in &status.slots {
        let through = if slot.is_through { "is through" } else { "is not through yet" };
        let reader = if slot.is_active { "" } else { ", and it is inactive" };
        let doubt = slot.doubt.as_ref().map(|doubt| format!("; {doubt}")).unwrap_or_default();
        text.push_str(&format!("\nslot {} {through}{reader}{doubt}", slot.slot));
    }
    for role in &status.lacking {
        text.push_str(&format!("\n{} cannot hand rows over: {}", role.role, role.remedy));
    }
    for name in &status.also_published_by {
        text.push_str(&format!("\nthe publication {name} also has the table"));
    }
    text
}
