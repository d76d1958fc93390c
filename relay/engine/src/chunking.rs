//! Splits messages that are larger than the destination accepts, between the engine and the
//! publisher.
//!
//! The engine hands over one message and gets one receipt: its window, its queues by key and its
//! cursor know nothing of chunks. The receipt says `Ok` when the broker has confirmed every chunk.
//! After anything else the whole message is sent again, split in the same way. Consumers keep each
//! chunk once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use message::crash_points::reached;
use message::{
    Capabilities, Connector, FaultScope, Message, PublishError, Publisher, Receipt, Receipts, Splitter,
    Submission, Ticket, Unrouted,
};

use crate::crash_points;

/// Set in the tickets of chunks. Tickets of the engine count from zero and never reach it.
const OF_CHUNK: u64 = 1 << 63;

/// Opens sessions that split messages larger than the destination accepts.
pub struct Chunking {
    inner: Arc<dyn Connector>,
    splitter: Splitter,
}

impl Chunking {
    /// Opens sessions of `inner` that split with `splitter`.
    #[must_use]
    pub fn new(inner: Arc<dyn Connector>, splitter: Splitter) -> Self {
        Self { inner, splitter }
    }
}

#[async_trait]
impl Connector for Chunking {
    fn destination(&self) -> &str {
        self.inner.destination()
    }

    fn connect_max(&self) -> Duration {
        self.inner.connect_max()
    }

    fn answer_max(&self) -> Option<Duration> {
        self.inner.answer_max()
    }

    fn last_error(&self) -> Option<String> {
        self.inner.last_error()
    }

    fn take_unrouted(&self) -> Vec<Unrouted> {
        self.inner.take_unrouted()
    }

    async fn connect(&self, receipts: Receipts) -> Result<Box<dyn Publisher>, PublishError> {
        let split = Arc::new(Split::default());
        let gathering = Arc::clone(&split);
        let inner = self.inner.connect(receipts.through(move |receipt| gathering.gather(receipt))).await?;
        Ok(Box::new(ChunkingPublisher { inner, splitter: self.splitter, split }))
    }
}

/// A session that splits messages.
struct ChunkingPublisher {
    inner: Box<dyn Publisher>,
    splitter: Splitter,
    split: Arc<Split>,
}

#[async_trait]
impl Publisher for ChunkingPublisher {
    fn profile(&self) -> Capabilities {
        self.inner.profile()
    }

    async fn submit(&mut self, batch: Vec<Submission>) {
        let mut submissions = Vec::with_capacity(batch.len());
        for submission in batch {
            match self.splitter.split(&submission.message) {
                Ok(Some(chunks)) => submissions.extend(self.split.open(submission.ticket, chunks)),
                // The publisher refuses a message that cannot be split, with its own error.
                Ok(None) | Err(_) => submissions.push(submission),
            }
        }
        self.inner.submit(submissions).await;
    }

    async fn ended(&mut self) {
        self.inner.ended().await;
    }

    async fn close(self: Box<Self>, grace: Duration) {
        self.inner.close(grace).await;
    }
}

/// The messages of a session whose chunks are under way.
#[derive(Debug, Default)]
struct Split(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    last: u64,
    /// The message of each chunk, by their tickets.
    whole_of: HashMap<Ticket, Ticket>,
    wholes: HashMap<Ticket, Waiting>,
}

/// The chunks of one message that are still under way, and the first failure.
#[derive(Debug)]
struct Waiting {
    chunks_left: usize,
    failure: Option<PublishError>,
}

impl Split {
    /// Returns the submissions of a message's chunks, in their order.
    fn open(&self, whole: Ticket, chunks: Vec<Message>) -> Vec<Submission> {
        let mut open = self.lock();
        open.wholes.insert(whole, Waiting { chunks_left: chunks.len(), failure: None });
        let mut submissions = Vec::with_capacity(chunks.len());
        for message in chunks {
            open.last += 1;
            let ticket = Ticket(OF_CHUNK | open.last);
            open.whole_of.insert(ticket, whole);
            submissions.push(Submission { ticket, message: Arc::new(message) });
        }
        submissions
    }

