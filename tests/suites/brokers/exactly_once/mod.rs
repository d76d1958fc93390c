//! A whole relay that publishes to Kafka in transactions. The tests kill and stop its process, and
//! replace its database or its cluster. The oracle is a plain reader of committed records: for each
//! key it must see 1, 2, 3, … without duplicates.
//!
//! | file | contents |
//! |---|---|
//! | `program.rs` | the relay, as a process |
//! | `ends.rs` | the places between two steps at which the process ends |
//! | `stalls.rs` | how long readers wait for a transaction that the relay leaves open |

mod ends;
mod program;
mod stalls;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use brokers::kafka::{Admin, Config, mock};
use sqlx::{Postgres, Sqlite};
use tests::brokers::{Kafka, committed};
use tests::workload::Workload;
use tests::{Backend, Dialect, Failure, Outcome, Stage, eventually};
use tokio_util::sync::CancellationToken;

use program::Relay;
pub(crate) use program::relay;

const KEYS: usize = 7;
const KILLS: u32 = 12;
/// Duration of a lock: longer than a Kafka transaction takes, and shorter than the lease.
const LOCKED_FOR: Duration = Duration::from_millis(700);
const HELD: &str = "SELECT count(*) FROM outbox_relay WHERE holder IS NOT NULL";
/// Logged by a relay that advances the database to the last mark.
const BROUGHT: &str = "its checkpoint was not stored; the relay stores it now";

tests::cases! { "exactly_once/{on}/{case}":
    postgres + kafka {
        killed_relays_publish_each_message_once = killed::<Postgres>,
        a_relay_that_stood_still_publishes_nothing_again = stopped::<Postgres>,
        ended_between_any_two_steps_a_relay_publishes_each_message_once = ended_between_steps::<Postgres>,
        a_relay_without_its_marks_stops_and_says_so = without_marks::<Postgres>,
        a_relay_whose_database_went_back_stops_and_says_so = set_back::<Postgres>,
        a_database_without_the_last_transaction_stops_the_relay = restored::<Postgres>,
        a_stop_during_a_commit_that_hangs_gives_the_lease_back = stopped_in_commit::<Postgres>,
        a_killed_relay_keeps_readers_waiting_no_longer_than_its_lease = stalls::killed::<Postgres>,
        a_stopped_relay_keeps_readers_waiting_no_longer_than_its_lease = stalls::stopped::<Postgres>,
        a_relay_on_another_cluster_stops_and_says_so = elsewhere::<Postgres>,
    }
    sqlite + kafka {
        killed_relays_publish_each_message_once = killed::<Sqlite>,
        a_database_without_the_last_transaction_stops_the_relay = restored::<Sqlite>,
    }
}

async fn open<DB: Dialect>(stage: &Stage) -> Result<Workload<DB>, Failure> {
    let servers = Backend::Kafka.address()?;
    let doomed = Config::new(servers.split(','));
    let workload = Workload::<DB>::open(stage, Arc::new(Kafka::new(stage, servers))).await?;
    let database = workload.database.clone();
    stage.afterwards("the topic of the marks", async move {
        let topic = marks_topic(&database).await?;
        Ok(Admin::new(&doomed)?.delete_topics(&[&topic]).await?)
    });
    Ok(workload)
}

/// Returns the topic of the marks, derived from the relay's cursor.
async fn marks_topic<DB: Dialect>(database: &tests::Database<DB>) -> Result<String, Failure> {
    let cursor = database.texts("SELECT cursor FROM outbox_relay WHERE relay = 'orders'").await?;
    let cursor = cursor.first().ok_or("the relay has no cursor")?;
    let cursor: serde_json::Value = serde_json::from_str(cursor)?;
    let log = cursor["transaction"]["log"].as_str().ok_or("the cursor knows of no transaction")?;
    Ok(format!("outbox-marks.{log}.orders"))
}

