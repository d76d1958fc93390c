//! The thread that owns a producer and its open transaction.
//!
//! All of librdkafka's functions for transactions block, so they run on a separate thread.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use message::crash_points::reached;
use message::{Fault, PublishError, Receipts, SizeLimit, Submission, TransactionMark};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use tokio::sync::oneshot;

use super::crash_points;
use super::deliveries::Deliveries;
use super::leaders::{self, Leaders};
use super::pace::Pace;
use super::parts;
use super::session::{EndedByItself, SessionEnd};
use crate::kafka::config::Config;
use crate::kafka::fault;
use crate::kafka::login::Login;
use crate::kafka::publisher::try_send;
use crate::kafka::suspects::{Singles, Suspects};

/// Interval at which an idle session serves librdkafka's callbacks.
const IDLE_TURN: Duration = Duration::from_millis(500);
/// First and maximum pause while waiting for records to arrive. The thread sleeps instead of
/// polling the client. A poll takes its whole timeout even when everything has arrived, and spends
/// the last millisecond of it without a pause (rdkafka 0.39, `BaseProducer::poll`).
const PAUSE: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(2);
/// Maximum time for aborting a transaction. Aborting only frees readers sooner: the next session's
/// `init_transactions` does so in any case.
const ABORT_MAX: Duration = Duration::from_secs(5);

/// A request to a session.
pub(super) enum Command {
    /// Put messages into the transaction; open one if none is open.
    Batch(Vec<Submission>, Receipts),
    /// Put the mark behind them and commit.
    Commit(TransactionMark, oneshot::Sender<Result<(), PublishError>>),
    /// Abandon the open transaction and end.
    End,
}

/// A session's thread.
pub(super) struct Worker {
    /// `None` after the first failure.
    pub(super) producer: Option<BaseProducer<Deliveries>>,
    /// The producer after the first failure, until its transaction is aborted.
    pub(super) given_up: Option<BaseProducer<Deliveries>>,
    pub(super) config: Config,
    pub(super) marks_topic: String,
    /// Maximum time for a batch or a commit.
    pub(super) patience: Duration,
    pub(super) suspects: Arc<Suspects>,
    pub(super) pace: Arc<Pace>,
    /// Shared by the producers of a session.
    pub(super) singles: Option<Arc<Singles>>,
    pub(super) leaders: Leaders,
    pub(super) is_open: bool,
    pub(super) end: SessionEnd,
    pub(super) ended_by_itself: EndedByItself,
    pub(super) login: Login,
}

impl Worker {
    /// Serves commands until no sender is left.
    pub(super) fn serve(mut self, commands: &Receiver<Command>) {
        loop {
            match commands.recv_timeout(IDLE_TURN) {
                Ok(Command::Batch(batch, receipts)) => self.batch(batch, &receipts),
                Ok(Command::Commit(mark, answer)) => {
                    let outcome = self.commit(&mark);
                    // If the engine has ended, no caller waits: its successor reads the mark.
                    let _ = answer.send(outcome);
                }
                Err(RecvTimeoutError::Timeout) => self.look_around(),
                Ok(Command::End) | Err(RecvTimeoutError::Disconnected) => break,
            }
            if let Some(producer) = &self.producer
                && let Err(error) = self.login.turn(producer.client())
            {
                self.give_up_alone(error.fault(), error.to_string());
            }
            self.abort();
        }
        self.give_up(Fault::Broker, "the kafka session was closed".to_owned());
        self.abort();
    }

    fn look_around(&mut self) {
        let Some(producer) = &self.producer else { return };
        producer.poll(Duration::ZERO);
        if let Some((code, reason)) = producer.client().fatal_error() {
            let error = fault::session(code, &reason);
            self.give_up_alone(error.fault(), error.to_string());
        }
    }

    /// Ends the session although no request failed. The engine learns of it at once: its next
    /// message may be hours away.
    fn give_up_alone(&mut self, fault: Fault, reason: String) {
        self.give_up(fault, reason);
        self.ended_by_itself.send_replace(true);
    }

    /// Ends the session.
    fn give_up(&mut self, fault: Fault, reason: String) {
        let Some(producer) = self.producer.take() else { return };
        tracing::debug!(target: "brokers::kafka", reason, "kafka session abandoned");
        let _ = self.end.set((fault, reason));
        self.given_up = Some(producer);
    }

