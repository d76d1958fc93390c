//! Keeps messages that wait for one queue, and chooses those that may be sent together.
//!
//! A batch has at most 10 entries and a bounded size. On a FIFO queue at most one message of a
//! group is in flight. If two were in one batch and only the first failed, the second would
//! overtake it.

use std::collections::{HashSet, VecDeque};

use message::{Fingerprint, Message, Topic};
use sha2::{Digest, Sha256};

use super::wire::Record;
use crate::pending::Pending;

/// Maximum entries of a batch (SQS quota).
pub(super) const BATCH_ENTRIES_MAX: usize = 10;

/// Maximum length of a group id in characters (SQS quota).
const GROUP_CHARS_MAX: usize = 128;

/// A message on its way.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) topic: Topic,
    pub(super) record: Record,
    /// The message group, if the queue gets one.
    pub(super) group: Option<String>,
    /// The deduplication id, on FIFO queues.
    pub(super) deduplication: Option<String>,
    pub(super) pending: Pending,
}

/// The messages that wait for one queue.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    waiting: VecDeque<Item>,
    /// Groups with a message in flight.
    busy: HashSet<String>,
    /// Batches in flight.
    in_flight: usize,
}

impl Backlog {
    pub(super) fn push(&mut self, item: Item) {
        self.waiting.push_back(item);
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Takes the next batch in the order of submission, at most `bytes_max` large. It is empty when
    /// every waiting message has one of its group in flight.
    pub(super) fn take(&mut self, bytes_max: usize) -> Vec<Item> {
        let (mut batch, mut bytes, mut passed) = (Vec::new(), 0, Vec::new());
        while batch.len() < BATCH_ENTRIES_MAX
            && let Some(item) = self.waiting.pop_front()
        {
            if item.deduplication.is_some()
                && item.group.as_ref().is_some_and(|group| self.busy.contains(group))
            {
                passed.push(item);
                continue;
            }
            if !batch.is_empty() && bytes + item.record.bytes() > bytes_max {
                self.waiting.push_front(item);
                break;
            }
            bytes += item.record.bytes();
            if item.deduplication.is_some() {
                self.busy.extend(item.group.clone());
            }
            batch.push(item);
        }
        // Puts the skipped items back, instead of taking out all items behind them: there may be a
        // whole window of those.
        passed.into_iter().rev().for_each(|item| self.waiting.push_front(item));
        self.in_flight += usize::from(!batch.is_empty());
        batch
    }

    /// Records that a batch is answered; its groups may continue.
    pub(super) fn finish(&mut self, groups: &[String]) {
        self.in_flight -= 1;
        for group in groups {
            self.busy.remove(group);
        }
    }
}

/// Returns the group of a message on a FIFO queue: its key, or its own id if it has none, so that
/// messages without a key are not ordered.
pub(super) fn fifo_group(message: &Message) -> String {
    message.key.as_ref().map_or_else(|| message.id.to_string(), |key| group(key.as_str()))
}

/// Returns the deduplication id. A FIFO queue confirms repetitions of it within five minutes, and
/// drops them. It is the message id and a digest of content and headers: without the latter, the
/// queue would drop a message that an operator has edited after an attempt whose answer was lost.
/// For a chunk it also holds its index and the number of chunks, or the queue would drop all chunks
/// but the first.
pub(super) fn deduplication(message: &Message) -> String {
    let whole = message.chunk.as_ref().map_or_else(|| Fingerprint::of(message), |chunk| chunk.fingerprint());
    let mut digest = Sha256::new_with_prefix(whole.to_string());
    for (name, value) in message.headers.iter() {
        digest.update([name, "\n", value, "\n"].concat());
    }
    let digest: [u8; 32] = digest.finalize().into();
    let id = format!("{}-{}", message.id, Fingerprint::from(digest));
    match &message.chunk {
        None => id,
        Some(chunk) => format!("{id}-{}-{}", chunk.index(), chunk.count()),
    }
}

/// Converts a key to a group id: at most 128 characters of printable ASCII (SQS API reference,
/// SendMessage). Other keys are hashed.
pub(super) fn group(key: &str) -> String {
    if key.len() <= GROUP_CHARS_MAX && key.bytes().all(|b| b.is_ascii_graphic()) {
        return key.to_owned();
    }
    let digest: [u8; 32] = Sha256::digest(key.as_bytes()).into();
    format!("sha256-{}", Fingerprint::from(digest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use message::{CHUNKS_MAX, EventType, OrderingKey, Receipts, Ticket};

    fn item(group: Option<&str>, bytes: usize) -> Item {
        Item {
            topic: Topic::new("orders").unwrap(),
            record: Record { body: "x".repeat(bytes), attributes: Vec::new() },
            group: group.map(str::to_owned),
            deduplication: group.map(|_| String::from("id")),
            pending: Pending::new(Ticket(0), Receipts::channel().0),
        }
    }

    fn groups(batch: &[Item]) -> Vec<String> {
        batch.iter().filter_map(|item| item.group.clone()).collect()
    }

    #[test]
    fn a_group_has_one_message_in_flight_and_the_others_pass() {
        let mut backlog = Backlog::default();
        for group in ["a", "a", "b", "a", "c"] {
            backlog.push(item(Some(group), 1));
        }
        let first = backlog.take(1_000);
        assert_eq!(groups(&first), ["a", "b", "c"]);
        assert!(backlog.take(1_000).is_empty());
        backlog.finish(&groups(&first));
        assert_eq!(groups(&backlog.take(1_000)), ["a"]);
        assert_eq!((backlog.len(), backlog.in_flight()), (1, 1));
    }

    #[test]
    fn a_batch_is_bounded_in_entries_and_bytes() {
        let mut backlog = Backlog::default();
        for _ in 0..12 {
            backlog.push(item(None, 1));
        }
        assert_eq!((backlog.take(1_000).len(), backlog.take(1_000).len()), (10, 2));
        for _ in 0..3 {
            backlog.push(item(None, 400));
        }
        assert_eq!((backlog.take(1_000).len(), backlog.take(1_000).len()), (2, 1));
    }

    #[test]
    fn keys_become_group_ids_that_sqs_accepts() {
        assert_eq!(group("order-7"), "order-7");
        for key in ["order 7", "Müller", &"k".repeat(129)] {
            let group = group(key);
            assert!(group.starts_with("sha256-") && group.len() <= 128, "{group}");
        }
        let message = Message::new(Topic::new("orders").unwrap(), EventType::new("t").unwrap(), "x");
        assert_eq!(fifo_group(&message), message.id.to_string());
        assert_eq!(fifo_group(&message.with_key(OrderingKey::new("k").unwrap())), "k");
    }

    #[test]
    fn each_chunk_has_a_deduplication_id_of_its_own() {
        let mut message = Message::new(Topic::new("orders").unwrap(), EventType::new("t").unwrap(), "xy");
        let whole = deduplication(&message);
        assert_eq!(whole, deduplication(&message));
        let mut ids = HashSet::from([whole]);
        for (index, count) in [(0, 1), (0, 2), (1, 2), (CHUNKS_MAX - 1, CHUNKS_MAX)] {
            let bytes = u64::from(count) * 2;
            let chunk = message::Chunk::new(index, count, bytes, Fingerprint::of(&message)).unwrap();
            message.chunk = Some(Box::new(chunk));
            let id = deduplication(&message);
            assert!(id.len() <= GROUP_CHARS_MAX && ids.insert(id));
        }
    }

    #[test]
    fn an_edited_message_is_not_dropped_as_a_repetition() {
        let message = Message::new(Topic::new("orders").unwrap(), EventType::new("t").unwrap(), "before");
        let edited = Message { payload: "after".into(), ..message.clone() };
        assert_ne!(deduplication(&message), deduplication(&edited));
        let mut headed = message.clone();
        headed.headers.insert("tier", "gold").unwrap();
        assert_ne!(deduplication(&message), deduplication(&headed));
    }
}
