//! One publishing session.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use message::{
    Capabilities, FaultScope, MaxInFlightPerKey, Message, PublishError, SizeLimit, Submission, Ticket, Topic,
};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext};

use super::config::Config;
use super::fault;
use super::opening::{Partitions, Waiting};
use super::outcomes::Outcomes;
use super::refused::Refused;
use super::session::Session;
use super::suspects::Singles;
use super::topics;
use super::wire;

/// Batch length recommended to callers. librdkafka makes the batches, so this only amortises the
/// call.
const BATCH_LEN: usize = 1_000;
/// Maximum number of topics queried at once. Each request occupies a thread.
const QUESTIONS_MAX: usize = 16;
/// Maximum time that a session that cannot continue waits for confirmations of the messages it has
/// sent, so that they do not have to be sent again.
const DRAIN_MAX: Duration = Duration::from_secs(10);
/// Maximum time that it waits for the next one of them: a partition without a leader confirms
/// nothing, however long the wait.
const DRAIN_PATIENCE: Duration = Duration::from_secs(1);

// A ticket travels through librdkafka as a pointer-sized number.
const _: () = assert!(usize::BITS >= 64);

/// A session with a Kafka cluster. Dropping it makes the outcome of unconfirmed messages unknown.
/// The module describes the two kinds of session.
pub(super) struct Publisher {
    session: Session,
    config: Config,
    /// Set while messages go one by one: a batch was refused, and its culprit must be found.
    singles: Option<Singles>,
    /// The reason why nothing more is accepted, although the connection works.
    over: Option<String>,
    refused: Refused,
}

impl Publisher {
    pub(super) fn new(session: Session, config: Config, singles: Option<Singles>) -> Self {
        Self { session, config, singles, over: None, refused: Refused::default() }
    }

    /// Hands one message to librdkafka, which answers for it from then on.
    async fn hand_over(
        &mut self,
        producer: &Arc<BaseProducer<Outcomes>>,
        ticket: Ticket,
        message: Arc<Message>,
    ) -> Result<(), PublishError> {
        let limit = SizeLimit { message_bytes_max: self.config.message_bytes_max, ..SizeLimit::KAFKA };
        limit.check(&message).map_err(|error| PublishError::refused(error.to_string()).with_source(error))?;
        let partitions = self.partitions(producer, &message.topic).await?;
        let Some(key) = message.key.clone().filter(|_| self.singles.is_none()) else {
            return send(producer, ticket, &message).await;
        };
        let outcomes = producer.context();
        // Counted before librdkafka's thread can send it.
        outcomes.begin();
        let waiting = Waiting { pending: outcomes.pending(ticket), message };
        match partitions.admit(key.as_str(), waiting) {
            // The message waits for its partition, but the caller does not.
            None => {
                // The session may have ended just before.
                if outcomes.failed() {
                    outcomes.give_up_waiting();
                }
                Ok(())
            }
            Some(Waiting { pending, message }) => {
                outcomes.withdraw();
                let sent = send(producer, pending.hand_over(), &message).await;
                sent.inspect_err(|_| partitions.withdraw(key.as_str()))
            }
        }
    }

    /// Asks for the partitions of all topics of a batch that are unknown, several at once. If they
    /// were asked for one by one, thousands of missing topics would delay the messages of the
    /// others.
    async fn ask_ahead(&mut self, producer: &Arc<BaseProducer<Outcomes>>, batch: &[Submission]) {
        let mut unknown = BTreeSet::new();
        for Submission { message, .. } in batch {
            let topic = &message.topic;
            if producer.context().openings.get(topic).is_none() && self.refused.topic(topic).is_none() {
                unknown.insert(topic);
            }
        }
        if unknown.len() < 2 {
            return;
        }
        let unknown: Vec<&Topic> = unknown.into_iter().collect();
        let mut refused = Vec::new();
        for topics in unknown.chunks(QUESTIONS_MAX) {
            let asking = topics.iter().map(|topic| topics::count_partitions(producer, topic, &self.config));
            for (topic, answer) in topics.iter().zip(join_all(asking).await) {
                match answer {
                    Ok(count) => drop(producer.context().openings.note(topic, count)),
                    // Asked once more, alone, it ends the session.
                    Err(error) if error.scope() == FaultScope::Session => return,
                    Err(error) => refused.push((topic, error)),
                }
            }
            // The first message that is handed over finds the reason.
            if producer.context().failed() {
                return;
            }
        }
        // Recorded last: the cluster is asked again some time later, not within this batch.
        for (topic, error) in refused {
            self.refused.note_topic(topic, &error);
        }
    }

