//! The producers: customers place orders, each with its message, in one transaction, through the
//! outbox's public API. Some transactions are rolled back on purpose, and some orders are rolled
//! back to a savepoint.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use harness::payload::Payload;
use harness::workload::Workload;
use outbox::{EnqueueError, NewMessage, Outbox, OutboxTransaction, TransactionError};
use sqlx::{Connection, Pool};
use tokio::task::JoinSet;

use crate::error::DemoError;
use crate::plan::{OrderPlan, Plan, TransactionPlan};
use crate::progress::Progress;
use crate::target::{DatabaseSpec, Pool as AnyPool};
use crate::{CONTENT_TYPE, KIND};

/// Number of concurrent producers.
const PRODUCERS: usize = 4;

/// The reason why an order was not placed.
#[derive(Debug, thiserror::Error)]
enum PlaceError {
    #[error("rolled back on purpose")]
    OnPurpose,
    #[error("the database refused the order")]
    Database(#[from] sqlx::Error),
    #[error("the message was not enqueued")]
    Enqueue(#[from] EnqueueError),
}

/// Places every order of the plan. Returns when the last transaction has ended.
///
/// # Errors
/// [`DemoError::Unavailable`] if a transaction failed that should succeed.
pub(crate) async fn run(
    spec: &DatabaseSpec,
    pool: &AnyPool,
    topic: &str,
    plan: &Arc<Plan>,
    progress: &Progress,
) -> Result<(), DemoError> {
    match pool {
        #[cfg(feature = "postgres")]
        AnyPool::Postgres(pool) => produce(spec, pool, topic, plan, progress).await,
        AnyPool::Sqlite(pool) => produce(spec, pool, topic, plan, progress).await,
    }
}

/// The state that all producers share.
struct Producer<DB: Workload> {
    outbox: Outbox<DB>,
    pool: Pool<DB>,
    topic: Arc<str>,
    plan: Arc<Plan>,
    /// The index of the next transaction of the plan.
    next: AtomicUsize,
    progress: Progress,
}

async fn produce<DB: Workload>(
    spec: &DatabaseSpec,
    pool: &Pool<DB>,
    topic: &str,
    plan: &Arc<Plan>,
    progress: &Progress,
) -> Result<(), DemoError> {
    let producer = Arc::new(Producer {
        outbox: Outbox::builder().schema(spec.schema()?).build(),
        pool: pool.clone(),
        topic: topic.into(),
        plan: Arc::clone(plan),
        next: AtomicUsize::new(0),
        progress: progress.clone(),
    });
    let mut producers = JoinSet::new();
    for _ in 0..PRODUCERS {
        let producer = Arc::clone(&producer);
        producers.spawn(async move { producer.work().await });
    }
    while let Some(ended) = producers.join_next().await {
        ended.map_err(DemoError::during("run a producer"))??;
    }
    progress.update(|counts| counts.producers_done = true);
    Ok(())
}

impl<DB: Workload> Producer<DB> {
    async fn work(&self) -> Result<(), DemoError> {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(transaction) = self.plan.transactions.get(index) else { return Ok(()) };
            let kept = transaction.orders.iter().filter(|order| transaction.keeps(order)).count() as u64;
            let (outbox, topic, plan) =
                (self.outbox.clone(), Arc::clone(&self.topic), Arc::clone(&self.plan));
            let done = self.outbox.transaction(&self.pool, async move |tx: &mut OutboxTransaction<DB>| {
                match plan.transactions.get(index) {
                    Some(transaction) => place_all(tx, &outbox, &topic, transaction).await,
                    None => Ok(()),
                }
            });
            match done.await {
                Ok(()) => self.progress.update(|counts| counts.committed += kept),
                Err(TransactionError::Work(PlaceError::OnPurpose)) => {}
                Err(error) => return Err(DemoError::during("place orders")(error)),
            }
        }
    }
}

/// Places the orders of a transaction. Fails at the end if the transaction is to be rolled back.
async fn place_all<DB: Workload>(
    tx: &mut OutboxTransaction<DB>,
    outbox: &Outbox<DB>,
    topic: &str,
    transaction: &TransactionPlan,
) -> Result<(), PlaceError> {
    for order in &transaction.orders {
        if order.undone {
            let mut savepoint = tx.connection().begin().await?;
            let seq = place::<DB>(&mut savepoint, order).await?;
            outbox.enqueue(&mut savepoint, message(topic, order, seq)).await.map(drop)?;
            savepoint.rollback().await?;
            continue;
        }
        let seq = place::<DB>(tx.connection(), order).await?;
        // Each transaction uses one of the two ways to enqueue: at once, or at the commit. If they
        // were mixed, a later message of a customer that is enqueued at once would come before an
        // earlier message that waits for the commit.
        if transaction.orders.len().is_multiple_of(2) {
            tx.stage(message(topic, order, seq)).map(drop)?;
        } else {
            tx.enqueue(message(topic, order, seq)).await.map(drop)?;
        }
    }
    if transaction.rolled_back { Err(PlaceError::OnPurpose) } else { Ok(()) }
}

/// Places an order and returns its number among the customer's orders. The customer's row stays
/// locked until the transaction ends, so the customer's next order and its message come after this
/// one.
async fn place<DB: Workload>(connection: &mut DB::Connection, order: &OrderPlan) -> sqlx::Result<u64> {
    let customer = order.customer();
    let seq = DB::next_number(connection, &customer).await?;
    let (row, cents) = (order.number.to_string(), order.cents.into());
    DB::insert_row(connection, &row, &customer, seq, cents).await?;
    Ok(seq)
}

/// Returns the payload of an order's message, which follows from the order's row.
pub(crate) fn payload(row: &str, seq: u64, cents: u64) -> Vec<u8> {
    let (late, hint, pad) = (false, None, String::new());
    // Texts and numbers can always be serialized.
    serde_json::to_vec(&Payload { row: row.to_owned(), seq, late, hint, cents, pad }).unwrap_or_default()
}

fn message(topic: &str, order: &OrderPlan, seq: u64) -> NewMessage {
    let payload = payload(&order.number.to_string(), seq, order.cents.into());
    NewMessage::new(topic).kind(KIND).key(order.customer()).content_type(CONTENT_TYPE).payload(payload)
}
