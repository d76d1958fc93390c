//! What flows from librdkafka's thread to the subscription, and its callbacks.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use message::{Delivery, Fault, SubscriptionError};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::{ClientContext, Offset, TopicPartitionList};
use tokio::sync::Notify;

use super::fault;
use super::ledger::{Ledger, Place};
use super::log;
use super::wire;

/// Shared by the subscription and its thread.
#[derive(Debug, Default)]
pub(super) struct Inflow {
    state: Mutex<State>,
    /// A delivery or a failure is there.
    pub(super) arrived: Notify,
    connected: AtomicBool,
}

/// What is fetched and what is unsettled.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) ready: VecDeque<Delivery>,
    pub(super) ledger: Ledger,
    failure: Option<(Fault, String)>,
    last_error: Option<String>,
}

impl Inflow {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a record over.
    pub(super) fn push(&self, record: &BorrowedMessage<'_>) {
        let place: Place = (Arc::from(record.topic()), record.partition());
        let origin = format!("{}[{}]@{}", record.topic(), record.partition(), record.offset());
        let message = wire::read(record).map_err(|malformed| *malformed);
        let mut state = self.lock();
        let (token, redelivered) = state.ledger.deliver(&place, record.offset());
        state.ready.push_back(Delivery { token, message, redelivered, origin });
        drop(state);
        self.arrived.notify_one();
    }

    /// Ends the subscription; only the first reason counts.
    pub(super) fn fail(&self, fault: Fault, reason: String) {
        self.lock().failure.get_or_insert((fault, reason));
        self.arrived.notify_one();
    }

    /// Why the subscription is over, if it is.
    pub(super) fn check(&self) -> Result<(), SubscriptionError> {
        match &self.lock().failure {
            Some((Fault::Operator, reason)) => Err(SubscriptionError::operator(reason.clone())),
            Some((_, reason)) => Err(SubscriptionError::lost(reason.clone())),
            None => Ok(()),
        }
    }

    /// From now on a TLS error is the network's and not the settings'.
    pub(super) fn connected(&self) {
        self.connected.store(true, Ordering::Release);
    }

    /// The last thing that librdkafka complained about.
    pub(super) fn last_error(&self) -> Option<String> {
        self.lock().last_error.clone()
    }
}

impl State {
    /// Removes fetched deliveries that are not this member's any more.
    pub(super) fn discard_forgotten(&mut self) {
        let ledger = &self.ledger;
        self.ready.retain(|delivery| ledger.knows(delivery.token));
    }

    fn revoke(&mut self, list: &TopicPartitionList) -> Vec<(Place, i64)> {
        let places =
            list.elements().into_iter().map(|element| (Arc::from(element.topic()), element.partition()));
        let done =
            places.filter_map(|place: Place| Some((place.clone(), self.ledger.forget(&place)?))).collect();
        self.discard_forgotten();
        done
    }
}

/// Offsets as librdkafka takes them.
pub(super) fn offsets(positions: &[(Place, i64)]) -> Result<TopicPartitionList, KafkaError> {
    let mut list = TopicPartitionList::with_capacity(positions.len());
    for ((topic, partition), offset) in positions {
        list.add_partition_offset(topic, *partition, Offset::Offset(*offset))?;
    }
    Ok(list)
}

/// librdkafka's callbacks, all on the subscription's own thread.
#[derive(Debug)]
pub(super) struct Callbacks(pub(super) Arc<Inflow>);

impl ClientContext for Callbacks {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        log::forward(level, facility, text);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let Some(code) = error.rdkafka_error_code() else { return };
        tracing::warn!(target: "brokers::kafka", %code, reason, "kafka client");
        let text = fault::describe(code, reason);
        let settings = match code {
            Code::SSL => !self.0.connected.load(Ordering::Acquire),
            code => fault::judge(code) == (Fault::Operator, message::Scope::Session),
        };
        if code != Code::AllBrokersDown {
            self.0.lock().last_error = Some(text.clone());
        }
        if settings {
            self.0.fail(Fault::Operator, text);
        }
    }
}

impl ConsumerContext for Callbacks {
    /// Before partitions go: commits what is done, forgets the rest.
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let Rebalance::Revoke(list) = rebalance else { return };
        let done = self.0.lock().revoke(list);
        if done.is_empty() || consumer.assignment_lost() {
            return;
        }
        let committed = offsets(&done).and_then(|list| consumer.commit(&list, CommitMode::Sync));
        if let Err(error) = committed {
            // The next owner gets these messages again, and the inbox knows them.
            tracing::warn!(target: "brokers::kafka", %error, "offsets of revoked partitions not committed");
        }
    }

    fn commit_callback(&self, result: Result<(), KafkaError>, _offsets: &TopicPartitionList) {
        if let Err(error) = result
            && error.rdkafka_error_code() != Some(Code::NoOffset)
        {
            // The next commit of the partition includes this one; after a crash the messages come again.
            tracing::warn!(target: "brokers::kafka", %error, "offsets not committed");
        }
    }
}
