//! `relay keys`: idempotency keys whose holder is gone, and what becomes of them.

use std::num::NonZeroU32;

use clap::{Args, Subcommand};
use inbox::keys::{Decision, KeyId};
use serde::Serialize;

use super::database::TablesDatabase;
use super::dead::viewer;
use super::exit::Exit;
use super::failure::Failure;
use super::output::{Format, table};
use crate::operate::keys::{self, KeyLine};
use crate::operate::{Operator, Role};

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

/// The result of a decision.
#[derive(Debug, Serialize)]
struct Decided {
    action: &'static str,
    key: String,
}

impl Keys {
    pub(crate) async fn execute(self, format: Format) -> Result<Exit, Failure> {
        match self {
            Self::List(List { place, limit }) => {
                let lines = keys::stuck(&place.goal()?, &viewer(), limit).await?;
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
        let operator = Operator::new(self.actor, Role::Operator);
        keys::decide(&self.place.goal()?, &operator, &id, decision).await?;
        format.print(&Decided { action, key }, |decided| format!("{}: {}", decided.action, decided.key))?;
        Ok(Exit::Success)
    }
}

fn shown(lines: &[KeyLine]) -> String {
    if lines.is_empty() {
        return String::from("no key is stuck");
    }
    let rows = lines.iter().map(|line| {
        let KeyLine { scope, operation, key, attempt, claimed_at, lease_until } = line;
        [scope, operation, key, &attempt.to_string(), claimed_at, lease_until].map(Clone::clone)
    });
    table(["scope", "operation", "key", "attempt", "claimed", "lease until"], rows)
}
