//! Kafka's log, read from its beginning.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use checker::Occurrence;
use rdkafka::message::{Message as _, OwnedMessage};
use tokio::task::spawn_blocking;

use super::whole::Wholes;
use crate::Failure;
use crate::plain::PlainRecord;
use crate::plain::kafka::{Kafka, Log, Reading};

/// A reader that follows a log.
pub struct Follower {
    thread: JoinHandle<Result<Vec<Occurrence>, String>>,
    stop: Arc<AtomicBool>,
}

impl Follower {
    /// Begins to read a topic.
    #[must_use]
    pub fn start(cluster: Kafka, topic: String) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        let follow = move || -> Result<Vec<Occurrence>, Failure> {
            let mut log = Log::open(&cluster, &topic, Reading::default())?;
            let mut messages = Messages::of(topic);
            while !stopping.load(Ordering::Relaxed) {
                log.poll().into_iter().for_each(|record| messages.take(&record));
            }
            log.read_to_end(|record| messages.take(&record))?;
            Ok(messages.occurrences)
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
pub async fn read(cluster: Kafka, topic: String) -> Result<Vec<Occurrence>, Failure> {
    let read = move || -> Result<Vec<Occurrence>, Failure> {
        let mut log = Log::open(&cluster, &topic, Reading::default())?;
        let mut messages = Messages::of(topic);
        log.read_to_end(|record| messages.take(&record))?;
        Ok(messages.occurrences)
    };
    spawn_blocking(read).await?
}

/// The messages of a topic so far.
struct Messages {
    topic: String,
    places: BTreeMap<i32, Arc<str>>,
    wholes: Wholes,
    occurrences: Vec<Occurrence>,
}

impl Messages {
    fn of(topic: String) -> Self {
        Self { topic, places: BTreeMap::new(), wholes: Wholes::default(), occurrences: Vec::new() }
    }

    fn take(&mut self, message: &OwnedMessage) {
        let partition = message.partition();
        let named = || format!("{}[{partition}]", self.topic).into();
        let place = self.places.entry(partition).or_insert_with(named);
        let record = PlainRecord::from(message);
        let message_id = record.header("ce_id").map(str::to_owned);
        self.occurrences.extend(self.wholes.take(&PlainRecord { message_id, ..record }, place, "ce_"));
    }
}
