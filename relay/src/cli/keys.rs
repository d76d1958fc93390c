//! `relay keys`: idempotency keys whose holder is gone, and what becomes of them.

use std::num::NonZeroU32;

use clap::{Args, Subcommand};
use inbox::keys::{ClaimError, Decision, IdempotencyKeys, KeyId, KeyOptions, StuckKey};
use inbox::{Dialect as Store, StoreError};
use migrations::{Dialect, Identifier};
use outbox::connect::{postgres_options, sqlite_options};
use outbox::log::{LogError, LogOptions};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;
use sqlx::{Connection, Postgres, Sqlite};

use super::config::OnePipeline;
use super::exit::Exit;
use super::failure::{Failure, exit_of};
use super::output::{Format, table};
use crate::config::Database;

/// What to do with keys whose lease has expired.
#[derive(Debug, Subcommand)]
pub enum Keys {
    /// List keys whose lease has expired and which nobody has taken over, the longest first.
    List(List),
    /// Let the next request with the key run again.
    Release(Decide),
    /// Give the request up: it never runs, and whoever sends the key is told so.
    Discard(Decide),
}

/// Where the tables are.
#[derive(Debug, Args)]
struct Place {
    /// The database, instead of a pipeline's: postgres://user@host/database or sqlite:file.db. Better given by the variable,
    /// where it holds a password.
    #[arg(
        long,
        value_name = "URL",
        env = "RELAY_DATABASE_URL",
        hide_env_values = true,
        conflicts_with = "pipeline"
    )]
    database: Option<String>,

    /// The PostgreSQL schema of the tables. Default: the configuration's, or the search_path's.
    #[arg(long, value_name = "NAME")]
    schema: Option<Identifier>,

    /// Accept an unencrypted connection to another machine (with --database).
    #[arg(long, requires = "database")]
    allow_plaintext: bool,

    #[command(flatten)]
    pipeline: OnePipeline,
}

/// What to list.
#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    place: Place,

    /// At most so many.
    #[arg(long, value_name = "COUNT", default_value = "100")]
    limit: NonZeroU32,
}

/// Which key, and who decides.
#[derive(Debug, Args)]
pub struct Decide {
    #[command(flatten)]
    place: Place,

    /// Whose key: tenant or account.
    #[arg(long, value_name = "SCOPE")]
    scope: String,

    /// What was asked for, as the list shows it: "POST /orders".
    #[arg(long, value_name = "OPERATION")]
    operation: String,

    /// The key.
    #[arg(long, value_name = "KEY")]
    key: String,

    /// Who decides; it is kept with the key.
    #[arg(long, value_name = "NAME", env = "USER")]
    actor: String,
}

/// A line of the list.
#[derive(Debug, Serialize)]
struct Line {
    scope: String,
    operation: String,
    key: String,
    attempt: u32,
    claimed_at: String,
    lease_until: String,
}

/// What was decided.
#[derive(Debug, Serialize)]
struct Decided {
    action: &'static str,
    key: String,
}

/// One thing to do with the tables of a database.
enum Act {
    List(NonZeroU32),
    Decide(Box<KeyId>, Decision, String),
}

enum Done {
    Listed(Vec<StuckKey>),
    Decided(bool),
}

impl Keys {
    pub(crate) async fn execute(self, format: Format) -> Result<Exit, Failure> {
        match self {
            Self::List(List { place, limit }) => {
                let Done::Listed(stuck) = place.act(Act::List(limit)).await? else {
                    return Ok(Exit::Success);
                };
                let lines: Vec<Line> = stuck.iter().map(Line::of).collect();
                format.print(&lines, |lines| shown(lines))?;
                Ok(Exit::Success)
            }
            Self::Release(decide) => decide.execute(Decision::Release, "released", format).await,
            Self::Discard(decide) => decide.execute(Decision::Discard, "discarded", format).await,
        }
    }
}