    /// Frees readers from the transaction of a session that has ended. That can take long, so the
    /// caller gets its answer first; the next session does not wait either.
    fn abort(&mut self) {
        let Some(producer) = self.given_up.take() else { return };
        if self.is_open {
            // The abort waits for requests in flight: one that arrived after the abort would begin
            // another transaction, and the next commit would show its records.
            if let Err(error) = producer.abort_transaction(ABORT_MAX) {
                tracing::info!(
                    target: "brokers::kafka", %error,
                    "the open transaction could not be aborted; the next session or its timeout ends it"
                );
            }
        }
    }

    fn lost(&self) -> PublishError {
        match self.end.get() {
            Some((fault, reason)) => PublishError::new(*fault, message::FaultScope::Session, reason.clone()),
            None => PublishError::session_lost("the kafka session ended"),
        }
    }

    /// Answers every message of a batch: all with `Ok`, or none.
    fn batch(&mut self, batch: Vec<Submission>, receipts: &Receipts) {
        // A closed transaction may still be committed, but nothing more is sent.
        let is_over = self.end.get().is_some();
        let mut outcomes = match &self.producer {
            Some(_) if !is_over => self.fill(&batch),
            _ => Err(Blamed::new()),
        };
        let over = match (&outcomes, &self.singles) {
            (Ok(()), Some(singles)) => !batch.iter().all(|_| singles.spend()),
            _ => false,
        };
        if over {
            let reason = "no suspect message is left; kafka goes back to batches";
            self.give_up(Fault::Broker, reason.to_owned());
            outcomes = Err(Blamed::new());
        }
        match outcomes {
            Ok(()) => {
                reached(crash_points::BEFORE_MARK);
                batch.iter().for_each(|submission| receipts.send(submission.ticket, Ok(())));
            }
            Err(mut blamed) => {
                for (place, submission) in batch.iter().enumerate() {
                    let error = blamed.remove(&place).unwrap_or_else(|| self.lost());
                    receipts.send(submission.ticket, Err(error));
                }
            }
        }
    }

    /// Puts a batch into the transaction. On failure the session ends; the error names the messages
    /// that are known to be at fault.
    fn fill(&mut self, batch: &[Submission]) -> Result<(), Blamed> {
        let blamed = match self.unsendable(batch) {
            Ok(blamed) => blamed,
            Err(error) => {
                self.give_up(error.fault(), error.to_string());
                return Err(Blamed::new());
            }
        };
        if !blamed.is_empty() {
            let first = blamed.values().map(ToString::to_string).next().unwrap_or_default();
            self.give_up(Fault::Broker, format!("the transaction was abandoned: {first}"));
            return Err(blamed);
        }
        match self.send(batch) {
            Ok(()) => Ok(()),
            Err(Some(error)) => {
                self.give_up(error.fault(), error.to_string());
                Err(Blamed::new())
            }
            Err(None) => Err(self.blame(batch)),
        }
    }

    /// Returns the messages that must not enter a transaction: those that are too large, and those
    /// whose topic is missing or has no leader for their partition. The error is the session's.
    fn unsendable(&mut self, batch: &[Submission]) -> Result<Blamed, PublishError> {
        let Some(producer) = &self.producer else { return Err(self.lost()) };
        let limit = SizeLimit { message_bytes_max: self.config.message_bytes_max, ..SizeLimit::KAFKA };
        let mut blamed = Blamed::new();
        let mut topics = BTreeSet::new();
        for (place, Submission { message, .. }) in batch.iter().enumerate() {
            match limit.check(message) {
                Ok(()) => _ = topics.insert(message.topic.as_str()),
                Err(error) => {
                    let refused = PublishError::refused(error.to_string()).with_source(error);
                    blamed.insert(place, refused);
                }
            }
        }
        let timeout = self.config.connect_timeout();
        let fetch = |topic: Option<&str>| leaders::fetch(producer.client(), topic, timeout);
        let refused = self.leaders.ask(&topics, Instant::now(), fetch)?;
        for (place, Submission { message, .. }) in batch.iter().enumerate() {
            let error = match refused.get(message.topic.as_str()) {
                Some(error) => PublishError::new(error.fault(), error.scope(), error.to_string()),
                None => match self.leaders.check(message) {
                    Ok(()) => continue,
                    Err(error) => error,
                },
            };
            blamed.entry(place).or_insert(error);
        }
        Ok(blamed)
    }

