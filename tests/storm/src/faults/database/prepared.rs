//! A prepared transaction that waits for its decision, as in a two-phase commit. Its rows are
//! stored but invisible, it keeps its locks, and it survives a crash of the server.

use async_trait::async_trait;
use checker::Outcome;
use rand::Rng as _;
use rand::rngs::StdRng;
use sqlx::postgres::PgPoolOptions;
use uuid::Uuid;

use super::session;
use crate::Failure;
use crate::clock;
use crate::faults::{Fault, FaultKind, Injected, seconds};
use crate::journal::{Journal, Step};
use crate::load::Preparation;
use crate::stage::Stage;

/// The file in the storm's folder that records its operations, beside those of producers.
pub const JOURNAL: &str = "prepared.journal";

/// A fault that prepares an operation of a producer, and finally commits it or rolls it back.
#[derive(Debug, Default)]
pub struct Prepared {
    waiting: Option<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    operation: Uuid,
    commits: bool,
    /// Whether the decision was sent to the server at least once.
    decided: bool,
}

impl Waiting {
    fn name(&self) -> String {
        format!("storm-{}", self.operation)
    }
}

#[async_trait]
impl Fault<Stage> for Prepared {
    fn kind(&self) -> FaultKind {
        FaultKind::new("prepared-transaction").lasts(seconds(1)..=seconds(20))
    }

    async fn inject(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Injected, Failure> {
        let topic = &stage.broker.topics.first().ok_or("there is no topic")?.name;
        let preparation = Preparation::random(rng, stage.database.accounts);
        let operation = preparation.operation();
        let waiting =
            self.waiting.insert(Waiting { operation, commits: rng.random_bool(0.7), decided: false });
        let journal = Journal::open(&stage.folder.join(JOURNAL))?;
        journal.write(&[Step::Begun { operation, at: clock::now() }])?;
        let options = session::options(&stage.database.producers)?;
        let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
        let note = |sent| journal.write(&[Step::Sent { operation, sent }]);
        preparation.prepare(&pool, &waiting.name(), topic, &stage.folder, note).await?;
        pool.close().await;
        let decision = if waiting.commits { "commits" } else { "rolls back" };
        Ok(Injected::new("account", format!("{} messages, {decision}", preparation.messages())))
    }

    async fn heal(&mut self, stage: &Stage) -> Result<(), Failure> {
        let Some(waiting) = &mut self.waiting else { return Ok(()) };
        let mut session = session::connect(&stage.database.producers).await?;
        let is_prepared: bool =
            sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_prepared_xacts WHERE gid = $1)")
                .bind(waiting.name())
                .fetch_one(&mut session)
                .await?;
        if is_prepared {
            waiting.decided = true;
            let verb = if waiting.commits { "COMMIT" } else { "ROLLBACK" };
            session::run(&mut session, format!("{verb} PREPARED '{}'", waiting.name())).await?;
        }
        session::end(session).await;
        // Only this fault decides. A transaction that no longer exists was decided here, or was
        // never prepared.
        let happened = waiting.decided && waiting.commits;
        let outcome = if happened { Outcome::Ok } else { Outcome::Failed };
        let (operation, at, detail) = (waiting.operation, clock::now(), String::new());
        Journal::open(&stage.folder.join(JOURNAL))?.write(&[Step::Ended {
            operation,
            at,
            outcome,
            detail,
        }])?;
        self.waiting = None;
        Ok(())
    }
}
