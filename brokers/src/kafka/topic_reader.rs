//! Reads a topic without affecting its consumers: partitions are assigned by hand from the offsets
//! of a point in time. There is no group, and nothing is committed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use message::Message;
use rdkafka::Message as _;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{BorrowedHeaders, BorrowedMessage, Headers as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::admin::AdminError;
use super::config::Config;
use super::login::Login;
use super::{fault, wire};

/// Maximum silence of a broker while there is something to read.
const SILENCE_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(100);
/// Maximum bytes of keys, payloads and headers in a batch. A single record above it is returned
/// alone.
const BATCH_BYTES_MAX: usize = 8 << 20;

/// A record as it was read.
#[derive(Debug)]
pub struct ReadTopic {
    /// The message; `None` for a record that is not one.
    pub message: Option<Message>,
    /// Timestamp of the record, in milliseconds since 1970; `None` if the broker does not report
    /// it.
    pub at_ms: Option<i64>,
    /// Its partition and offset.
    pub position: (i32, i64),
}

/// The extent of a topic in the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Begun {
    /// Maximum number of records to read.
    pub records_max: u64,
    /// Partitions that begin later than requested, because older records were removed.
    pub cut: BTreeSet<i32>,
}

/// A reader of topics. Its calls block. Each topic is read from a point in time to the end that it
/// had when reading began.
pub struct TopicReader {
    consumer: BaseConsumer,
    login: Login,
    timeout: Duration,
    topic: String,
    /// Partitions that have unread records, each with the offset before which it ends.
    left: BTreeMap<i32, i64>,
    heard_at: Instant,
}

impl TopicReader {
    /// Creates a reader of this cluster; the first call connects. A login with tokens needs a Tokio
    /// runtime around it, such as that of `spawn_blocking`, and waits for the first token.
    ///
    /// # Errors
    /// [`AdminError::Setting`] for an invalid setting, [`AdminError::Refused`] without a token.
    pub fn new(config: &Config) -> Result<Self, AdminError> {
        let mut client = config.client()?;
        client
            // The client requires a group's name. Partitions are assigned by hand and nothing is
            // committed, so the group is never created.
            .set("group.id", format!("{}-topic_reader", config.client_id))
            .set("auto.offset.reset", "error")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("enable.partition.eof", "true")
            .set("isolation.level", "read_committed")
            .set("allow.auto.create.topics", "false")
            // Bounds the records that wait in memory.
            .set("queued.max.messages.kbytes", "16384");
        let consumer = create(&client)?;
        let timeout = config.connect_timeout();
        let login = Login::of(config, None)?;
        login.give(consumer.client())?;
        let (topic, left) = (String::new(), BTreeMap::new());
        Ok(Self { consumer, login, timeout, topic, left, heard_at: Instant::now() })
    }

    /// Begins a topic at a point in time, or at its beginning. Returns `None` when there is no such
    /// topic.
    ///
    /// # Errors
    /// [`AdminError::Refused`] when the cluster refuses or does not answer.
    pub fn begin(&mut self, topic: &str, from_ms: Option<i64>) -> Result<Option<Begun>, AdminError> {
        self.begin_inner(topic, from_ms).map_err(|error| unread(topic, error))
    }

    fn begin_inner(&mut self, topic: &str, from_ms: Option<i64>) -> Result<Option<Begun>, KafkaError> {
        let metadata = self.consumer.fetch_metadata(Some(topic), self.timeout)?;
        let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else {
            return Ok(None);
        };
        if found.partitions().is_empty() {
            return Ok(None);
        }
        let mut times = TopicPartitionList::new();
        for partition in found.partitions() {
            let from = from_ms.map_or(Offset::Beginning, Offset::Offset);
            times.add_partition_offset(topic, partition.id(), from)?;
        }
        let starts = match from_ms {
            Some(_) => self.consumer.offsets_for_times(times, self.timeout)?,
            None => times,
        };
        let mut begun = Begun::default();
        let mut assignment = TopicPartitionList::new();
        self.left.clear();
        for start in starts.elements() {
            let partition = start.partition();
            let (low, high) = self.consumer.fetch_watermarks(topic, partition, self.timeout)?;
            let from = match start.offset() {
                Offset::Offset(offset) => offset.max(low),
                Offset::Beginning => low,
                // No record is that recent.
                _ => high,
            };
            if from == low && low > 0 {
                begun.cut.insert(partition);
            }
            begun.records_max += (high - from).unsigned_abs();
            assignment.add_partition_offset(topic, partition, Offset::Offset(from))?;
            if from < high {
                self.left.insert(partition, high);
            }
        }
        self.consumer.assign(&assignment)?;
        (self.topic, self.heard_at) = (topic.to_owned(), Instant::now());
        Ok(Some(begun))
    }

