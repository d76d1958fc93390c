//! The seam from brokers: receive deliveries, and settle each one once its effect is committed.

use std::error::Error;
use std::fmt;
use std::num::NonZeroUsize;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::fault::Fault;
use crate::id::MessageId;
use crate::message::Message;
use crate::proof::Committed;
use crate::wire_headers::HeadersCut;
#[cfg(doc)]
use crate::wire_headers::WireHeaders;

/// The number that identifies an unsettled delivery; unique within one subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeliveryToken(pub u64);

/// A message as a broker handed it over. The same message can be delivered any number of times.
#[derive(Debug)]
pub struct Delivery {
    /// Identifies this delivery to its subscription.
    pub token: DeliveryToken,
    /// The message, or the reason why the bytes are not one.
    pub message: Result<Message, Malformed>,
    /// Whether the broker reports that it delivered this before.
    pub redelivered: bool,
    /// The origin, for logs and dead letters: `orders[3]@1234`, `queue billing #17`.
    pub origin: String,
}

/// A delivery whose envelope cannot be read: no id, a malformed id, no topic. It is dead-lettered
/// with everything that arrived, except headers beyond the bounds of [`WireHeaders`].
///
/// For the inbox two deliveries are the same when their origin and all fields here except `problem`
/// and `broker_notes` are equal.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Malformed {
    /// The problem, with the offending value and what to send instead.
    pub problem: String,
    /// The topic or queue it came from.
    pub topic: String,
    /// The ordering key, if it could be read.
    pub key: Option<String>,
    /// All headers as they arrived, as texts.
    pub headers: Vec<(String, String)>,
    /// Parts besides headers and payload that are the same in every delivery of a message:
    /// properties of the protocol, the broker's own id, bytes that are not text (in hexadecimal).
    /// The names begin with the broker's (`amqp.reply_to`, `sqs.MessageId`, `kafka.timestamp`).
    pub properties: Vec<(String, String)>,
    /// Values that the broker adds and changes from delivery to delivery: a receive count,
    /// `x-death`. Evidence only, not part of the delivery's identity.
    pub broker_notes: Vec<(String, String)>,
    /// Distinguishes this arrival from others with the same content. Set where a broker delivers a
    /// message for the first time and gives it neither a position nor an id (RabbitMQ). Every
    /// arrival has a different value.
    pub first_arrival: Option<Uuid>,
    /// Whether headers are missing here: there were too many, or they were too large
    /// ([`WireHeaders`]). A property says how many. Such a delivery is never
    /// read as a foreign message, because its handler would not get all of it.
    pub is_cut: bool,
    /// The bytes as they arrived.
    pub payload: Bytes,
}

impl fmt::Debug for Malformed {
    /// Prints the size of the payload and the names of headers: only the consumer should read more.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Malformed")
            .field("problem", &self.problem)
            .field("topic", &self.topic)
            .field("key", &self.key)
            .field("headers", &names(&self.headers))
            .field("properties", &names(&self.properties))
            .field("broker_notes", &names(&self.broker_notes))
            .field("first_arrival", &self.first_arrival)
            .field("is_cut", &self.is_cut)
            .field("payload", &format_args!("<{} bytes>", self.payload.len()))
            .finish()
    }
}

fn names(pairs: &[(String, String)]) -> Vec<&str> {
    pairs.iter().map(|(name, _)| name.as_str()).collect()
}

impl Delivery {
    /// Returns the id that a [`Committed`] proof must name to settle this delivery: the message id,
    /// or for a malformed delivery a hash of its origin and of everything that a redelivery
    /// repeats.
    #[must_use]
    pub fn subject(&self) -> Uuid {
        match &self.message {
            Ok(message) => message.id.as_uuid(),
            Err(malformed) => malformed.subject(&self.origin),
        }
    }

    /// Returns the message's id, if it has one.
    #[must_use]
    pub fn id(&self) -> Option<MessageId> {
        self.message.as_ref().ok().map(|message| message.id)
    }
}

impl Malformed {
    /// Records that headers of this delivery were left out: adds a property with this name, which
    /// says how many.
    #[must_use]
    pub fn cut(mut self, name: &str, cut: &HeadersCut) -> Self {
        self.is_cut = true;
        self.properties.push((name.to_owned(), cut.note()));
        self
    }

