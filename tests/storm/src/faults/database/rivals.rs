//! Sessions that touch the same rows as producers, in the opposite order, or between a producer's
//! read and its write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::seq::IteratorRandom as _;
use rand::{Rng as _, SeedableRng as _};
use sqlx::postgres::PgConnection;
use tokio::task::JoinSet;

use super::session;
use crate::Failure;
use crate::faults::{Fault, FaultKind, Injected, seconds};
use crate::stage::{Database, Stage};

/// Returns the names of a few accounts in descending order, in which producers never lock.
fn descending(accounts: u32, rng: &mut StdRng) -> Vec<String> {
    let mut chosen = (0..accounts).choose_multiple(rng, 3);
    chosen.sort_unstable_by(|a, b| b.cmp(a));
    chosen.into_iter().map(Database::account).collect()
}

/// A fault with sessions that lock accounts in the opposite order. The victim, a producer or a
/// rival, gets 40P01.
#[derive(Debug, Default)]
pub struct Deadlocks {
    rivals: JoinSet<()>,
    met: Arc<AtomicU64>,
}

impl Deadlocks {
    /// Returns how often a rival was the victim. A producer can be the victim as well.
    #[must_use]
    pub fn lost_by_rivals(&self) -> u64 {
        self.met.load(Relaxed)
    }
}

/// Number of concurrent rivals.
const RIVALS: usize = 2;

#[async_trait]
impl Fault<Stage> for Deadlocks {
    fn kind(&self) -> FaultKind {
        FaultKind::new("deadlocks").lasts(seconds(3)..=seconds(8))
    }

    async fn inject(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Injected, Failure> {
        for _ in 0..RIVALS {
            let mut session = session::connect(&stage.database.producers).await?;
            let (accounts, met) = (stage.database.accounts, Arc::clone(&self.met));
            let mut rng = StdRng::seed_from_u64(rng.random());
            self.rivals.spawn(async move {
                loop {
                    let names = descending(accounts, &mut rng);
                    match embrace(&mut session, &names, rng.random_range(5..=60)).await {
                        Ok(()) => {}
                        Err(error) if is(&error, "40P01") => drop(met.fetch_add(1, Relaxed)),
                        // A rival survives a statement that waited too long, but not a lost
                        // session.
                        Err(error) if is(&error, "57014") => {}
                        Err(_) => return,
                    }
                }
            });
        }
        Ok(Injected::new("account", format!("{RIVALS} rivals")))
    }

    async fn heal(&mut self, _stage: &Stage) -> Result<(), Failure> {
        // Stopping a task ends its session.
        self.rivals.shutdown().await;
        Ok(())
    }
}

async fn embrace(session: &mut PgConnection, names: &[String], pause_ms: u64) -> Result<(), sqlx::Error> {
    let mut transaction = sqlx::Connection::begin(session).await?;
    for name in names {
        sqlx::query("SELECT FROM account WHERE name = $1 FOR UPDATE")
            .bind(name)
            .execute(&mut *transaction)
            .await?;
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
    }
    transaction.rollback().await
}

/// A fault with a session that keeps updating accounts without changing them. Transactions at
/// REPEATABLE READ and above that have read such an account get 40001.
#[derive(Debug, Default)]
pub struct Conflicts {
    rivals: JoinSet<()>,
}

#[async_trait]
impl Fault<Stage> for Conflicts {
    fn kind(&self) -> FaultKind {
        FaultKind::new("serialization-failures").lasts(seconds(3)..=seconds(8))
    }

    async fn inject(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Injected, Failure> {
        let mut session = session::connect(&stage.database.producers).await?;
        let accounts = stage.database.accounts.max(1);
        let mut rng = StdRng::seed_from_u64(rng.random());
        self.rivals.spawn(async move {
            loop {
                let updated = sqlx::query("UPDATE account SET name = name WHERE name = $1")
                    .bind(Database::account(rng.random_range(0..accounts)))
                    .execute(&mut session)
                    .await;
                match updated {
                    Ok(_) => {}
                    Err(error) if is(&error, "57014") || is(&error, "40P01") => {}
                    Err(_) => return,
                }
                tokio::time::sleep(Duration::from_millis(rng.random_range(1..=10))).await;
            }
        });
        Ok(Injected::new("account", ""))
    }

    async fn heal(&mut self, _stage: &Stage) -> Result<(), Failure> {
        self.rivals.shutdown().await;
        Ok(())
    }
}

fn is(error: &sqlx::Error, code: &str) -> bool {
    error.as_database_error().and_then(|error| error.code()).is_some_and(|found| found == code)
}
