//! A Kafka record: CloudEvents Kafka binding 1.0.2, binary mode.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::{SystemTime, UNIX_EPOCH};

use brokers::kafka::{Config, Connector, GroupConfig, Subscriber, TopicPlan, mock};
use bytes::Bytes;
use conformance::consuming::receive;
use harness::plain::kafka::{Kafka as PlainKafka, Reading};
use message::{Message, MessageId, OrderingKey, Subscription, TOMBSTONE};
use rdkafka::Timestamp;
use rdkafka::message::{Headers as _, Message as _, OwnedMessage};
use tests::brokers::{create_kafka_topic, patient_kafka};
use tests::{Backend, Failure, Outcome, Stage};

use super::{attributes, plain_headers, publish};
use conformance::session::PATIENCE;
use conformance::{relaying, sample};

/// Enough partitions to test `murmur2(key) % partitions`, the partitioner of Java clients.
const PARTITIONS: u16 = 16;
/// The partition of the key `order-7` among 16, computed with a Python version of Apache Kafka's
/// `Utils.murmur2`.
const PARTITION_OF_ORDER_7: i32 = 1;

/// Runs the check on librdkafka's mock cluster.
pub(super) async fn mock() -> Outcome {
    let cluster = mock::Mock::start(1)?;
    cluster.create_topic("wire", PARTITIONS)?;
    check(&cluster.bootstrap_servers(), "wire").await
}

/// Runs the check on Apache Kafka.
pub(super) async fn cluster(stage: Stage) -> Outcome {
    let servers: Vec<String> = Backend::Kafka.address()?.split(',').map(str::to_owned).collect();
    let topic = stage.unique("wire");
    let config = patient_kafka(&servers.join(","));
    create_kafka_topic(&stage, &config, TopicPlan::new(&topic, PARTITIONS)).await?;
    check(&servers, &topic).await
}

/// Goal: a message without a value is a record without one, is read back as one, and is not
/// mistaken for an empty payload. Oracle: librdkafka's plain consumer, and the messages that a
/// subscription returns.
pub(super) async fn tombstone(stage: Stage) -> Outcome {
    let servers = Backend::Kafka.address()?;
    let topic = stage.unique("tombstones");
    let config = patient_kafka(&servers);
    create_kafka_topic(&stage, &config, TopicPlan::new(&topic, 1)).await?;
    let mut gone = sample::binary(&topic)?;
    gone.payload = Bytes::new();
    gone.key = Some(OrderingKey::new("customer-7")?);
    let mut empty = gone.clone().with_id(MessageId::new());
    gone.headers.insert(TOMBSTONE, "true")?;
    empty.headers = gone.headers.clone();
    empty.headers.insert(TOMBSTONE, "false")?;
    let messages = [gone.clone(), empty.clone()];
    let sent = relaying::send(&Connector::new(config.clone())?, &messages).await?;
    assert!(sent.refused.is_empty(), "{sent:?}");
    let reading = Reading::default().at_least(2).silence(PATIENCE);
    let records = PlainKafka::new(servers).read_all(&topic, reading).await?;
    let values: Vec<_> = records.iter().map(|record| (record.key(), record.payload())).collect();
    let key = Some(&b"customer-7"[..]);
    assert_eq!(values, [(key, None), (key, Some(&b""[..]))]);
    let group = GroupConfig::new(stage.unique("group"), [&topic]);
    let mut member: Box<dyn Subscription> = Subscriber::new(config, group)?.subscribe().await?;
    let received = receive(&mut member, 2).await?;
    let read: Vec<_> = received.iter().filter_map(|delivery| delivery.message.as_ref().ok()).collect();
    assert_eq!(read, [&gone, &empty]);
    assert_eq!([read[0].is_tombstone(), read[1].is_tombstone()], [true, false]);
    Ok(member.close().await?)
}

/// Goal: a consumer in any language finds what `docs/wire.md` says. Oracle: librdkafka's plain
/// consumer.
async fn check(servers: &[String], topic: &str) -> Outcome {
    let connector = Connector::new(Config::new(servers))?;
    let before = now_ms()?;
    let [complete, binary] = publish(&connector, topic).await?;
    let published = before..=now_ms()?;
    let reading = Reading::default().at_least(2).silence(PATIENCE);
    let records = PlainKafka::new(servers.join(",")).read_all(topic, reading).await?;
    let find =
        |key: Option<&[u8]>| records.iter().find(|record| record.key() == key).ok_or("a record is missing");

    let record = find(Some(b"order-7"))?;
    assert_eq!(record.partition(), PARTITION_OF_ORDER_7, "another partition than a Java client's");
    assert_fields(record, &complete, &published)?;
    assert_fields(find(None)?, &binary, &published)?;
    assert_eq!(find(None)?.payload(), Some(&sample::BINARY[..]));
    Ok(())
}

/// Returns the milliseconds since 1970.
fn now_ms() -> Result<i64, Failure> {
    Ok(i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?)
}

fn assert_fields(record: &OwnedMessage, message: &Message, published: &RangeInclusive<i64>) -> Outcome {
    assert_eq!(record.payload(), Some(&message.payload[..]));
    // The time of publishing. `ce_time` below is the time of enqueuing.
    let Timestamp::CreateTime(at_ms) = record.timestamp() else { return Err("no CreateTime".into()) };
    assert!(published.contains(&at_ms), "{at_ms} is not in {published:?}");
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for header in record.headers().ok_or("no headers")?.iter() {
        let value = std::str::from_utf8(header.value.ok_or("a header without a value")?)?;
        let twice = found.insert(header.key.to_owned(), value.to_owned());
        assert_eq!(twice, None, "{} is there twice", header.key);
    }
    let mut expected: BTreeMap<String, String> =
        attributes(message)?.into_iter().map(|(name, value)| (format!("ce_{name}"), value)).collect();
    expected.insert(String::from("content-type"), message.content_type.to_string());
    expected.extend(plain_headers(message).into_iter().map(|(name, value)| (name.to_owned(), value)));
    assert_eq!(found, expected);
    Ok(())
}
