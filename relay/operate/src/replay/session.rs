//! Hands messages to the broker until each is confirmed, in order within each key.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use message::{
    Backoff, Connector, MaxInFlightPerKey, Message, PublishError, Publisher, Receipt, Receipts, Submission,
    Ticket,
};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

/// Timeout for the next receipt of messages that were handed over. It is longer where the settings
/// permit the destination more time for an answer.
const RECEIPT_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum duration of an outage without a confirmation.
const OUTAGE_MAX: Duration = Duration::from_secs(60);

type Open = (Box<dyn Publisher>, mpsc::UnboundedReceiver<Receipt>);

/// How much longer than the destination's own limit to wait for a receipt.
const AFTER_ANSWER: Duration = Duration::from_secs(2);

/// A sequence of sessions with the broker.
pub(super) struct Session {
    connector: Arc<dyn Connector>,
    open: Option<Open>,
    next: u64,
}

/// The unconfirmed messages of a batch, by their index in it, and the reason.
#[derive(Debug)]
pub(super) struct Unconfirmed {
    pub(super) places: Vec<usize>,
    pub(super) error: PublishError,
}

impl Session {
    pub(super) fn new(connector: Arc<dyn Connector>) -> Self {
        Self { connector, open: None, next: 0 }
    }

    /// Publishes all messages. Unconfirmed ones have an unknown outcome and are sent again in
    /// order, in another session. Waits for an unreachable broker, up to a minute without progress.
    pub(super) async fn publish(&mut self, messages: &[Arc<Message>]) -> Result<(), Unconfirmed> {
        let mut left: Vec<usize> = (0..messages.len()).collect();
        let mut patience = Instant::now() + OUTAGE_MAX;
        let mut failures = 0;
        while !left.is_empty() {
            let before = left.len();
            let error = self.wave(messages, &mut left).await;
            if left.len() < before {
                patience = Instant::now() + OUTAGE_MAX;
                failures = 0;
            }
            let Err(error) = error else { continue };
            self.close().await;
            if !error.fault().is_temporary() || Instant::now() >= patience {
                return Err(Unconfirmed { places: left, error });
            }
            failures += 1;
            tokio::time::sleep(Backoff::OUTAGES.delay(failures, rand::random())).await;
        }
        Ok(())
    }

    /// Ends the session. Every message handed over has its receipt.
    pub(super) async fn close(&mut self) {
        if let Some((publisher, _)) = self.open.take() {
            publisher.close(Duration::ZERO).await;
        }
    }

    /// Hands over as many messages as the order of keys permits, and removes the confirmed ones
    /// from `left`.
    async fn wave(&mut self, messages: &[Arc<Message>], left: &mut Vec<usize>) -> Result<(), PublishError> {
        let (mut publisher, mut receipts) = self.opened().await?;
        let places = next_wave(messages, left, publisher.profile().max_in_flight_per_key);
        let first = self.next;
        self.next += places.len() as u64;
        let submission = |(nth, place): (usize, &usize)| Submission {
            ticket: Ticket(first + nth as u64),
            message: Arc::clone(&messages[*place]),
        };
        let batch: Vec<Submission> = places.iter().enumerate().map(submission).collect();
        let answer_max = self.connector.answer_max().map_or(Duration::ZERO, |max| max + AFTER_ANSWER);
        let receipt_timeout = RECEIPT_TIMEOUT.max(answer_max);
        let submitted = timeout(receipt_timeout, publisher.submit(batch)).await;
        let mut problem = submitted.err().map(|_| silent(self.connector.destination()));
        let mut confirmed = HashSet::with_capacity(places.len());
        let mut answered = 0;
        while answered < places.len() && problem.is_none() {
            match timeout(receipt_timeout, receipts.recv()).await {
                Ok(Some(Receipt { ticket, outcome })) => {
                    answered += 1;
                    let nth = usize::try_from(ticket.0.wrapping_sub(first)).unwrap_or(usize::MAX);
                    let Some(place) = places.get(nth) else { continue };
                    match outcome {
                        Ok(()) => _ = confirmed.insert(*place),
                        // The other receipts of this batch follow, and one of them may have a
                        // better reason.
                        Err(error) => problem = Some(error),
                    }
                }
                Ok(None) => problem = Some(PublishError::session_lost("the session is over")),
                Err(_) => problem = Some(silent(self.connector.destination())),
            }
        }
        if problem.is_some() {
            // The end of the session would cut off requests that are being answered, which causes
            // copies.
            let last_words = LAST_WORDS.max(answer_max);
            while let Ok(Some(Receipt { ticket, outcome })) = timeout(last_words, receipts.recv()).await {
                let nth = usize::try_from(ticket.0.wrapping_sub(first)).unwrap_or(usize::MAX);
                answered += 1;
                match (places.get(nth), outcome) {
                    (Some(place), Ok(())) => _ = confirmed.insert(*place),
                    (_, Err(error)) if !error.fault().is_temporary() => problem = Some(error),
                    _ => {}
                }
                if answered >= places.len() {
                    break;
                }
            }
        }
        self.open = Some((publisher, receipts));
        left.retain(|place| !confirmed.contains(place));
        problem.map_or(Ok(()), Err)
    }