impl Decide {
    async fn execute(
        self,
        decision: Decision,
        action: &'static str,
        format: Format,
    ) -> Result<Exit, Failure> {
        let id = KeyId::of_texts(&self.scope, &self.operation, &self.key)
            .map_err(|error| Failure::new(Exit::Usage, error))?;
        let key = id.to_string();
        let done = self.place.act(Act::Decide(Box::new(id), decision, self.actor)).await?;
        if matches!(done, Done::Decided(false)) {
            let help = "`relay keys list` shows the keys that are; one whose lease has not expired may still complete";
            return Err(Failure::with_help(Exit::Usage, format_args!("not stuck: {key}"), help));
        }
        format.print(&Decided { action, key }, |decided| format!("{}: {}", decided.action, decided.key))?;
        Ok(Exit::Success)
    }
}

impl Place {
    async fn act(&self, act: Act) -> Result<Done, Failure> {
        let (url, options) = match &self.database {
            Some(url) => {
                let options = LogOptions::default().allow_plaintext(self.allow_plaintext);
                (SecretString::from(url.as_str()), options)
            }
            None => {
                let pipeline = self.pipeline.read()?;
                (pipeline.database.url()?, pipeline.database.options().clone())
            }
        };
        let schema = self.schema.clone().or_else(|| options.schema.clone());
        let url = url.expose_secret();
        let invalid = |error| Failure::from(LogError::from(error));
        match Database::check(url, &options).map_err(invalid)? {
            Dialect::Postgres => {
                let connect = postgres_options(url, options.allow_plaintext).map_err(invalid)?;
                run::<Postgres>(connect.application_name("relay keys"), schema, act).await
            }
            Dialect::Sqlite => run::<Sqlite>(sqlite_options(url).map_err(invalid)?, schema, act).await,
        }
    }
}

async fn run<DB: Store + outbox::Dialect>(
    options: <DB::Connection as Connection>::Options,
    schema: Option<Identifier>,
    act: Act,
) -> Result<Done, Failure> {
    let pool = outbox::pool_options::<DB>().max_connections(1).connect_lazy_with(options);
    let keys = IdempotencyKeys::open(pool.clone(), KeyOptions { schema, ..KeyOptions::default() }).await;
    let keys = keys.map_err(|error| match error {
        ClaimError::Schema(error) => Failure::from(error),
        error => Failure::new(exit_of(error.fault()), told(&error)),
    })?;
    let refused = |error: StoreError| Failure::new(exit_of(error.fault()), told(&error));
    let done = match act {
        Act::List(limit) => Done::Listed(keys.stuck(limit).await.map_err(refused)?),
        Act::Decide(id, decision, actor) => {
            Done::Decided(keys.decide(&id, decision, &actor).await.map_err(refused)?)
        }
    };
    pool.close().await;
    Ok(done)
}

/// With what the database said.
fn told(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

impl Line {
    fn of(stuck: &StuckKey) -> Self {
        let StuckKey { id, attempt, claimed_at, lease_until } = stuck;
        let rfc3339 = |at: &time::OffsetDateTime| {
            at.format(&time::format_description::well_known::Rfc3339).unwrap_or_else(|_| at.to_string())
        };
        Self {
            scope: id.scope().to_string(),
            operation: id.operation().to_string(),
            key: id.key().to_string(),
            attempt: *attempt,
            claimed_at: rfc3339(claimed_at),
            lease_until: rfc3339(lease_until),
        }
    }
}

fn shown(lines: &[Line]) -> String {
    if lines.is_empty() {
        return String::from("no key is stuck");
    }
    let rows = lines.iter().map(|line| {
        let Line { scope, operation, key, attempt, claimed_at, lease_until } = line;
        [scope, operation, key, &attempt.to_string(), claimed_at, lease_until].map(Clone::clone)
    });
    table(["scope", "operation", "key", "attempt", "claimed", "lease until"], rows)
}
