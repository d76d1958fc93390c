//! The seam towards brokers: submit messages in order, and learn the outcome of each.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;

use crate::error_text;
use crate::fault::{Fault, FaultScope};
use crate::message::Message;
use crate::text::Topic;

/// The number that a message's receipt carries. Chosen by the caller, unique within a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// One message handed to a publisher.
#[derive(Debug, Clone)]
pub struct Submission {
    /// The number that its receipt will carry.
    pub ticket: Ticket,
    /// The message to publish. Shared with the caller, who keeps it until the receipt comes.
    pub message: Arc<Message>,
}

/// The outcome of one submission.
#[derive(Debug)]
pub struct Receipt {
    /// The number of the submission.
    pub ticket: Ticket,
    /// `Ok` if and only if the broker itself confirmed that it holds the message durably (and,
    /// where it routes, that a queue accepted it, unless the settings let a message pass that no
    /// queue takes). Everything else, a timeout included, is an error: unknown is never success.
    pub outcome: Result<(), PublishError>,
}

/// The channel for a publisher's receipts. Unbounded, but it never holds more than the caller has
/// in flight.
#[derive(Clone)]
pub struct Receipts {
    sender: mpsc::UnboundedSender<Receipt>,
    filter: Option<Arc<Filter>>,
}

/// A function that maps a receipt of an inner publisher to the receipt that the outer publisher
/// reports, if any.
type Filter = dyn Fn(Receipt) -> Option<Receipt> + Send + Sync;

impl Receipts {
    /// Makes a new pair: the sending side for [`Connector::connect`], the receiving side for the
    /// caller.
    #[must_use]
    pub fn channel() -> (Self, mpsc::UnboundedReceiver<Receipt>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self { sender, filter: None }, receiver)
    }

    /// Returns the same channel behind a filter: only receipts that the filter returns are
    /// reported. For publishers on top of other publishers, which submit more or different messages
    /// than they receive. The filter must not block.
    #[must_use]
    pub fn through(self, filter: impl Fn(Receipt) -> Option<Receipt> + Send + Sync + 'static) -> Self {
        let Self { sender, filter: outer } = self;
        let both = move |receipt| match &outer {
            Some(outer) => outer(filter(receipt)?),
            None => filter(receipt),
        };
        Self { sender, filter: Some(Arc::new(both)) }
    }

    /// Reports the outcome of one submission. Never blocks; may be called from any thread. Once the
    /// caller has dropped the session, receipts are discarded: nothing waits for them.
    pub fn send(&self, ticket: Ticket, outcome: Result<(), PublishError>) {
        let receipt = Receipt { ticket, outcome };
        let receipt = match &self.filter {
            Some(filter) => filter(receipt),
            None => Some(receipt),
        };
        if let Some(receipt) = receipt {
            let _ = self.sender.send(receipt);
        }
    }
}

impl fmt::Debug for Receipts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receipts").finish_non_exhaustive()
    }
}

/// The number of messages of one ordering key that may be unconfirmed at once without endangering
/// their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxInFlightPerKey {
    /// Any number. The broker keeps the order of submission. Once a message fails, no later message
    /// of this session succeeds, unless the failure is [`contained`](PublishError::contained).
    Pipelined,
    /// One: the next may be submitted once the previous one has its receipt.
    One,
}

/// The abilities of a publisher, fixed for the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// The number of messages of one key that may be in flight.
    pub max_in_flight_per_key: MaxInFlightPerKey,
    /// The preferred number of messages in one submission; more is allowed.
    pub batch_len: usize,
}

/// Messages of a topic that counted as published although the broker routed them nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unrouted {
    /// The topic.
    pub topic: Topic,
    /// Their number.
    pub messages: u64,
}

/// Default of [`Connector::connect_max`]: DNS, TCP, TLS and authentication of a nearby broker.
pub const CONNECT_MAX_DEFAULT: Duration = Duration::from_secs(30);

