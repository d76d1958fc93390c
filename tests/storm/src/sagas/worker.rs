//! The process that runs sagas, ships and receives replies.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use inbox::{Backoff, Consumer, ConsumerName, Handler, Inbox, InboxOptions, Shutdown};
use outbox::Outbox;
use saga::{Run, Sagas, WorkerOptions};
use sqlx::{Postgres, Sqlite};
use tokio_util::sync::CancellationToken;

use super::checkout::{Order, checkout};
use super::services::{Bank, Shipping};
use super::shop::{SagaTopics, Shop};
use super::{CHECKOUT, REPLIES, SHIPPING, VERSION};
use crate::Failure;
use crate::consume::BrokerAddress;
use crate::process;

/// The task of a process that runs sagas.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct WorkerTask {
    /// The database of sagas, stock and shipping.
    pub database: String,
    /// The database of the bank.
    pub bank: String,
    /// The topics of the sagas' messages.
    pub topics: SagaTopics,
    /// The subscription to requests to ship.
    pub ship: BrokerAddress,
    /// The subscription to replies.
    pub replies: BrokerAddress,
}

/// Number of concurrent sagas.
const CONCURRENCY: NonZeroU32 = NonZeroU32::new(8).unwrap();
const CONNECTIONS: NonZeroU32 = NonZeroU32::new(16).unwrap();
const BANK_CONNECTIONS: NonZeroU32 = NonZeroU32::new(8).unwrap();
/// Enough attempts for many outages of the longest fault, because nothing in a storm may get stuck.
const ATTEMPTS_MAX: u32 = 100_000;
/// Time for which a dead worker keeps its sagas.
pub(crate) const LEASE: Duration = Duration::from_secs(3);
/// Pauses of sagas and handlers after failures.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(100), max: Duration::from_secs(1) };
const GRACE: Duration = Duration::from_secs(10);

/// Runs sagas until it is stopped.
///
/// # Errors
/// The task cannot be used, or the tables cannot be opened. The process is then started again.
pub(crate) async fn run(task: WorkerTask) -> Result<(), Failure> {
    match outbox::connect::dialect_of(&task.database)? {
        migrations::Dialect::Postgres => Box::pin(work::<Postgres>(task)).await,
        migrations::Dialect::Sqlite => Box::pin(work::<Sqlite>(task)).await,
    }
}

async fn work<DB: Shop>(task: WorkerTask) -> Result<(), Failure> {
    let stop = process::stop_on_signals()?;
    let pool = DB::pool(&task.database, CONNECTIONS)?;
    let bank = Arc::new(Bank(DB::pool(&task.bank, BANK_CONNECTIONS)?));
    let ship: Arc<str> = task.topics.ship.into();
    let mut options = WorkerOptions::default();
    (options.concurrency, options.lease, options.backoff) = (CONCURRENCY, LEASE, BACKOFF);
    (options.attempts_max, options.shutdown_grace) = (ATTEMPTS_MAX, GRACE);
    let sagas = Sagas::builder(pool.clone(), Outbox::new())
        .options(options)
        .saga(CHECKOUT, VERSION, async move |saga: &mut Run<DB>, order: Order| {
            checkout(saga, order, bank, ship).await
        })
        .open()
        .await?;
    let inbox = Inbox::open(pool, InboxOptions::default()).await?;
    let shipping = Shipping { replies: task.topics.replies };
    let late = sagas.replies().late(|_, _, _| Box::pin(async { Ok(()) }));
    let shipping = consumer(&inbox, SHIPPING, &task.ship, shipping)?;
    let replies = consumer(&inbox, REPLIES, &task.replies, late)?;
    let shutdown = || Shutdown { graceful: stop.clone(), abort: CancellationToken::new() };
    let (shipped, replied, ()) = tokio::join!(
        shipping.run(shutdown()),
        replies.run(shutdown()),
        sagas.run(stop.clone().cancelled_owned()),
    );
    shipped?;
    Ok(replied?)
}

fn consumer<DB: Shop>(
    inbox: &Inbox<DB>,
    name: &str,
    broker: &BrokerAddress,
    handler: impl Handler<DB> + 'static,
) -> Result<Consumer<DB>, Failure> {
    let subscriber = broker.subscriber()?;
    let builder = Consumer::builder(inbox.clone(), ConsumerName::new(name)?)
        .subscribe(move || {
            let subscriber = Arc::clone(&subscriber);
            async move { subscriber.subscribe().await }
        })
        .outbox(Outbox::new())
        .handler(handler)
        .backoff(BACKOFF)
        .attempts_max(ATTEMPTS_MAX);
    Ok(builder.build()?)
}
