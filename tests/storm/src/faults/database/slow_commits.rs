//! Slow commits, as on a busy disk. Every commit waits before it is flushed.

use std::ops::RangeInclusive;

use async_trait::async_trait;
use rand::Rng as _;
use rand::rngs::StdRng;

use super::session;
use crate::Failure;
use crate::faults::{Fault, FaultKind, Injected, seconds};
use crate::stage::Stage;

/// A fault that sets `commit_delay` of both databases for new sessions, and ends the current
/// sessions, so that clients open new ones. `commit_siblings` is 0, so a commit waits even when it
/// is alone.
#[derive(Debug, Default)]
pub struct SlowCommits {
    slowed: bool,
}

/// Delay of a commit, in milliseconds.
const DELAY: RangeInclusive<u32> = 10..=20;

#[async_trait]
impl Fault<Stage> for SlowCommits {
    fn kind(&self) -> FaultKind {
        FaultKind::new("slow-commits").lasts(seconds(5)..=seconds(30))
    }

    async fn inject(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Injected, Failure> {
        let delay = rng.random_range(DELAY);
        self.slowed = true;
        let micros = delay * 1_000;
        set(stage, &[format!("SET commit_delay = {micros}"), "SET commit_siblings = 0".to_owned()]).await?;
        Ok(Injected::new("commits", format!("{delay} ms each")))
    }

    async fn heal(&mut self, stage: &Stage) -> Result<(), Failure> {
        if self.slowed {
            set(stage, &["RESET commit_delay".to_owned(), "RESET commit_siblings".to_owned()]).await?;
            self.slowed = false;
        }
        Ok(())
    }
}

/// Changes settings of both databases, and ends their sessions, except those of faults.
async fn set(stage: &Stage, changes: &[String]) -> Result<(), Failure> {
    for url in [&stage.database.producers, &stage.database.consumers] {
        let mut session = session::connect(url).await?;
        let database: String =
            sqlx::query_scalar("SELECT quote_ident(current_database())").fetch_one(&mut session).await?;
        for change in changes {
            session::run(&mut session, format!("ALTER DATABASE {database} {change}")).await?;
        }
        let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() \
                   AND backend_type = 'client backend' AND application_name <> $1";
        sqlx::query(end).bind(session::APPLICATION).execute(&mut session).await?;
        session::end(session).await;
    }
    Ok(())
}
