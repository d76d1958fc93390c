//! `relay keys`: idempotency keys whose holder has disappeared, and decisions about them.

use std::num::NonZeroU32;

use clap::{Args, Subcommand};
use idempotency::{Action, KeyId};
use operate::keys::{self, DecidedLine, KeyLine};
use operate::seconds;
use serde::Serialize;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

use super::database::TablesDatabase;
use super::exit::Exit;
use super::failure::Failure;
use super::operator::viewer;
use super::output::{Format, Table, one_line};
use super::progress::during;
use super::signature::Signature;

/// Actions on keys whose lease has expired.
#[derive(Debug, Subcommand)]
pub enum Keys {
    /// List keys whose lease has expired and that no request has taken over, starting with the
    /// longest expired.
    List(List),
    /// Let the next request with the key run again.
    Release(Decide),
    /// Discard the request: it never runs again, and clients that send the key get an error.
    Discard(Decide),
    /// List decisions, latest first.
    Audit(List),
}

/// The arguments of `relay keys list` and `audit`.
#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    place: TablesDatabase,

    /// Maximum number of lines.
    #[arg(long, value_name = "COUNT", default_value = "100")]
    limit: NonZeroU32,
}

/// A key, and who decides.
#[derive(Debug, Args)]
pub struct Decide {
    #[command(flatten)]
    place: TablesDatabase,

    /// The scope of the key: tenant or account.
    #[arg(long, value_name = "SCOPE")]
    scope: String,

    /// The operation as shown in the list, for example "POST /orders".
    #[arg(long, value_name = "OPERATION")]
    operation: String,

    /// The key.
    #[arg(long, value_name = "KEY")]
    key: String,

    /// Decide only if this was its last holder, as the list shows. Without it, the decision also
    /// applies to a later holder that claimed the key after the list was printed and has
    /// disappeared as well.
    #[arg(long, value_name = "ID")]
    holder: Option<Uuid>,

    #[command(flatten)]
    signature: Signature,
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
                let lines = during("looking", keys::stuck(&place.goal()?, &viewer(), limit)).await?;
                format.print(&lines, |lines| shown(lines))?;
                Ok(Exit::Success)
            }
            Self::Release(decide) => decide.execute(Action::Release, "released", format).await,
            Self::Discard(decide) => decide.execute(Action::Discard, "discarded", format).await,
            Self::Audit(List { place, limit }) => {
                let goal = place.goal()?;
                let decisions = during("reading", keys::decisions(&goal, &viewer(), i64::MAX, limit)).await?;
                let lines: Vec<DecidedLine> = decisions.into_iter().map(DecidedLine::from).collect();
                format.print(&lines, |lines| audited(lines))?;
                Ok(Exit::Success)
            }
        }
    }
}

impl Decide {
    async fn execute(self, chosen: Action, action: &'static str, format: Format) -> Result<Exit, Failure> {
        let signed = self.signature.signed()?;
        let id = KeyId::of_texts(&self.scope, &self.operation, &self.key)
            .map_err(|error| Failure::new(Exit::Usage, error))?;
        let key = id.to_string();
        let goal = self.place.goal()?;
        during("deciding", keys::decide(&goal, &signed, &id, self.holder, chosen)).await?;
        let decided = Decided { action, key };
        format.print(&decided, |decided| format!("{}: {}", decided.action, one_line(&decided.key)))?;
        Ok(Exit::Success)
    }
}

fn shown(lines: &[KeyLine]) -> String {
    if lines.is_empty() {
        return String::from("no key is stuck");
    }
    let rows = lines.iter().map(|line| {
        let KeyLine { scope, operation, key, attempt, claimed_at, lease_until, holder } = line;
        let attempt = attempt.to_string();
        let holder = holder.to_string();
        let claimed = seconds::text(*claimed_at);
        let until = seconds::text(*lease_until);
        [scope, operation, key, &attempt, &claimed, &until, &holder].map(Clone::clone)
    });
    let headers = ["scope", "operation", "key", "attempt", "claimed", "lease until", "holder"];
    Table::new(headers, rows).optional(&["attempt", "claimed", "holder"]).shown()
}

fn audited(lines: &[DecidedLine]) -> String {
    if lines.is_empty() {
        return String::from("no decisions");
    }
    let rows = lines.iter().map(|line| {
        let DecidedLine { at, actor, action, scope, operation, key, note } = line;
        let at = at.format(&Rfc3339).unwrap_or_else(|_| at.to_string());
        [at.as_str(), actor, action, scope, operation, key, note].map(ToOwned::to_owned)
    });
    Table::new(["at", "actor", "action", "scope", "operation", "key", "note"], rows).cut("note").shown()
}
