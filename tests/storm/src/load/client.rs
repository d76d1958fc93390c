//! Carries out operations and records the answers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use checker::Outcome;
use outbox::{CommitError, CommitOutcome, EnqueueError, Outbox, OutboxTransaction, TransactionError};
use rand::SeedableRng;
use rand::rngs::StdRng;
use sqlx::{Pool, Postgres, Sqlite};
use time::OffsetDateTime;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::cancel;
use super::settle_in::SettleIn;
use super::shape::{Ending, PRODUCER_BYTES_MAX, Path, Shape};
use super::work::{Given, Tx, WorkError, work};
use crate::Failure;
use crate::backpressure;
use crate::clock;
use crate::journal::{Journal, Sent, Step};
use crate::process;

/// The task of a producer process.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct ProducerTask {
    /// The database of the outbox.
    pub database: String,
    /// The destinations of messages.
    pub topics: Topics,
    /// Number of accounts.
    pub accounts: u32,
    /// Average pause between two operations of one worker.
    pub pause: Duration,
    /// The time at which the storm began, in seconds since 1970.
    pub began: i64,
    /// The storm's folder.
    pub folder: PathBuf,
    /// The journal of the producer's operations.
    pub journal: PathBuf,
}

/// The destinations of messages.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct Topics {
    /// The topic that consumers read.
    pub main: String,
    /// A topic that does not exist.
    pub nowhere: String,
}

/// Number of concurrent operations.
const WORKERS: usize = 4;
/// Timeout for a connection from the pool.
const ACQUIRE: Duration = Duration::from_secs(5);
/// Timeout of an operation, after which its outcome is unknown.
const PATIENCE: Duration = Duration::from_secs(45);

/// Runs a producer until it is stopped.
///
/// # Errors
/// The task cannot be used.
pub async fn run(task: ProducerTask) -> Result<(), Failure> {
    match outbox::connect::dialect_of(&task.database)? {
        migrations::Dialect::Postgres => {
            let options = outbox::connect::postgres_options(&task.database, false)?;
            let pool = outbox::pool_options::<Postgres>().acquire_timeout(ACQUIRE).connect_lazy_with(options);
            produce(pool, task).await
        }
        migrations::Dialect::Sqlite => {
            let options = outbox::connect::sqlite_options(&task.database)?;
            let pool = outbox::pool_options::<Sqlite>().acquire_timeout(ACQUIRE).connect_lazy_with(options);
            produce(pool, task).await
        }
    }
}

async fn produce<DB: SettleIn>(pool: Pool<DB>, task: ProducerTask) -> Result<(), Failure> {
    let limit = message::SizeLimit { destination: "the storm", message_bytes_max: PRODUCER_BYTES_MAX };
    let retry = outbox::RetryPolicy::default().resolve_timeout(Duration::from_secs(15));
    let client = Arc::new(Client {
        outbox: Outbox::builder().limit(limit).retry(retry).build(),
        pool,
        journal: Journal::open(&task.journal)?,
        given: Given {
            topics: task.topics.clone(),
            folder: task.folder.clone(),
            began: OffsetDateTime::from_unix_timestamp(task.began)?,
            numbers: None,
        },
        accounts: task.accounts,
    });
    let stop = process::stop_on_signals()?;
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        workers.spawn(Arc::clone(&client).work_until(stop.clone(), task.pause));
    }
    while let Some(ended) = workers.join_next().await {
        ended??;
    }
    Ok(())
}

/// The connections of one producer, and its journal.
pub(super) struct Client<DB: SettleIn> {
    pub(super) outbox: Outbox<DB>,
    pub(super) pool: Pool<DB>,
    pub(super) journal: Journal,
    pub(super) given: Given,
    accounts: u32,
}

/// The answer that a client got, with its request.
pub(super) struct Told {
    outcome: Outcome,
    detail: String,
    sent: Option<Sent>,
}

impl Told {
    fn failed(why: impl std::fmt::Display) -> Self {
        Self { outcome: Outcome::Failed, detail: why.to_string(), sent: None }
    }

    fn unknown(why: impl std::fmt::Display) -> Self {
        Self { outcome: Outcome::Unknown, ..Self::failed(why) }
    }

    fn done(sent: Sent) -> Self {
        Self { outcome: Outcome::Ok, detail: String::new(), sent: Some(sent) }
    }
}