    /// Returns the first value with this name: of a header, else of a property, else of a note of
    /// the broker.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&str> {
        let mut all = self.headers.iter().chain(&self.properties).chain(&self.broker_notes);
        all.find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns a hash of everything that a redelivery repeats. Each part follows its count or
    /// length, so different deliveries never hash the same bytes. Headers are sorted: brokers
    /// deliver them in any order.
    fn subject(&self, origin: &str) -> Uuid {
        let mut hash = Sha256::new();
        for part in [origin.as_bytes(), self.topic.as_bytes(), &self.payload] {
            add(&mut hash, part);
        }
        hash.update([u8::from(self.key.is_some())]);
        add(&mut hash, self.key.as_deref().unwrap_or_default().as_bytes());
        for pairs in [&self.headers, &self.properties] {
            let mut sorted: Vec<_> = pairs.iter().collect();
            sorted.sort_unstable();
            hash.update((sorted.len() as u64).to_be_bytes());
            for (name, value) in sorted {
                add(&mut hash, name.as_bytes());
                add(&mut hash, value.as_bytes());
            }
        }
        let mut bytes = [0_u8; 16];
        bytes.copy_from_slice(&hash.finalize()[..16]);
        uuid::Builder::from_custom_bytes(bytes).into_uuid()
    }
}

/// Adds a part to the hash, after its length.
fn add(hash: &mut Sha256, part: &[u8]) {
    hash.update((part.len() as u64).to_be_bytes());
    hash.update(part);
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

/// The way in which a delivery is settled at the broker.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Disposition {
    /// Its effect is committed: the broker can forget it.
    Done,
    /// It was not handled (shutdown, handler failed): the broker delivers it again.
    Release,
}

/// The settlement of one delivery. Made only by [`Settlement::done`], which requires the proof of
/// commit, and by [`Settlement::release`].
#[derive(Debug, PartialEq, Eq)]
pub struct Settlement {
    token: DeliveryToken,
    disposition: Disposition,
}

/// The proof belongs to another delivery: a programming error in the consumer.
#[derive(Debug, thiserror::Error)]
#[error("the proof of commit names {proven}, but the delivery to settle is {subject}")]
pub struct ProofMismatch {
    /// The id that the proof names.
    pub proven: Uuid,
    /// The id of the delivery that was to be settled.
    pub subject: Uuid,
}

impl Settlement {
    /// Settles a delivery whose effect is committed.
    ///
    /// # Errors
    /// [`ProofMismatch`] when the proof was made for another message.
    pub fn done(delivery: &Delivery, proof: Committed) -> Result<Self, ProofMismatch> {
        let subject = delivery.subject();
        if proof.subject() != subject {
            return Err(ProofMismatch { proven: proof.subject(), subject });
        }
        Ok(Self { token: delivery.token, disposition: Disposition::Done })
    }

    /// Hands the delivery back.
    #[must_use]
    pub fn release(token: DeliveryToken) -> Self {
        Self { token, disposition: Disposition::Release }
    }

    /// Returns the token of the delivery.
    #[must_use]
    pub fn token(&self) -> DeliveryToken {
        self.token
    }

    /// Returns how the delivery is settled at the broker.
    #[must_use]
    pub fn disposition(&self) -> &Disposition {
        &self.disposition
    }
}

/// Opens subscriptions: the first one, and another after each lost session. Every adapter
/// implements it. A closure that returns the future of a subscription implements it as well, for
/// wrapping the subscriptions of one subscriber, which it keeps.
#[async_trait]
pub trait Subscriber: Send + Sync + 'static {
    /// Opens a session.
    ///
    /// # Errors
    /// [`SubscriptionError`]: unreachable (the broker's fault), or wrong settings, credentials or
    /// names (the operator's). Cancel-safe: a dropped attempt leaves the group.
    async fn subscribe(&self) -> Result<Box<dyn Subscription>, SubscriptionError>;
}

#[async_trait]
impl<F, Fut> Subscriber for F
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Box<dyn Subscription>, SubscriptionError>> + Send + 'static,
{
    async fn subscribe(&self) -> Result<Box<dyn Subscription>, SubscriptionError> {
        self().await
    }
}

