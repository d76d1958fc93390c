//! A topic that is created after its messages were written, on a database that was never analysed.

use std::collections::HashSet;
use std::time::Duration;

use sqlx::Postgres;
use tests::databases::Database;
use tests::relay_process::Config;
use tests::{Backend, Failure, Outcome, RelayProcess, Stage, brokers, eventually};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

const RELAY: &str = "orders";
const KEYS: u32 = 40;
/// Messages that wait for the topic.
const WAITING: i64 = 10_000;
/// New messages in each transaction.
const BATCH: i64 = 20;
const BETWEEN_BATCHES: Duration = Duration::from_millis(20);
/// New messages between two counts of the held ones: the number written in a second.
const BETWEEN_LOOKS: i64 = 1_000;
/// Maximum time until none is held. Only a failing test reaches it.
const PATIENCE: Duration = Duration::from_secs(240);
/// Maximum rows of `outbox_parked` read for each message. The copy of a message is searched for,
/// read back and removed.
const READ_EACH: i64 = 10;

const HELD: &str = "SELECT count(*) FROM outbox_exception WHERE state = 'held'";
const READ: &str = "SELECT sum(idx_tup_read)::bigint + (SELECT seq_tup_read FROM pg_stat_user_tables \
    WHERE relname = 'outbox_parked') FROM pg_stat_user_indexes WHERE relname = 'outbox_parked'";

tests::cases! { "a_topic_that_comes_late_catches_up_without_statistics/{on}/{case}":
    postgres kafka {
        "3s/commits_of_0_ms" = |stage: Stage| catches_up(stage, "3s", 0),
        "3s/commits_of_10_ms" = |stage: Stage| catches_up(stage, "3s", 10),
        "15s/commits_of_0_ms" = |stage: Stage| catches_up(stage, "15s", 0),
        "15s/commits_of_10_ms" = |stage: Stage| catches_up(stage, "15s", 10),
    }
}

/// Goal: messages that waited for a topic are published while new messages of their keys arrive,
/// although the server planned every statement for empty tables. Oracle: once the number of held
/// messages has fallen, it never grows from one count to the next, and reaches 0 while messages are
/// still written; each message is in the topic once; the epoch of the lease, which each grant
/// raises; the server's count of parked rows that were read.
async fn catches_up(stage: Stage, lease_ttl: &str, commit_ms: u32) -> Outcome {
    let broker = brokers::open(&stage, Backend::Kafka).await?;
    let topic = broker.topic_name("late");
    let database = Database::<Postgres>::migrated(&stage).await?;
    never_analyse(&database).await?;
    commit_slowly(&database, commit_ms).await?;
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
    let (progress, written) = watch::channel(WAITING);
    let producing = tokio::spawn({
        let (database, topic) = (database.clone(), topic.clone());
        async move {
            let mut pace = tokio::time::interval(BETWEEN_BATCHES);
            pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while !*is_over.borrow_and_update() {
                let written = *progress.borrow();
                append(&database, &topic, written, BATCH).await?;
                progress.send_replace(written + BATCH);
                pace.tick().await;
            }
            Ok::<_, Failure>(*progress.borrow())
        }
    });
    broker.create_topic(&topic).await?;
    let looks = look_until_none_is_held(&database, written).await;
    over.send_replace(true);
    let written = producing.await??;
    let looks = looks?;

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
    eprintln!("{written} messages, {read} rows of outbox_parked read; held at each look: {looks:?}");
    assert!(read <= READ_EACH * written, "{written} messages: {read} rows of outbox_parked read");
    Ok(())
}

/// Counts the held messages whenever a number of new ones has been written, until none is held.
/// Begins when their number falls for the first time: until then the topic is still blocked, and
/// new messages are held as well. Returns the number at each count.
///
/// # Errors
/// The number grew by more than the messages written between two counts, so the relay did not only
/// pause briefly on a busy machine; or some are still held after a long time.
async fn look_until_none_is_held(
    database: &Database<Postgres>,
    mut written: watch::Receiver<i64>,
) -> Result<Vec<i64>, Failure> {
    let looking = async {
        let mut last = 0;
        loop {
            let held = database.integer(HELD).await?;
            if held < last {
                last = held;
                break;
            }
            last = held;
            tokio::time::sleep(BETWEEN_BATCHES).await;
        }
        let mut looks = vec![last];
        let mut least = last;
        while last > 0 {
            let next = *written.borrow() + BETWEEN_LOOKS;
            written.wait_for(|written| *written >= next).await?;
            let held = database.integer(HELD).await?;
            looks.push(held);
            if held > least + BETWEEN_LOOKS {
                return Err(format!("held messages became more again: {looks:?}").into());
            }
            least = least.min(held);
            last = held;
        }
        Ok::<_, Failure>(looks)
    };
    tokio::time::timeout(PATIENCE, looking).await.map_err(|_| "messages are still held")?
}

/// Makes every commit of new sessions wait for this long before it is synced.
async fn commit_slowly(database: &Database<Postgres>, commit_ms: u32) -> Outcome {
    let delay = commit_ms * 1_000;
    let set = format!(
        "DO $$ BEGIN \
            EXECUTE format('ALTER DATABASE %I SET commit_delay = {delay}', current_database()); \
            EXECUTE format('ALTER DATABASE %I SET commit_siblings = 0', current_database()); \
         END $$"
    );
    database.execute(&set).await
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
