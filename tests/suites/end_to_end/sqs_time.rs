//! Times longer than the limits of SQS: its deduplication of five minutes, its maximum delay of
//! fifteen minutes, and the retention of a queue.

use std::sync::Arc;
use std::time::Duration;

use harness::plain::sqs::Sqs;
use message::{ContentType, EventType, Message, OrderingKey, Receipts, Submission, Ticket, Topic};
use serde_json::json;
use sqlx::Postgres;
use tests::eventually::when;
use tests::relay_process::Config;
use tests::workload::Workload;
use tests::{Backend, Broker, Cluster, Database, Outcome, RelayProcess, Stage, eventually};
use time::OffsetDateTime;

use crate::commands::Ran;
use crate::verify::{self, verify};

const RELAY: &str = "orders";
/// Interval between copies of a message.
const COPY_EVERY: Duration = Duration::from_secs(10);
/// Longer than SQS can delay a message, in seconds.
const SCHEDULED_SECS: u32 = 1_200;

tests::cases! { "{case}/{on}":
    postgres sqs_fifo { a_copy_after_the_deduplication_of_sqs_takes_no_effect = copied }
    postgres sqs + xtask { a_message_waits_longer_than_sqs_can_delay_it = scheduled }
    postgres sqs { a_message_that_a_queue_has_forgotten_is_named_and_replayed = forgotten }
}

/// Goal: a copy that a FIFO queue accepts, because its deduplication has forgotten the first
/// message, takes no effect. Oracle: the queue drops copies for minutes, then delivers one to the
/// consumer; one effect.
async fn copied(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let workload = Workload::<Postgres>::open(&stage, broker).await?;
    let consumer = workload.consume().await?;
    let payload = serde_json::to_vec(&json!({ "key": "a", "seq": 1 }))?;
    let message =
        Message::new(Topic::new(workload.topic.as_str())?, EventType::new("order.placed")?, payload)
            .with_key(OrderingKey::new("a")?)
            .with_content_type(ContentType::json());
    send(&workload, &message).await?;
    workload.applied(1).await?;
    let mut copies = 0;
    while workload.repeated().await? == 0 {
        send(&workload, &message).await?;
        copies += 1;
        tokio::time::sleep(COPY_EVERY).await;
    }
    println!("of {copies} copies the queue swallowed all but the last");
    assert!(copies > 1, "the queue swallows no copy at all");
    assert_eq!((workload.effects().await?.len(), workload.repeated().await?), (1, 1));
    consumer.stop().await
}

/// Publishes a message without a relay.
async fn send(workload: &Workload<Postgres>, message: &Message) -> Outcome {
    let (receipts, mut received) = Receipts::channel();
    let mut publisher = workload.broker.connector()?.connect(receipts).await?;
    publisher.submit(vec![Submission { ticket: Ticket(1), message: message.clone().into() }]).await;
    received.recv().await.ok_or("no receipt")?.outcome?;
    publisher.close(Duration::from_secs(5)).await;
    Ok(())
}

/// Goal: a message that is scheduled further ahead than SQS can delay it waits in the outbox, and
/// is published at its time by the database's clock. Oracle: a clock that the test moves; effects
/// before and after.
async fn scheduled(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let cluster = Cluster::start_with_clock(&stage).await?;
    let database = Database::<Postgres>::migrated_at(&stage, cluster.url()).await?;
    let workload = Workload::<Postgres>::on(database, broker).await?;
    let url = workload.database.relay_url()?;
    let config = Config::write(&stage, RELAY, &url, workload.broker.as_ref(), "")?;
    let relay = RelayProcess::start(&stage, &config)?;
    let consumer = workload.consume().await?;
    let due = OffsetDateTime::now_utc() + Duration::from_secs(SCHEDULED_SECS.into());
    let mut tx = workload.begin().await?;
    workload.outbox().enqueue(&mut tx, workload.message("later", 1).deliver_at(due)).await?;
    tx.commit().await?;
    workload.place("now").await?;
    workload.applied(1).await?;
    assert!(workload.effects().await?.iter().all(|fact| fact.key == "now"));
    // A minute before its time the message waits, and does not block others.
    cluster.set_clock(i64::from(SCHEDULED_SECS) - 60)?;
    workload.place("now").await?;
    workload.applied(2).await?;
    assert!(workload.effects().await?.iter().all(|fact| fact.key == "now"));
    cluster.set_clock(i64::from(SCHEDULED_SECS) + 60)?;
    workload.applied(3).await?;
    assert_eq!(workload.effects().await?.iter().filter(|fact| fact.key == "later").count(), 1);
    consumer.stop().await?;
    relay.stop().await
}

/// Goal: a message that waits longer than its queue keeps messages is reported as missing, and a
/// replay makes it take effect. Oracle: a queue that is emptied, as SQS does after the retention;
/// `relay verify` before and after; the checker.
async fn forgotten(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let workload = Workload::<Postgres>::open(&stage, broker).await?;
    let sqs = Sqs::elasticmq(Backend::Sqs.address()?).await;
    let config = verify::config(&stage, &workload, &workload.database.url, "")?;
    workload.place_many(2, 5).await?;
    Ran::with(&config, &["run", "--once"]).await?.done()?;
    assert_eq!(sqs.counts(&workload.topic).await?.visible, 5);
    // The test empties the queue, because ElasticMQ keeps messages forever.
    sqs.purge(&workload.topic).await?;
    eventually("the queue is empty", || async { Ok(when(sqs.counts(&workload.topic).await?.visible == 0)) })
        .await?;
    let consumer = workload.consume().await?;
    let (code, report) = verify(&config, &["--grace", "1s"]).await?;
    let missing = report["messages"].as_array().map_or(0, Vec::len);
    assert_eq!((code, missing), (Some(1), 5), "{report:#}");
    let replay = ["replay", "--topic", &workload.topic, "--actor", "ann", "--note", "a test", "--yes"];
    Ran::with(&config, &replay).await?.done()?;
    workload.settled().await?;
    consumer.stop().await?;
    let (code, report) = verify(&config, &["--grace", "1s"]).await?;
    assert_eq!(code, Some(0), "{report:#}");
    Ok(())
}
