//! Messages that wait at the broker for their readers, in partitions of a group or in queues. They
//! are read with plain clients.

use std::time::Duration;

use aws_sdk_sqs::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_sqs::types::QueueAttributeName;
use brokers::rabbitmq;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::{Offset, TopicPartitionList};
use tokio::task::spawn_blocking;

use crate::Failure;
use crate::pair::BrokerKind;
use crate::setup::Plot;
use crate::stage::Stage;

/// A partition or a queue that a reader has not read to the end.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Waiting {
    /// The partition with its group, or the queue.
    pub place: String,
    /// Deliveries that wait there.
    pub count: u64,
}

/// Timeout of one request.
const REQUEST: Duration = Duration::from_secs(10);

/// Counts the waiting messages. Empty places are left out.
///
/// # Errors
/// The broker does not answer.
pub async fn waiting(plot: &Plot, stage: &Stage) -> Result<Vec<Waiting>, Failure> {
    let (broker, topic) = (&stage.broker, plot.topics().main);
    let all = match plot.pair.broker {
        kind @ (BrokerKind::Kafka | BrokerKind::MockKafka) => {
            let mut all = Vec::new();
            for consumer in plot.consumers() {
                let (servers, topic, group) = (broker.address.clone(), topic.clone(), plot.group(consumer));
                all.extend(
                    spawn_blocking(move || behind(&servers, &topic, &group, kind.partitions())).await??,
                );
            }
            all
        }
        BrokerKind::Rabbitmq => {
            let admin = rabbitmq::Admin::connect(&rabbitmq::Config::new(&broker.address)).await?;
            let mut all = Vec::new();
            for queue in broker.topics.iter().flat_map(|topic| &topic.queues) {
                let count = u64::from(admin.count(queue).await?);
                all.push(Waiting { place: format!("queue {queue}"), count });
            }
            admin.close().await;
            all
        }
        BrokerKind::Sqs | BrokerKind::SqsFifo => queue(&broker.address, &topic).await?,
    };
    Ok(all.into_iter().filter(|place| place.count > 0).collect())
}

/// Counts the records behind a group's committed offsets.
fn behind(servers: &str, topic: &str, group: &str, partitions: u16) -> Result<Vec<Waiting>, Failure> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", servers).set("group.id", group).set("enable.auto.commit", "false");
    let reader: BaseConsumer = config.create()?;
    let mut list = TopicPartitionList::new();
    for partition in 0..partitions {
        list.add_partition(topic, i32::from(partition));
    }
    let committed = reader.committed_offsets(list, REQUEST)?;
    let mut all = Vec::new();
    for element in committed.elements() {
        let (low, high) = reader.fetch_watermarks(topic, element.partition(), REQUEST)?;
        let next = match element.offset() {
            Offset::Offset(next) => next,
            _ => low,
        };
        let place = format!("partition {topic}[{}] of group {group}", element.partition());
        let behind = high.saturating_sub(next).max(0).unsigned_abs();
        let count = if behind == 0 { 0 } else { records(servers, topic, element.partition(), next)? };
        all.push(Waiting { place, count });
    }
    Ok(all)
}

/// Counts the records from an offset on. Offsets alone do not give this number, because transaction
/// markers have offsets as well, and no reader gets them.
fn records(servers: &str, topic: &str, partition: i32, from: i64) -> Result<u64, Failure> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", servers).set("group.id", format!("{topic}-count"));
    config.set("enable.auto.commit", "false").set("enable.partition.eof", "true");
    let reader: BaseConsumer = config.create()?;
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, partition, Offset::Offset(from))?;
    reader.assign(&list)?;
    let mut count = 0;
    loop {
        match reader.poll(REQUEST) {
            Some(Ok(_)) => count += 1,
            Some(Err(KafkaError::PartitionEOF(_))) => return Ok(count),
            Some(Err(error)) => return Err(error.into()),
            None => return Err(format!("{topic}[{partition}] cannot be read from {from} on").into()),
        }
    }
}

/// Counts a queue's messages that are visible, in flight, and delayed.
async fn queue(endpoint: &str, name: &str) -> Result<Vec<Waiting>, Failure> {
    let config = aws_sdk_sqs::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .endpoint_url(endpoint)
        .region(Region::new("elasticmq"))
        .credentials_provider(Credentials::new("storm", "storm", None, None, "storm"))
        .build();
    let client = aws_sdk_sqs::Client::from_conf(config);
    let found = client.get_queue_url().queue_name(name).send().await?;
    let url = found.queue_url.ok_or_else(|| format!("queue {name} has no address"))?;
    let wanted = [
        (QueueAttributeName::ApproximateNumberOfMessages, "visible"),
        (QueueAttributeName::ApproximateNumberOfMessagesNotVisible, "in flight"),
        (QueueAttributeName::ApproximateNumberOfMessagesDelayed, "delayed"),
    ];
    let names = wanted.iter().map(|(attribute, _)| attribute.clone()).collect();
    let answer = client.get_queue_attributes().queue_url(url).set_attribute_names(Some(names)).send().await?;
    let mut all = Vec::new();
    for (attribute, word) in wanted {
        let text = answer.attributes().and_then(|attributes| attributes.get(&attribute));
        let count = text.ok_or_else(|| format!("queue {name}: the answer has no {attribute}"))?.parse()?;
        all.push(Waiting { place: format!("queue {name}, {word}"), count });
    }
    Ok(all)
}
