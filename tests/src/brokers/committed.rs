//! A reader of the committed records of a topic of Kafka: a plain client, so that nothing of ours
//! judges itself.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};

use crate::trial::Failure;

const PATIENCE: Duration = Duration::from_secs(60);

/// The payloads of each partition in their order, up to where it ends now. Blocks.
///
/// # Errors
/// Kafka does not answer.
pub fn read(servers: &str, topic: &str) -> Result<Vec<Vec<Vec<u8>>>, Failure> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", servers)
        .set("group.id", "plain")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .set("isolation.level", "read_committed")
        .create()?;
    let metadata = consumer.fetch_metadata(Some(topic), PATIENCE)?;
    let partitions = metadata.topics().first().map_or(0, |found| found.partitions().len());
    (0..i32::try_from(partitions)?).map(|partition| one(&consumer, topic, partition)).collect()
}

fn one(consumer: &BaseConsumer, topic: &str, partition: i32) -> Result<Vec<Vec<u8>>, Failure> {
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, partition, Offset::Beginning)?;
    // Of a partition that is written to without a pause, the client never tells the end. The end
    // of a transaction has an offset as well, and is no record.
    let (_, end) = consumer.fetch_watermarks(topic, partition, PATIENCE)?;
    consumer.assign(&list)?;
    let (mut payloads, mut next) = (Vec::new(), 0);
    while next < end {
        match consumer.poll(PATIENCE) {
            Some(Ok(record)) => {
                next = record.offset() + 1;
                if next <= end {
                    payloads.push(record.payload().unwrap_or_default().to_vec());
                }
            }
            Some(Err(KafkaError::PartitionEOF(_))) => break,
            Some(Err(error)) => return Err(error.into()),
            None => return Err("the plain reader heard nothing".into()),
        }
    }
    Ok(payloads)
}
