//! A plain Kafka client.
//!
//! | module | contents |
//! |---|---|
//! | `log` | [`Log`]: a topic, read from its beginning; [`Reading`]: how |

mod log;

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::try_join_all;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders, OwnedMessage};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::task::spawn_blocking;

use self::log::partitions;
use super::PlainRecord;
use crate::Failure;

pub use self::log::{Log, Reading};

/// Timeout of one request.
const REQUEST: Duration = Duration::from_secs(10);

/// A cluster.
#[derive(Debug, Clone)]
pub struct Kafka {
    servers: String,
}

impl Kafka {
    /// Takes the cluster at `host:port,…`.
    #[must_use]
    pub fn new(servers: impl Into<String>) -> Self {
        Self { servers: servers.into() }
    }

    /// Returns the settings of a client. A consumer needs a group, even if it never uses it.
    #[must_use]
    pub fn config(&self, group: &str) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.servers).set("group.id", group);
        config.set("client.id", "plain").set("enable.auto.commit", "false");
        // The client reconnects soon after an outage.
        config.set("reconnect.backoff.max.ms", "500");
        config
    }

    /// Reads a topic from its beginning, each partition in its order.
    ///
    /// # Errors
    /// There was no progress for as long as `reading` allows.
    pub async fn read_all(&self, topic: &str, reading: Reading) -> Result<Vec<OwnedMessage>, Failure> {
        let cluster = self.clone();
        let topic = topic.to_owned();
        let read = move || {
            let mut records = Vec::new();
            Log::open(&cluster, &topic, reading)?.read_to_end(|record| records.push(record))?;
            Ok(records)
        };
        spawn_blocking(read).await?
    }

    /// Writes records and waits for their confirmations. A key decides the partition as it does for
    /// Java clients.
    ///
    /// # Errors
    /// A record was not confirmed within a minute.
    pub async fn put(&self, topic: &str, records: &[PlainRecord]) -> Result<(), Failure> {
        let mut config = self.config("plain");
        config.set("acks", "all").set("partitioner", "murmur2_random").set("message.timeout.ms", "60000");
        let producer: FutureProducer = config.create()?;
        let mut sent = Vec::with_capacity(records.len());
        for PlainRecord { key, headers, payload, .. } in records {
            let headers = headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
                headers.insert(Header { key, value: Some(value) })
            });
            let record = FutureRecord::to(topic).payload(payload).headers(headers);
            let record = key.iter().fold(record, FutureRecord::key);
            sent.push(producer.send_result(record).map_err(|(error, _)| error)?);
        }
        for outcome in try_join_all(sent).await? {
            outcome.map_err(|(error, _)| error)?;
        }
        Ok(())
    }

    /// Returns the end of each partition: the offset of its next record.
    ///
    /// # Errors
    /// Kafka does not answer.
    pub async fn ends(&self, topic: &str) -> Result<Vec<i64>, Failure> {
        let cluster = self.clone();
        let topic = topic.to_owned();
        spawn_blocking(move || Log::open(&cluster, &topic, Reading::default())?.ends()).await?
    }

    /// Returns the offsets that a group has committed, by partition.
    ///
    /// # Errors
    /// Kafka does not answer.
    pub async fn committed(&self, group: &str, topic: &str) -> Result<BTreeMap<i32, i64>, Failure> {
        let consumer: BaseConsumer = self.config(group).create()?;
        let topic = topic.to_owned();
        spawn_blocking(move || {
            let mut list = TopicPartitionList::new();
            for partition in (0..).take(partitions(&consumer, &topic, Reading::default())?) {
                list.add_partition(&topic, partition);
            }
            let known = |offset| if let Offset::Offset(next) = offset { Some(next) } else { None };
            let found = consumer.committed_offsets(list, REQUEST)?;
            let places = found.elements().into_iter();
            Ok(places.filter_map(|place| Some((place.partition(), known(place.offset())?))).collect())
        })
        .await?
    }

    /// Commits offsets, by partition, for a group without members.
    ///
    /// # Errors
    /// Kafka does not answer, or the group has members.
    pub async fn commit(
        &self,
        group: &str,
        topic: &str,
        offsets: &BTreeMap<i32, i64>,
    ) -> Result<(), Failure> {
        let consumer: BaseConsumer = self.config(group).create()?;
        let mut list = TopicPartitionList::new();
        for (partition, next) in offsets {
            list.add_partition_offset(topic, *partition, Offset::Offset(*next))?;
        }
        Ok(spawn_blocking(move || consumer.commit(&list, CommitMode::Sync)).await??)
    }

    /// Moves a group without members back by up to this many offsets in each partition. Returns by
    /// how many in total. A partition in which it has committed nothing stays as it is.
    ///
    /// # Errors
    /// Kafka does not answer, or the group has members.
    pub async fn rewind(&self, group: &str, topic: &str, by: i64) -> Result<u64, Failure> {
        let mut offsets = self.committed(group, topic).await?;
        let mut moved = 0;
        for next in offsets.values_mut() {
            let back = (*next - by).max(0);
            moved += (*next - back).unsigned_abs();
            *next = back;
        }
        if !offsets.is_empty() {
            self.commit(group, topic, &offsets).await?;
        }
        Ok(moved)
    }

    /// Returns how many records of each partition a group has not committed. Offsets alone do not
    /// give this number, because ends of transactions have offsets as well, and no reader gets
    /// them.
    ///
    /// # Errors
    /// Kafka does not answer, or a partition cannot be read to its end.
    pub async fn behind(&self, group: &str, topic: &str) -> Result<Vec<u64>, Failure> {
        let from = self.committed(group, topic).await?;
        let cluster = self.clone();
        let topic = topic.to_owned();
        let count = move || {
            let mut log = Log::open(&cluster, &topic, Reading::default())?;
            let mut counts = vec![0; log.begin_at(&from)];
            log.read_to_end(|record| counts[place(record.partition())] += 1)?;
            Ok(counts)
        };
        spawn_blocking(count).await?
    }

    /// Removes a consumer group. A missing group is not an error.
    ///
    /// # Errors
    /// Kafka does not answer.
    pub async fn remove_group(&self, group: &str) -> Result<(), Failure> {
        let admin: AdminClient<DefaultClientContext> = self.config(group).create()?;
        let options = AdminOptions::new().request_timeout(Some(REQUEST));
        // The answer for the group itself does not matter, because the group may never have
        // committed anything.
        admin.delete_groups(&[group], &options).await?;
        Ok(())
    }
}

