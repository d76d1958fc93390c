//! Takes in receipts, and decides what happens to their entries.

use std::sync::Arc;
use std::time::Duration;

use message::error_text::storable;
use message::{Fault, FaultScope, MaxInFlightPerKey, PublishError, Receipt, Ticket};
use outbox_log::{EntryId, ExceptionState, Parked};

use super::{Machine, SessionEnd};
use crate::amount::Amount;
use crate::decide::{NextStep, decide};
use crate::event::Event;
use crate::silence::Submitted;
use crate::window::Origin;

/// Maximum bytes of the error text that is kept for an entry. Brokers return texts of any length.
const ERROR_BYTES_MAX: usize = 4_096;

/// Begins the error of a message that is blamed for failures of its topic.
const ALONE: &str = "only this message fails, others of its topic are answered: ";

/// How the machine has learned of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Learned {
    /// The publisher has reported it.
    ByReceipt,
    /// The publisher has reported nothing for too long.
    BySilence,
}

impl Machine {
    /// Takes a receipt. `uniform` in `0.0..1.0` spreads the retries.
    pub(crate) fn receipt(&mut self, receipt: Receipt, uniform: f64) {
        match receipt.outcome {
            Ok(()) => self.confirmed(receipt.ticket, uniform),
            Err(error) => self.failed(receipt.ticket, &error, uniform),
        }
    }

    fn confirmed(&mut self, ticket: Ticket, uniform: f64) {
        let Some(item) = self.window.settle(ticket, false) else { return self.late(ticket, Ok(()), uniform) };
        if let Some(submitted) = item.in_flight {
            self.session.left(Amount::of(item.bytes));
            self.silence.answered(&item.message.topic, submitted);
        }
        self.session.answered();
        self.key_queues.settled(item.message.key.as_ref());
        if !matches!(item.origin, Origin::Log(_)) {
            self.resolve(item.message.topic.as_str(), item.key(), item.id, &item.message.id.to_string());
        }
        self.blocks.left(item.message.topic.as_str());
        self.topic_answered(item.message.topic.as_str(), item.id);
        let submitted_at = item.in_flight.map(Submitted::at);
        let attempt = Some(item.attempts.saturating_add(1));
        self.events.push(Event::Published { message: item.message, submitted_at, attempt });
    }

    /// Records that the destination has answered about an entry of the topic: it confirmed the
    /// entry, or failed on it alone.
    pub(super) fn topic_answered(&mut self, topic: &str, id: EntryId) {
        self.blocks.topic_answered(topic, id);
        self.unblock_topic(topic);
    }

    pub(super) fn unblock_topic(&mut self, topic: &str) {
        if self.stays_blocked(topic) {
            self.silent.kept_blocked.insert(topic.to_owned());
        } else if self.blocks.unblock_topic(topic) {
            self.events.push(Event::TopicUnblocked { topic: topic.to_owned() });
        }
    }

    fn failed(&mut self, ticket: Ticket, error: &PublishError, uniform: f64) {
        if error.scope() == FaultScope::Session {
            self.session.end(SessionEnd::Lost);
        } else if self.key_queues.window() == MaxInFlightPerKey::Pipelined && !error.is_contained() {
            self.session.end(SessionEnd::Refused);
        }
        if (error.scope(), error.fault()) == (FaultScope::Message, Fault::Message) {
            self.session.answered();
        }
        let Some(item) = self.window.get_mut(ticket) else {
            return self.late(ticket, Err(error), uniform);
        };
        let message = Arc::clone(&item.message);
        if error.is_saturated() {
            self.events.push(Event::Busy { message, begins: None });
        } else {
            self.blocks.left(message.topic.as_str());
            self.events.push(Event::Failed {
                message,
                submitted_at: item.in_flight.map(Submitted::at),
                attempt: item.attempts.saturating_add(1),
                fault: error.fault(),
                scope: error.scope(),
            });
        }
        let is_answer = error.scope() != FaultScope::Session && !error.is_saturated();
        if let (Some(submitted), true) = (item.in_flight, is_answer) {
            // A refusal is an answer.
            self.silence.answered(&item.message.topic, submitted);
        }
        if error.scope() == FaultScope::Message && !error.is_saturated() {
            let (id, topic) = (item.id, item.message.topic.clone());
            self.topic_answered(topic.as_str(), id);
        }
        self.apply_failure(ticket, error, Learned::ByReceipt, uniform);
    }

