//! A topic that is created after its messages were written, on a database that was never analysed.

use std::collections::HashSet;
use std::time::Duration;

use libtest_mimic::Trial;
use sqlx::Postgres;
use tests::databases::Database;
use tests::relay_process::Config;
use tests::{Backend, Failure, Outcome, RelayProcess, Stage, brokers, eventually, trial};
use tokio::sync::watch;

const RELAY: &str = "orders";
const KEYS: u32 = 40;
/// Messages that wait for the topic.
const WAITING: i64 = 10_000;
/// New messages in each transaction.
const BATCH: i64 = 20;
const BETWEEN_BATCHES: Duration = Duration::from_millis(20);
/// Maximum rows of `outbox_parked` read for each message. The copy of a message is searched for,
/// read back and removed.
const READ_EACH: i64 = 10;

const HELD: &str = "SELECT count(*) FROM outbox_exception WHERE state = 'held'";
const READ: &str = "SELECT sum(idx_tup_read)::bigint + (SELECT seq_tup_read FROM pg_stat_user_tables \
    WHERE relname = 'outbox_parked') FROM pg_stat_user_indexes WHERE relname = 'outbox_parked'";

pub(crate) fn trials() -> Vec<Trial> {
    let needs = [Backend::Postgres, Backend::Kafka];
    let trials = ["3s", "15s"].map(|lease_ttl| {
        let name =
            format!("a_topic_that_comes_late_catches_up_without_statistics/postgres/kafka/{lease_ttl}");
        trial(name, &needs, move |stage| catches_up(stage, lease_ttl))
    });
    trials.into()
}

/// Goal: messages that waited for a topic are published while new messages of their keys arrive,
/// although the server planned every statement for empty tables. Oracle: the held messages reach 0
/// while messages are still written; each message is in the topic once; the epoch of the lease,
/// which each grant raises; the server's count of parked rows that were read.
async fn catches_up(stage: Stage, lease_ttl: &str) -> Outcome {
    let broker = brokers::open(Backend::Kafka).await?;
    let topic = broker.topic_name(&stage, "late");
    let database = Database::<Postgres>::migrated(&stage).await?;
    never_analyse(&database).await?;
    let config = Config::write(&stage, RELAY, &database.relay_url()?, broker.as_ref(), "")?;
    let text = std::fs::read_to_string(config.path())?;
    let text = text.replace("lease_ttl = \"3s\"", &format!("lease_ttl = {lease_ttl:?}"));
    let relay = RelayProcess::start(&stage, &Config::text(&stage, &text)?)?;
    append(&database, &topic, 0, 1).await?;
    relay.tells("topic stopped").await?;
    append(&database, &topic, 1, WAITING - 1).await?;
    eventually("all but the one that probes the topic are held", || async {
        Ok((database.integer(HELD).await? >= WAITING - 1).then_some(()))
    })
    .await?;

    let (over, mut is_over) = watch::channel(false);
    let producing = tokio::spawn({
        let (database, topic) = (database.clone(), topic.clone());
        async move {
            let mut written = WAITING;
            while !*is_over.borrow_and_update() {
                append(&database, &topic, written, BATCH).await?;
                written += BATCH;
                tokio::time::sleep(BETWEEN_BATCHES).await;
            }
            Ok::<_, Failure>(written)
        }
    });
    broker.create_topic(&stage, &topic).await?;
    let caught_up = eventually("nothing is held any more", || async {
        Ok((database.integer(HELD).await? == 0).then_some(()))
    })
    .await;
    over.send_replace(true);
    let written = producing.await??;
    caught_up?;

    let records = broker.drain(&topic, usize::try_from(written)?).await?;
    let different: HashSet<_> = records.iter().map(|record| &record.payload[..]).collect();
    let all = usize::try_from(written)?;
    assert_eq!((records.len(), different.len()), (all, all), "not each of them once");
    assert_eq!(database.integer("SELECT epoch FROM outbox_relay").await?, 1, "the lease was taken again");
    relay.stop().await?;
    eventually("the server has counted what the relay read", || async {
        let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'relay %' \
            AND datname = current_database()";
        Ok((database.integer(sessions).await? == 0).then_some(()))
    })
    .await?;
    let read = database.integer(READ).await?;
    eprintln!("{written} messages, {read} rows of outbox_parked read");
    assert!(read <= READ_EACH * written, "{written} messages: {read} rows of outbox_parked read");
    Ok(())
}

/// Turns autovacuum off: it could update the statistics at any time.
async fn never_analyse(database: &Database<Postgres>) -> Outcome {
    let segments = (0..8).map(|number| format!("outbox_message_{number}"));
    for table in segments.chain(["outbox_exception", "outbox_parked"].map(String::from)) {
        database.execute(&format!("ALTER TABLE {table} SET (autovacuum_enabled = false)")).await?;
    }
    Ok(())
}

/// Writes messages with these numbers in one transaction.
async fn append(database: &Database<Postgres>, topic: &str, first: i64, count: i64) -> Outcome {
    let last = first + count - 1;
    database
        .execute(&format!(
            "INSERT INTO outbox_message (topic, key, payload) \
             SELECT '{topic}', 'key-' || n % {KEYS}, convert_to(n::text, 'UTF8') FROM generate_series({first}, {last}) AS n"
        ))
        .await
}
