//! A topic that is read from its beginning.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::{Message as _, OwnedMessage};
use rdkafka::{Offset, TopicPartitionList};

use super::{Kafka, REQUEST, place};
use crate::Failure;

/// Timeout for the next record.
const POLL: Duration = Duration::from_millis(100);
/// Pause before a refused request is repeated.
const PAUSE: Duration = Duration::from_millis(50);

/// How a topic is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reading {
    at_least: usize,
    settle: Option<Duration>,
    silence: Duration,
}

impl Default for Reading {
    /// Every record up to the present end, also those of open and aborted broker transactions; at
    /// most 30 s without progress.
    fn default() -> Self {
        Self { at_least: 0, settle: None, silence: Duration::from_secs(30) }
    }
}

impl Reading {
    /// Waits for this many records, beyond the present end if necessary.
    #[must_use]
    pub fn at_least(mut self, records: usize) -> Self {
        self.at_least = records;
        self
    }

    /// Reads committed records only. Kafka answers a commit before it writes the end of the
    /// transaction, so the reader waits for that end, at most this long for all partitions.
    #[must_use]
    pub fn committed(mut self, settle: Duration) -> Self {
        self.settle = Some(settle);
        self
    }

    /// Sets the maximum time without progress.
    #[must_use]
    pub fn silence(mut self, silence: Duration) -> Self {
        self.silence = silence;
        self
    }
}

/// A topic that is read from its beginning. Its methods block.
pub struct Log {
    consumer: BaseConsumer,
    /// A reader of all records, beside one of committed records.
    uncommitted: Option<BaseConsumer>,
    topic: String,
    /// The next offset of each partition.
    next: Vec<i64>,
    is_fetching: bool,
    reading: Reading,
}

/// The result of a poll.
enum Polled {
    /// A record arrived.
    Record(OwnedMessage),
    /// This partition has no more records.
    End(usize),
    /// There was no answer, or an error. An outage ends eventually.
    Nothing(Option<KafkaError>),
}

impl Log {
    /// Begins to read.
    ///
    /// # Errors
    /// The topic has no partitions for as long as `reading` allows.
    pub fn open(cluster: &Kafka, topic: &str, reading: Reading) -> Result<Self, Failure> {
        let reader = |isolation: &str| -> Result<BaseConsumer, KafkaError> {
            let mut config = cluster.config("plain");
            // Ends of transactions have offsets as well, and no reader gets them.
            config.set("enable.partition.eof", "true").set("auto.offset.reset", "earliest");
            config.set("isolation.level", isolation).create()
        };
        let isolation = if reading.settle.is_some() { "read_committed" } else { "read_uncommitted" };
        let consumer = reader(isolation)?;
        let uncommitted = reading.settle.map(|_| reader("read_uncommitted")).transpose()?;
        let next = vec![0; partitions(&consumer, topic, reading)?];
        Ok(Self { consumer, uncommitted, topic: topic.to_owned(), next, is_fetching: false, reading })
    }

    /// Begins at these offsets, by partition, and at the oldest record of all other partitions.
    /// Returns the number of partitions.
    pub(super) fn begin_at(&mut self, offsets: &BTreeMap<i32, i64>) -> usize {
        for (next, partition) in self.next.iter_mut().zip(0..) {
            *next = offsets.get(&partition).copied().unwrap_or_default();
        }
        self.next.len()
    }

    /// Fetches from the next offset of each partition on.
    fn fetch(&mut self) -> Result<(), KafkaError> {
        let mut list = TopicPartitionList::new();
        for (next, partition) in self.next.iter().zip(0..) {
            let from = if *next == 0 { Offset::Beginning } else { Offset::Offset(*next) };
            list.add_partition_offset(&self.topic, partition, from)?;
        }
        self.consumer.assign(&list)?;
        self.is_fetching = true;
        Ok(())
    }

    /// Reads the next record, if there is one within a tenth of a second.
    pub fn poll(&mut self) -> Option<OwnedMessage> {
        match self.polled() {
            Polled::Record(record) => Some(record),
            Polled::End(_) | Polled::Nothing(_) => None,
        }
    }

