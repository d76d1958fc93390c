//! Collects the outcomes of one publishing session's messages from librdkafka's callbacks.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use message::{Fault, FaultScope, PublishError, Receipts, Ticket};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::Message as _;
use rdkafka::producer::{BaseProducer, DeliveryResult, NoCustomPartitioner, ProducerContext};
use rdkafka::{ClientConfig, ClientContext, Statistics};
use tokio::sync::Notify;

use super::config::Config;
use super::cut_off::CutOff;
use super::fault;
use super::handshakes::Handshakes;
use super::last_error::LastError;
use super::log::{self, Lines};
use super::opening::{Batches, Flush, Openings, Waiting};
use super::publisher::try_send;
use super::suspects::Suspects;
use crate::pending::Pending;

/// The shared state of a session: librdkafka's thread writes it, and the publisher reads it.
pub(super) struct Outcomes {
    receipts: Receipts,
    /// Whether messages go in batches (a refusal ends the session) or one by one (a refusal
    /// concerns only its message).
    batches: bool,
    suspects: Arc<Suspects>,
    pub(super) openings: Openings,
    /// The session's producer, for messages that wait until their partition is open.
    producer: OnceLock<Weak<BaseProducer<Outcomes>>>,
    outstanding: AtomicUsize,
    progress: Notify,
    failure: OnceLock<Failure>,
    connected: AtomicBool,
    last_error: Arc<LastError>,
    cut_off: Mutex<CutOff>,
    handshakes: Mutex<Handshakes>,
    lines: OnceLock<Lines>,
}

/// The reason why the session is over.
struct Failure {
    fault: Fault,
    reason: String,
}

impl Outcomes {
    pub(super) fn new(receipts: Receipts, batches: Option<Batches>, suspects: Arc<Suspects>) -> Self {
        Self {
            receipts,
            batches: batches.is_some(),
            suspects,
            openings: Openings::new(batches.unwrap_or_default()),
            producer: OnceLock::new(),
            outstanding: AtomicUsize::new(0),
            progress: Notify::new(),
            failure: OnceLock::new(),
            connected: AtomicBool::new(false),
            last_error: Arc::default(),
            cut_off: Mutex::default(),
            handshakes: Mutex::default(),
            lines: OnceLock::new(),
        }
    }

    /// Prepares for a client with this configuration, which is created next. Reads the certificate
    /// files.
    pub(super) fn watch(&self, config: &Config, client: &mut ClientConfig) {
        *self.handshakes.lock().unwrap_or_else(PoisonError::into_inner) = Handshakes::of(config);
        // Set once, where the session is created.
        let _ = self.lines.set(Lines::of(client));
    }

    /// Returns the last error of this session, which changes while the session lasts.
    pub(super) fn errors(&self) -> Arc<LastError> {
        Arc::clone(&self.last_error)
    }

    /// Sets the producer that these outcomes belong to.
    pub(super) fn serves(&self, producer: &Arc<BaseProducer<Self>>) {
        // Set once, where the session is created.
        let _ = self.producer.set(Arc::downgrade(producer));
    }

    /// Creates the promise of a receipt for a submission.
    pub(super) fn pending(&self, ticket: Ticket) -> Pending {
        Pending::new(ticket, self.receipts.clone())
    }

