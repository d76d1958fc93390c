//! Ends sessions and statements from outside, as operators and failovers do.

use async_trait::async_trait;
use rand::Rng as _;
use rand::rngs::StdRng;

use super::session;
use crate::Failure;
use crate::faults::{Fault, FaultKind, Injected};
use crate::stage::Stage;

/// A fault that ends a part of the sessions (`pg_terminate_backend`).
#[derive(Debug)]
pub struct Terminated;

#[async_trait]
impl Fault<Stage> for Terminated {
    fn kind(&self) -> FaultKind {
        FaultKind::new("backends-terminated")
    }

    async fn inject(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Injected, Failure> {
        let ended = hit(stage, rng, "pg_terminate_backend(pid)").await?;
        Ok(Injected::new("sessions", format!("{ended} ended")))
    }
}

/// A fault that cancels a part of the running statements (`pg_cancel_backend`).
#[derive(Debug)]
pub struct Cancelled;

#[async_trait]
impl Fault<Stage> for Cancelled {
    fn kind(&self) -> FaultKind {
        FaultKind::new("statements-cancelled")
    }

    async fn inject(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Injected, Failure> {
        let cancelled = hit(stage, rng, "state <> 'idle' AND pg_cancel_backend(pid)").await?;
        Ok(Injected::new("statements", format!("{cancelled} cancelled")))
    }
}

/// Applies this expression to a random part of the sessions in the storm's databases, except those
/// of faults. Returns the number of sessions for which it was true.
async fn hit(stage: &Stage, rng: &mut StdRng, what: &'static str) -> Result<usize, Failure> {
    let share = f64::from(rng.random_range(2..=10_u8)) / 10.0;
    let mut hit = 0;
    for url in [&stage.database.producers, &stage.database.consumers] {
        let mut session = session::connect(url).await?;
        let sql = format!(
            "SELECT count(*) FILTER (WHERE {what}) FROM (SELECT pid, state FROM pg_stat_activity \
             WHERE datname = current_database() AND backend_type = 'client backend' \
             AND application_name <> $1 AND random() < $2) AS chosen"
        );
        let count: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
            .bind(session::APPLICATION)
            .bind(share)
            .fetch_one(&mut session)
            .await?;
        hit += usize::try_from(count).unwrap_or(0);
        session::end(session).await;
    }
    Ok(hit)
}
