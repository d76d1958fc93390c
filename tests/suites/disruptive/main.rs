//! Services that stop, crash and come back in the middle of the work. These tests run alone, one by
//! one, because they stop services that other tests need.

#![deny(dead_code, reason = "a case that no list names would never run")]

mod transactions;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use message::{
    ContentType, EventType, Fault, FaultScope, Message, OrderingKey, Receipts, Submission, Ticket, Topic,
};
use sqlx::Postgres;
use tests::relay_process::Config;
use tests::workload::Workload;
use tests::{Backend, Broker, Outcome, RelayProcess, Stage, eventually, services};

const PATIENCE: Duration = Duration::from_secs(40);
const KEYS: usize = 5;

// The SQS server under test keeps its queues in memory, so confirmed messages do not survive a
// stop, and its case checks the publisher's receipts instead of the queue.
tests::cases! { "{case}/{on}":
    night postgres kafka + xtask {
        a_broker_that_crashes_loses_nothing,
        a_broker_that_crashes_shows_each_message_once = transactions::a_broker_that_crashes_shows_each_message_once,
    }
    night postgres rabbitmq + xtask { a_broker_that_crashes_loses_nothing }
    night kafka + xtask { a_stopped_broker_confirms_nothing_it_does_not_hold }
    night rabbitmq + xtask { a_stopped_broker_confirms_nothing_it_does_not_hold }
    night sqs + xtask { a_stopped_broker_leaves_no_submission_without_a_receipt }
    night anywhere + postgres kafka xtask {
        a_database_that_crashes_loses_nothing,
        a_database_that_is_down_at_the_start_is_waited_for,
    }
    night anywhere + kafka xtask {
        a_commit_that_nobody_answers_ends_its_session = transactions::a_commit_that_nobody_answers_ends_its_session,
    }
}

fn main() -> std::process::ExitCode {
    tests::trial::run_alone(trials())
}

/// Places an order, and tries again while the database is down. An order whose commit got no answer
/// may or may not be in the database; the checker counts the stored orders.
async fn place_patiently(workload: &Workload<Postgres>, key: &str) -> Outcome {
    eventually("an order is placed", || async { Ok(workload.place(key).await.ok()) }).await
}

async fn place_many_patiently(workload: &Workload<Postgres>, orders: usize) -> Outcome {
    for number in 0..orders {
        place_patiently(workload, &format!("key-{}", number % KEYS)).await?;
    }
    Ok(())
}

/// Goal: G2, a broker that crashes in the middle loses nothing and costs no attempts, and its
/// return is noticed. Oracle: the checker; nothing is parked.
async fn a_broker_that_crashes_loses_nothing(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let backend = broker.backend();
    let workload = Workload::<Postgres>::open(&stage, broker).await?;
    let config =
        Config::write(&stage, "orders", &workload.database.relay_url()?, workload.broker.as_ref(), "")?;
    let relay = RelayProcess::start(&stage, &config)?;
    let consumer = workload.consume().await?;
    workload.place_many(KEYS, 50).await?;
    workload.applied(20).await?;
    // RabbitMQ forgets a queue that was declared shortly before it is killed.
    tokio::time::sleep(DECLARED_FOR).await;
    services::stop(&stage, backend).await?;
    workload.place_many(KEYS, 50).await?;
    services::start(backend).await?;
    workload.place_many(KEYS, 50).await?;
    workload.settled().await?;
    eventually("nothing is parked", || async {
        Ok((workload.database.integer("SELECT count(*) FROM outbox_exception").await? == 0).then_some(()))
    })
    .await?;
    assert!(!relay.log()?.contains("an operator must"), "an outage killed a message");
    consumer.stop().await?;
    relay.stop().await
}

/// Time after which RabbitMQ has written a declaration to its disk: Mnesia collects its log for two
/// seconds.
const DECLARED_FOR: Duration = Duration::from_secs(4);

/// Goal: G8, when the broker stops, every submission still gets its one receipt, and the receipt
/// says "unknown" unless the broker holds the message. Oracle: the records, read with a plain
/// client after the broker's return.
async fn a_stopped_broker_confirms_nothing_it_does_not_hold(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let Outage { topic, confirmed } = publish_through_an_outage(&stage, broker.as_ref()).await?;
    let records = broker.drain(&topic, confirmed.len()).await?;
    let held: BTreeSet<u64> = records
        .iter()
        .map(|record| Ok(String::from_utf8_lossy(&record.payload).parse()?))
        .collect::<Result<_, tests::Failure>>()?;
    let missing: Vec<_> = confirmed.difference(&held).collect();
    assert!(missing.is_empty(), "confirmed and not there: {missing:?}");
    Ok(())
}