    /// Counts a message that is about to be handed to librdkafka.
    pub(super) fn begin(&self) {
        self.outstanding.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the number of unconfirmed messages.
    pub(super) fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Acquire)
    }

    /// Takes back the count of a message that librdkafka did not take.
    pub(super) fn withdraw(&self) {
        self.outstanding.fetch_sub(1, Ordering::AcqRel);
        self.progress.notify_waiters();
    }

    /// Reports a message that never reached librdkafka.
    pub(super) fn report(&self, ticket: Ticket, error: PublishError) {
        self.receipts.send(ticket, Err(error));
    }

    /// Returns whether the session is over.
    pub(super) fn failed(&self) -> bool {
        self.failure.get().is_some()
    }

    /// Ends the session; only the first reason counts.
    pub(super) fn fail(&self, fault: Fault, reason: impl Into<String>) {
        // A second reason is a consequence of the first.
        let _ = self.failure.set(Failure { fault, reason: reason.into() });
        self.give_up_waiting();
        self.progress.notify_waiters();
    }

    /// Answers the messages that wait for partitions, because the session is over.
    pub(super) fn give_up_waiting(&self) {
        for Waiting { pending, .. } in self.openings.abandon() {
            pending.answer(Err(self.lost()));
            self.withdraw();
        }
    }

    /// Sends messages that waited for partitions which are open by now. Runs on librdkafka's
    /// thread.
    fn flush(&self) {
        // The thread that serves callbacks holds the producer, so this is never the last reference.
        let Some(producer) = self.producer.get().and_then(Weak::upgrade) else { return };
        let mut failure = None;
        self.openings.flush(|waiting| {
            let Waiting { pending, message } = waiting;
            if failure.is_some() {
                // After a message that was not accepted, no other message of its key may be sent.
                return Flush::Full(Waiting { pending, message });
            }
            let ticket = pending.ticket();
            match try_send(&producer, ticket, &message) {
                Ok(()) => _ = pending.hand_over(),
                Err(KafkaError::MessageProduction(Code::QueueFull)) => {
                    return Flush::Full(Waiting { pending, message });
                }
                Err(error) => {
                    let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
                    let error = fault::delivery(code, message.topic.as_str());
                    failure.get_or_insert_with(|| format!("an earlier message ended the session: {error}"));
                    pending.answer(Err(error));
                    self.withdraw();
                }
            }
            Flush::Gone
        });
        if let Some(failure) = failure {
            self.fail(Fault::Broker, failure);
        }
    }

    /// Records that the cluster has answered: from now on a TLS error is the network's fault and
    /// not that of the settings.
    pub(super) fn connected(&self) {
        self.connected.store(true, Ordering::Release);
    }

    /// Evaluates librdkafka's statistics.
    pub(super) fn told(&self, statistics: &Statistics, now: Instant) {
        let told = self.cut_off.lock().unwrap_or_else(PoisonError::into_inner).check(statistics, now);
        if let Err(cut_off) = told {
            self.fail(Fault::Broker, cut_off.to_string());
        }
        let told = self.handshakes.lock().unwrap_or_else(PoisonError::into_inner).check(statistics, now);
        if let Err(stale) = told {
            self.fail(Fault::Broker, stale.to_string());
        }
    }

    /// Returns the last error that librdkafka reported.
    pub(super) fn last_error(&self) -> Option<String> {
        self.last_error.recent(Instant::now())
    }

    /// Returns the error of every message that was unconfirmed when the session ended.
    pub(super) fn lost(&self) -> PublishError {
        match self.failure.get() {
            Some(failure) => PublishError::new(failure.fault, FaultScope::Session, failure.reason.clone()),
            None => PublishError::session_lost("the kafka session ended"),
        }
    }

    /// Waits until nothing is unconfirmed. Cancel-safe.
    pub(super) async fn idle(&self) {
        self.wait_until(|| self.outstanding() == 0).await;
    }

    /// Waits until the session is over and everything is answered. Cancel-safe.
    pub(super) async fn over(&self) {
        self.wait_until(|| self.failed() && self.outstanding() == 0).await;
    }

    /// Waits until nothing is unconfirmed, or nothing more is confirmed within `patience`.
    /// Cancel-safe.
    pub(super) async fn settled(&self, patience: Duration) {
        while self.outstanding() > 0 {
            let left = self.outstanding();
            let progress = self.wait_until(|| self.outstanding() < left);
            if tokio::time::timeout(patience, progress).await.is_err() {
                return;
            }
        }
    }

    /// Waits until `ready` holds, which is checked again after every outcome. Cancel-safe.
    pub(super) async fn wait_until(&self, ready: impl Fn() -> bool) {
        loop {
            let mut progress = pin!(self.progress.notified());
            // Registers first, so that an outcome between the check and the wait is not missed.
            progress.as_mut().enable();
            if ready() {
                return;
            }
            progress.await;
        }
    }

    fn classify(&self, code: Code, topic: &str) -> PublishError {
        if self.failed() && fault::classify(code).0 == Fault::Broker {
            return self.lost();
        }
        let error = fault::delivery(code, topic);
        match (error.fault(), error.scope()) {
            (Fault::Message, _) if self.batches && !self.failed() && self.outstanding() == 1 => {
                // No other message can have been in its batch, so it needs no session to find it.
                // librdkafka ends this session anyway, because it may leave no gap.
                self.fail(Fault::Broker, format!("an earlier message ended the session: {error}"));
                error
            }
            (Fault::Message, _) if self.batches => {
                self.suspects.raise(self.outstanding());
                self.fail(
                    Fault::Broker,
                    format!("{error}; the unconfirmed messages are sent one by one to find the culprit"),
                );
                self.lost()
            }
            (Fault::Message, _) => error,
            (_, FaultScope::Topic) => {
                if self.batches {
                    self.fail(Fault::Broker, format!("an earlier message ended the session: {error}"));
                }
                error
            }
            (fault, _) => {
                self.fail(fault, error.to_string());
                self.lost()
            }
        }
    }
}