/// A stream of deliveries from one or more topics or queues, shared with the other members of a
/// group.
///
/// A subscription that is dropped ends in the background, and the broker keeps its unsettled
/// deliveries until then. The same [`Subscriber`] can subscribe again at once: it waits where the
/// order of a key depends on that. Before another `Subscriber` of the same queue subscribes,
/// [`close`](Self::close) this one, also after an error. Otherwise, RabbitMQ can give later messages
/// of a key to the other one first, unless the queue has `x-single-active-consumer`.
#[async_trait]
pub trait Subscription: Send {
    /// Names the topic or queue that this listens to, for logs and tables. Never contains a secret.
    fn origin(&self) -> &str;

    /// Waits at most `wait` and returns at most `max` deliveries; empty when none came. Deliveries
    /// of one ordering key come in the order in which the broker holds them.
    ///
    /// # Errors
    /// [`SubscriptionError`] when the session is lost (subscribe again) or the operator must act.
    /// Cancel-safe: the next call returns deliveries that were received before the future was
    /// dropped.
    async fn receive(
        &mut self,
        max: NonZeroUsize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, SubscriptionError>;

    /// Settles deliveries. A token that the broker has taken back (rebalance, visibility timeout,
    /// new connection) is skipped: the message is redelivered, and the inbox recognises it.
    ///
    /// Kafka commits offsets only up to the first unsettled delivery of a partition.
    ///
    /// # Errors
    /// [`SubscriptionError`] when the broker could not be reached; it redelivers the messages. Not
    /// cancel-safe.
    async fn settle(&mut self, settlements: Vec<Settlement>) -> Result<(), SubscriptionError>;

    /// Tells the broker that these deliveries are still being worked on (SQS: extends their
    /// visibility). Does nothing where the broker has no such limit.
    ///
    /// # Errors
    /// [`SubscriptionError`] when the broker could not be reached; the messages may come again.
    async fn keep_alive(&mut self, tokens: &[DeliveryToken]) -> Result<(), SubscriptionError>;

    /// Returns how long a delivery may stay unsettled without [`keep_alive`](Self::keep_alive)
    /// before it is delivered again; `None` where only the end of the session causes that.
    fn redelivers_after(&self) -> Option<Duration> {
        None
    }

    /// Returns how many messages wait for this consumer, by topic or queue, as last reported by the
    /// broker; empty where it does not report. Includes those of a queue whose messages are for
    /// other consumers now: these may stand still. Answers from memory: adapters query the broker
    /// at their own low rate.
    fn lag(&self) -> Vec<Lag> {
        Vec::new()
    }

    /// Returns whether the broker has assigned it anything to read; `None` where that is unknown,
    /// or where the broker assigns nothing. False: the messages that wait are not for this consumer
    /// now, and it has not stalled. Kafka: while its group rebalances, or while other members have
    /// all partitions. RabbitMQ: while it is a standby of every queue in which messages wait. SQS:
    /// while other consumers have messages of all groups of a FIFO queue in hand. Answers from
    /// memory.
    fn is_assigned(&self) -> Option<bool> {
        None
    }

    /// Stops new deliveries. Earlier deliveries can still be settled, and released ones are not
    /// delivered to this session again. For a consumer that finishes its current work and then
    /// closes. Does nothing where each call asks for its own deliveries.
    ///
    /// RabbitMQ hands back released messages only when the session ends. A standby that got them
    /// earlier could get later messages of a key first.
    ///
    /// # Errors
    /// [`SubscriptionError`] when the broker could not be reached; everything else can continue.
    /// Not cancel-safe. Do not call [`receive`](Self::receive) afterwards.
    async fn stop_receiving(&mut self) -> Result<(), SubscriptionError> {
        Ok(())
    }

    /// Leaves the group and ends the session; unsettled deliveries are delivered again. Waits,
    /// within a time limit, until the broker has ended the session: another one then gets them
    /// before later messages of their keys, where the broker keeps the order of keys.
    ///
    /// # Errors
    /// [`SubscriptionError`] when the broker could not be informed; it then detects the end itself.
    /// Not cancel-safe: a call that is dropped ends the session like a dropped subscription.
    async fn close(self: Box<Self>) -> Result<(), SubscriptionError>;
}

/// The number of messages of a topic or queue that wait for a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lag {
    /// The topic, or the queue.
    pub topic: String,
    /// Messages that the broker holds for the consumer: not committed (Kafka: in the partitions of
    /// this member), or not handed out (RabbitMQ, SQS: of the whole queue).
    pub messages: u64,
}

impl Lag {
    /// Makes the lag of a topic or queue.
    #[must_use]
    pub fn new(topic: impl Into<String>, messages: u64) -> Self {
        Self { topic: topic.into(), messages }
    }
}