    /// Returns the receipt of a message once its last chunk has one. A receipt of a message that
    /// was not split is returned at once.
    fn gather(&self, receipt: Receipt) -> Option<Receipt> {
        if receipt.ticket.0 & OF_CHUNK == 0 {
            return Some(receipt);
        }
        let is_confirmed = receipt.outcome.is_ok();
        let mut open = self.lock();
        let whole = open.whole_of.remove(&receipt.ticket)?;
        let waiting = open.wholes.get_mut(&whole)?;
        waiting.chunks_left -= 1;
        waiting.note(receipt.outcome);
        if waiting.chunks_left > 0 {
            drop(open);
            if is_confirmed {
                reached(crash_points::AFTER_CHUNK);
            }
            return None;
        }
        let failure = open.wholes.remove(&whole)?.failure;
        Some(Receipt { ticket: whole, outcome: failure.map_or(Ok(()), Err) })
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// Keeps the failure that describes this message best: after one chunk is refused, the others
    /// often report only that the session has ended.
    fn note(&mut self, outcome: Result<(), PublishError>) {
        let Err(error) = outcome else { return };
        let says = |error: &PublishError| match error.scope() {
            FaultScope::Message => 2,
            FaultScope::Topic => 1,
            FaultScope::Session => 0,
        };
        if self.failure.as_ref().is_none_or(|known| says(known) < says(&error)) {
            self.failure = Some(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use message::testing::{BrokerScript, ScriptedBroker};
    use message::{EventType, Fault, PayloadEncoding, SizeLimit, Topic};

    const SPLITTER: Splitter = Splitter {
        limit: SizeLimit { destination: "the test", message_bytes_max: 4_000 },
        encoding: PayloadEncoding::Raw,
        chunked_bytes_max: 100_000,
    };

    fn message(bytes: usize) -> Message {
        let topic = Topic::new("orders").unwrap();
        Message::new(topic, EventType::new("order.placed").unwrap(), vec![7; bytes])
    }

    /// A broker that keeps its submissions, and the sender to answer them.
    #[derive(Default)]
    struct Fake(Mutex<(Vec<Submission>, Option<Receipts>)>);

    impl BrokerScript for Fake {
        fn connect_max(&self) -> Duration {
            Duration::from_secs(77)
        }

        fn answer_max(&self) -> Option<Duration> {
            Some(Duration::from_secs(78))
        }

        fn profile(&self) -> Capabilities {
            Capabilities { max_in_flight_per_key: message::MaxInFlightPerKey::One, batch_len: 1 }
        }

        fn submit(&self, batch: Vec<Submission>, receipts: &Receipts) {
            let mut kept = self.0.lock().unwrap();
            kept.0.extend(batch);
            kept.1 = Some(receipts.clone());
        }
    }

    /// Submits a small, a large and a small message. Answers the chunks with these outcomes and the
    /// others with `Ok`.
    async fn run(outcomes: Vec<Result<(), PublishError>>) -> Vec<(u64, Result<(), PublishError>)> {
        let fake = Arc::new(Fake::default());
        let broker = Arc::new(ScriptedBroker(Arc::clone(&fake)));
        let (receipts, mut received) = Receipts::channel();
        let chunking = Chunking::new(broker, SPLITTER);
        assert_eq!(chunking.connect_max(), Duration::from_secs(77), "it is that of the inner connector");
        assert_eq!(chunking.answer_max(), Some(Duration::from_secs(78)));
        let mut publisher = chunking.connect(receipts).await.unwrap();
        let batch = [10, 9_000, 20].map(message).into_iter().zip(1..);
        publisher
            .submit(
                batch.map(|(message, n)| Submission { ticket: Ticket(n), message: message.into() }).collect(),
            )
            .await;
        let (submitted, receipts) = std::mem::take(&mut *fake.0.lock().unwrap());
        let indices: Vec<_> =
            submitted.iter().map(|s| s.message.chunk.as_ref().map(|chunk| chunk.index())).collect();
        assert_eq!(indices, [None, Some(0), Some(1), Some(2), None]);
        let receipts = receipts.unwrap();
        let mut outcomes = outcomes.into_iter();
        let mut answered = Vec::new();
        // The last chunk first: the broker's answers come in any order.
        for submission in submitted.into_iter().rev() {
            let outcome = if submission.message.chunk.is_some() { outcomes.next().unwrap() } else { Ok(()) };
            receipts.send(submission.ticket, outcome);
            while let Ok(Receipt { ticket, outcome }) = received.try_recv() {
                answered.push((ticket.0, outcome));
            }
        }
        answered
    }

    #[tokio::test]
    async fn a_message_is_confirmed_with_its_last_chunk_and_only_once() {
        let answered = run(vec![Ok(()), Ok(()), Ok(())]).await;
        let tickets: Vec<_> = answered.iter().map(|(ticket, outcome)| (*ticket, outcome.is_ok())).collect();
        assert_eq!(tickets, [(3, true), (2, true), (1, true)]);
    }

    #[tokio::test]
    async fn one_chunk_that_fails_fails_the_message_with_what_says_the_most() {
        let lost = || Err(PublishError::session_lost("the session is over"));
        let refused = || Err(PublishError::refused("too large"));
        let busy = || Err(PublishError::topic_busy("busy"));
        for (outcomes, scope) in [
            (vec![Ok(()), lost(), Ok(())], FaultScope::Session),
            (vec![lost(), refused(), lost()], FaultScope::Message),
            (vec![busy(), lost(), Ok(())], FaultScope::Topic),
        ] {
            let mut answered = run(outcomes).await;
            let (ticket, outcome) = answered.remove(1);
            assert_eq!((ticket, outcome.unwrap_err().scope()), (2, scope));
            assert!(answered.iter().all(|(_, outcome)| outcome.is_ok()));
        }
        let (_, outcome) = run(vec![refused(), lost(), lost()]).await.remove(1);
        assert_eq!(outcome.unwrap_err().fault(), Fault::Message);
    }
}
