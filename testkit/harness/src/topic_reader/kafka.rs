//! Kafka's log, read from its beginning.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use checker::Occurrence;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::task::spawn_blocking;
use uuid::Uuid;

use super::whole::{Record, Wholes};
use crate::Failure;

/// Timeout of one request.
const REQUEST: Duration = Duration::from_secs(10);
/// Timeout without any progress.
const SILENCE: Duration = Duration::from_secs(30);
/// Timeout for the next record.
const POLL: Duration = Duration::from_millis(100);

/// A reader that follows a log.
pub struct Follower {
    thread: JoinHandle<Result<Vec<Occurrence>, String>>,
    stop: Arc<AtomicBool>,
}

impl Follower {
    /// Begins to read a topic with this number of partitions.
    #[must_use]
    pub fn start(servers: String, topic: String, partitions: u16) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        let follow = move || -> Result<Vec<Occurrence>, Failure> {
            let mut log = Log::open(&servers, &topic, partitions)?;
            while !stopping.load(Ordering::Relaxed) {
                log.poll();
            }
            log.read_to_end()?;
            Ok(log.occurrences)
        };
        let thread = std::thread::spawn(move || follow().map_err(|error| error.to_string()));
        Self { thread, stop }
    }

    /// Reads the rest.
    ///
    /// # Errors
    /// The broker does not answer, or the log ends too early.
    pub async fn finish(self) -> Result<Vec<Occurrence>, Failure> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread;
        let joined = spawn_blocking(move || thread.join()).await?;
        Ok(joined.map_err(|_| "the reader of the log panicked")??)
    }
}

/// Reads all partitions from their beginning to their current end.
///
/// # Errors
/// The broker does not answer, or the log ends too early.
pub async fn read(servers: String, topic: String, partitions: u16) -> Result<Vec<Occurrence>, Failure> {
    let read = move || -> Result<Vec<Occurrence>, Failure> {
        let mut log = Log::open(&servers, &topic, partitions)?;
        log.read_to_end()?;
        Ok(log.occurrences)
    };
    spawn_blocking(read).await?
}

struct Log {
    consumer: BaseConsumer,
    topic: String,
    /// The next offset of each partition.
    next: Vec<i64>,
    places: Vec<Arc<str>>,
    wholes: Wholes,
    occurrences: Vec<Occurrence>,
}

impl Log {
    fn open(servers: &str, topic: &str, partitions: u16) -> Result<Self, Failure> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", servers).set("reconnect.backoff.max.ms", "500");
        // A group is required even for a client that never uses it.
        config.set("group.id", format!("{topic}-topic_reader")).set("enable.auto.commit", "false");
        // Transaction markers have offsets as well, and no reader gets them.
        config.set("enable.partition.eof", "true");
        let consumer: BaseConsumer = config.create()?;
        let mut list = TopicPartitionList::new();
        for partition in 0..partitions {
            list.add_partition_offset(topic, i32::from(partition), Offset::Beginning)?;
        }
        consumer.assign(&list)?;
        let count = usize::from(partitions);
        let places = (0..count).map(|partition| format!("{topic}[{partition}]").into()).collect();
        let (wholes, occurrences) = (Wholes::default(), Vec::new());
        Ok(Self { consumer, topic: topic.to_owned(), next: vec![0; count], places, wholes, occurrences })
    }

    /// Polls once. An error means an outage, which will end.
    fn poll(&mut self) -> Polled {
        match self.consumer.poll(POLL) {
            Some(Ok(record)) => {
                let partition = usize::try_from(record.partition()).unwrap_or_default();
                self.next[partition] = record.offset() + 1;
                self.occurrences.extend(self.wholes.take(plain(&record, &self.places[partition]), "ce_"));
                Polled::Record
            }
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                Polled::End(usize::try_from(partition).unwrap_or_default())
            }
            _ => Polled::Nothing,
        }
    }

    fn read_to_end(&mut self) -> Result<(), Failure> {
        let mut ends = Vec::new();
        for partition in (0..).take(self.next.len()) {
            let (_, high) = self.consumer.fetch_watermarks(&self.topic, partition, REQUEST)?;
            ends.push(high);
        }
        let mut heard_at = Instant::now();
        let is_behind = |(next, end): (&i64, &i64)| next < end;
        while self.next.iter().zip(&ends).any(is_behind) {
            match self.poll() {
                Polled::Record => heard_at = Instant::now(),
                Polled::End(partition) => ends[partition] = self.next[partition],
                Polled::Nothing if heard_at.elapsed() > SILENCE => {
                    let Self { topic, next, .. } = self;
                    return Err(format!("{topic}: read up to {next:?}, its end is {ends:?}").into());
                }
                Polled::Nothing => {}
            }
        }
        Ok(())
    }
}

/// The result of a poll.
enum Polled {
    /// A record arrived.
    Record,
    /// This partition has no more records.
    End(usize),
    /// There was no answer.
    Nothing,
}

fn plain<'a>(record: &'a BorrowedMessage<'_>, place: &Arc<str>) -> Record<'a> {
    let headers: Vec<(&str, &str)> = record
        .headers()
        .into_iter()
        .flat_map(|headers| headers.iter())
        .filter_map(|header| Some((header.key, std::str::from_utf8(header.value?).ok()?)))
        .collect();
    let id = headers.iter().find(|(name, _)| *name == "ce_id").and_then(|(_, id)| Uuid::parse_str(id).ok());
    let key = record.key().and_then(|key| std::str::from_utf8(key).ok());
    let payload = record.payload().unwrap_or_default();
    Record { id, place: Arc::clone(place), key, headers, payload }
}
