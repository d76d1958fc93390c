//! `relay keys`: idempotency keys whose holder is gone, and what becomes of them.

use std::num::NonZeroU32;

use clap::{Args, Subcommand};
use inbox::keys::{ClaimError, Decision, IdempotencyKeys, KeyId, KeyOptions, StuckKey};
use inbox::{Dialect as Store, StoreError};
use migrations::Identifier;
use serde::Serialize;
#[cfg(feature = "postgres")]
use sqlx::Postgres;
use sqlx::{Connection, Sqlite};

use super::database::{ConnectOptions, TablesDatabase};
use super::exit::Exit;
use super::failure::{Failure, exit_of, told};
use super::output::{Format, table};

/// Actions on keys whose lease has expired.
#[derive(Debug, Subcommand)]
pub enum Keys {
    /// List keys whose lease has expired and which nobody has taken over, the longest first.
    List(List),
    /// Let the next request with the key run again.
    Release(Decide),
    /// Give the request up: it never runs, and whoever sends the key is told so.
    Discard(Decide),
}

/// The arguments of `relay keys list`.
#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    place: TablesDatabase,

    /// At most so many.
    #[arg(long, value_name = "COUNT", default_value = "100")]
    limit: NonZeroU32,
}

/// Which key, and who decides.
#[derive(Debug, Args)]
pub struct Decide {
    #[command(flatten)]
    place: TablesDatabase,

    /// Whose key: tenant or account.
    #[arg(long, value_name = "SCOPE")]
    scope: String,

    /// The operation that was asked for, as the list shows it: "POST /orders".
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

/// The result of a decision.
#[derive(Debug, Serialize)]
struct Decided {
    action: &'static str,
    key: String,
}

/// The keys of one database, and its pool.
enum Opened {
    #[cfg(feature = "postgres")]
    Postgres(IdempotencyKeys<Postgres>),
    Sqlite(IdempotencyKeys<Sqlite>),
}

impl Keys {
    pub(crate) async fn execute(self, format: Format) -> Result<Exit, Failure> {
        match self {
            Self::List(List { place, limit }) => {
                let keys = Opened::of(&place).await?;
                let stuck = keys.stuck(limit).await?;
                keys.close().await;
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
        let keys = Opened::of(&self.place).await?;
        let was_stuck = keys.decide(&id, decision, &self.actor).await?;
        keys.close().await;
        if !was_stuck {
            let help = "`relay keys list` shows the keys that are; one whose lease has not expired may still complete";
            return Err(Failure::with_help(Exit::Usage, format_args!("not stuck: {key}"), help));
        }
        format.print(&Decided { action, key }, |decided| format!("{}: {}", decided.action, decided.key))?;
        Ok(Exit::Success)
    }
}

impl Opened {
    async fn of(database: &TablesDatabase) -> Result<Self, Failure> {
        let goal = database.goal()?;
        let schema = goal.options.schema.clone();
        Ok(match goal.connect_options("relay keys")? {
            #[cfg(feature = "postgres")]
            ConnectOptions::Postgres(options) => Self::Postgres(open(options, schema).await?),
            ConnectOptions::Sqlite(options) => Self::Sqlite(open(options, schema).await?),
        })
    }
}

async fn open<DB: Store + outbox::Dialect>(
    options: <DB::Connection as Connection>::Options,
    schema: Option<Identifier>,
) -> Result<IdempotencyKeys<DB>, Failure> {
    let pool = outbox::pool_options::<DB>().max_connections(1).connect_lazy_with(options);
    let keys = IdempotencyKeys::open(pool, KeyOptions { schema, ..KeyOptions::default() }).await;
    keys.map_err(|error| match error {
        ClaimError::Schema(error) => Failure::from(error),
        error => Failure::new(exit_of(error.fault()), told(&error)),
    })
}

impl Opened {
    async fn stuck(&self, limit: NonZeroU32) -> Result<Vec<StuckKey>, Failure> {
        let stuck = match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(keys) => keys.stuck(limit).await,
            Self::Sqlite(keys) => keys.stuck(limit).await,
        };
        stuck.map_err(refused)
    }

    async fn decide(&self, id: &KeyId, decision: Decision, actor: &str) -> Result<bool, Failure> {
        let was_stuck = match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(keys) => keys.decide(id, decision, actor).await,
            Self::Sqlite(keys) => keys.decide(id, decision, actor).await,
        };
        was_stuck.map_err(refused)
    }

    async fn close(self) {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(keys) => keys.pool().close().await,
            Self::Sqlite(keys) => keys.pool().close().await,
        }
    }
}

fn refused(error: StoreError) -> Failure {
    Failure::new(exit_of(error.fault()), told(&error))
}

impl Line {
    fn of(stuck: &StuckKey) -> Self {
        let StuckKey { id, attempt, claimed_at, lease_until, .. } = stuck;
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