    async fn opened(&mut self) -> Result<Open, PublishError> {
        if let Some(open) = self.open.take() {
            return Ok(open);
        }
        let (sender, receipts) = Receipts::channel();
        match timeout(self.connector.connect_max(), self.connector.connect(sender)).await {
            Ok(publisher) => Ok((publisher?, receipts)),
            Err(_) => Err(silent(self.connector.destination())),
        }
    }
}

/// How long to wait for the other receipts of a session with a problem.
const LAST_WORDS: Duration = Duration::from_secs(5);

fn silent(destination: &str) -> PublishError {
    PublishError::session_lost(format!("{destination} does not answer"))
}

/// Returns the indices of the messages to hand over now, in order: all, or the first of each key.
fn next_wave(messages: &[Arc<Message>], left: &[usize], per_key: MaxInFlightPerKey) -> Vec<usize> {
    if per_key == MaxInFlightPerKey::Pipelined {
        return left.to_vec();
    }
    let mut keys = HashSet::new();
    let is_first = |place: &&usize| match &messages[**place].key {
        Some(key) => keys.insert(key.as_str()),
        None => true,
    };
    left.iter().filter(is_first).copied().collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use message::testing::{BrokerScript, ScriptedBroker};
    use message::{Capabilities, EventType, OrderingKey, Topic};

    use super::*;

    fn message(key: Option<&str>, text: &str) -> Arc<Message> {
        let (topic, kind) = (Topic::new("orders").unwrap(), EventType::new("order.placed").unwrap());
        let mut message = Message::new(topic, kind, text.as_bytes().to_vec());
        message.key = key.map(|key| OrderingKey::new(key).unwrap());
        Arc::new(message)
    }

    /// A message that fails once, named by its text, and its error.
    type Failure = (&'static str, fn() -> PublishError);

    /// A broker that stores the messages that it confirms, and fails as configured.
    struct Fake {
        per_key: MaxInFlightPerKey,
        stored: Mutex<Vec<String>>,
        failures: Mutex<Vec<Failure>>,
    }

    impl BrokerScript for Fake {
        fn profile(&self) -> Capabilities {
            Capabilities { max_in_flight_per_key: self.per_key, batch_len: 10 }
        }

        fn submit(&self, batch: Vec<Submission>, receipts: &Receipts) {
            let mut is_broken = false;
            for Submission { ticket, message } in batch {
                let text = String::from_utf8(message.payload.to_vec()).unwrap();
                let mut failures = self.failures.lock().unwrap();
                let failure = failures.iter().position(|(of, _)| *of == text).map(|at| failures.remove(at));
                let outcome = match failure {
                    Some((_, error)) => {
                        is_broken = self.per_key == MaxInFlightPerKey::Pipelined;
                        Err(error())
                    }
                    None if is_broken => Err(PublishError::session_lost("after a failure")),
                    None => {
                        self.stored.lock().unwrap().push(text);
                        Ok(())
                    }
                };
                receipts.send(ticket, outcome);
            }
        }
    }

    async fn run(
        per_key: MaxInFlightPerKey,
        failures: Vec<Failure>,
    ) -> (Vec<String>, Result<(), Unconfirmed>) {
        let fake = Arc::new(Fake { per_key, stored: Mutex::default(), failures: Mutex::new(failures) });
        let batch = [
            message(Some("a"), "a1"),
            message(Some("b"), "b1"),
            message(Some("a"), "a2"),
            message(None, "n"),
        ];
        let result = Session::new(Arc::new(ScriptedBroker(Arc::clone(&fake)))).publish(&batch).await;
        let stored = fake.stored.lock().unwrap().clone();
        (stored, result)
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_session_is_made_up_for_in_the_order_of_keys() {
        let lost: fn() -> PublishError = || PublishError::session_lost("gone");
        for per_key in [MaxInFlightPerKey::One, MaxInFlightPerKey::Pipelined] {
            let (stored, result) = run(per_key, vec![("a1", lost), ("a1", lost), ("a2", lost)]).await;
            assert!(result.is_ok());
            let of_a: Vec<_> = stored.iter().filter(|text| text.starts_with('a')).collect();
            assert_eq!(of_a, ["a1", "a2"], "{per_key:?}");
            assert!(stored.contains(&String::from("b1")) && stored.contains(&String::from("n")));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_stops_and_names_the_message() {
        let refused: fn() -> PublishError = || PublishError::refused("too large");
        let (_, result) = run(MaxInFlightPerKey::One, vec![("b1", refused)]).await;
        let unconfirmed = result.unwrap_err();
        assert_eq!(unconfirmed.places.first(), Some(&1));
        assert_eq!(unconfirmed.error.fault(), message::Fault::Message);
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_waited_for_and_not_for_ever() {
        let lost: fn() -> PublishError = || PublishError::session_lost("gone");
        let (_, result) = run(MaxInFlightPerKey::One, vec![("a1", lost); 1_000]).await;
        assert_eq!(result.unwrap_err().places, [0, 2]);
    }

    /// A broker that takes 40 s to open a session, for example in many steps with their own limits.
    struct Slow;

    #[async_trait::async_trait]
    impl Connector for Slow {
        fn destination(&self) -> &str {
            "slow"
        }

        fn connect_max(&self) -> Duration {
            Duration::from_secs(90)
        }

        async fn connect(&self, receipts: Receipts) -> Result<Box<dyn Publisher>, PublishError> {
            tokio::time::sleep(Duration::from_secs(40)).await;
            let per_key = MaxInFlightPerKey::Pipelined;
            let fake = Fake { per_key, stored: Mutex::default(), failures: Mutex::default() };
            ScriptedBroker(Arc::new(fake)).connect(receipts).await
        }
    }

    /// A receiver that takes 70 s for each answer, which its settings permit, and fails once.
    #[derive(Default)]
    struct Thorough {
        received: Mutex<Vec<String>>,
    }

    impl BrokerScript for Thorough {
        fn profile(&self) -> Capabilities {
            Capabilities { max_in_flight_per_key: MaxInFlightPerKey::One, batch_len: 10 }
        }

        fn answer_max(&self) -> Option<Duration> {
            Some(Duration::from_secs(75))
        }

        fn submit(&self, batch: Vec<Submission>, receipts: &Receipts) {
            for Submission { ticket, message } in batch {
                let text = String::from_utf8(message.payload.to_vec()).unwrap();
                let receipts = receipts.clone();
                let is_failing = text == "fails" && !self.received.lock().unwrap().contains(&text);
                self.received.lock().unwrap().push(text);
                tokio::spawn(async move {
                    let outcome = if is_failing { Err(PublishError::session_lost("500")) } else { Ok(()) };
                    let after = if is_failing { 1 } else { 70 };
                    tokio::time::sleep(Duration::from_secs(after)).await;
                    receipts.send(ticket, outcome);
                });
            }
        }
    }

    /// Goal: a receiver that the relay can publish to can be replayed to, without copies. Oracle:
    /// what it received.
    #[tokio::test(start_paused = true)]
    async fn an_answer_is_waited_for_as_long_as_the_settings_permit() {
        let receiver = Arc::new(Thorough::default());
        let batch = [message(None, "slow"), message(None, "fails"), message(None, "as slow")];
        let done = Session::new(Arc::new(ScriptedBroker(Arc::clone(&receiver)))).publish(&batch).await;
        assert!(done.is_ok(), "{done:?}");
        assert_eq!(*receiver.received.lock().unwrap(), ["slow", "fails", "as slow", "fails"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_is_waited_for_as_long_as_the_relay_waits() {
        let batch = [message(None, "n")];
        assert!(Session::new(Arc::new(Slow)).publish(&batch).await.is_ok());
    }
}
