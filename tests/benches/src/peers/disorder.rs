//! The order of messages while writers pause inside their transactions.
//!
//! Each transaction takes its transaction id, pauses, locks its key, increments the key's version,
//! enqueues a message with that version, pauses again and commits. So the versions of a key are
//! committed in order. The broker's log shows which ones are missing and which ones come too late.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use engine::EngineOptions;
use rand::Rng as _;
use sqlx::{PgPool, Postgres};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Peer;
use super::debezium::{self, Connect};
use super::poller::{self, Poller};
use crate::Failure;
use crate::rig::{Database, PATIENCE, pipeline};
use crate::target::{Kafka, Target as _, fresh_topic};

const WRITERS: u32 = 16;
const KEYS: i32 = 40;
/// Maximum length of each of the two pauses inside a transaction.
const PAUSE_MS: u64 = 20;
/// Time without new records after which a relay counts as done.
const QUIET: Duration = Duration::from_secs(2);

/// Numbers of messages, from the broker's log.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) committed: u64,
    pub(super) lost: u64,
    pub(super) disordered: u64,
    pub(super) repeated: u64,
}

impl Seen {
    pub(super) fn is_sound(&self) -> bool {
        self.lost == 0 && self.disordered == 0
    }

    /// Counts the messages in a log. `log` has the key and version of each record in the broker's
    /// order, `versions` the last version of each key.
    fn of(log: &[(String, i64)], versions: &HashMap<String, i64>) -> Self {
        let mut seen: HashMap<&str, (i64, Vec<i64>)> = HashMap::new();
        let mut found =
            Self { committed: versions.values().map(|last| last.unsigned_abs()).sum(), ..Self::default() };
        for (key, version) in log {
            let (highest, all) = seen.entry(key).or_default();
            if all.contains(version) {
                found.repeated += 1;
                continue;
            }
            if *version < *highest {
                found.disordered += 1;
            }
            *highest = (*highest).max(*version);
            all.push(*version);
        }
        let distinct: u64 = seen.values().map(|(_, all)| all.len() as u64).sum();
        found.lost = found.committed.saturating_sub(distinct);
        found
    }
}

pub(super) async fn watch(peer: Peer, kafka: &Kafka, writing: Duration) -> Result<Seen, Failure> {
    let database = Database::create().await?;
    poller::prepare(peer, &database).await?;
    database
        .run(
            "CREATE TABLE key (name text PRIMARY KEY, version bigint NOT NULL); CREATE TABLE noise (n int NOT NULL); \
             INSERT INTO key SELECT 'key-' || n, 0 FROM generate_series(0, 39) AS n",
        )
        .await?;
    let topic = fresh_topic();
    kafka.prepare(&topic).await?;
    let stop = CancellationToken::new();
    let relaying = start(peer, &database, kafka, &topic, stop.clone()).await?;
    write(peer, &database, &topic, writing).await?;
    quiet(kafka, &topic).await?;
    stop.cancel();
    relaying.await??;
    let versions: Vec<(String, i64)> =
        sqlx::query_as("SELECT name, version FROM key").fetch_all(&mut database.connect().await?).await?;
    let log = kafka.log(&topic).await?;
    let log: Vec<(String, i64)> = log
        .into_iter()
        .filter(|(key, _)| key != debezium::WARM)
        .map(|(key, payload)| Ok((key, String::from_utf8(payload)?.parse()?)))
        .collect::<Result<_, Failure>>()?;
    kafka.remove(&topic).await?;
    database.drop().await?;
    Ok(Seen::of(&log, &versions.into_iter().collect()))
}

async fn start(
    peer: Peer,
    database: &Database,
    kafka: &Kafka,
    topic: &str,
    stop: CancellationToken,
) -> Result<tokio::task::JoinHandle<Result<(), Failure>>, Failure> {
    if peer == Peer::Toolkit {
        let pipeline = pipeline(database, kafka.connector()?, EngineOptions::default())?;
        return Ok(tokio::spawn(async move {
            pipeline.run(stop).await;
            Ok(())
        }));
    }
    if let Peer::Debezium(tuning) = peer {
        let connect = Connect::start(database, kafka, topic, tuning).await?;
        let database = database.clone();
        return Ok(tokio::spawn(async move {
            stop.cancelled().await;
            connect.end(&database).await
        }));
    }
    let mut poller = Poller::connect(peer, database, kafka, topic).await?;
    Ok(tokio::spawn(async move {
        while !stop.is_cancelled() {
            if poller.page().await? == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        Ok(())
    }))
}

async fn write(peer: Peer, database: &Database, topic: &str, writing: Duration) -> Result<(), Failure> {
    let pool = outbox::pool_options::<Postgres>().max_connections(WRITERS).connect(&database.url).await?;
    let enough = Arc::new(AtomicBool::new(false));
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let (pool, topic, enough) = (pool.clone(), topic.to_owned(), Arc::clone(&enough));
        writers.spawn(async move {
            while !enough.load(Relaxed) {
                transaction(peer, &pool, &topic).await?;
            }
            Ok::<_, Failure>(())
        });
    }
    tokio::time::sleep(writing).await;
    enough.store(true, Relaxed);
    while let Some(done) = writers.join_next().await {
        done??;
    }
    pool.close().await;
    Ok(())
}

async fn transaction(peer: Peer, pool: &PgPool, topic: &str) -> Result<(), Failure> {
    let (key, [before, after]) = {
        let mut random = rand::rng();
        let pauses = [(); 2].map(|()| Duration::from_millis(random.random_range(0..=PAUSE_MS)));
        (format!("key-{}", random.random_range(0..KEYS)), pauses)
    };
    let mut tx = pool.begin().await?;
    sqlx::query("INSERT INTO noise VALUES (1)").execute(&mut *tx).await?;
    tokio::time::sleep(before).await;
    let version: i64 =
        sqlx::query_scalar("UPDATE key SET version = version + 1 WHERE name = $1 RETURNING version")
            .bind(&key)
            .fetch_one(&mut *tx)
            .await?;
    let payload = version.to_string().into_bytes();
    if peer == Peer::Toolkit {
        let message = outbox::NewMessage::new(topic).key(key).payload(payload);
        outbox::Outbox::new().enqueue(&mut tx, message).await?;
    } else {
        sqlx::query("INSERT INTO peer (key, payload) VALUES ($1, $2)")
            .bind(key)
            .bind(payload)
            .execute(&mut *tx)
            .await?;
    }
    tokio::time::sleep(after).await;
    tx.commit().await?;
    Ok(())
}

/// Waits until no more records arrive.
async fn quiet(kafka: &Kafka, topic: &str) -> Result<(), Failure> {
    let (began, mut last, mut since) = (Instant::now(), 0, Instant::now());
    while since.elapsed() < QUIET {
        if began.elapsed() > PATIENCE {
            return Err(format!("records keep coming for {PATIENCE:?}").into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = kafka.records(topic).await?;
        if now > last {
            (last, since) = (now, Instant::now());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_disorder_and_repetitions_are_counted() {
        let log = [("a", 1), ("a", 3), ("b", 1), ("a", 2), ("a", 3)]
            .map(|(key, version)| (key.to_owned(), version));
        let versions = HashMap::from([("a".to_owned(), 4), ("b".to_owned(), 1)]);
        assert_eq!(Seen::of(&log, &versions), Seen { committed: 5, lost: 1, disordered: 1, repeated: 1 });
    }
}
