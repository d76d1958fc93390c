//! Business transactions at fixed times.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox::{EnqueueError, NewMessage, Outbox, OutboxTransaction};
use sqlx::{PgPool, Postgres};
use tokio::task::JoinSet;

use super::clock::{Clock, Moment, UNMEASURED};
use crate::Failure;
use crate::rig::{Database, PATIENCE};

/// Connections of the producer's pool.
const CONNECTIONS: u32 = 24;
/// Size of each payload, in bytes.
const PAYLOAD: usize = 256;

fn message(topic: &str, number: u64) -> NewMessage {
    let mut payload = vec![b'x'; PAYLOAD];
    payload[..8].copy_from_slice(&number.to_be_bytes());
    NewMessage::new(topic).key(format!("key-{}", number % 1_000)).payload(payload)
}

async fn transaction(
    outbox: &Outbox<Postgres>,
    pool: &PgPool,
    topic: &str,
    numbers: std::ops::Range<u64>,
) -> Result<(), Failure> {
    let topic: Arc<str> = topic.into();
    outbox
        .transaction(pool, async move |tx: &mut OutboxTransaction<Postgres>| {
            sqlx::query("INSERT INTO business (id) SELECT generate_series($1::bigint, $2 - 1)")
                .bind(numbers.start.cast_signed())
                .bind(numbers.end.cast_signed())
                .execute(tx.connection())
                .await?;
            for number in numbers {
                tx.stage(message(&topic, number))?;
            }
            Ok::<_, EnqueueError>(())
        })
        .await?;
    Ok(())
}

async fn pool(database: &Database) -> Result<PgPool, Failure> {
    Ok(outbox::pool_options::<Postgres>()
        .min_connections(CONNECTIONS)
        .max_connections(CONNECTIONS)
        .connect(&database.url)
        .await?)
}

/// Sends one unmeasured message all the way through.
pub(super) async fn warm_up(database: &Database, topic: &str, clock: &Clock) -> Result<(), Failure> {
    let outbox = Outbox::<Postgres>::new();
    let pool = pool(database).await?;
    let topic: Arc<str> = topic.into();
    outbox
        .transaction(&pool, async move |tx: &mut OutboxTransaction<Postgres>| {
            tx.stage(message(&topic, UNMEASURED)).map(drop)
        })
        .await?;
    pool.close().await;
    clock.warm(PATIENCE).await
}

/// Sends all messages of the clock, `rate` in a second, `batch` in a transaction.
pub(super) async fn produce(
    database: &Database,
    topic: &str,
    rate: u32,
    batch: usize,
    clock: &Arc<Clock>,
) -> Result<(), Failure> {
    let pool = pool(database).await?;
    let outbox = Outbox::<Postgres>::new();
    let began = Instant::now() + Duration::from_millis(50);
    let mut running: JoinSet<Result<(), Failure>> = JoinSet::new();
    for first in (0..clock.len()).step_by(batch) {
        let numbers = first as u64..(first + batch) as u64;
        let intended = began + Duration::from_secs_f64(first as f64 / f64::from(rate));
        tokio::time::sleep_until(intended.into()).await;
        let (outbox, pool, topic, clock) =
            (outbox.clone(), pool.clone(), topic.to_owned(), Arc::clone(clock));
        running.spawn(async move {
            for number in numbers.clone() {
                clock.note(number, Moment::Intended, intended);
            }
            transaction(&outbox, &pool, &topic, numbers.clone()).await?;
            let at = Instant::now();
            for number in numbers {
                clock.note(number, Moment::Committed, at);
            }
            Ok(())
        });
        while let Some(done) = running.try_join_next() {
            done??;
        }
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    pool.close().await;
    Ok(())
}