impl From<&OwnedMessage> for PlainRecord {
    fn from(message: &OwnedMessage) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let headers = message.headers().into_iter().flat_map(|headers| headers.iter());
        Self {
            key: message.key().map(text),
            message_id: None,
            headers: headers.map(|h| (h.key.to_owned(), h.value.map(text).unwrap_or_default())).collect(),
            payload: message.payload().unwrap_or_default().to_vec(),
        }
    }
}

fn place(partition: i32) -> usize {
    usize::try_from(partition).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rdkafka::mocking::MockCluster;

    use super::*;

    fn record(payload: &str) -> PlainRecord {
        PlainRecord { payload: payload.as_bytes().to_vec(), ..PlainRecord::default() }
    }

    fn payloads(records: &[OwnedMessage]) -> Vec<&[u8]> {
        records.iter().filter_map(|record| record.payload()).collect()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_written_is_read() {
        let mock = MockCluster::new(1).unwrap();
        mock.create_topic("t", 3, 1).unwrap();
        let cluster = Kafka::new(mock.bootstrap_servers());
        assert!(cluster.read_all("t", Reading::default()).await.unwrap().is_empty());
        let written = PlainRecord {
            key: Some("k".to_owned()),
            headers: vec![("a".to_owned(), "1".to_owned()), ("a".to_owned(), "2".to_owned())],
            ..record("x")
        };
        cluster.put("t", std::slice::from_ref(&written)).await.unwrap();
        let read = cluster.read_all("t", Reading::default()).await.unwrap();
        assert_eq!(read.iter().map(PlainRecord::from).collect::<Vec<_>>(), [written]);
        assert_eq!(cluster.ends("t").await.unwrap().iter().sum::<i64>(), 1);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_came_after_a_reported_end_is_read() {
        let mock = MockCluster::new(1).unwrap();
        mock.create_topic("t", 1, 1).unwrap();
        let cluster = Kafka::new(mock.bootstrap_servers());
        cluster.put("t", &[record("1")]).await.unwrap();
        let opening = cluster.clone();
        let open = move || {
            let mut log = Log::open(&opening, "t", Reading::default()).unwrap();
            let first = std::iter::repeat_with(|| log.poll()).find_map(|record| record);
            (log, first.unwrap())
        };
        let (mut log, first) = spawn_blocking(open).await.unwrap();
        assert_eq!(first.payload(), Some(&b"1"[..]));
        // Meanwhile the client reports the end, which nobody polls.
        tokio::time::sleep(Duration::from_secs(2)).await;
        cluster.put("t", &[record("2"), record("3")]).await.unwrap();
        let read = move || {
            let mut records = Vec::new();
            log.read_to_end(|record| records.push(record)).unwrap();
            records
        };
        let records = spawn_blocking(read).await.unwrap();
        assert_eq!(payloads(&records), [b"2", b"3"]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_reader_waits_for_later_records() {
        let mock = MockCluster::new(1).unwrap();
        mock.create_topic("t", 1, 1).unwrap();
        let cluster = Kafka::new(mock.bootstrap_servers());
        let later = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            cluster.put("t", &[record("1")]).await
        };
        let (read, put) = tokio::join!(cluster.read_all("t", Reading::default().at_least(1)), later);
        put.unwrap();
        assert_eq!(payloads(&read.unwrap()), [b"1"]);
        let soon = Reading::default().at_least(2).silence(Duration::from_secs(5));
        let error = cluster.read_all("t", soon).await.unwrap_err().to_string();
        assert!(error.contains("1 records of at least 2"), "{error}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_group_is_counted_and_moved_back() {
        let mock = MockCluster::new(1).unwrap();
        mock.create_topic("t", 1, 1).unwrap();
        let cluster = Kafka::new(mock.bootstrap_servers());
        cluster.put("t", &["1", "2", "3", "4"].map(record)).await.unwrap();
        assert_eq!(cluster.behind("g", "t").await.unwrap(), [4]);
        assert_eq!(cluster.rewind("g", "t", 2).await.unwrap(), 0);
        cluster.commit("g", "t", &BTreeMap::from([(0, 3)])).await.unwrap();
        assert_eq!(cluster.behind("g", "t").await.unwrap(), [1]);
        assert_eq!(cluster.rewind("g", "t", 2).await.unwrap(), 2);
        assert_eq!(cluster.committed("g", "t").await.unwrap(), BTreeMap::from([(0, 1)]));
        assert_eq!(cluster.rewind("g", "t", 2).await.unwrap(), 1);
        assert_eq!(cluster.behind("g", "t").await.unwrap(), [4]);
    }
}