    async fn partitions(
        &mut self,
        producer: &Arc<BaseProducer<Outcomes>>,
        topic: &Topic,
    ) -> Result<Arc<Partitions>, PublishError> {
        if let Some(partitions) = producer.context().openings.get(topic) {
            return Ok(partitions);
        }
        if let Some(error) = self.refused.topic(topic) {
            return Err(error);
        }
        let count = topics::count_partitions(producer, topic, &self.config).await;
        let count = count.inspect_err(|error| self.refused.note_topic(topic, error))?;
        Ok(producer.context().openings.note(topic, count))
    }

    /// Answers a message that arrived after the end.
    async fn turn_away(&self, outcomes: &Outcomes, ticket: Ticket) {
        // Messages sent before are still confirmed; the caller drops this session at the first
        // answer below.
        let drained = tokio::time::timeout(DRAIN_MAX, outcomes.settled(DRAIN_PATIENCE)).await;
        let error = match &self.over {
            Some(over) if drained.is_ok() && !outcomes.failed() => PublishError::session_lost(over.clone()),
            _ => outcomes.lost(),
        };
        outcomes.report(ticket, error);
    }
}

#[async_trait]
impl message::Publisher for Publisher {
    fn profile(&self) -> Capabilities {
        let max_in_flight_per_key =
            if self.singles.is_some() { MaxInFlightPerKey::One } else { MaxInFlightPerKey::Pipelined };
        Capabilities { max_in_flight_per_key, batch_len: BATCH_LEN }
    }

    async fn submit(&mut self, batch: Vec<Submission>) {
        let Some(producer) = self.session.producer().cloned() else { return };
        if self.over.is_none() && !producer.context().failed() {
            self.ask_ahead(&producer, &batch).await;
        }
        for Submission { ticket, message } in batch {
            let outcomes = producer.context();
            if self.over.is_none() && self.singles.as_ref().is_some_and(|singles| !singles.spend()) {
                self.over = Some(String::from("no suspect message is left; kafka goes back to batches"));
            }
            if self.over.is_some() || outcomes.failed() {
                self.turn_away(outcomes, ticket).await;
                continue;
            }
            if self.refused.stops(&message) {
                outcomes
                    .report(ticket, PublishError::session_lost("an earlier message of its key was refused"));
                continue;
            }
            if let Err(error) = self.hand_over(&producer, ticket, Arc::clone(&message)).await {
                // Later messages of its key must not succeed; in one-by-one mode the caller ensures
                // that.
                let is_contained = self.singles.is_none()
                    && error.scope() != FaultScope::Session
                    && self.refused.note(&message);
                if self.singles.is_none() && !is_contained {
                    self.over = Some(format!("an earlier message ended the session: {error}"));
                }
                outcomes.report(ticket, if is_contained { error.contained() } else { error });
            }
        }
    }

    async fn ended(&mut self) {
        match self.session.producer() {
            Some(producer) => producer.context().over().await,
            None => std::future::pending().await,
        }
    }

    async fn close(self: Box<Self>, grace: Duration) {
        if let Some(producer) = self.session.producer() {
            // After the grace period, ending the session makes the remaining outcomes unknown.
            let _ = tokio::time::timeout(grace, producer.context().idle()).await;
        }
        self.session.end().await;
    }
}

/// Sends one message; waits while librdkafka's queue is full.
async fn send(
    producer: &BaseProducer<Outcomes>,
    ticket: Ticket,
    message: &Message,
) -> Result<(), PublishError> {
    let outcomes = producer.context();
    loop {
        let full = outcomes.outstanding();
        outcomes.begin();
        match try_send(producer, ticket, message) {
            Ok(()) => return Ok(()),
            Err(KafkaError::MessageProduction(Code::QueueFull)) => {
                outcomes.withdraw();
                outcomes.wait_until(|| outcomes.failed() || outcomes.outstanding() < full.max(1)).await;
                tokio::task::yield_now().await;
            }
            Err(error) => {
                outcomes.withdraw();
                if outcomes.failed() {
                    return Err(outcomes.lost());
                }
                let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
                return Err(fault::delivery(code, message.topic.as_str()));
            }
        }
        if outcomes.failed() {
            return Err(outcomes.lost());
        }
    }
}

/// Hands one message to librdkafka without waiting.
pub(super) fn try_send<C: ProducerContext<DeliveryOpaque = usize>>(
    producer: &BaseProducer<C>,
    ticket: Ticket,
    message: &Message,
) -> Result<(), KafkaError> {
    // librdkafka stamps the record with the current time. Kafka's retention counts from it, and the
    // message may have waited longer than its topic keeps records.
    let mut record =
        BaseRecord::with_opaque_to(message.topic.as_str(), ticket.0 as usize).headers(wire::headers(message));
    if let Some(value) = wire::value(message) {
        record = record.payload(value);
    }
    if let Some(key) = &message.key {
        record = record.key(key.as_str());
    }
    producer.send(record).map_err(|(error, _)| error)
}