/// Makes publishers: one for each session with a broker.
#[async_trait]
pub trait Connector: Send + Sync + 'static {
    /// Names the broker that this connects to, for logs and tables: `kafka 10.0.0.7:9092`. Never
    /// contains a secret.
    fn destination(&self) -> &str;

    /// Opens a session. Its receipts go to `receipts`.
    ///
    /// # Errors
    /// [`PublishError`] with [`FaultScope::Session`]: unreachable (the broker's fault), or wrong
    /// credentials or settings (the operator's). Cancel-safe: a dropped attempt leaves nothing
    /// behind.
    async fn connect(&self, receipts: Receipts) -> Result<Box<dyn Publisher>, PublishError>;

    /// Returns how long opening a session takes at most, if each step takes as long as the settings
    /// allow. The caller of [`connect`](Self::connect) gives up after this time. The default is
    /// [`CONNECT_MAX_DEFAULT`], 30 s.
    fn connect_max(&self) -> Duration {
        CONNECT_MAX_DEFAULT
    }

    /// Returns how long a destination may take for one answer, if the settings limit that: while a
    /// session has messages that it has begun to send, some receipt comes within this time. A
    /// caller that waits for receipts waits at least this long. The default is `None`: the adapter
    /// sets no limit.
    fn answer_max(&self) -> Option<Duration> {
        None
    }

    /// Returns how many messages have counted as published since the last call although the broker
    /// routed them nowhere, by topic: only where the settings allow that.
    fn take_unrouted(&self) -> Vec<Unrouted> {
        Vec::new()
    }

    /// Returns the last error of the open session's client, if that is recent. It explains missing
    /// confirmations when no receipt does. Never contains a secret.
    fn last_error(&self) -> Option<String> {
        None
    }
}

/// A session with a broker.
///
/// Submitting and confirming are separate on purpose. [`submit`](Publisher::submit) returns once
/// the messages are accepted, and each of them produces exactly one [`Receipt`] later. So the relay
/// keeps thousands of messages in flight without a future for each.
#[async_trait]
pub trait Publisher: Send {
    /// Returns the abilities of this publisher.
    fn profile(&self) -> Capabilities;

    /// Accepts messages, in order. Returns once they are accepted: it may wait for room, but never
    /// for their confirmation. Each submission produces exactly one receipt, even when the session
    /// breaks or is closed.
    ///
    /// A receipt with [`FaultScope::Session`] ends the session: the caller drops the publisher,
    /// reconnects and submits again from its oldest unconfirmed message on.
    ///
    /// Not cancel-safe: once this future was dropped, the only valid steps are
    /// [`close`](Publisher::close) and dropping the publisher.
    async fn submit(&mut self, batch: Vec<Submission>);

    /// Completes when the session is over, although nothing may have been submitted: the caller
    /// then closes it and reconnects, and operators learn that the broker is away before the next
    /// message waits for it. Never completes for a client that reconnects by itself. Cancel-safe.
    async fn ended(&mut self) {
        std::future::pending::<()>().await;
    }

    /// Waits at most `grace` for outstanding confirmations, then ends the session. A submission
    /// that is still unconfirmed gets a receipt with the broker's fault: its outcome is unknown.
    async fn close(self: Box<Self>, grace: Duration);
}