/// Goal: G8, for a broker that may forget: when it stops, every submission still gets its one
/// receipt, and missing confirmations are the broker's fault. Oracle: the receipts. Confirmed
/// messages do not have to survive the stop, because ElasticMQ forgets them even in an orderly stop
/// (docs/reliability.md).
async fn a_stopped_broker_leaves_no_submission_without_a_receipt(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    publish_through_an_outage(&stage, broker.as_ref()).await.map(drop)
}

/// The result of publishing while the broker stopped.
struct Outage {
    topic: String,
    /// Numbers of the messages that the broker confirmed.
    confirmed: BTreeSet<u64>,
}

/// Publishes while the broker stops, checks that each submission gets one receipt, and starts the
/// broker again.
async fn publish_through_an_outage(stage: &Stage, broker: &dyn Broker) -> Result<Outage, tests::Failure> {
    const COUNT: u64 = 400;
    let topic = broker.topic_name("outage");
    broker.create_topic(&topic).await?;
    if broker.backend() == Backend::Rabbitmq {
        // RabbitMQ confirms a declaration before it is on disk: a crash right afterwards would lose
        // the queue.
        services::restart(Backend::Rabbitmq).await?;
    }
    let (sender, mut receipts) = Receipts::channel();
    let mut publisher = broker.connector()?.connect(sender).await?;
    let mut confirmed = BTreeSet::new();
    let mut ids = Vec::new();
    let stopping = services::stop(stage, broker.backend());
    let submitting = async {
        for number in 0..COUNT {
            let message = Message::new(Topic::new(topic.as_str())?, EventType::new("e")?, number.to_string())
                .with_key(OrderingKey::new(format!("key-{number}"))?)
                .with_content_type(ContentType::json());
            ids.push(message.id);
            publisher.submit(vec![Submission { ticket: Ticket(number), message: message.into() }]).await;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok::<_, tests::Failure>(publisher)
    };
    let (stopped, publisher) = tokio::join!(stopping, submitting);
    let (closed, ()) = (publisher?, stopped?);
    closed.close(Duration::ZERO).await;
    let mut answered = BTreeSet::new();
    while let Some(receipt) = tokio::time::timeout(PATIENCE, receipts.recv()).await? {
        assert!(answered.insert(receipt.ticket), "{:?} has two receipts", receipt.ticket);
        match receipt.outcome {
            Ok(()) => _ = confirmed.insert(receipt.ticket.0),
            Err(error) => {
                assert_eq!((error.fault(), error.scope()), (Fault::Broker, FaultScope::Session), "{error}");
            }
        }
    }
    assert_eq!(answered.len(), ids.len());
    assert!(confirmed.len() < ids.len(), "the broker was not stopped in the middle");
    services::start(broker.backend()).await?;
    Ok(Outage { topic, confirmed })
}

/// Goal: G2, a database that crashes in the middle loses nothing; relay and consumer recover
/// without help. Oracle: the checker.
async fn a_database_that_crashes_loses_nothing(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    let workload = Workload::<Postgres>::open(&stage, broker).await?;
    let config =
        Config::write(&stage, "orders", &workload.database.relay_url()?, workload.broker.as_ref(), "")?;
    let relay = RelayProcess::start(&stage, &config)?;
    let consumer = workload.consume().await?;
    workload.place_many(KEYS, 50).await?;
    workload.applied(10).await?;
    let (crashed, placed) =
        tokio::join!(services::crash(Backend::Postgres), place_many_patiently(&workload, 150));
    crashed?;
    placed?;
    workload.settled().await?;
    consumer.stop().await?;
    relay.stop().await
}

/// Goal: a relay that starts while the database is down waits for it instead of ending. Oracle: the
/// checker.
async fn a_database_that_is_down_at_the_start_is_waited_for(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let workload = Workload::<Postgres>::open(&stage, broker).await?;
    workload.place_many(KEYS, 20).await?;
    let config =
        Config::write(&stage, "orders", &workload.database.relay_url()?, workload.broker.as_ref(), "")?;
    services::stop(&stage, Backend::Postgres).await?;
    let mut relay = RelayProcess::start(&stage, &config)?;
    let waited = relay.tells("not available").await;
    services::start(Backend::Postgres).await?;
    waited?;
    assert!(relay.has_ended()?.is_none(), "the relay gave up");
    let consumer = workload.consume().await?;
    place_many_patiently(&workload, 20).await?;
    workload.settled().await?;
    consumer.stop().await?;
    relay.stop().await
}
