//! A consumer in a process of its own: the inbox's runner with a handler that charges customers, and the places
//! where it crashes.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use inbox::{Consumer, ConsumerName, Handler, HandlerError, Inbox, InboxOptions, Shutdown};
use message::{Message, Subscription};
use migrations::Dialect;
use sqlx::{Pool, Transaction};
use tokio_util::sync::CancellationToken;

use super::journal::{Journal, Journaled};
use super::receive_task;
use crate::demo::error::DemoError;
use crate::demo::plan::{CrashPlan, CrashPoint};
use crate::demo::shop::{CONSUMER, Facts, Shop};
use crate::demo::target::{BrokerSpec, DatabaseSpec};

/// The hidden subcommand.
pub(crate) const CONSUMER_COMMAND: &str = "demo-consumer";

/// Messages per transaction at most.
const BATCH: NonZeroUsize = NonZeroUsize::new(50).unwrap();
/// Deliveries in hand at most.
const PREFETCH: NonZeroUsize = NonZeroUsize::new(200).unwrap();
/// Below half of the SQS queue's visibility timeout.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_millis(1_500);
/// For the runner's transactions and the inbox's own look-ups.
const CONNECTIONS: u32 = 6;

/// The task of a consumer.
#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) struct ConsumerTask {
    pub(crate) database: DatabaseSpec,
    pub(crate) broker: BrokerSpec,
    /// Where it writes down what it receives.
    pub(crate) journal: PathBuf,
    /// Where it crashes.
    pub(crate) crash: Option<CrashPlan>,
    /// Whether the inbox's guard is on.
    pub(crate) guarded: bool,
}

/// Runs a consumer until standard input ends, or until it crashes as planned. For the hidden subcommand
/// `demo-consumer`.
///
/// # Errors
/// [`DemoError`] when the task cannot be read or used, or the inbox cannot be opened.
pub async fn run_consumer() -> Result<(), DemoError> {
    let (task, stop) = receive_task::<ConsumerTask>()?;
    match task.database.dialect()? {
        Dialect::Postgres => {
            let pool = task.database.postgres_pool(CONNECTIONS).await?;
            consume(pool, task, stop).await
        }
        Dialect::Sqlite => {
            let pool = task.database.sqlite_pool(CONNECTIONS).await?;
            consume(pool, task, stop).await
        }
    }
}

async fn consume<DB>(pool: Pool<DB>, task: ConsumerTask, stop: CancellationToken) -> Result<(), DemoError>
where
    DB: inbox::Dialect + Shop,
{
    let options = InboxOptions { schema: task.database.schema()?, ..InboxOptions::default() };
    let inbox = Inbox::open(pool, options).await.map_err(DemoError::during("open the inbox"))?;
    let name = ConsumerName::new(CONSUMER).map_err(|error| DemoError::Usage(error.to_string()))?;
    let journal = Journal::create(&task.journal, task.guarded)
        .map_err(DemoError::during("write a consumer's journal"))?;
    let journal = Arc::new(journal);
    let (broker, written) = (task.broker, Arc::clone(&journal));
    let mut consumer = Consumer::builder(inbox, name)
        .subscribe(move || {
            let (broker, journal) = (broker.clone(), Arc::clone(&written));
            async move {
                let inner = broker.subscribe().await?;
                Ok(Box::new(Journaled::new(inner, journal)) as Box<dyn Subscription>)
            }
        })
        .handler(Charge { journal })
        .batch(BATCH)
        .prefetch(PREFETCH)
        .keep_alive_interval(KEEP_ALIVE_INTERVAL);
    if let Some(plan) = task.crash {
        let effects = AtomicU64::new(0);
        consumer = consumer.crash_hook(move |point, _| crash(plan, &effects, point));
    }
    if !task.guarded {
        consumer = consumer.without_guard();
    }
    let consumer = consumer.build().map_err(|error| DemoError::Usage(error.to_string()))?;
    let shutdown = Shutdown { graceful: stop, abort: CancellationToken::new() };
    consumer.run(shutdown).await.map_err(DemoError::during("run the consumer"))
}

/// Crashes for real: no destructor runs, nothing is flushed, connections break.
fn crash(plan: CrashPlan, effects: &AtomicU64, point: inbox::CrashPoint) {
    let (applied, here) = match point {
        inbox::CrashPoint::AfterEffect => {
            (effects.fetch_add(1, Ordering::Relaxed) + 1, CrashPoint::BeforeCommit)
        }
        inbox::CrashPoint::AfterCommit => (effects.load(Ordering::Relaxed), CrashPoint::BeforeAck),
    };
    if here == plan.point && applied >= plan.effects {
        std::process::abort();
    }
}

/// Charges customers.
struct Charge {
    journal: Arc<Journal>,
}

#[async_trait]
impl<DB: inbox::Dialect + Shop> Handler<DB> for Charge {
    async fn handle(
        &self,
        tx: &mut Transaction<'static, DB>,
        message: &Message,
    ) -> Result<Option<Vec<u8>>, HandlerError> {
        let id = message.id.as_uuid();
        let facts = Facts::read(&message.payload)
            .ok_or_else(|| HandlerError::reject("the payload is not an order; send one"))?;
        DB::charge(tx, id, &facts, &message.payload).await?;
        self.journal.handled(id);
        Ok(None)
    }
}