    /// Sends a batch and waits until the brokers have all of it. The error is `None` when the
    /// outcomes of the records are more specific.
    fn send(&mut self, batch: &[Submission]) -> Result<(), Option<PublishError>> {
        let begun_at = Instant::now();
        let deadline = begun_at + self.patience;
        self.open()?;
        let Some(producer) = &self.producer else { return Err(Some(self.lost())) };
        producer.context().begin(batch.len());
        for (place, Submission { message, .. }) in batch.iter().enumerate() {
            loop {
                match try_send(producer, message::Ticket(place as u64), message) {
                    Ok(()) => break,
                    Err(KafkaError::MessageProduction(Code::QueueFull)) if Instant::now() < deadline => {
                        serve(producer);
                        std::thread::sleep(PAUSE_MAX);
                    }
                    Err(KafkaError::MessageProduction(Code::QueueFull)) => {
                        return Err(Some(self.no_room(producer, batch.len())));
                    }
                    Err(error) => return Err(Some(unusable(producer, &error))),
                }
            }
        }
        arrive(producer, deadline).map_err(|()| None)?;
        if begun_at.elapsed() < self.patience / 4 {
            self.pace.quick(self.singles.is_some(), batch.len());
        }
        Ok(())
    }

    /// Returns the error of a batch for which the client's queue had no room in time. The topics of
    /// its messages are not at fault: some messages were never handed over. A cluster that accepted
    /// nothing at all is silent, and smaller batches would not help.
    fn no_room(&self, producer: &BaseProducer<Deliveries>, all: usize) -> PublishError {
        let arrived = all.saturating_sub(producer.context().left());
        if arrived > 0 {
            self.pace.slow(self.singles.is_some(), arrived);
            return PublishError::session_lost(self.describe_slow(arrived, all));
        }
        PublishError::session_lost(format!(
            "kafka accepted none of {all} messages of a transaction within {:?}, and kafka.queue_bytes_max has no \
             room for the rest of them",
            self.patience
        ))
    }

    /// Describes a batch of `all` messages that the cluster did not accept in time.
    fn describe_slow(&self, arrived: usize, all: usize) -> String {
        format!(
            "kafka accepted {arrived} of {all} messages of a transaction within {:?}; the next ones are smaller",
            self.patience
        )
    }

    fn open(&mut self) -> Result<(), Option<PublishError>> {
        let Some(producer) = &self.producer else { return Err(Some(self.lost())) };
        if !self.is_open {
            producer.begin_transaction().map_err(|error| Some(unusable(producer, &error)))?;
            self.is_open = true;
        }
        Ok(())
    }

    /// Ends the session after a batch that did not arrive completely. Returns the messages at
    /// fault.
    fn blame(&mut self, batch: &[Submission]) -> Blamed {
        let mut blamed = Blamed::new();
        let Some(producer) = &self.producer else { return blamed };
        let mut reason: Option<String> = None;
        let mut session = Fault::Broker;
        let fatal = producer.client().fatal_error();
        // Other records arrived until the end: the cluster is slow, and no partition is silent.
        let went_on = |came_at: Instant| came_at.elapsed() < self.patience / 2;
        let is_slow = producer.context().came_at().is_some_and(went_on);
        let outcomes = producer.context().take();
        let is_silence = fatal.is_none() && !outcomes.iter().flatten().any(Result::is_err);
        let arrived = outcomes.iter().flatten().count();
        let is_heard = arrived > 0 && !is_slow;
        if is_silence && is_slow {
            self.pace.slow(self.singles.is_some(), arrived);
            reason = Some(self.describe_slow(arrived, batch.len()));
        }
        let mut silent = HashMap::new();
        for (place, (outcome, submission)) in outcomes.into_iter().zip(batch).enumerate() {
            let topic = submission.message.topic.as_str();
            let code = match outcome {
                Some(Ok(())) => continue,
                Some(Err(code)) => code,
                // Its partition does not answer, while others or the cluster do.
                None if is_silence => {
                    let ask = || is_heard || leaders::is_leaderless(producer.client(), topic);
                    if *silent.entry(topic).or_insert_with(ask) {
                        let text = format!(
                            "kafka topic {topic:?} did not accept a message of a transaction within {:?}",
                            self.patience
                        );
                        blamed.insert(place, PublishError::topic_busy(text));
                    }
                    continue;
                }
                None => continue,
            };
            let error = fault::delivery(code, topic);
            match (error.fault(), error.scope()) {
                (Fault::Message, _) if self.singles.is_none() => {
                    self.suspects.raise(batch.len());
                    reason = Some(format!("{error}; the messages are sent one by one to find the culprit"));
                }
                (Fault::Message, _) | (_, message::FaultScope::Topic) => {
                    reason.get_or_insert_with(|| format!("the transaction was abandoned: {error}"));
                    blamed.insert(place, error);
                }
                // A consequence of another record's failure, or the session's own.
                (fault, _) => {
                    session = if fault == Fault::Operator { fault } else { session };
                    reason.get_or_insert_with(|| error.to_string());
                }
            }
        }
        if let Some((code, text)) = fatal {
            let error = fault::session(code, &text);
            (session, reason) = (error.fault(), Some(error.to_string()));
            // Nothing was in flight behind a message that was sent alone: the refusal is its own.
            blamed.retain(|_, error| self.singles.is_some() && error.fault() == Fault::Message);
        } else if self.singles.is_none() && reason.is_some() {
            // A refusal of a batch identifies no message; a missing or silent topic is still at
            // fault.
            blamed.retain(|_, error| error.scope() == message::FaultScope::Topic);
        }
        let reason = reason.unwrap_or_else(|| {
            let complaint = producer.context().complaint().unwrap_or_else(|| String::from("no answer"));
            format!("the brokers did not accept a transaction within {:?}: {complaint}", self.patience)
        });
        self.give_up(session, reason);
        blamed
    }

