//! One run with one fault, from start to end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use inbox::Backoff;
use migrations::{Line, Migrator};
use outbox::Outbox;
use saga::{Replied, SagaId, SagaRecord, Sagas, SagasBuilder, Started, StepKey, WorkerOptions};
use sqlx::{Pool, Sqlite};
use tokio_util::sync::CancellationToken;

use super::ends::End;
use super::everywhere::Check;
use super::faults::Fault;
use crate::failure::Failure;

/// The time limit of one run.
const LIMIT: Duration = Duration::from_secs(60);
/// The pause between two checks of the saga.
const PAUSE: Duration = Duration::from_millis(3);
/// Makes turns and timers due for sagas without a worker; `LAPSE` also ends the leases of workers.
const NOW: &str = "UPDATE saga SET wake_at = 1 WHERE wake_at IS NOT NULL AND worker IS NULL;
    UPDATE saga_step SET due_at = 1 WHERE due_at IS NOT NULL AND kind = 'sleep'";
const LAPSE: &str = "UPDATE saga SET wake_at = 1 WHERE wake_at IS NOT NULL";
const MESSAGES: &str = "SELECT topic || ' ' || CAST(payload AS TEXT) FROM outbox_message ORDER BY id";

pub(super) type Register = Arc<dyn Fn(SagasBuilder<Sqlite>) -> SagasBuilder<Sqlite> + Send + Sync>;

pub(super) struct Course {
    pub(super) register: Register,
    pub(super) input: serde_json::Value,
    pub(super) setup: Vec<&'static str>,
    pub(super) replies: BTreeMap<String, serde_json::Value>,
    pub(super) check: Option<Check>,
}

impl Course {
    /// Runs the saga to its end. Returns that end, and whether the fault occurred.
    pub(super) async fn run(&self, fault: Fault) -> Result<(End, bool), Failure> {
        let folder = tempfile::tempdir().map_err(Failure::during("make a temporary folder"))?;
        let url = format!("sqlite://{}?mode=rwc", folder.path().join("saga.db").display());
        let pool = outbox::pool::<Sqlite>(&url).await.map_err(Failure::during("open the database"))?;
        let ended = self.run_in(&pool, fault).await;
        pool.close().await;
        ended
    }

