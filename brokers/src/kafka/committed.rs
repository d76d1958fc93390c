//! Reads how far consumer groups have committed.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::{Offset, TopicPartitionList};

use super::admin::AdminError;
use super::config::Config;
use super::login::Login;
use super::topic_reader::{create, refused};

/// Returns how far a consumer group has committed some topics: the offset of the next record for
/// each partition that has one. Joins no group. Blocks. A login with tokens needs a Tokio runtime
/// around it, such as that of `spawn_blocking`.
///
/// # Errors
/// [`AdminError`] when the cluster refuses or does not answer.
pub fn committed<'t>(
    config: &Config,
    group: &str,
    topics: impl IntoIterator<Item = &'t str>,
) -> Result<BTreeMap<String, BTreeMap<i32, i64>>, AdminError> {
    let mut client = config.client()?;
    client.set("group.id", group).set("enable.auto.commit", "false");
    let (consumer, timeout) = (create(&client)?, config.connect_timeout());
    Login::of(config, None)?.give(consumer.client())?;
    let asked = || -> Result<BTreeMap<String, BTreeMap<i32, i64>>, KafkaError> {
        let (mut found, mut places) = (BTreeMap::<String, BTreeMap<i32, i64>>::new(), Vec::new());
        for topic in topics {
            let partitions = partitions(&consumer, topic, timeout)?;
            places.extend(partitions.into_iter().map(|(partition, _)| (topic, partition)));
            found.entry(topic.to_owned()).or_default();
        }
        for (topic, partition, offset) in offsets(&consumer, &places, timeout)? {
            if let Offset::Offset(next) = offset {
                found.entry(topic).or_default().insert(partition, next);
            }
        }
        Ok(found)
    };
    asked().map_err(|error| refused(&format!("the offsets of kafka group {group:?}"), error))
}

/// Returns the partitions of a topic with their leaders, or none if the topic does not exist.
pub(super) fn partitions<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    topic: &str,
    timeout: Duration,
) -> Result<Vec<(i32, i32)>, KafkaError> {
    let metadata = consumer.fetch_metadata(Some(topic), timeout)?;
    let found = metadata.topics().iter().find(|found| found.name() == topic);
    let partitions = found.map(|found| found.partitions()).unwrap_or_default();
    Ok(partitions.iter().map(|partition| (partition.id(), partition.leader())).collect())
}

/// Returns the offsets that the consumer's group has committed in these partitions. A partition
/// without an answer is an error: it must not pass for one without an offset.
pub(super) fn offsets<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    places: &[(&str, i32)],
    timeout: Duration,
) -> Result<Vec<(String, i32, Offset)>, KafkaError> {
    if places.is_empty() {
        return Ok(Vec::new());
    }
    let mut list = TopicPartitionList::with_capacity(places.len());
    for (topic, partition) in places {
        list.add_partition(topic, *partition);
    }
    let committed = consumer.committed_offsets(list, timeout)?;
    let elements = committed.elements();
    let offsets = elements.iter().map(|element| {
        element.error()?;
        Ok((element.topic().to_owned(), element.partition(), element.offset()))
    });
    offsets.collect()
}
