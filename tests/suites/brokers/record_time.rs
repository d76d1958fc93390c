//! The timestamp of a Kafka record, by which Kafka's retention deletes it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::brokers::kafka::{Config, Connector, TopicPlan, TransactionalConnector};
use conformance::{relaying, sample};
use harness::plain::kafka::{Kafka, Reading};
use message::cloudevents::format_time;
use message::{
    Connector as _, Fault, FaultScope, Message, PayloadEncoding, Receipts, SizeLimit, Splitter, Submission,
    Ticket, TransactionMark, TransactionScope, Transactions as _,
};
use rdkafka::Timestamp;
use rdkafka::message::{Headers as _, Message as _, OwnedMessage};
use tests::brokers::{create_kafka_topic, remove_kafka_topic};
use tests::{Backend, Failure, Outcome, Stage};

const PATIENCE: Duration = Duration::from_secs(60);
/// Age of the messages: longer than a topic keeps records by default.
const WAITED: Duration = Duration::from_secs(30 * 86_400);
/// Retention of the topic: one hour. A record that carried its time of enqueuing would be due for
/// deletion on arrival.
const RETENTION_MS: &str = "3600000";

tests::cases! { "record_time/{on}/{case}":
    kafka {
        "a_message_that_has_waited_carries_the_time_of_publishing/plain" = plain,
        "a_message_that_has_waited_carries_the_time_of_publishing/transactions" = transactional,
        a_topic_that_refuses_the_time_is_the_operators = refused,
    }
}

async fn topic(stage: &Stage, settings: &[(&str, &str)]) -> Result<(Config, String), Failure> {
    let config = Config::new(Backend::Kafka.address()?.split(','));
    let topic = stage.unique("time");
    let plan = TopicPlan::new(&topic, 1);
    let plan = settings.iter().fold(plan, |plan, (name, value)| plan.with(*name, *value));
    create_kafka_topic(stage, &config, plan).await?;
    Ok((config, topic))
}

/// Returns a message that was enqueued long ago, whole and in chunks.
fn old(topic: &str) -> Result<Vec<Message>, Failure> {
    let waited = |message: Message| Message { time: message.time - WAITED, ..message };
    let whole = waited(sample::order(topic, "k", 1)?);
    let large = Message { payload: vec![b' '; 100_000].into(), ..waited(sample::complete(topic)?) };
    let limit = SizeLimit { message_bytes_max: 50_000, ..SizeLimit::KAFKA };
    let splitter = Splitter { limit, encoding: PayloadEncoding::Raw, chunked_bytes_max: 1_000_000 };
    let chunks = splitter.split(&large)?.ok_or("it is not split")?;
    assert!(chunks.len() > 1 && chunks.iter().all(|chunk| chunk.chunk.is_some()));
    Ok([whole].into_iter().chain(chunks).collect())
}

fn now_ms() -> Result<i64, Failure> {
    Ok(i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?)
}

/// Checks that each record was stamped between these moments, and that `ce_time` is when its
/// message was enqueued.
fn assert_times(records: &[OwnedMessage], sent: &[Message], (before, after): (i64, i64)) -> Outcome {
    assert_eq!(records.len(), sent.len());
    for (record, message) in records.iter().zip(sent) {
        let Timestamp::CreateTime(at) = record.timestamp() else { return Err("no CreateTime".into()) };
        assert!((before..=after).contains(&at), "{at} is not between {before} and {after}");
        let headers = record.headers().ok_or("no headers")?;
        let time = headers.iter().find(|header| header.key == "ce_time").and_then(|header| header.value);
        assert_eq!(time, Some(format_time(message.time).as_bytes()), "ce_time is when it was enqueued");
    }
    Ok(())
}

/// Goal: a message that has waited longer than its topic keeps records is not deleted minutes after
/// it was published. Oracle: the records' timestamps, by which Kafka deletes, and this machine's
/// clock before and after publishing.
async fn plain(stage: Stage) -> Outcome {
    let (config, topic) = topic(&stage, &[("retention.ms", RETENTION_MS)]).await?;
    let sent = old(&topic)?;
    let before = now_ms()?;
    let outcome = relaying::send(&Connector::new(config.clone())?, &sent).await?;
    let after = now_ms()?;
    assert!(outcome.refused.is_empty(), "{:?}", outcome.refused);
    let records = read(&config, &topic, sent.len()).await?;
    assert_times(&records, &sent, (before, after))
}

/// Does the same as [`plain`], in a broker transaction.
async fn transactional(stage: Stage) -> Outcome {
    let (mut config, topic) = topic(&stage, &[("retention.ms", RETENTION_MS)]).await?;
    // librdkafka refuses to create a client whose socket timeout exceeds its transaction timeout.
    config.properties.insert(String::from("socket.timeout.ms"), "60000".into());
    let scope = TransactionScope {
        log: stage.unique("log").to_lowercase(),
        relay: String::from("orders"),
        is_new: true,
        timeout: Duration::from_secs(10),
    };
    let marks = format!("outbox-marks.{}.{}", scope.log, scope.relay);
    remove_kafka_topic(&stage, &config, &marks);
    let connector = TransactionalConnector::new(config.clone())?;
    connector.take_over(&scope).await?;
    let (receipts, mut received) = Receipts::channel();
    let mut publisher = connector.connect(receipts).await?;
    let sent = old(&topic)?;
    let before = now_ms()?;
    let numbered = sent.iter().cloned().enumerate();
    let batch =
        numbered.map(|(at, message)| Submission { ticket: Ticket(at as u64), message: message.into() });
    publisher.submit(batch.collect()).await;
    for _ in &sent {
        tokio::time::timeout(PATIENCE, received.recv()).await?.ok_or("a receipt is missing")?.outcome?;
    }
    let after = now_ms()?;
    let mark = TransactionMark { number: 1, content: b"mark".to_vec() };
    connector.commit(connector.close(connector.session()), mark).await?;
    let records = read(&config, &topic, sent.len()).await?;
    assert_times(&records, &sent, (before, after))
}

/// Goal: a topic that refuses records of this age, for example because a clock is wrong, stops
/// until an operator acts, and costs no message an attempt. Oracle: the fault and the advice.
async fn refused(stage: Stage) -> Outcome {
    let (mut config, topic) = topic(&stage, &[("message.timestamp.before.max.ms", "0")]).await?;
    // By the time its batch is filled, a record is older than the topic accepts.
    config.linger_ms = 200;
    let outcome = relaying::send(&Connector::new(config)?, &[sample::order(&topic, "k", 1)?]).await?;
    let [(_, error)] = &outcome.refused[..] else { return Err(format!("{outcome:?}").into()) };
    assert_eq!((error.fault(), error.scope()), (Fault::Operator, FaultScope::Topic), "{error}");
    assert!(error.to_string().contains("message.timestamp"), "{error}");
    Ok(())
}

/// Returns the committed records of the only partition.
async fn read(config: &Config, topic: &str, count: usize) -> Result<Vec<OwnedMessage>, Failure> {
    let reading = Reading::default().committed(Duration::ZERO).at_least(count).silence(PATIENCE);
    Kafka::new(config.bootstrap_servers.join(",")).read_all(topic, reading).await
}
