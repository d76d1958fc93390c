//! A plain Kafka client.

use std::time::Duration;

use futures_util::future::try_join_all;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::task::spawn_blocking;

use super::{Copy, SOURCE};
use crate::error::DemoError;
use crate::{CONTENT_TYPE, KIND};

/// Timeout of one request.
const REQUEST: Duration = Duration::from_secs(10);
/// Number of messages in each partition by which a consumer is moved back.
const REWIND: i64 = 100;

fn client(servers: &[String]) -> ClientConfig {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", servers.join(",")).set("client.id", "relay-demo");
    // The client reconnects soon after an outage.
    client.set("reconnect.backoff.max.ms", "500");
    client
}

/// Publishes copies and waits for their confirmations.
pub(super) async fn publish(servers: &[String], topic: &str, copies: &[Copy]) -> Result<(), DemoError> {
    let what = "publish to Kafka again";
    let mut config = client(servers);
    config.set("acks", "all").set("partitioner", "murmur2_random").set("message.timeout.ms", "30000");
    let producer: FutureProducer = config.create().map_err(DemoError::during(what))?;
    let mut sent = Vec::with_capacity(copies.len());
    for copy in copies {
        let record = FutureRecord::to(topic).key(&copy.key).payload(&copy.payload).headers(headers(copy));
        sent.push(producer.send_result(record).map_err(|(error, _)| DemoError::during(what)(error))?);
    }
    let confirmed = try_join_all(sent).await.map_err(DemoError::during(what))?;
    confirmed
        .into_iter()
        .try_for_each(|outcome| outcome.map(drop).map_err(|(error, _)| DemoError::during(what)(error)))
}

fn headers(copy: &Copy) -> OwnedHeaders {
    let id = copy.id.to_string();
    let pairs = [
        ("ce_specversion", "1.0"),
        ("ce_id", &id),
        ("ce_source", SOURCE),
        ("ce_type", KIND),
        ("ce_subject", &copy.key),
        ("content-type", CONTENT_TYPE),
    ];
    let headers = OwnedHeaders::new_with_capacity(pairs.len());
    pairs
        .into_iter()
        .fold(headers, |headers, (key, value)| headers.insert(Header { key, value: Some(value) }))
}

/// Commits older offsets for a group without members.
pub(super) async fn rewind(
    servers: &[String],
    topic: &str,
    partitions: u16,
    group: &str,
) -> Result<u64, DemoError> {
    let mut config = client(servers);
    config.set("group.id", group).set("enable.auto.commit", "false");
    let topic = topic.to_owned();
    let what = "move the consumer back to older offsets";
    let moved = spawn_blocking(move || rewind_blocking(&config, &topic, partitions));
    moved.await.map_err(DemoError::during(what))?.map_err(DemoError::during(what))
}

fn rewind_blocking(config: &ClientConfig, topic: &str, partitions: u16) -> Result<u64, KafkaError> {
    let consumer: BaseConsumer = config.create()?;
    let mut list = TopicPartitionList::new();
    for partition in 0..i32::from(partitions) {
        list.add_partition(topic, partition);
    }
    let committed = consumer.committed_offsets(list, REQUEST)?;
    let (mut older, mut again) = (TopicPartitionList::new(), 0);
    for place in committed.elements() {
        if let Offset::Offset(offset) = place.offset() {
            let back = (offset - REWIND).max(0);
            again += (offset - back).unsigned_abs();
            older.add_partition_offset(topic, place.partition(), Offset::Offset(back))?;
        }
    }
    if older.count() > 0 {
        consumer.commit(&older, CommitMode::Sync)?;
    }
    Ok(again)
}

/// Removes a consumer group.
///
/// # Errors
/// [`DemoError::Unavailable`] if Kafka did not answer. A missing group is not an error.
pub(crate) async fn delete_group(servers: &[String], group: &str) -> Result<(), DemoError> {
    let what = "remove a consumer group from Kafka";
    let admin: AdminClient<DefaultClientContext> =
        client(servers).create().map_err(DemoError::during(what))?;
    let options = AdminOptions::new().request_timeout(Some(REQUEST));
    // The answer for the group itself does not matter, because the group may never have committed
    // anything.
    admin.delete_groups(&[group], &options).await.map(drop).map_err(DemoError::during(what))
}