/// The reason why a message was not confirmed.
#[derive(Debug)]
pub struct PublishError {
    fault: Fault,
    scope: FaultScope,
    reason: String,
    is_contained: bool,
    is_final: bool,
    is_about_this_message: bool,
    is_saturated: bool,
    not_before: Option<Duration>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl PublishError {
    /// Makes an error. Its reason is in lower case, names the value and the limit, states the
    /// remedy, and contains no secret and no payload. The remedy follows a semicolon at its end,
    /// and names no server, user or file.
    #[must_use]
    pub fn new(fault: Fault, scope: FaultScope, reason: impl Into<String>) -> Self {
        Self {
            fault,
            scope,
            reason: reason.into(),
            is_contained: false,
            is_final: false,
            is_about_this_message: false,
            is_saturated: false,
            not_before: None,
            source: None,
        }
    }

    /// Makes an error for a broker that is unreachable, disconnected or did not answer in time. The
    /// caller reconnects and sends again.
    #[must_use]
    pub fn session_lost(reason: impl Into<String>) -> Self {
        Self::new(Fault::Broker, FaultScope::Session, reason)
    }

    /// Makes an error for a message that the broker will never accept. It counts as an attempt.
    #[must_use]
    pub fn refused(reason: impl Into<String>) -> Self {
        Self::new(Fault::Message, FaultScope::Message, reason)
    }

    /// Makes an error for a topic that is missing or forbidden. The topic stops until an operator
    /// has repaired it; other topics continue.
    #[must_use]
    pub fn topic_unavailable(reason: impl Into<String>) -> Self {
        Self::new(Fault::Operator, FaultScope::Topic, reason)
    }

    /// Makes an error for a topic that accepts no messages for now (queue full, no leader). The
    /// topic pauses; other topics continue.
    #[must_use]
    pub fn topic_busy(reason: impl Into<String>) -> Self {
        Self::new(Fault::Broker, FaultScope::Topic, reason)
    }

    /// Attaches the client library's error.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Marks the failure as contained: a pipelined session continues after it. No message of its
    /// key succeeds before this message is submitted again. Once another message of the key was
    /// reported as lost, no message of the key succeeds at all.
    #[must_use]
    pub fn contained(mut self) -> Self {
        self.is_contained = true;
        self
    }

    /// Marks the failure as final: another attempt can only end the same way, so the message is
    /// dead at once.
    #[must_use]
    pub fn without_retry(mut self) -> Self {
        self.is_final = true;
        self
    }

    /// Marks a failure of the topic as one that the message may have caused: the destination had
    /// the message and did not accept it, for example because it is overloaded, or could not cope
    /// with it. After several such failures the relay tries another message of the topic; if the
    /// destination answers about that one, this message alone waits, with its key. Without the
    /// mark, a failure of the topic always stops the topic.
    #[must_use]
    pub fn about_this_message(mut self) -> Self {
        self.is_about_this_message = true;
        self
    }

    /// Marks a failure of a destination that takes messages, but more slowly than they come: enough
    /// of them wait for it, and nothing of this one was sent. This is not an outage: the topic is
    /// busy instead of stopped, and its messages are held in order until others have left. For
    /// publishers with one message of a key in flight.
    #[must_use]
    pub fn saturated(mut self) -> Self {
        self.is_saturated = true;
        self
    }

    /// Whether the destination only has more messages than it takes soon; see
    /// [`saturated`](PublishError::saturated).
    #[must_use]
    pub fn is_saturated(&self) -> bool {
        self.is_saturated
    }

    /// Sets the minimum time before the message is tried again: the destination has asked for it,
    /// or is known to accept nothing earlier. The caller may wait longer. The adapter bounds it by
    /// its settings.
    #[must_use]
    pub fn not_before(mut self, time: Duration) -> Self {
        self.not_before = Some(time);
        self
    }

    /// Returns the minimum time before the message is tried again; see
    /// [`not_before`](PublishError::not_before).
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.not_before
    }

    /// Whether the message may have caused the failure of its topic; see
    /// [`about_this_message`](PublishError::about_this_message).
    #[must_use]
    pub fn is_about_this_message(&self) -> bool {
        self.is_about_this_message
    }

    /// Whether another attempt can only end the same way; see
    /// [`without_retry`](PublishError::without_retry).
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.is_final
    }

    /// Whether a pipelined session continues; see [`contained`](PublishError::contained).
    #[must_use]
    pub fn is_contained(&self) -> bool {
        self.is_contained
    }

    /// Returns the party at fault.
    #[must_use]
    pub fn fault(&self) -> Fault {
        self.fault
    }

    /// Returns the remedy with which the reason ends; `None` if there is none. It names no server,
    /// user or file.
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        error_text::remedy(&self.reason)
    }

    /// Returns the reach of the failure.
    #[must_use]
    pub fn scope(&self) -> FaultScope {
        self.scope
    }
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl Error for PublishError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}