/// Places orders, ten in a transaction, until it is stopped.
fn place<DB: Dialect>(
    workload: &Workload<DB>,
    stop: &CancellationToken,
) -> tokio::task::JoinHandle<Result<(), String>> {
    let (workload, stop) = (workload.clone(), stop.clone());
    tokio::spawn(async move {
        let mut number = 0;
        while !stop.is_cancelled() {
            let placed = async {
                let mut tx = workload.begin().await?;
                for _ in 0..10 {
                    number += 1;
                    workload.place_in(&mut tx, &format!("key-{}", number % KEYS)).await?;
                }
                Ok::<_, Failure>(tx.commit().await?)
            };
            placed.await.map_err(|error| error.to_string())?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    })
}

/// Returns the numbers of each key in the order of their partition, as a reader of committed
/// records sees them.
async fn read(topic: &str) -> Result<BTreeMap<String, Vec<i64>>, Failure> {
    let mut seen: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for payload in committed::read(&Backend::Kafka.address()?, topic).await? {
        let fact: serde_json::Value = serde_json::from_slice(&payload)?;
        let key = fact["key"].as_str().ok_or("a record without a key")?.to_owned();
        seen.entry(key).or_default().push(fact["seq"].as_i64().ok_or("no number")?);
    }
    Ok(seen)
}

fn count(seen: &BTreeMap<String, Vec<i64>>) -> usize {
    seen.values().map(Vec::len).sum()
}

/// Checks that each key has 1, 2, 3, … so far: no duplicate, no gap, no overtaking.
fn check(seen: &BTreeMap<String, Vec<i64>>) -> Outcome {
    for (key, numbers) in seen {
        let first_wrong = numbers.iter().zip(1..).position(|(number, expected)| *number != expected);
        if let Some(at) = first_wrong {
            let around = &numbers[at.saturating_sub(3)..numbers.len().min(at + 4)];
            return Err(format!("{key}: number {at} is wrong in {around:?}").into());
        }
    }
    Ok(())
}

/// Waits until a reader sees every placed order, and checks the order per key. Returns the number
/// of placed orders.
async fn settled<DB: Dialect>(workload: &Workload<DB>) -> Result<usize, Failure> {
    let placed = workload.database.integer("SELECT count(*) FROM placed WHERE key <> 'poison'").await?;
    let placed = usize::try_from(placed)?;
    let seen = eventually("every order is seen", || async {
        let seen = read(&workload.topic).await?;
        check(&seen)?;
        Ok((count(&seen) >= placed).then_some(seen))
    });
    let seen = seen.await?;
    assert_eq!(count(&seen), placed);
    Ok(placed)
}

/// Goal: relays that are killed at any moment, while the broker refuses one message, publish each
/// message once and in order. Oracle: a reader of committed records; at least one relay had to
/// advance the database to a mark.
async fn killed<DB: Dialect>(stage: Stage) -> Outcome {
    let workload = open::<DB>(&stage).await?;
    let stop = CancellationToken::new();
    let mut tx = workload.begin().await?;
    workload.place_large_in(&mut tx, "poison", 1_100_000).await?;
    tx.commit().await?;
    let placing = place(&workload, &stop);
    let mut brought = 0;
    let mut kills = 0;
    // A kill between the broker's commit and the database's leaves a mark, to which the next relay
    // advances the database. To hit that gap, every other relay finds the database locked when it
    // wants to store a mark.
    while kills < KILLS {
        let relay = Relay::start(&stage, &workload)?;
        relay.tells("connected").await?;
        let log = if kills % 2 == 0 {
            tokio::time::sleep(Duration::from_millis(137 * u64::from(kills % 6) + 41)).await;
            relay.kill().await?
        } else {
            publishes(&workload).await?;
            let lock = lock(&workload).await?;
            tokio::time::sleep(LOCKED_FOR).await;
            let log = relay.kill().await?;
            if DB::BACKEND == Backend::Postgres {
                workload.database.execute(END_WAITING).await?;
            }
            drop(lock);
            log
        };
        kills += 1;
        brought += usize::from(log.contains(BROUGHT));
        check(&read(&workload.topic).await?)?;
    }
    stop.cancel();
    placing.await??;
    let relay = Relay::start(&stage, &workload)?;
    let placed = settled(&workload).await?;
    relay.kill().await?;
    println!("{placed} messages, {kills} kills, {brought} marks applied");
    assert!(brought > 0, "no relay of {kills} was killed between the two commits");
    Ok(())
}

/// Waits until the relay has published more.
async fn publishes<DB: Dialect>(workload: &Workload<DB>) -> Outcome {
    let before = count(&read(&workload.topic).await?);
    eventually("the relay publishes", || async {
        Ok((count(&read(&workload.topic).await?) > before).then_some(()))
    })
    .await
}

/// PostgreSQL executes a statement that waits for a lock even if its client is gone.
const END_WAITING: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
    WHERE datname = current_database() AND wait_event_type = 'Lock'";

/// Keeps a relay from storing anything until the transaction is dropped.
async fn lock<DB: Dialect>(workload: &Workload<DB>) -> Result<sqlx::Transaction<'static, DB>, Failure> {
    let is_whole = DB::BACKEND == Backend::Sqlite;
    let begin = if is_whole { "BEGIN IMMEDIATE" } else { "BEGIN" };
    let mut lock = workload.database.admin.begin_with(begin).await?;
    if !is_whole {
        DB::execute(&mut lock, "SELECT FROM outbox_relay FOR UPDATE").await?;
    }
    Ok(lock)
}

