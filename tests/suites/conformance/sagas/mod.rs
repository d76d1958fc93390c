//! Sagas: starts, steps, calls, undoing, replies, timers, workers, operators.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod bad_input;
mod begun;
mod calls;
mod crashes;
mod erasure;
mod lost_commits;
mod metrics;
mod operators;
mod replies;
mod retention;
mod starts;
mod steps;
mod timers;
mod undoing;
mod workers;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use inbox::Backoff;
use migrations::Template;
use migrations::query::Query;
use outbox::Outbox;
use saga::{
    SagaId, SagaRecord, Sagas, SagasBuilder, Started, State, StepError, StepKey, StepRecord, WorkerOptions,
};
use sqlx::{Postgres, Sqlite};
use tests::{Database, Dialect, Outcome, Role, Stage, eventually};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

tests::cases! {
    modules {
        bad_input, begun, calls, crashes, erasure, lost_commits, metrics, operators, replies, retention,
        starts, steps, timers, undoing, workers,
    }
}

/// The changes that tests make to the tables, in the SQL of each database.
trait Tables: Dialect {
    /// Makes every saga, lease and timer due. Timers come first, as a worker may poll in between.
    /// The rows of sagas are locked before those of their steps, in the order of workers; otherwise
    /// there could be deadlocks.
    const NOW: &str;
    const EFFECTS: &str;
    /// Moves the end of every saga a year back.
    const AGE: &str;
    /// Moves the next run of every saga two days ahead, as a wrong clock would.
    const AHEAD: &str;
    /// Moves the next run of every saga four hours ahead.
    const HOURS_AHEAD: &str;
    /// Writes an effect.
    fn apply(
        connection: &mut Self::Connection,
        what: String,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        let insert = Template::new("INSERT INTO effect (what) VALUES ($1)").render();
        async move { Query::<Self>::new(&insert).bind(&what).run(connection).await.map(drop) }
    }
}

impl Tables for Postgres {
    const NOW: &str = "SELECT FROM saga WHERE wake_at IS NOT NULL ORDER BY type, id FOR NO KEY UPDATE;
        UPDATE saga_step SET due_at = now() - interval '1 second' WHERE due_at IS NOT NULL;
        UPDATE saga SET wake_at = now() - interval '1 second' WHERE wake_at IS NOT NULL";
    const EFFECTS: &str = "CREATE TABLE effect (id bigint GENERATED ALWAYS AS IDENTITY, what text NOT NULL)";
    const AGE: &str = "UPDATE saga SET ended_at = ended_at - interval '1 year'";
    const AHEAD: &str = "UPDATE saga SET wake_at = wake_at + interval '2 days'";
    const HOURS_AHEAD: &str = "UPDATE saga SET wake_at = wake_at + interval '4 hours'";
}

impl Tables for Sqlite {
    const NOW: &str = "UPDATE saga_step SET due_at = 1 WHERE due_at IS NOT NULL;
        UPDATE saga SET wake_at = 1 WHERE wake_at IS NOT NULL";
    const EFFECTS: &str = "CREATE TABLE effect (id INTEGER PRIMARY KEY, what TEXT NOT NULL)";
    const AGE: &str = "UPDATE saga SET ended_at = 1 WHERE ended_at IS NOT NULL";
    const AHEAD: &str = "UPDATE saga SET wake_at = wake_at + 172800000000";
    const HOURS_AHEAD: &str = "UPDATE saga SET wake_at = wake_at + 14400000000";
}

/// Runs a case on its own database.
async fn each<DB: Tables>(stage: Stage, case: impl AsyncFnOnce(Database<DB>)) -> Outcome {
    let db = Database::<DB>::migrated(&stage).await?;
    db.execute(DB::EFFECTS).await?;
    db.let_use(Role::Service, "effect").await?;
    case(db).await;
    Ok(())
}

/// Returns options with which failures are retried almost at once.
fn fast() -> WorkerOptions {
    let mut options = WorkerOptions::default();
    options.backoff = Backoff { first: Duration::from_millis(1), max: Duration::from_millis(5) };
    options.poll_max = Duration::from_millis(10);
    options.attempts_max = 3;
    options
}

fn sagas<DB: Tables>(db: &Database<DB>) -> SagasBuilder<DB> {
    Sagas::builder(db.service.clone(), Outbox::new()).options(fast())
}

fn id(id: &str) -> SagaId {
    SagaId::new("checkout", id).unwrap()
}

/// Starts a new saga of the type `checkout` in a separate transaction.
async fn start<DB: Tables>(db: &Database<DB>, sagas: &Sagas<DB>, id: &str, input: i64) {
    assert_eq!(started(db, sagas, id, input).await, Started::Started);
}