impl ClientContext for Outcomes {
    fn stats(&self, statistics: Statistics) {
        self.told(&statistics, Instant::now());
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        if let Some(log::TopicId { topic, is_other: true, .. }) = log::topic_id(facility, text) {
            // The new topic does not know this producer: it would accept any message as the first.
            let reason = format!("kafka topic {topic:?} was deleted and recreated");
            self.fail(Fault::Broker, reason);
        }
        if let Some(lines) = self.lines.get() {
            lines.forward(level, facility, text);
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let Some(code) = log::error(&error, reason) else { return };
        let text = fault::describe(code, reason);
        let is_connected = self.connected.load(Ordering::Acquire);
        let settings = match code {
            Code::SSL => !is_connected,
            // The session asks for the cause of a fatal error itself.
            Code::Fatal => false,
            _ => fault::classify(code) == (Fault::Operator, FaultScope::Session),
        };
        if code != Code::AllBrokersDown {
            self.last_error.note(&text, Instant::now());
        }
        let stale =
            self.handshakes.lock().unwrap_or_else(PoisonError::into_inner).failed(code, Instant::now());
        match stale {
            _ if settings => self.fail(Fault::Operator, text),
            Err(stale) if is_connected => self.fail(Fault::Broker, format!("{stale}; {text}")),
            _ => {}
        }
    }
}

impl ProducerContext<NoCustomPartitioner> for Outcomes {
    /// The ticket itself: nothing is allocated per message.
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: usize) {
        let mut added = None;
        let outcome = match result {
            // Stored, but after a failure: reported as unknown, as the pipelined contract requires.
            Ok(_) if self.batches && self.failed() => Err(self.lost()),
            // librdkafka considers a message stored because a later one of its partition was, or
            // because the broker reports a duplicate. Neither gives its offset: the outcome is
            // unknown, so the message is sent again.
            Ok(message) if message.offset() < 0 => {
                self.fail(Fault::Broker, "kafka confirmed a message without its offset");
                Err(self.lost())
            }
            Ok(message) => {
                if self.openings.confirmed(message.topic(), message.partition(), message.key()) {
                    self.flush();
                } else if self.batches {
                    added = Some(message.topic().to_owned());
                }
                Ok(())
            }
            Err((error, message)) => {
                let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
                Err(self.classify(code, message.topic()))
            }
        };
        self.receipts.send(Ticket(ticket as u64), outcome);
        self.outstanding.fetch_sub(1, Ordering::AcqRel);
        self.progress.notify_waiters();
        // Only after the receipt: after a failure, no message of the session succeeds.
        if let Some(topic) = added {
            let reason =
                format!("partitions were added to kafka topic {topic:?}; the next session knows them");
            self.fail(Fault::Broker, reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_was_alone_is_named_at_once_and_those_behind_it_are_lost() {
        let (receipts, _received) = Receipts::channel();
        let suspects = Arc::new(Suspects::default());
        let outcomes = Outcomes::new(receipts, Some(Batches::default()), Arc::clone(&suspects));
        outcomes.begin();
        let error = outcomes.classify(Code::MessageSizeTooLarge, "orders");
        assert_eq!((error.fault(), error.scope()), (Fault::Message, FaultScope::Message));
        assert!(outcomes.failed() && suspects.take().is_none());
        // The last message of a refused batch is not alone, although the others have been answered.
        let error = outcomes.classify(Code::MessageSizeTooLarge, "orders");
        assert_eq!((error.fault(), error.scope()), (Fault::Broker, FaultScope::Session));
        assert!(suspects.take().is_some());
    }

    #[test]
    fn whatever_is_unconfirmed_is_suspect_when_a_batch_is_refused() {
        let (receipts, _received) = Receipts::channel();
        let suspects = Arc::new(Suspects::default());
        let outcomes = Outcomes::new(receipts, Some(Batches::default()), Arc::clone(&suspects));
        (0..3).for_each(|_| outcomes.begin());
        let error = outcomes.classify(Code::MessageSizeTooLarge, "orders");
        assert_eq!((error.fault(), error.scope()), (Fault::Broker, FaultScope::Session));
        assert!(outcomes.failed());
        let singles = suspects.take().unwrap();
        assert_eq!([(); 4].map(|()| singles.spend()), [true, true, true, false]);
    }

    /// Goal: a session that fails while nothing is sent is known to be over, and one that still has
    /// messages in flight is not over before they are answered. Oracle: whether the wait ends.
    #[test]
    fn a_session_is_over_when_it_has_failed_and_everything_is_answered() {
        use futures_util::FutureExt as _;
        let (receipts, _received) = Receipts::channel();
        let outcomes = Outcomes::new(receipts, None, Arc::default());
        let is_over = || outcomes.over().now_or_never().is_some();
        assert!(!is_over(), "nothing has happened");
        outcomes.begin();
        outcomes.fail(Fault::Operator, "the token has expired");
        assert!(!is_over(), "a message is in flight");
        outcomes.withdraw();
        assert!(is_over());
    }
}