    async fn run_in(&self, pool: &Pool<Sqlite>, fault: Fault) -> Result<(End, bool), Failure> {
        let mut connection = pool.acquire().await.map_err(Failure::during("open the database"))?;
        for line in [Line::Outbox, Line::Saga] {
            let migrator = Migrator::<Sqlite>::new(line);
            migrator.up(&mut connection).await.map_err(Failure::during("create the tables"))?;
        }
        drop(connection);
        for sql in &self.setup {
            sqlx::raw_sql(*sql).execute(pool).await.map_err(Failure::during("run the test's setup"))?;
        }
        let (hook, met) = fault.hook();
        let mut options = WorkerOptions::default();
        options.backoff = Backoff { first: Duration::from_millis(1), max: Duration::from_millis(5) };
        options.poll_max = Duration::from_millis(5);
        if fault == Fault::ShortLeases {
            // A lost lease counts as a failed attempt, and here leases are lost on purpose.
            options.attempts_max = u32::MAX;
        }
        let builder = Sagas::builder(pool.clone(), Outbox::new()).options(options).hook(hook);
        let sagas = (self.register)(builder).open().await.map_err(Failure::during("open the sagas"))?;
        let mut tx = Outbox::new().begin(pool).await.map_err(Failure::during("begin a transaction"))?;
        let started = sagas.start(&mut tx, "saga", "1", &self.input).await;
        let started = started.map_err(Failure::during("start the saga"))?;
        if started != Started::Started {
            return Err(Failure::new("a new database has the saga already"));
        }
        tx.commit().await.map_err(Failure::during("commit the start"))?;
        if fault == Fault::EarlyReplies {
            self.reply(&sagas, None).await?;
        }
        let stop = CancellationToken::new();
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let (sagas, stopped) = (sagas.clone(), stop.clone());
                tokio::spawn(async move { sagas.run(stopped.cancelled_owned()).await })
            })
            .collect();
        let ended = tokio::time::timeout(LIMIT, self.follow(&sagas, fault, &met)).await;
        if fault == Fault::RepeatedReplies {
            self.reply(&sagas, None).await?;
        }
        stop.cancel();
        for worker in workers {
            worker.await.map_err(Failure::during("end a worker"))?;
        }
        let saga = ended.map_err(|_| Failure::new(format!("{fault}: no end within {LIMIT:?}")))??;
        let steps = sagas.show(&saga.id).await.map_err(Failure::during("read the saga"))?;
        let steps = steps.map(|(_, steps)| steps).unwrap_or_default();
        let messages = sqlx::query_scalar(MESSAGES).fetch_all(pool).await;
        let messages = messages.map_err(Failure::during("read the messages"))?;
        let told = |problem| Failure::new(format!("{fault}: {problem}"));
        let end = End::of(&saga, &steps, messages).map_err(told)?;
        if let Some(check) = &self.check {
            check(pool.clone()).await.map_err(told)?;
        }
        Ok((end, met.load(Ordering::SeqCst)))
    }

    /// Answers requests and lets time pass until the saga has ended.
    async fn follow(
        &self,
        sagas: &Sagas<Sqlite>,
        fault: Fault,
        met: &std::sync::atomic::AtomicBool,
    ) -> Result<SagaRecord, Failure> {
        let id = SagaId::new("saga", "1").map_err(Failure::during("name the saga"))?;
        let mut has_lapsed = false;
        for look in 1_u32.. {
            let found = sagas.show(&id).await.map_err(Failure::during("read the saga"))?;
            let Some((saga, _)) = found else { return Err(Failure::new("the saga is gone")) };
            if saga.state.has_ended() {
                return Ok(saga);
            }
            if saga.stuck_at.is_some() {
                let error = saga.error.unwrap_or_default();
                return Err(Failure::new(format!("{fault}: the saga is stuck: {error}")));
            }
            if let Some(step) = saga.waits_for.as_deref().filter(|_| saga.worker.is_none()) {
                self.reply(sagas, Some(step)).await?;
                if fault == Fault::RepeatedReplies {
                    self.reply(sagas, Some(step)).await?;
                }
            }
            let is_gone =
                fault.has_passes() && met.load(Ordering::SeqCst) && !has_lapsed && saga.worker.is_some();
            // Only at every tenth check, because a worker must be able to finish a step.
            let is_over = fault == Fault::ShortLeases && look.is_multiple_of(10);
            has_lapsed |= is_gone;
            sqlx::raw_sql(NOW).execute(sagas.pool()).await.map_err(Failure::during("let time pass"))?;
            let sql = if is_gone || is_over { LAPSE } else { "" };
            sqlx::raw_sql(sql).execute(sagas.pool()).await.map_err(Failure::during("let time pass"))?;
            tokio::time::sleep(PAUSE).await;
        }
        Err(Failure::new("the saga does not end"))
    }

    /// Sends one reply, or all of them.
    async fn reply(&self, sagas: &Sagas<Sqlite>, only: Option<&str>) -> Result<(), Failure> {
        let chosen = self.replies.iter().filter(|(step, _)| only.is_none_or(|only| only == step.as_str()));
        for (step, reply) in chosen {
            let key: StepKey =
                format!("saga/1/{step}").parse().map_err(Failure::during("name the request"))?;
            let mut tx =
                Outbox::new().begin(sagas.pool()).await.map_err(Failure::during("begin a transaction"))?;
            let replied = sagas.reply(&mut tx, &key, reply).await;
            // Some faults answer late or twice, so each outcome is possible.
            let _: Replied = replied.map_err(Failure::during("give a reply"))?;
            tx.commit().await.map_err(Failure::during("commit a reply"))?;
        }
        Ok(())
    }
}
