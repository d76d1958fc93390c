//! The process of the consumer: the inbox's runner with a handler that charges customers, and its
//! planned crashes.

use std::fs::File;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use checker::Digest;
use harness::journal::{Handled, Journal, Journaled};
use harness::payload::Payload;
use harness::workload::{Effect, Workload};
use inbox::{Consumer, ConsumerName, Handler, HandlerError, Inbox, InboxOptions, Shutdown, Tx};
use message::{Message, Subscription};
use sqlx::Pool;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use crate::error::DemoError;
use crate::plan::{CrashPlan, CrashPoint};
use crate::target::{BrokerSpec, DatabaseSpec, on};
use crate::{CONSUMER, plain};

/// The hidden subcommand.
pub(crate) const CONSUMER_COMMAND: &str = "demo-consumer";

/// Maximum number of messages in a transaction.
const BATCH: NonZeroUsize = NonZeroUsize::new(50).unwrap();
/// Maximum number of unsettled deliveries.
const PREFETCH: NonZeroUsize = NonZeroUsize::new(200).unwrap();
/// The keep-alive interval, below half of the SQS queue's visibility timeout.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_millis(1_500);
/// Connections for the runner's transactions and the inbox's own queries.
const CONNECTIONS: u32 = 6;

/// The task of a consumer.
#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) struct ConsumerTask {
    pub(crate) database: DatabaseSpec,
    pub(crate) broker: BrokerSpec,
    /// The broker without a proxy, for the plain client.
    pub(crate) direct: BrokerSpec,
    /// The folder of the consumer's journal and of the files that mark its crashes.
    pub(crate) directory: PathBuf,
    /// The consumer's crashes, in order.
    pub(crate) crashes: Vec<CrashPlan>,
    /// The number of crashes after which the consumer starts from older offsets.
    pub(crate) rewind_after: usize,
    /// Whether the inbox's guard is on.
    pub(crate) guarded: bool,
}

/// Returns the path of the consumer's journal.
pub(crate) fn journal(directory: &Path) -> PathBuf {
    directory.join("consumer.journal")
}

/// Returns how often the consumer has crashed as planned.
pub(crate) fn crashes(directory: &Path) -> usize {
    (0..).take_while(|place| crash_mark(directory, *place).exists()).count()
}

/// Returns by how many messages the consumer was moved back, or `None` if it was not.
pub(crate) fn rewound(directory: &Path) -> Option<u64> {
    std::fs::read_to_string(rewind_mark(directory)).ok()?.parse().ok()
}

fn crash_mark(directory: &Path, place: usize) -> PathBuf {
    directory.join(format!("crash-{place}"))
}

fn rewind_mark(directory: &Path) -> PathBuf {
    directory.join("rewound")
}

/// Runs a consumer until SIGTERM, or until it crashes as planned. For the hidden subcommand
/// `demo-consumer`.
///
/// # Errors
/// [`DemoError`] if the task in the file cannot be read or used, or the inbox cannot be opened.
pub async fn run_consumer(file: &Path) -> Result<(), DemoError> {
    let filter = EnvFilter::new("info,lapin=error,aws=warn,rdkafka=error");
    // If the program has already set a subscriber, a second one is not needed.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
    let what = "read the task of a demo process";
    let text = std::fs::read(file).map_err(DemoError::during(what))?;
    let task: ConsumerTask = serde_json::from_slice(&text).map_err(DemoError::during(what))?;
    let crashed = crashes(&task.directory);
    if crashed == task.rewind_after && rewound(&task.directory).is_none() {
        let again = plain::rewind(&task.direct).await?;
        std::fs::write(rewind_mark(&task.directory), again.to_string()).map_err(DemoError::during(what))?;
    }
    let pool = task.database.pool(CONNECTIONS).await?;
    let effects = pool.count("SELECT count(*) FROM effect").await;
    let effects = effects.map_err(DemoError::during("count the effects"))?;
    // The count starts now, because effects of an earlier process are in the database.
    let crash = task.crashes.get(crashed).map(|plan| Crash {
        point: plan.point,
        left: plan.effects.saturating_sub(effects).max(1),
        applied: AtomicU64::new(0),
        mark: crash_mark(&task.directory, crashed),
    });
    on!(pool, pool => consume(pool, task, crash).await)
}