/// The reason why a subscription cannot continue.
#[derive(Debug)]
pub struct SubscriptionError {
    fault: Fault,
    reason: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl SubscriptionError {
    /// Makes an error for a broker that is unreachable or disconnected: the caller subscribes
    /// again.
    #[must_use]
    pub fn lost(reason: impl Into<String>) -> Self {
        Self { fault: Fault::Broker, reason: reason.into(), source: None }
    }

    /// Makes an error for something missing or forbidden: an operator must act, then the caller
    /// subscribes again.
    #[must_use]
    pub fn operator(reason: impl Into<String>) -> Self {
        Self { fault: Fault::Operator, reason: reason.into(), source: None }
    }

    /// Attaches the client library's error.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Returns the party at fault: the broker (retry) or the operator.
    #[must_use]
    pub fn fault(&self) -> Fault {
        self.fault
    }
}

impl fmt::Display for SubscriptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl Error for SubscriptionError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EventType, Topic};

    fn delivery(token: u64) -> Delivery {
        let topic = Topic::new("orders").unwrap();
        let kind = EventType::new("order.placed").unwrap();
        Delivery {
            token: DeliveryToken(token),
            message: Ok(Message::new(topic, kind, "x")),
            redelivered: false,
            origin: String::from("test"),
        }
    }

    fn malformed(change: impl FnOnce(&mut Malformed)) -> Uuid {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut malformed = Malformed {
            problem: String::from("no id"),
            topic: String::from("orders"),
            key: Some(String::from("k")),
            headers: vec![pair("a", "1"), pair("b", "2")],
            properties: vec![pair("amqp.type", "t")],
            payload: Bytes::from("{}"),
            ..Malformed::default()
        };
        change(&mut malformed);
        Delivery { message: Err(malformed), ..delivery(1) }.subject()
    }

    #[test]
    fn everything_that_arrives_tells_malformed_deliveries_apart() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let subjects = [
            malformed(|_| {}),
            malformed(|it| it.topic = String::from("bills")),
            malformed(|it| it.key = None),
            malformed(|it| it.key = Some(String::new())),
            malformed(|it| it.headers[0].1 = String::from("2")),
            // The same sequence of bytes, split at different positions.
            malformed(|it| it.headers = vec![pair("a", "1b"), pair("", "2")]),
            malformed(|it| it.headers = vec![pair("a1", "b2")]),
            malformed(|it| it.headers = vec![pair("a", "1"), pair("a", "1"), pair("b", "2")]),
            malformed(|it| it.properties = Vec::new()),
            // A header is not a property, even if both say the same.
            malformed(|it| it.headers.append(&mut it.properties)),
            malformed(|it| it.payload = Bytes::from("{ }")),
        ];
        let different: std::collections::BTreeSet<_> = subjects.iter().collect();
        assert_eq!(different.len(), subjects.len());
    }

    #[test]
    fn a_redelivery_of_a_malformed_delivery_is_recognised() {
        let first = malformed(|_| {});
        assert_eq!(malformed(|it| it.headers.reverse()), first);
        assert_eq!(malformed(|it| it.problem = String::from("as another version says it")), first);
        let note = (String::from("x-delivery-count"), String::from("3"));
        assert_eq!(malformed(|it| it.broker_notes = vec![note]), first);
        assert_eq!(malformed(|it| it.first_arrival = Some(Uuid::from_u128(7))), first);
    }

    #[test]
    fn a_value_is_found_wherever_it_stands() {
        let pair = |value: &str| vec![(String::from("x"), value.to_owned())];
        let mut malformed = Malformed {
            headers: pair("1"),
            properties: pair("2"),
            broker_notes: pair("3"),
            ..Malformed::default()
        };
        assert_eq!(malformed.find("x"), Some("1"));
        malformed.headers.clear();
        assert_eq!(malformed.find("x"), Some("2"));
        malformed.properties.clear();
        assert_eq!((malformed.find("x"), malformed.find("y")), (Some("3"), None));
    }

    #[test]
    fn the_proof_of_one_message_does_not_settle_another() {
        let (one, two) = (delivery(1), delivery(2));
        assert!(Settlement::done(&one, Committed::attest(two.subject())).is_err());
        let settled = Settlement::done(&one, Committed::attest(one.subject())).unwrap();
        assert_eq!((settled.token(), settled.disposition()), (one.token, &Disposition::Done));
    }
}