impl<DB: SettleIn> Client<DB> {
    async fn work_until(self: Arc<Self>, stop: CancellationToken, pause: Duration) -> Result<(), Failure> {
        // Every start of a process produces other operations.
        let mut rng = StdRng::from_os_rng();
        while !stop.is_cancelled() {
            tokio::select! {
                () = backpressure::obey(&self.given.folder) => {}
                () = stop.cancelled() => break,
            }
            let shape = Shape::random(&mut rng, self.accounts);
            self.operate(&shape).await?;
            let pause = pause.mul_f64(rand::Rng::random_range(&mut rng, 0.2..1.8));
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => {}
            }
        }
        Ok(())
    }

    async fn operate(self: &Arc<Self>, shape: &Shape) -> Result<(), Failure> {
        let operation = shape.operation;
        self.journal.write(&[Step::Begun { operation, at: clock::now() }])?;
        let limit = match shape.ending {
            Ending::Vanish(millis) => Duration::from_millis(millis),
            Ending::Commit | Ending::RollBack => PATIENCE,
        };
        // A client that has cancelled gets no answer to record.
        let Some(told) = cancel::within(limit, self.attempt(shape, &self.given)).await else { return Ok(()) };
        self.ended(operation, &told)?;
        if let (Outcome::Ok, Some(sent), true) = (told.outcome, &told.sent, shape.is_repeatable()) {
            self.repeat(shape, sent).await?;
        }
        Ok(())
    }

    fn ended(&self, operation: Uuid, told: &Told) -> std::io::Result<()> {
        let Told { outcome, detail, .. } = told;
        let (outcome, detail) = (*outcome, detail.clone());
        self.journal.write(&[Step::Ended { operation, at: clock::now(), outcome, detail }])
    }

    /// Repeats an operation with the same ids. Only a success adds information: a failed repetition
    /// changes nothing.
    async fn repeat(self: &Arc<Self>, shape: &Shape, sent: &Sent) -> Result<(), Failure> {
        let operation = Uuid::new_v4();
        let numbers = sent.messages.iter().map(|message| message.seq.unwrap_or_default()).collect();
        let given = Given { numbers: Some(numbers), ..self.given.clone() };
        let at = clock::now();
        let again = Shape { operation, ..shape.clone() };
        let Some(told) = cancel::within(PATIENCE, self.attempt(&again, &given)).await else { return Ok(()) };
        if let (Outcome::Ok, Some(sent)) = (told.outcome, &told.sent) {
            let sent = sent.clone();
            self.journal.write(&[Step::Begun { operation, at }, Step::Sent { operation, sent }])?;
            self.ended(operation, &told)?;
        }
        Ok(())
    }

    async fn attempt(self: &Arc<Self>, shape: &Shape, given: &Given) -> Told {
        match shape.path {
            Path::Run => self.run_to_the_end(shape, given).await,
            Path::Guarded => self.guarded(shape, given).await.unwrap_or_else(|told| told),
            Path::Raw => self.raw(shape, given).await.unwrap_or_else(|told| told),
        }
    }

    /// Runs the statements, and records them before anything can commit.
    async fn write(&self, tx: Tx<'_, DB>, shape: &Shape, given: &Given) -> Result<Sent, WorkError> {
        let sent = work(tx, shape, given).await?;
        // A repetition writes nothing that was not recorded the first time.
        if given.numbers.is_none() {
            self.journal.write(&[Step::Sent { operation: shape.operation, sent: sent.clone() }])?;
        }
        match shape.ending {
            Ending::RollBack => Err(WorkError::OnPurpose),
            Ending::Commit | Ending::Vanish(_) => Ok(sent),
        }
    }

    async fn run_to_the_end(self: &Arc<Self>, shape: &Shape, given: &Given) -> Told {
        let (client, shape, given) = (Arc::clone(self), shape.clone(), given.clone());
        let done = self.outbox.transaction(&self.pool, async move |tx: &mut OutboxTransaction<DB>| {
            client.write(Tx::Guarded(tx), &shape, &given).await
        });
        match done.await {
            Ok(sent) => Told::done(sent),
            Err(error @ TransactionError::Unknown { .. }) => Told::unknown(error),
            Err(error) => Told::failed(causes(&error)),
        }
    }

    async fn guarded(&self, shape: &Shape, given: &Given) -> Result<Told, Told> {
        let mut tx = self.outbox.begin(&self.pool).await.map_err(Told::failed)?;
        let sent = match self.write(Tx::Guarded(&mut tx), shape, given).await {
            Ok(sent) => sent,
            Err(error) => {
                let told = Told::failed(causes(&error));
                // The transaction is rolled back in any case, at the latest when the connection
                // ends.
                let _ = tx.rollback().await;
                return Err(told);
            }
        };
        match tx.commit().await {
            Ok(()) => Ok(Told::done(sent)),
            Err(CommitError::Unknown { commit, source }) => {
                Ok(match self.outbox.resolve(&self.pool, &commit).await {
                    Ok(CommitOutcome::Committed) => Told::done(sent),
                    Ok(CommitOutcome::NotCommitted) => Told::failed(source),
                    Ok(CommitOutcome::Unrecognisable) => Told::unknown(source),
                    Err(error) => Told::unknown(error),
                })
            }
            Err(error) => Err(Told::failed(causes(&error))),
        }
    }

    async fn raw(&self, shape: &Shape, given: &Given) -> Result<Told, Told> {
        let mut tx =
            <DB as migrations::Backend>::begin_marked(self.pool.acquire().await.map_err(Told::failed)?)
                .await
                .map_err(Told::failed)?;
        let sent = match self.write(Tx::Raw(&mut tx, &self.outbox), shape, given).await {
            Ok(sent) => sent,
            Err(error) => {
                let told = Told::failed(causes(&error));
                let _ = tx.rollback().await;
                return Err(told);
            }
        };
        // A client knows only this much about its own commit: a refusal is a failure, a lost answer
        // proves nothing.
        match tx.commit().await {
            Ok(()) => {
                self.outbox.wake_up().wake();
                Ok(Told::done(sent))
            }
            Err(error) => {
                let refused = EnqueueError::from(error);
                Err(if refused.is_retryable() {
                    Told::failed(causes(&refused))
                } else {
                    Told::unknown(causes(&refused))
                })
            }
        }
    }
}

/// Returns an error with all its causes.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}