    /// Returns up to `records_max` further records and up to 8 MiB of them, but at least one; none
    /// when the topic's end is reached.
    ///
    /// # Errors
    /// [`AdminError::Refused`] when the cluster refuses or does not answer in time.
    pub fn read(&mut self, records_max: usize) -> Result<Vec<ReadTopic>, AdminError> {
        let mut records = Vec::new();
        let mut room = Room { records: records_max, bytes: BATCH_BYTES_MAX };
        while !self.left.is_empty() && !room.is_used_up() {
            self.login.turn(self.consumer.client())?;
            match self.consumer.poll(POLL) {
                Some(Ok(record)) => {
                    self.heard_at = Instant::now();
                    let at_ms = record.timestamp().to_millis();
                    // Records published meanwhile do not move the end.
                    if self.left.get(&record.partition()).is_some_and(|end| record.offset() + 1 >= *end) {
                        self.left.remove(&record.partition());
                    }
                    let position = (record.partition(), record.offset());
                    room.take(bytes(&record));
                    records.push(ReadTopic { message: wire::read(&record).ok(), at_ms, position });
                }
                // The remaining offsets hold no records: markers of transactions, or records that
                // compaction has removed.
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    self.heard_at = Instant::now();
                    self.left.remove(&partition);
                }
                Some(Err(error)) => {
                    let harmless = matches!(
                        error.rdkafka_error_code(),
                        Some(Code::BrokerTransportFailure | Code::AllBrokersDown | Code::OperationTimedOut)
                    );
                    if !harmless {
                        return Err(unread(&self.topic, error));
                    }
                }
                None if self.heard_at.elapsed() > SILENCE_MAX => {
                    return Err(unread(&self.topic, KafkaError::MessageConsumption(Code::OperationTimedOut)));
                }
                // Records that were read are returned before the next wait.
                None if !records.is_empty() => break,
                None => {}
            }
        }
        Ok(records)
    }
}

/// The records and bytes that a batch may still have.
#[derive(Debug, Clone, Copy)]
struct Room {
    records: usize,
    bytes: usize,
}

impl Room {
    fn take(&mut self, bytes: usize) {
        self.records = self.records.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    fn is_used_up(self) -> bool {
        self.records == 0 || self.bytes == 0
    }
}

/// Returns the bytes that a record occupies in memory, without a constant part.
fn bytes(record: &BorrowedMessage<'_>) -> usize {
    let headers = record.headers().into_iter().flat_map(BorrowedHeaders::iter);
    let headers: usize = headers.map(|header| header.key.len() + header.value.map_or(0, <[u8]>::len)).sum();
    record.payload_len() + record.key_len() + headers
}

/// Creates a consumer with these properties.
pub(super) fn create(client: &ClientConfig) -> Result<BaseConsumer, AdminError> {
    client.create().map_err(|error: KafkaError| AdminError::Refused {
        reason: fault::creation(&error),
        source: Box::new(error),
    })
}

fn unread(topic: &str, error: KafkaError) -> AdminError {
    refused(&format!("kafka topic {topic:?}"), error)
}

pub(super) fn refused(what: &str, error: KafkaError) -> AdminError {
    let reason = match error.rdkafka_error_code() {
        Some(code) => {
            format!("{what} could not be read: {}", fault::describe(code, &error.to_string()))
        }
        None => format!("{what} could not be read: {error}"),
    };
    AdminError::Refused { reason, source: Box::new(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: chunks of large messages do not fill the memory. Oracle: the number of records of each
    /// size that fit into a batch of 1,000.
    #[test]
    fn a_batch_ends_with_its_records_or_with_its_bytes() {
        for (record, fitting) in [(100, 1_000), (1 << 20, 8), (3 << 20, 3), (64 << 20, 1), (0, 1_000)] {
            let mut room = Room { records: 1_000, bytes: BATCH_BYTES_MAX };
            let mut taken = 0;
            while !room.is_used_up() {
                room.take(record);
                taken += 1;
            }
            assert_eq!(taken, fitting, "records of {record} bytes");
        }
    }
}