/// Starts a saga of the type `checkout` in a separate transaction, unless it exists.
async fn started<DB: Tables>(db: &Database<DB>, sagas: &Sagas<DB>, id: &str, input: i64) -> Started {
    let mut tx = Outbox::new().begin(&db.service).await.unwrap();
    let started = sagas.start(&mut tx, "checkout", id, &input).await.unwrap();
    tx.commit().await.unwrap();
    sagas.wake();
    started
}

/// A worker that runs until it is stopped.
struct Worker {
    stop: CancellationToken,
    /// Cancelled when the worker has noticed that it has to stop.
    has_noticed: CancellationToken,
    /// Ends with this value: otherwise the worker of a failed case would continue, and the removal
    /// of its database would wait for it.
    running: AbortOnDropHandle<()>,
}

impl Worker {
    fn of<DB: Tables>(sagas: &Sagas<DB>) -> Self {
        let (stop, has_noticed) = (CancellationToken::new(), CancellationToken::new());
        let (sagas, stopped, noticed) = (sagas.clone(), stop.clone(), has_noticed.clone());
        let stopped = async move {
            stopped.cancelled().await;
            noticed.cancel();
        };
        let running = AbortOnDropHandle::new(tokio::spawn(async move { sagas.run(stopped).await }));
        Self { stop, has_noticed, running }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.running.await.unwrap();
    }
}

/// Starts a new saga `a` with this code and input, and a worker for it.
async fn begun<DB: Tables>(db: &Database<DB>, code: SagasBuilder<DB>, input: i64) -> (Sagas<DB>, Worker) {
    let sagas = code.open().await.unwrap();
    start(db, &sagas, "a", input).await;
    let worker = Worker::of(&sagas);
    (sagas, worker)
}

async fn show<DB: Tables>(sagas: &Sagas<DB>, name: &str) -> (SagaRecord, Vec<StepRecord>) {
    sagas.show(&id(name)).await.unwrap().expect("the saga is there")
}

/// Waits until a saga is in a wanted state. Returns its record.
async fn until<DB: Tables>(
    sagas: &Sagas<DB>,
    name: &str,
    what: &str,
    is_so: impl Fn(&SagaRecord) -> bool,
) -> SagaRecord {
    eventually(&format!("{name} is {what}"), async || {
        let (saga, _) = show(sagas, name).await;
        Ok(is_so(&saga).then_some(saga))
    })
    .await
    .unwrap()
}

async fn ended<DB: Tables>(sagas: &Sagas<DB>, name: &str) -> SagaRecord {
    until(sagas, name, "ended", |saga| saga.outline.state.has_ended()).await
}

async fn finished<DB: Tables>(sagas: &Sagas<DB>, name: &str) -> String {
    let saga = ended(sagas, name).await;
    assert_eq!(saga.outline.state, State::Finished, "{saga:?}");
    saga.output.unwrap()
}

async fn undone<DB: Tables>(sagas: &Sagas<DB>, name: &str) -> String {
    let saga = ended(sagas, name).await;
    assert_eq!(saga.outline.state, State::Undone, "{saga:?}");
    saga.outline.reason.unwrap()
}

async fn stuck<DB: Tables>(sagas: &Sagas<DB>, name: &str) -> String {
    let saga = until(sagas, name, "stuck", |saga| saga.outline.stuck_at.is_some()).await;
    assert_eq!(saga.outline.wake_at, None);
    saga.outline.error.unwrap()
}

async fn effects<DB: Tables>(db: &Database<DB>) -> Vec<String> {
    db.texts("SELECT what FROM effect ORDER BY id").await.unwrap()
}

/// A remote service that honours keys. The first call of a key has an effect, and a refund undoes
/// it. Its errors are its own. Each account counts its requests.
#[derive(Clone, Default)]
struct Bank(Arc<Mutex<HashMap<String, Account>>>);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Account {
    charges: u32,
    refunds: u32,
    cents: i64,
}

impl Bank {
    fn change<T>(&self, key: &str, change: impl FnOnce(&mut Account) -> T) -> T {
        change(self.0.lock().unwrap().entry(key.to_owned()).or_default())
    }

    async fn charge(&self, key: &StepKey, cents: i64) -> Result<i64, std::io::Error> {
        tokio::task::yield_now().await;
        self.change(&key.to_string(), |account| {
            account.charges += 1;
            account.cents = cents;
        });
        Ok(cents)
    }

    async fn refund(&self, key: &StepKey) -> Result<(), std::io::Error> {
        tokio::task::yield_now().await;
        self.change(&key.to_string(), |account| {
            account.refunds += 1;
            account.cents = 0;
        });
        Ok(())
    }

    fn account(&self, key: &str) -> Account {
        self.change(key, |account| account.clone())
    }
}

/// A counter.
#[derive(Clone, Default)]
struct Counter(Arc<Mutex<u32>>);

impl Counter {
    /// Increments the counter. Returns the new count.
    fn up(&self) -> u32 {
        let mut count = self.0.lock().unwrap();
        *count += 1;
        *count
    }

    fn get(&self) -> u32 {
        *self.0.lock().unwrap()
    }
}