/// Goal: a relay is suspended for longer than its lease while it publishes, and resumes when
/// another relay leads. It publishes no message a second time.
async fn stopped<DB: Dialect>(stage: Stage) -> Outcome {
    let workload = open::<DB>(&stage).await?;
    let stop = CancellationToken::new();
    let placing = place(&workload, &stop);
    let mut leader = Relay::start(&stage, &workload)?;
    for _ in 0..3 {
        leader.tells("connected").await?;
        tokio::time::sleep(Duration::from_millis(700)).await;
        leader.signal("STOP").await?;
        let next = Relay::start(&stage, &workload)?;
        next.tells("connected").await?;
        tokio::time::sleep(Duration::from_millis(500)).await;
        leader.signal("CONT").await?;
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        check(&read(&workload.topic).await?)?;
        std::mem::replace(&mut leader, next).kill().await?;
    }
    stop.cancel();
    placing.await??;
    settled(&workload).await?;
    leader.kill().await?;
    Ok(())
}

/// Goal: wherever a relay ends between two steps of its protocol, its successor publishes the rest
/// once. If the database has not stored the last commit, the successor advances it to the mark of
/// that commit.
async fn ended_between_steps<DB: Dialect>(stage: Stage) -> Outcome {
    const STEPS: [(&str, u32); 13] = [
        // At the start: the identity of the log, and the first transaction.
        ("before_checkpoint", 1),
        ("after_checkpoint", 1),
        ("before_take_over", 1),
        ("after_take_over", 1),
        ("before_commit", 1),
        ("after_commit", 1),
        // While the successor advances the database to the last commit.
        ("before_checkpoint", 1),
        ("after_checkpoint", 1),
        // In the middle of the work.
        ("before_commit", 4),
        ("after_commit", 5),
        ("before_checkpoint", 6),
        ("after_checkpoint", 7),
        ("after_take_over", 1),
    ];
    let workload = open::<DB>(&stage).await?;
    let stop = CancellationToken::new();
    let placing = place(&workload, &stop);
    let mut is_ahead = false;
    for (place, times) in STEPS {
        let log = Relay::start_doomed(&stage, &workload, place, times)?.ended().await?;
        assert!(log.contains(&format!("ends {place}")), "it ended elsewhere than {place}");
        let has_led = !place.ends_with("take_over");
        assert_eq!(log.contains(BROUGHT), is_ahead && has_led, "{place}={times}: the mark before it");
        // Whether Kafka has a mark that the database does not have.
        is_ahead = match place {
            "after_commit" => true,
            "before_checkpoint" => is_ahead || times > 1,
            "before_commit" | "after_checkpoint" => false,
            _ => is_ahead,
        };
        check(&read(&workload.topic).await?).map_err(|error| format!("{place}={times}: {error}"))?;
    }
    stop.cancel();
    placing.await??;
    let relay = Relay::start(&stage, &workload)?;
    settled(&workload).await?;
    relay.kill().await?;
    Ok(())
}

/// Goal: when the marks topic is missing, the relay stops publishing, reports the reason, and does
/// not keep the lease.
async fn without_marks<DB: Dialect>(stage: Stage) -> Outcome {
    let workload = open::<DB>(&stage).await?;
    workload.place_many(KEYS, 20).await?;
    let relay = Relay::start(&stage, &workload)?;
    let placed = settled(&workload).await?;
    relay.kill().await?;
    let config = Config::new(Backend::Kafka.address()?.split(','));
    let topic = marks_topic(&workload.database).await?;
    Admin::new(&config)?.delete_topics(&[&topic]).await?;
    workload.place_many(KEYS, 20).await?;
    let relay = Relay::start(&stage, &workload)?;
    relay.tells("is missing, although transactions were committed").await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(count(&read(&workload.topic).await?), placed);
    relay.signal("TERM").await?;
    relay.ended().await?;
    assert_eq!(workload.database.integer(HELD).await?, 0, "the lease is given back");
    Ok(())
}