    /// Puts the mark into the transaction and commits it.
    fn commit(&mut self, mark: &TransactionMark) -> Result<(), PublishError> {
        if self.producer.is_none() {
            return Err(self.lost());
        }
        let outcome = self.try_commit(mark);
        if let Err(error) = &outcome {
            // Never used again, whatever the error: the outcome of the transaction is unknown.
            self.give_up(error.fault(), error.to_string());
        } else {
            reached(crash_points::AFTER_COMMIT);
            self.is_open = false;
        }
        outcome
    }

    fn try_commit(&mut self, mark: &TransactionMark) -> Result<(), PublishError> {
        let deadline = Instant::now() + self.patience;
        self.open().map_err(|error| error.unwrap_or_else(|| self.lost()))?;
        let Some(producer) = &self.producer else { return Err(self.lost()) };
        let values = parts::cut(mark).map_err(PublishError::session_lost)?;
        producer.context().begin(values.len());
        for (place, value) in values.iter().enumerate() {
            let key = place.to_string();
            let record =
                BaseRecord::with_opaque_to(&self.marks_topic, place).partition(0).key(&key).payload(value);
            producer.send(record).map_err(|(error, _)| unusable(producer, &error))?;
        }
        arrive(producer, deadline).map_err(|()| {
            let refused = producer.context().take().into_iter().flatten().find_map(Result::err);
            match refused {
                Some(code) => fault::session(code, &format!("cannot write to {:?}", self.marks_topic)),
                None => PublishError::session_lost(format!(
                    "kafka topic {:?} did not accept the mark of a transaction within {:?}",
                    self.marks_topic, self.patience
                )),
            }
        })?;
        reached(crash_points::BEFORE_COMMIT);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match producer.commit_transaction(left) {
                Ok(()) => return Ok(()),
                Err(KafkaError::Transaction(error)) if error.is_retriable() && !left.is_zero() => {}
                Err(error) => return Err(unusable(producer, &error)),
            }
        }
    }
}

/// Errors of messages, by their position in the batch.
type Blamed = HashMap<usize, PublishError>;

/// Waits until the brokers have everything. Fails if they do not.
fn arrive(producer: &BaseProducer<Deliveries>, deadline: Instant) -> Result<(), ()> {
    let deliveries = producer.context();
    let mut pause = PAUSE;
    loop {
        // Sends messages that wait for their batch to fill.
        let _ = producer.flush(Duration::ZERO);
        serve(producer);
        if deliveries.is_over() || Instant::now() >= deadline {
            break;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
    // A failed record makes others fail: their outcomes arrive at once.
    serve(producer);
    deliveries.has_all().then_some(()).ok_or(())
}

/// Takes in the outcomes that have arrived. A poll handles one event, of one batch.
fn serve(producer: &BaseProducer<Deliveries>) {
    loop {
        let before = producer.context().left();
        producer.poll(Duration::ZERO);
        if producer.context().left() == before {
            break;
        }
    }
}

/// Returns the error of a producer that cannot continue.
fn unusable(producer: &BaseProducer<Deliveries>, error: &KafkaError) -> PublishError {
    let (code, reason) = match (producer.client().fatal_error(), error) {
        (Some(fatal), _) => fatal,
        (None, KafkaError::Transaction(error)) => (error.code(), error.string()),
        (None, error) => (error.rdkafka_error_code().unwrap_or(Code::Unknown), error.to_string()),
    };
    match code {
        Code::Fenced | Code::ProducerFenced | Code::InvalidProducerEpoch => PublishError::session_lost(
            format!("kafka: another process has taken over these transactions, or they timed out ({code})"),
        ),
        code => fault::session(code, &reason),
    }
}
