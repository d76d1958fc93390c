//! One run with one fault, from start to end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use inbox::Backoff;
use migrations::Line;
use outbox::Outbox;
use saga::{Replied, SagaId, SagaRecord, Sagas, SagasBuilder, Started, StepKey, WorkerOptions};
use tokio_util::sync::CancellationToken;

use super::ends::End;
use super::everywhere::Check;
use super::faults::Fault;
use crate::database::Database;
use crate::failure::Failure;
use crate::home::{Home, Open, connection};

/// The time limit of one run.
const LIMIT: Duration = Duration::from_secs(60);
/// The pause between two checks of the saga.
const PAUSE: Duration = Duration::from_millis(3);

pub(super) type Register<DB> = Arc<dyn Fn(SagasBuilder<DB>) -> SagasBuilder<DB> + Send + Sync>;

pub(super) struct Course<DB: Database> {
    pub(super) open: Open<DB>,
    pub(super) register: Register<DB>,
    pub(super) input: serde_json::Value,
    pub(super) setup: Vec<&'static str>,
    pub(super) replies: BTreeMap<String, serde_json::Value>,
    pub(super) check: Option<Check<DB>>,
}

impl<DB: Database> Course<DB> {
    /// Runs the saga to its end. Returns that end, and whether the fault occurred.
    pub(super) async fn run(&self, fault: Fault) -> Result<(End, bool), Failure> {
        let home = (self.open)().await?;
        let ended = self.run_in(&home, fault).await;
        home.pool.close().await;
        ended
    }

    async fn run_in(&self, home: &Home<DB>, fault: Fault) -> Result<(End, bool), Failure> {
        home.migrate(&[Line::Outbox, Line::Saga]).await?;
        for sql in &self.setup {
            home.run(sql, "run the test's setup").await?;
        }
        let pool = &home.pool;
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
        let steps = sagas.show(&saga.outline.id).await.map_err(Failure::during("read the saga"))?;
        let steps = steps.map(|(_, steps)| steps).unwrap_or_default();
        let messages = DB::query_texts(&mut *connection(pool).await?, DB::MESSAGES).await;
        let messages = messages.map_err(Failure::during("read the messages"))?;
        let told = |problem| Failure::new(format!("{fault}: {problem}"));
        let end = End::of(&saga, &steps, messages).map_err(told)?;
        if let Some(check) = &self.check {
            check(pool.clone()).await.map_err(told)?;
        }
        Ok((end, met.load(Ordering::SeqCst)))
    }

    /// Answers requests and advances time until the saga has ended.
    async fn follow(
        &self,
        sagas: &Sagas<DB>,
        fault: Fault,
        met: &std::sync::atomic::AtomicBool,
    ) -> Result<SagaRecord, Failure> {
        let id = SagaId::new("saga", "1").map_err(Failure::during("name the saga"))?;
        let mut has_lapsed = false;
        for look in 1_u32.. {
            let found = sagas.show(&id).await.map_err(Failure::during("read the saga"))?;
            let Some((saga, _)) = found else { return Err(Failure::new("the saga no longer exists")) };
            if saga.outline.state.has_ended() {
                return Ok(saga);
            }
            if saga.outline.stuck_at.is_some() {
                let error = saga.outline.error.unwrap_or_default();
                return Err(Failure::new(format!("{fault}: the saga is stuck: {error}")));
            }
            if let Some(step) = saga.outline.waits_for.as_deref().filter(|_| saga.outline.worker.is_none()) {
                self.reply(sagas, Some(step)).await?;
                if fault == Fault::RepeatedReplies {
                    self.reply(sagas, Some(step)).await?;
                }
            }
            let is_gone = fault.has_passes()
                && met.load(Ordering::SeqCst)
                && !has_lapsed
                && saga.outline.worker.is_some();
            // Only at every tenth check, because a worker must be able to finish a step.
            let is_over = fault == Fault::ShortLeases && look.is_multiple_of(10);
            has_lapsed |= is_gone;
            let mut connection = connection(sagas.pool()).await?;
            DB::run_script(&mut connection, DB::NOW).await.map_err(Failure::during("advance the time"))?;
            if is_gone || is_over {
                DB::run_script(&mut connection, DB::LAPSE).await.map_err(Failure::during("let time pass"))?;
            }
            drop(connection);
            tokio::time::sleep(PAUSE).await;
        }
        Err(Failure::new("the saga does not end"))
    }

    /// Sends one reply, or all of them.
    async fn reply(&self, sagas: &Sagas<DB>, only: Option<&str>) -> Result<(), Failure> {
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
