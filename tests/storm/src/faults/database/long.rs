//! A transaction that stays open. It holds a transaction id, and with it the horizon of every
//! snapshot.

use async_trait::async_trait;
use rand::Rng as _;
use rand::rngs::StdRng;
use sqlx::postgres::PgConnection;

use super::session;
use crate::Failure;
use crate::faults::{Fault, FaultKind, Injected, seconds};
use crate::stage::Stage;

/// A fault that leaves a session idle in a transaction, in the producers' or the consumers'
/// database.
#[derive(Debug, Default)]
pub struct LongTransaction {
    idle: Option<PgConnection>,
}

#[async_trait]
impl Fault<Stage> for LongTransaction {
    fn kind(&self) -> FaultKind {
        FaultKind::new("long-transaction").lasts(seconds(10)..=seconds(60))
    }

    async fn inject(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Injected, Failure> {
        let (url, database) = if rng.random() {
            (&stage.database.producers, "producers' database")
        } else {
            (&stage.database.consumers, "consumers' database")
        };
        let idle = self.idle.insert(session::connect(url).await?);
        session::run(idle, "BEGIN ISOLATION LEVEL REPEATABLE READ".to_owned()).await?;
        let id: String =
            sqlx::query_scalar("SELECT pg_current_xact_id()::text").fetch_one(&mut *idle).await?;
        Ok(Injected::new(database, format!("transaction {id}")))
    }

    async fn heal(&mut self, _stage: &Stage) -> Result<(), Failure> {
        if let Some(idle) = self.idle.take() {
            session::end(idle).await;
        }
        Ok(())
    }
}