    /// Applies a failure to an entry in the window.
    pub(super) fn apply_failure(
        &mut self,
        ticket: Ticket,
        error: &PublishError,
        learned: Learned,
        uniform: f64,
    ) {
        let Some(item) = self.window.get_mut(ticket) else { return };
        if item.in_flight.take().is_some() {
            self.session.left(Amount::of(item.bytes));
        }
        let (id, attempts) = (item.id, item.attempts);
        let topic = item.message.topic.clone();
        if learned == Learned::ByReceipt && error.scope() != FaultScope::Session {
            self.forget_late(id);
        }
        if error.is_saturated() && error.scope() == FaultScope::Topic && self.waits_for_room(ticket, error) {
            return;
        }
        let is_alone = self.is_of_this_message_alone(topic.as_str(), id, error);
        let scope = match error.scope() {
            // The message was alone in flight each time: whatever breaks the session, the others
            // must not wait for it.
            FaultScope::Session if self.session.blames_the_message() => FaultScope::Message,
            _ if is_alone => FaultScope::Message,
            scope => scope,
        };
        let fault = if scope == error.scope() { error.fault() } else { Fault::Broker };
        let text = if is_alone { format!("{ALONE}{error}") } else { error.to_string() };
        let failure = (fault, storable(&text, ERROR_BYTES_MAX));
        let is_reported_alone = learned == Learned::ByReceipt && error.scope() == FaultScope::Message;
        // Outages end without notice: look again soon. A topic has one probe, but any number of
        // entries may fail one by one, and each retry of them reads and writes a row.
        let pause_max = if is_alone || is_reported_alone {
            self.settings.retry_max
        } else {
            self.settings.outage_delay_max
        };
        // The queue behind this entry must be checked again in any case.
        self.requeue = true;
        let attempts_max = if error.is_final() { 1 } else { self.settings.attempts_max };
        match decide(fault, scope, attempts, attempts_max) {
            NextStep::Resend => {}
            NextStep::Dead { attempts } => {
                self.settle_key_queue(ticket);
                self.park_from_window(ticket, ExceptionState::Dead, Some(attempts), None, Some(failure));
            }
            NextStep::Retry { attempts, block_topic } => {
                let news = block_topic && self.blocks.block_topic(topic.as_str(), id);
                if news {
                    let (fault, reason) = failure.clone();
                    self.events.push(Event::TopicBlocked { topic: topic.to_string(), fault, reason });
                }
                self.settle_key_queue(ticket);
                if block_topic && !news && !self.blocks.is_probe(topic.as_str(), id) {
                    // Another entry probes the topic; this one waits like the rest.
                    self.park_from_window(ticket, ExceptionState::Held, None, None, Some(failure));
                    return;
                }
                let due_in = self.retry_in(id, fault, attempts, pause_max, uniform);
                let due_in = Some(due_in.max(self.not_before(error, uniform)));
                self.park_from_window(
                    ticket,
                    ExceptionState::Retrying,
                    Some(attempts),
                    due_in,
                    Some(failure),
                );
                if error.is_saturated() {
                    self.postponed(error);
                }
            }
        }
    }

    /// Reports a message that was just parked because the destination that it names had no room.
    /// The destination is reported once, and not each of its messages.
    fn postponed(&mut self, error: &PublishError) {
        let reason = storable(&error.to_string(), ERROR_BYTES_MAX);
        match self.events.pop() {
            Some(Event::Parked(parked)) => self.events.push(Event::Postponed(parked)),
            other => self.events.extend(other),
        }
        if self.blocks.named_saturated(&reason, self.silence.now()) {
            self.events.push(Event::NamedBusy { reason });
        }
    }

