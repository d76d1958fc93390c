//! A reader of the committed records of a Kafka topic. It is a plain client, so that our own code
//! does not verify itself.

use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};

use crate::trial::Failure;

const PATIENCE: Duration = Duration::from_secs(240);
/// Time for Kafka to write the ends of transactions: it answers a commit before it writes them.
const SETTLE: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(50);

/// Returns the payloads of each partition in order, up to its present end. Waits up to three
/// seconds for the ends of transactions. Blocks.
///
/// # Errors
/// Kafka does not answer.
pub fn read(servers: &str, topic: &str) -> Result<Vec<Vec<Vec<u8>>>, Failure> {
    read_within(servers, topic, SETTLE)
}

/// As [`read`], without waiting: records of open transactions are left out. Blocks.
///
/// # Errors
/// Kafka does not answer.
pub fn read_now(servers: &str, topic: &str) -> Result<Vec<Vec<Vec<u8>>>, Failure> {
    read_within(servers, topic, Duration::ZERO)
}

fn read_within(servers: &str, topic: &str, settle: Duration) -> Result<Vec<Vec<Vec<u8>>>, Failure> {
    let client = |isolation: &str| -> Result<BaseConsumer, KafkaError> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", servers).set("group.id", "plain");
        config.set("enable.auto.commit", "false").set("enable.partition.eof", "true");
        config.set("isolation.level", isolation).create()
    };
    let (committed, all) = (client("read_committed")?, client("read_uncommitted")?);
    let metadata = committed.fetch_metadata(Some(topic), PATIENCE)?;
    let partitions = metadata.topics().first().map_or(0, |found| found.partitions().len());
    let deadline = Instant::now() + settle;
    let one = |partition| one((&committed, &all), topic, partition, deadline);
    (0..i32::try_from(partitions)?).map(one).collect()
}

fn one(
    (consumer, all): (&BaseConsumer, &BaseConsumer),
    topic: &str,
    partition: i32,
    deadline: Instant,
) -> Result<Vec<Vec<u8>>, Failure> {
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, partition, Offset::Beginning)?;
    // The client never reports the end of a partition that is written to without a pause. The end
    // of a transaction has an offset as well, but is not a record.
    let end = loop {
        let (_, stable) = consumer.fetch_watermarks(topic, partition, PATIENCE)?;
        let (_, end) = all.fetch_watermarks(topic, partition, PATIENCE)?;
        if stable >= end || Instant::now() >= deadline {
            break stable;
        }
        std::thread::sleep(LOOK);
    };
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