/// Goal: when the database is behind the marks, as after a restore, the relay republishes nothing
/// and reports both numbers.
async fn set_back<DB: Dialect>(stage: Stage) -> Outcome {
    let workload = open::<DB>(&stage).await?;
    let relay = Relay::start(&stage, &workload)?;
    let cursor = |workload: &Workload<DB>| {
        let database = workload.database.clone();
        async move { Ok::<_, Failure>(database.texts("SELECT cursor FROM outbox_relay").await?.remove(0)) }
    };
    let number = |cursor: &str| -> Result<u64, Failure> {
        let cursor: serde_json::Value = serde_json::from_str(cursor)?;
        Ok(cursor["transaction"]["number"].as_u64().unwrap_or_default())
    };
    workload.place_many(KEYS, 20).await?;
    settled(&workload).await?;
    let earlier = cursor(&workload).await?;
    for _ in 0..3 {
        workload.place_many(KEYS, 20).await?;
        settled(&workload).await?;
    }
    let known = number(&earlier)?;
    eventually("three transactions are stored", || async {
        Ok(eventually::when(number(&cursor(&workload).await?)? >= known + 3))
    })
    .await?;
    relay.kill().await?;
    let placed = count(&read(&workload.topic).await?);
    workload.database.execute(&format!("UPDATE outbox_relay SET cursor = '{earlier}'")).await?;
    workload.place_many(KEYS, 20).await?;
    let relay = Relay::start(&stage, &workload)?;
    relay
        .tells(&format!("the database has recorded transaction {known}, but the broker's last mark is"))
        .await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(count(&read(&workload.topic).await?), placed);
    relay.kill().await?;
    Ok(())
}

/// Goal: a database is restored to just before the last transaction, whose mark the broker has. New
/// rows that reuse the old ids are not skipped.
async fn restored<DB: Dialect>(stage: Stage) -> Outcome {
    let workload = open::<DB>(&stage).await?;
    workload.place_many(KEYS, 20).await?;
    let relay = Relay::start(&stage, &workload)?;
    settled(&workload).await?;
    relay.signal("TERM").await?;
    relay.ended().await?;
    assert_eq!(workload.database.integer(HELD).await?, 0, "the lease is given back");
    let last = workload.database.integer("SELECT max(id) FROM outbox_message").await?;
    workload.place_many(KEYS, 1).await?;
    let log = Relay::start_doomed(&stage, &workload, "after_commit", 1)?.ended().await?;
    assert!(!log.contains(BROUGHT), "the database is one behind");
    let left = count(&read(&workload.topic).await?);
    // A restore does the same. On SQLite, rows that are placed afterwards get the same ids.
    workload.database.execute(&format!("DELETE FROM outbox_message WHERE id > {last}")).await?;
    if DB::BACKEND == Backend::Sqlite {
        workload.database.execute(&format!("UPDATE sqlite_sequence SET seq = {last}")).await?;
    }
    workload.place_many(KEYS, 1).await?;
    let relay = Relay::start(&stage, &workload)?;
    relay.tells("which is not in this log").await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(count(&read(&workload.topic).await?), left);
    let log = relay.kill().await?;
    assert!(!log.contains(BROUGHT), "the mark is not brought to this database");
    Ok(())
}

/// Goal: a relay that is stopped while a commit is unanswered ends and releases its lease; its
/// successor publishes the rest once.
async fn stopped_in_commit<DB: Dialect>(stage: Stage) -> Outcome {
    let workload = open::<DB>(&stage).await?;
    workload.place_many(KEYS, 20).await?;
    let relay = Relay::start_doomed(&stage, &workload, "in_commit", 1)?;
    relay.tells("stands still in_commit").await?;
    relay.signal("TERM").await?;
    relay.ended().await?;
    assert_eq!(workload.database.integer(HELD).await?, 0, "the lease is given back");
    let relay = Relay::start(&stage, &workload)?;
    settled(&workload).await?;
    relay.kill().await?;
    Ok(())
}

/// Goal: a relay publishes nothing to another cluster, which does not have its marks.
async fn elsewhere<DB: Dialect>(stage: Stage) -> Outcome {
    let workload = open::<DB>(&stage).await?;
    workload.place_many(KEYS, 20).await?;
    let relay = Relay::start(&stage, &workload)?;
    settled(&workload).await?;
    relay.kill().await?;
    workload.place_many(KEYS, 20).await?;
    let other = mock::Mock::start(1)?;
    let relay = Relay::start_elsewhere(&stage, &workload, &other.bootstrap_servers().join(","))?;
    relay.tells("is missing, although transactions were committed").await?;
    relay.kill().await?;
    // Back on its own cluster, it continues where it was.
    let relay = Relay::start(&stage, &workload)?;
    settled(&workload).await?;
    relay.kill().await?;
    Ok(())
}