    /// Holds an entry until its destination, which has enough other messages, has room for it.
    /// Returns `false` if its topic accepts no messages for another reason.
    fn waits_for_room(&mut self, ticket: Ticket, error: &PublishError) -> bool {
        let Self { window, blocks, .. } = self;
        let Some(item) = window.get_mut(ticket) else { return false };
        let topic = item.message.topic.clone();
        let in_flight = || {
            let of_topic = window.open().filter(|(_, other)| other.message.topic == topic);
            of_topic.filter(|(_, other)| other.in_flight.is_some()).count()
        };
        let Some(is_news) = blocks.saturated(topic.as_str(), self.silence.now(), in_flight) else {
            return false;
        };
        let text = storable(&error.to_string(), ERROR_BYTES_MAX);
        if is_news && let Some(Event::Busy { begins, .. }) = self.events.last_mut() {
            *begins = Some(text.clone());
        }
        self.requeue = true;
        self.settle_key_queue(ticket);
        self.park_from_window(ticket, ExceptionState::Held, None, None, Some((error.fault(), text)));
        true
    }

    /// Records that a message may have caused the failure of its topic. Returns whether the failure
    /// concerns only the message: the destination answers about others of the topic.
    pub(super) fn is_of_this_message_alone(
        &mut self,
        topic: &str,
        id: EntryId,
        error: &PublishError,
    ) -> bool {
        let is_alone = error.scope() == FaultScope::Topic
            && error.is_about_this_message()
            && self.blocks.suspect(topic, id);
        if is_alone && self.blocks.is_probe(topic, id) {
            // It shows nothing about its topic. The next entry that the topic refuses probes it.
            self.unblock_topic(topic);
        }
        is_alone
    }

    /// Returns the pause before the next attempt after a failure. `attempts` is the number of
    /// attempts that counted; `pause_max` applies where the message is not at fault.
    pub(super) fn retry_in(
        &mut self,
        id: EntryId,
        fault: Fault,
        attempts: u32,
        pause_max: Duration,
        uniform: f64,
    ) -> Duration {
        let backoff = self.settings.backoff();
        if fault == Fault::Message {
            return backoff.delay(attempts, uniform);
        }
        backoff.delay(self.failures.count(id), uniform).min(pause_max)
    }

    /// Returns the time before which the destination accepts nothing, as far as that is known. The
    /// messages that wait for it are spread over some time after it.
    fn not_before(&self, error: &PublishError, uniform: f64) -> Duration {
        error.retry_after().map_or(Duration::ZERO, |time| {
            time.saturating_add(self.settings.retry_initial.mul_f64(uniform.clamp(0.0, 1.0)))
        })
    }

    /// Prepares an entry in flight to leave the window without a receipt. The entries queued behind
    /// it are checked again.
    pub(super) fn give_up(&mut self, ticket: Ticket) {
        if let Some(item) = self.window.get_mut(ticket)
            && item.in_flight.take().is_some()
        {
            self.session.left(Amount::of(item.bytes));
        }
        self.requeue = true;
        self.settle_key_queue(ticket);
    }

    /// Releases the key of an entry that is about to leave the window.
    fn settle_key_queue(&mut self, ticket: Ticket) {
        if let Some(item) = self.window.get_mut(ticket) {
            let key = item.message.key.clone();
            self.key_queues.settled(key.as_ref());
        }
    }

    /// Parks an entry of the window.
    pub(super) fn park_from_window(
        &mut self,
        ticket: Ticket,
        state: ExceptionState,
        attempts: Option<u32>,
        due_in: Option<Duration>,
        failure: Option<(Fault, String)>,
    ) {
        let Some(item) = self.window.settle(ticket, true) else { return };
        let is_of_log = matches!(item.origin, Origin::Log(_));
        if is_of_log {
            self.unstored.set_ahead(item.id);
        }
        self.readmitted.remove(&item.id);
        let (fault, error) = failure.unzip();
        self.park(Parked {
            id: item.id,
            message_id: item.message.id.to_string(),
            topic: item.message.topic.to_string(),
            key: item.key().map(str::to_owned),
            state,
            attempts: attempts.unwrap_or(item.attempts),
            due_in,
            fault,
            error,
        });
        if is_of_log && state == ExceptionState::Held {
            self.held_from_log(item.message.topic.as_str(), item.key(), item.bytes);
        }
    }
}