async fn consume<DB: Workload>(
    pool: Pool<DB>,
    task: ConsumerTask,
    crash: Option<Crash>,
) -> Result<(), DemoError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(DemoError::during("listen for signals"))?;
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    tokio::spawn(async move {
        terminate.recv().await;
        stopping.cancel();
    });
    let options = InboxOptions::default().schema(task.database.schema()?);
    let inbox = Inbox::open(pool, options).await.map_err(DemoError::during("open the inbox"))?;
    let name = ConsumerName::new(CONSUMER).map_err(|error| DemoError::Usage(error.to_string()))?;
    let journal = Journal::open(&journal(&task.directory));
    let journal = Arc::new(journal.map_err(DemoError::during("write a consumer's journal"))?);
    let subscriber = task.broker.subscriber().map_err(|error| DemoError::Usage(error.to_string()))?;
    let handled = Handled::default();
    let charge = Charge { handled: handled.clone() };
    let mut consumer = Consumer::builder(inbox, name)
        .subscribe(move || {
            let subscriber = Arc::clone(&subscriber);
            let (journal, handled) = (Arc::clone(&journal), handled.clone());
            async move {
                let inner = subscriber.subscribe().await?;
                handled.begin();
                let (consumer, keeps_parts) = (CONSUMER.into(), false);
                let journaled = Journaled { inner, journal, consumer, keeps_parts, handled: Some(handled) };
                Ok(Box::new(journaled) as Box<dyn Subscription>)
            }
        })
        .handler(charge)
        .batch(BATCH)
        .prefetch(PREFETCH)
        .keep_alive_interval(KEEP_ALIVE_INTERVAL);
    if let Some(crash) = crash {
        consumer = consumer.crash_hook(move |point, _| crash.look(point));
    }
    if !task.guarded {
        consumer = consumer.without_guard();
    }
    let consumer = consumer.build().map_err(|error| DemoError::Usage(error.to_string()))?;
    let shutdown = Shutdown { graceful: stop, abort: CancellationToken::new() };
    consumer.run(shutdown).await.map_err(DemoError::during("run the consumer"))
}

/// The next crash of this process.
struct Crash {
    point: CrashPoint,
    /// The minimum number of effects before the crash.
    left: u64,
    applied: AtomicU64,
    /// The file that marks the crash.
    mark: PathBuf,
}

impl Crash {
    /// Crashes for real when it is time: no destructor runs, nothing is flushed, and connections
    /// break.
    fn look(&self, point: inbox::CrashPoint) {
        let (applied, here) = match point {
            inbox::CrashPoint::AfterEffect => {
                (self.applied.fetch_add(1, Ordering::Relaxed) + 1, CrashPoint::BeforeCommit)
            }
            inbox::CrashPoint::AfterCommit => (self.applied.load(Ordering::Relaxed), CrashPoint::BeforeAck),
        };
        // Without its mark the consumer would crash at the same point forever.
        if here == self.point && applied >= self.left && File::create(&self.mark).is_ok() {
            std::process::abort();
        }
    }
}

/// The handler that charges customers.
struct Charge {
    handled: Handled,
}

#[async_trait]
impl<DB: Workload> Handler<DB> for Charge {
    async fn handle(&self, tx: &mut Tx<DB>, message: &Message) -> Result<Option<Vec<u8>>, HandlerError> {
        let order: Payload = serde_json::from_slice(&message.payload).map_err(|error| {
            HandlerError::reject("the payload is not an order; send one").with_source(error)
        })?;
        let effect = Effect {
            consumer: CONSUMER,
            scope: "",
            id: message.id.as_uuid(),
            key: message.key.as_ref().map_or("", |key| key.as_str()),
            cents: order.cents,
            payload: &Digest::of(&message.payload).to_string(),
            headers: &Digest::of_headers::<&str, &str>([]).to_string(),
        };
        DB::apply(tx, &effect).await?;
        self.handled.insert(effect.id);
        Ok(None)
    }
}