    fn polled(&mut self) -> Polled {
        if !self.is_fetching
            && let Err(error) = self.fetch()
        {
            return Polled::Nothing(Some(error));
        }
        match self.consumer.poll(POLL) {
            Some(Ok(record)) => {
                self.next[place(record.partition())] = record.offset() + 1;
                Polled::Record(record.detach())
            }
            Some(Err(KafkaError::PartitionEOF(partition))) => Polled::End(place(partition)),
            Some(Err(error)) => Polled::Nothing(Some(error)),
            None => Polled::Nothing(None),
        }
    }

    /// Returns the end of each partition: the offset of its next record, or of its next committed
    /// record.
    pub(super) fn ends(&self) -> Result<Vec<i64>, Failure> {
        let settled_at = Instant::now() + self.reading.settle.unwrap_or_default();
        let mut ends = Vec::new();
        for partition in (0..).take(self.next.len()) {
            ends.push(loop {
                let end = self.end(&self.consumer, partition)?;
                let Some(all) = &self.uncommitted else { break end };
                if end >= self.end(all, partition)? || Instant::now() >= settled_at {
                    break end;
                }
                std::thread::sleep(PAUSE);
            });
        }
        Ok(ends)
    }

    /// Right after a topic is created, a broker may answer that it does not lead the partition yet.
    fn end(&self, consumer: &BaseConsumer, partition: i32) -> Result<i64, KafkaError> {
        let deadline = Instant::now() + self.reading.silence;
        repeated(deadline, || Ok(consumer.fetch_watermarks(&self.topic, partition, REQUEST)?.1))
    }

    /// Reads the rest, up to the present end.
    ///
    /// # Errors
    /// There was no progress for as long as the reading allows.
    pub fn read_to_end(&mut self, mut keep: impl FnMut(OwnedMessage)) -> Result<(), Failure> {
        let mut ends = self.ends()?;
        // An end that the client reported before may be out of date.
        self.fetch()?;
        let mut kept = 0;
        let mut heard_at = Instant::now();
        let mut last = None;
        while kept < self.reading.at_least || self.next.iter().zip(&ends).any(|(next, end)| next < end) {
            match self.polled() {
                Polled::Record(record) => {
                    keep(record);
                    kept += 1;
                    heard_at = Instant::now();
                }
                Polled::End(partition) => ends[partition] = self.next[partition],
                Polled::Nothing(error) if heard_at.elapsed() > self.reading.silence => {
                    let Self { topic, next, reading, .. } = self;
                    let wanted = reading.at_least;
                    let why = error.or(last).map(|error| format!(": {error}")).unwrap_or_default();
                    return Err(format!(
                        "{topic}: {kept} records of at least {wanted}, read up to {next:?}, its end is {ends:?}{why}"
                    )
                    .into());
                }
                Polled::Nothing(error) => last = error.or(last),
            }
        }
        Ok(())
    }
}

/// Returns the number of partitions. Right after a topic is created, not every broker knows it.
pub(super) fn partitions(consumer: &BaseConsumer, topic: &str, reading: Reading) -> Result<usize, Failure> {
    let deadline = Instant::now() + reading.silence;
    loop {
        let metadata = repeated(deadline, || consumer.fetch_metadata(Some(topic), REQUEST))?;
        let known = metadata.topics().first().map_or(0, |found| found.partitions().len());
        if known > 0 {
            return Ok(known);
        }
        if Instant::now() > deadline {
            return Err(format!("{topic} has no partitions").into());
        }
        std::thread::sleep(PAUSE);
    }
}

/// Repeats a request until it succeeds.
fn repeated<T>(deadline: Instant, request: impl Fn() -> Result<T, KafkaError>) -> Result<T, KafkaError> {
    loop {
        match request() {
            Err(_) if Instant::now() < deadline => std::thread::sleep(PAUSE),
            answer => return answer,
        }
    }
}
