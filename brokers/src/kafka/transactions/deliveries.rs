//! Collects the outcome of every record that a session has handed over since its last batch.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::Message as _;
use rdkafka::producer::{DeliveryResult, NoCustomPartitioner, ProducerContext};

use crate::kafka::{fault, log};

/// Outcomes in the order of the handover; `None` for a record without one.
#[derive(Debug, Default)]
pub(super) struct Deliveries(Mutex<Outcomes>);

#[derive(Debug, Default)]
struct Outcomes {
    records: Vec<Option<Result<(), Code>>>,
    left: usize,
    failed: bool,
    /// When the last outcome arrived.
    came_at: Option<Instant>,
    /// The last error that librdkafka reported.
    complaint: Option<String>,
}

impl Deliveries {
    /// Starts over with `records` records, each identified by its place.
    pub(super) fn begin(&self, records: usize) {
        let mut outcomes = self.lock();
        (outcomes.records, outcomes.left, outcomes.failed) = (vec![None; records], records, false);
        outcomes.came_at = None;
    }

    /// Returns how many records have no outcome yet.
    pub(super) fn left(&self) -> usize {
        self.lock().left
    }

    /// Returns whether waiting is over: the brokers have every record, or one has failed.
    pub(super) fn is_over(&self) -> bool {
        let outcomes = self.lock();
        outcomes.left == 0 || outcomes.failed
    }

    /// Returns whether the brokers have every record.
    pub(super) fn has_all(&self) -> bool {
        let outcomes = self.lock();
        outcomes.left == 0 && !outcomes.failed
    }

    /// Returns when the last outcome arrived since records were handed over.
    pub(super) fn came_at(&self) -> Option<Instant> {
        self.lock().came_at
    }

    /// Takes out the outcomes by place.
    pub(super) fn take(&self) -> Vec<Option<Result<(), Code>>> {
        std::mem::take(&mut self.lock().records)
    }

    /// Returns the last error that librdkafka reported.
    pub(super) fn complaint(&self) -> Option<String> {
        self.lock().complaint.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Outcomes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for Deliveries {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        log::forward(level, facility, text);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let Some(code) = log::error(&error, reason) else { return };
        if code != Code::AllBrokersDown {
            self.lock().complaint = Some(fault::describe(code, reason));
        }
    }
}

impl ProducerContext<NoCustomPartitioner> for Deliveries {
    /// The record's place in the batch.
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, place: usize) {
        let outcome = match result {
            // librdkafka infers that the record is stored, but has no offset for it. That is not
            // certain, so it counts as failed: the transaction is aborted, and no reader sees the
            // record.
            Ok(record) if record.offset() < 0 => Err(Code::Unknown),
            Ok(_) => Ok(()),
            Err((error, _)) => Err(error.rdkafka_error_code().unwrap_or(Code::Unknown)),
        };
        let mut outcomes = self.lock();
        outcomes.failed |= outcome.is_err();
        outcomes.came_at = Some(Instant::now());
        // A record of an abandoned batch no longer has a place.
        if let Some(record) = outcomes.records.get_mut(place)
            && record.replace(outcome).is_none()
        {
            outcomes.left -= 1;
        }
    }
}
