//! Rows and tables that are locked for a while. Producers reach their `lock_timeout`, and all other
//! clients wait.

use async_trait::async_trait;
use rand::Rng as _;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, IteratorRandom as _};
use sqlx::postgres::PgConnection;

use super::session;
use crate::Failure;
use crate::faults::{Fault, FaultKind, Injected, seconds};
use crate::stage::{Database, Stage};

/// A fault that locks some accounts in a session.
#[derive(Debug, Default)]
pub struct RowLocks {
    holder: Option<PgConnection>,
}

#[async_trait]
impl Fault<Stage> for RowLocks {
    fn kind(&self) -> FaultKind {
        FaultKind::new("row-locks").lasts(seconds(1)..=seconds(6))
    }

    async fn inject(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Injected, Failure> {
        let accounts = stage.database.accounts;
        let count = rng.random_range(1..=accounts.max(2) / 2);
        // In ascending order, in which producers lock, so that there is no deadlock.
        let mut chosen = (0..accounts).choose_multiple(rng, count as usize);
        chosen.sort_unstable();
        let holder = self.holder.insert(session::connect(&stage.database.producers).await?);
        session::run(holder, "BEGIN".to_owned()).await?;
        let mut held = 0;
        for account in chosen {
            let locked = sqlx::query("SELECT FROM account WHERE name = $1 FOR UPDATE");
            held += locked.bind(Database::account(account)).execute(&mut *holder).await?.rows_affected();
        }
        Ok(Injected::new("account", format!("{held} rows")))
    }

    async fn heal(&mut self, _stage: &Stage) -> Result<(), Failure> {
        if let Some(holder) = self.holder.take() {
            session::end(holder).await;
        }
        Ok(())
    }
}

/// Tables of the producers' and the consumers' database, and locks that block writers, or readers
/// as well.
const PRODUCERS: [&str; 4] = ["account", "outbox_message", "outbox_relay", "outbox_exception"];
const CONSUMERS: [&str; 3] = ["inbox_message", "inbox_attempt", "inbox_dead_letter"];
const MODES: [&str; 2] = ["SHARE ROW EXCLUSIVE", "ACCESS EXCLUSIVE"];

/// A fault that locks a table in a session.
#[derive(Debug, Default)]
pub struct TableLock {
    holder: Option<PgConnection>,
}

#[async_trait]
impl Fault<Stage> for TableLock {
    fn kind(&self) -> FaultKind {
        FaultKind::new("table-lock").lasts(seconds(1)..=seconds(6))
    }

    async fn inject(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Injected, Failure> {
        let (url, tables): (_, &[&str]) = if rng.random() {
            (&stage.database.producers, &PRODUCERS)
        } else {
            (&stage.database.consumers, &CONSUMERS)
        };
        let table = tables.choose(rng).ok_or("no table")?;
        let mode = MODES.choose(rng).ok_or("no mode")?;
        let holder = self.holder.insert(session::connect(url).await?);
        session::run(holder, format!("BEGIN; LOCK TABLE {table} IN {mode} MODE")).await?;
        Ok(Injected::new(*table, mode.to_lowercase()))
    }

    async fn heal(&mut self, _stage: &Stage) -> Result<(), Failure> {
        if let Some(holder) = self.holder.take() {
            session::end(holder).await;
        }
        Ok(())
    }
}
