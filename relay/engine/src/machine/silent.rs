//! Parks messages whose destination does not answer.
//!
//! A silent message is parked like one that failed by the broker's fault, so that its place in the
//! window is free and the cursor can pass. It is not submitted again in this session: its receipt
//! may still arrive, and serves as the probe.

use std::collections::hash_map::Entry::Occupied;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use message::error_text::storable;
use message::units::ShownSize;
use message::{Fault, FaultScope, MaxInFlightPerKey, PublishError, Ticket, Topic};
use outbox_log::{Entry, EntryId, Exception, ExceptionChange, ExceptionState, Parked};

use super::intake::parked_entry;
use super::outcomes::Learned;
use super::{Machine, SessionEnd};
use crate::amount::Amount;
use crate::awaited::{Awaited, Unanswered};
use crate::bounds::InvalidSetting;
use crate::decide::{NextStep, decide};
use crate::event::Event;
use crate::failures::REMEMBERED_MAX;
use crate::options::EngineOptions;
use crate::silence::{Stall, Submitted};

/// Maximum messages that a publisher may have without an answer, in flight and awaited together, as
/// a multiple of the window. It keeps all of them in memory. The bound is checked before each
/// submission, so one message may exceed it.
const PUBLISHER_WINDOWS_MAX: usize = 2;

/// Maximum bytes of the text of a failure that was answered late: many of them are remembered.
const LATE_BYTES_MAX: usize = 1_024;

/// Messages that were parked as silent, and the consequences. Invariants: an entry is postponed
/// only while its receipt is awaited; at most [`Machine::awaited_max`] is awaited.
#[derive(Debug, Default)]
pub(super) struct Silent {
    /// The messages, which may still be answered.
    pub(super) awaited: Awaited,
    /// Topics that stay blocked although one of their messages was answered. That one may have been
    /// the probe, so they are unblocked when few messages are unanswered, and with the next session
    /// at the latest.
    pub(super) kept_blocked: BTreeSet<String>,
    /// Unanswered exceptions that came due meanwhile, in their postponed form.
    pub(super) postponed: HashMap<EntryId, Parked>,
    /// How many entries are held for a topic that was only guessed to be silent.
    pub(super) held_on_a_guess: usize,
    /// Failures that were answered late, until the entry is answered in time or stored with them.
    late: HashMap<EntryId, Late>,
}

/// A failure that was answered after its entry was parked as silent. The row may have got an
/// operator's decision since, so it changes only once it is read again.
#[derive(Debug)]
struct Late {
    fault: Fault,
    scope: FaultScope,
    is_final: bool,
    text: String,
    /// Spreads its retry.
    uniform: f64,
}

impl EngineOptions {
    /// Checks that a broker's client has room for all messages that the engine hands over without
    /// an answer: twice the window. With less room, messages of a silent destination would fill the
    /// client, and those of others would wait behind them. `setting` names the client's maximum,
    /// which is `bytes`.
    ///
    /// # Errors
    /// [`InvalidSetting`] with the value and the minimum.
    pub fn check_room(&self, setting: &'static str, bytes: usize) -> Result<(), InvalidSetting> {
        let min = self.window_bytes.saturating_mul(PUBLISHER_WINDOWS_MAX);
        if bytes >= min {
            return Ok(());
        }
        let window = ShownSize(self.window_bytes);
        let problem = format!(
            "{bytes} is less than {min}, twice the window of {window}; raise it to that, or make the window smaller"
        );
        Err(InvalidSetting { setting, problem })
    }
}

impl Machine {
    /// Sets the time since the lease was taken.
    pub(crate) fn set_now(&mut self, now: Duration) {
        self.silence.set_now(now);
    }

    /// Detects destinations that have stopped answering, and parks their messages. `uniform` in
    /// `0.0..1.0` spreads the retries.
    pub(crate) fn look_for_silence(&mut self, uniform: f64) {
        let news = self.silence.news(self.oldest_in_flight().map(|(_, submitted)| submitted));
        self.events.extend(news.map(Event::Session));
        self.forget_answers();
        if self.session.must_end().is_some() || self.session.in_flight_len() == 0 {
            return;
        }
        let is_full = !self.has_room_in_window() || !self.has_room_for_changes() || self.is_publisher_full();
        let (mut topics, mut alone) = self.find_silent(is_full);
        // A change of an entry is stored, and the entry retried, only after the cursor has passed
        // it.
        if (is_full || self.unstored.has_ahead()) && topics.is_empty() && alone.is_empty() {
            self.stalled(&mut topics, &mut alone);
        }
        if self.awaits_many() {
            // No more may pile up in the publisher, so the silent part stops its whole topic.
            topics.extend(std::mem::take(&mut alone).into_iter().filter_map(|ticket| self.topic_of(ticket)));
        }
        if topics.is_empty() && alone.is_empty() {
            return;
        }
        let keys: HashSet<_> = alone.iter().filter_map(|ticket| self.key_of(*ticket)).collect();
        let alone: HashSet<_> = alone.into_iter().collect();
        for (_, ticket) in self.window.open_tickets() {
            let Some(item) = self.window.get_mut(ticket).filter(|item| item.in_flight.is_some()) else {
                continue;
            };
            let has_key = item.message.key.as_ref().is_some_and(|key| keys.contains(key));
            if topics.contains(&item.message.topic) {
                self.fall_silent(ticket, FaultScope::Topic, uniform);
            } else if alone.contains(&ticket)
                || (has_key && self.key_queues.window() == MaxInFlightPerKey::Pipelined)
            {
                self.fall_silent(ticket, FaultScope::Message, uniform);
            }
        }
    }

    /// Forgets the answers of topics that reveal nothing any more, once there are many. Nothing
    /// looks for silence in transactions, so it is also called at each checkpoint.
    pub(super) fn forget_answers(&mut self) {
        if self.silence.is_large() {
            let in_flight = self.window.open().filter_map(|(_, item)| item.in_flight);
            let oldest = in_flight.min_by_key(|submitted| submitted.order());
            self.silence.forget(oldest);
        }
    }

    /// Returns the silent topics, and the silent messages of topics that are not silent.
    fn find_silent(&self, is_full: bool) -> (HashSet<Topic>, Vec<Ticket>) {
        let (mut topics, mut alone) = (HashSet::new(), Vec::new());
        for (ticket, item) in self.window.open() {
            let Some(submitted) = item.in_flight else { continue };
            let topic = &item.message.topic;
            if !self.silence.is_old(submitted) || topics.contains(topic) {
                continue;
            }
            let partly = !self.silent.awaited.is_empty() && self.silent.awaited.has_topic(topic.as_str());
            match self.silence.reach(topic, submitted, is_full, partly) {
                Some(FaultScope::Topic) => _ = topics.insert(topic.clone()),
                Some(_) => alone.push(ticket),
                None => {}
            }
        }
        (topics, alone)
    }

    /// Handles a full window in which no destination is known to be silent.
    fn stalled(&mut self, topics: &mut HashSet<Topic>, alone: &mut Vec<Ticket>) {
        let Some((topic, submitted)) = self.oldest_in_flight() else { return };
        match self.silence.stall(&topic, submitted) {
            Some(Stall::Reconnect) => self.session.end(SessionEnd::Lost),
            Some(Stall::Guess(scope)) => {
                self.silent.held_on_a_guess = 0;
                if scope == FaultScope::Topic {
                    topics.insert(topic);
                } else {
                    let of_topic = self.window.open().filter(|(_, item)| item.message.topic == topic);
                    alone.extend(of_topic.map(|(ticket, _)| ticket));
                }
            }
            None => {}
        }
    }

    /// Returns the topic and the submission of the oldest message that waits for its confirmation.
    fn oldest_in_flight(&self) -> Option<(Topic, Submitted)> {
        if self.session.in_flight_len() == 0 {
            // Avoids a scan of the window, which may be full of other entries.
            return None;
        }
        let in_flight =
            self.window.open().filter_map(|(_, item)| Some((&item.message.topic, item.in_flight?)));
        let oldest = in_flight.min_by_key(|(_, submitted)| submitted.order())?;
        Some((oldest.0.clone(), oldest.1))
    }

    fn topic_of(&mut self, ticket: Ticket) -> Option<Topic> {
        Some(self.window.get_mut(ticket)?.message.topic.clone())
    }

    fn key_of(&mut self, ticket: Ticket) -> Option<message::OrderingKey> {
        self.window.get_mut(ticket)?.message.key.clone()
    }

    /// Parks a message without an answer, and awaits its receipt. If too many receipts are awaited,
    /// the session ends instead: its publisher releases the memory, and the message is submitted
    /// again in a later session.
    fn fall_silent(&mut self, ticket: Ticket, scope: FaultScope, uniform: f64) {
        let awaited_max = self.awaited_max();
        let Some(item) = self.window.get_mut(ticket) else { return };
        let Some(submitted) = item.in_flight else { return };
        let id = item.id;
        let has_before = self.blocks.has_before(item.key(), id);
        let is_awaited = !self.silent.awaited.amount().plus(Amount::of(item.bytes)).exceeds(awaited_max);
        if is_awaited {
            self.blocks.give_up(item.key());
            self.silent.awaited.insert(ticket, Unanswered::new(item, submitted));
        } else {
            self.session.end(SessionEnd::Lost);
        }
        // The others of its topic are answered.
        let scope = if self.blocks.is_blamed(id) { FaultScope::Message } else { scope };
        if scope == FaultScope::Message && has_before {
            // The entry before it is the probe; this one waits behind it.
            self.give_up(ticket);
            self.park_from_window(ticket, ExceptionState::Held, None, None, None);
            return;
        }
        let which = if scope == FaultScope::Topic { "its topic" } else { "it" };
        let then = if is_awaited {
            "the relay still waits for the answer"
        } else {
            "the relay opens a new session, because too many answers are missing"
        };
        let before = self.silent.late.get(&id);
        let before = before.map(|late| format!(". The attempt before: {}", late.text)).unwrap_or_default();
        let reason = format!(
            "the broker has not answered for {which} for a while, although it answers for others; the outcome is unknown, and {then}{before}"
        );
        let error = PublishError::new(Fault::Broker, scope, reason);
        self.apply_failure(ticket, &error, Learned::BySilence, uniform);
    }

    /// Takes the late receipt of a message that was parked as silent. `uniform` in `0.0..1.0`
    /// spreads the retries.
    pub(super) fn late(&mut self, ticket: Ticket, outcome: Result<(), &PublishError>, uniform: f64) {
        let Some(Unanswered { id, message, attempts, submitted, .. }) = self.silent.awaited.take(ticket)
        else {
            return;
        };
        let key = message.key.as_ref().map(message::OrderingKey::as_str);
        self.blocks.answered(key);
        self.blocks.left(message.topic.as_str());
        match outcome {
            Ok(()) => {
                self.session.answered();
                self.silent.postponed.remove(&id);
                self.silence.answered(&message.topic, submitted);
                self.resolve(message.topic.as_str(), key, id, &message.id.to_string());
                self.blocks.take_out(message.topic.as_str(), key, id);
                self.topic_answered(message.topic.as_str(), id);
                let submitted_at = Some(submitted.at());
                self.events.push(Event::Published { message, submitted_at, attempt: None });
            }
            // It is parked already, and is submitted again when it is due or read back.
            Err(error) => {
                if key.is_none() {
                    self.blocks.read_again(message.topic.as_str(), id);
                }
                self.remember_late(id, error, uniform);
                self.bring_forward(id);
                if error.is_saturated() {
                    self.events.push(Event::Busy { message: Arc::clone(&message), begins: None });
                } else if error.scope() != FaultScope::Session {
                    self.events.push(Event::Failed {
                        message: Arc::clone(&message),
                        submitted_at: Some(submitted.at()),
                        attempt: attempts.saturating_add(1),
                        fault: error.fault(),
                        scope: error.scope(),
                    });
                }
                if error.scope() == FaultScope::Message && !error.is_saturated() {
                    self.topic_answered(message.topic.as_str(), id);
                }
                self.is_of_this_message_alone(message.topic.as_str(), id, error);
            }
        }
        if !self.awaits_many() {
            for topic in std::mem::take(&mut self.silent.kept_blocked) {
                self.unblock_topic(&topic);
            }
        }
    }

    /// Returns whether an exception that was read is still unanswered. One that is due is
    /// postponed: its receipt or the end of the session makes it due again. One that probes its
    /// topic is postponed for less time.
    pub(super) fn is_awaited(&mut self, exception: &Exception, uniform: f64) -> bool {
        let (entry, id) = (&exception.entry, exception.entry.id);
        if exception.state == ExceptionState::Discarded || !self.silent.awaited.contains(id) {
            self.silent.postponed.remove(&id);
            return false;
        }
        if exception.state == ExceptionState::Retrying {
            let overdue = self.silent.awaited.submitted(id).is_none_or(|at| self.silence.is_overdue(at));
            if self.blocks.is_probe(entry.topic(), id) && overdue {
                // It shows nothing before it is answered, and the rest of its topic may get
                // answers.
                self.unblock_topic(entry.topic());
            }
            let due_in = if self.blocks.is_probe(entry.topic(), id) {
                let pause_max = self.settings.outage_delay_max;
                self.retry_in(id, Fault::Broker, exception.attempts, pause_max, uniform)
            } else {
                self.settings.postponed_max()
            };
            let failure = Some((Fault::Broker, String::from("the broker has still not answered for it")));
            let parked = parked_entry(entry, exception.state, exception.attempts, Some(due_in), failure);
            // Nothing has happened, so nothing is reported.
            self.change(id, ExceptionChange::Park(parked.clone()));
            self.silent.postponed.insert(id, parked);
        }
        true
    }

    /// Remembers a failure that was answered late, of a bounded number of entries. The end of a
    /// session says nothing about them.
    fn remember_late(&mut self, id: EntryId, error: &PublishError, uniform: f64) {
        let late = &mut self.silent.late;
        if error.scope() == FaultScope::Session || (late.len() >= REMEMBERED_MAX && !late.contains_key(&id)) {
            return;
        }
        let text = storable(&error.to_string(), LATE_BYTES_MAX);
        let (fault, scope, is_final) = (error.fault(), error.scope(), error.is_final());
        late.insert(id, Late { fault, scope, is_final, text, uniform });
    }

    /// Forgets a failure that was answered late.
    pub(super) fn forget_late(&mut self, id: EntryId) {
        self.silent.late.remove(&id);
    }

    /// Counts a refusal that was answered late like any other one, now that its entry was read
    /// again and is parked with it. Returns whether there was one.
    pub(super) fn counts_late(&mut self, entry: &Entry, attempts: u32) -> bool {
        let Occupied(late) = self.silent.late.entry(entry.id) else { return false };
        if (late.get().fault, late.get().scope) != (Fault::Message, FaultScope::Message) {
            return false;
        }
        let Late { fault, scope, is_final, text, uniform } = late.remove();
        let attempts_max = if is_final { 1 } else { self.settings.attempts_max };
        let failure = Some((fault, text));
        match decide(fault, scope, attempts, attempts_max) {
            NextStep::Dead { attempts } => {
                self.park(parked_entry(entry, ExceptionState::Dead, attempts, None, failure));
            }
            NextStep::Retry { attempts, .. } => {
                let due_in = self.settings.backoff().delay(attempts, uniform);
                self.park(parked_entry(entry, ExceptionState::Retrying, attempts, Some(due_in), failure));
            }
            NextStep::Resend => return false,
        }
        true
    }

    /// Makes a postponed entry due again at once, with the failure that was answered late.
    fn bring_forward(&mut self, id: EntryId) {
        if let Some(parked) = self.silent.postponed.remove(&id) {
            let late = self.silent.late.get(&id).map(|late| (late.fault, late.text.clone()));
            // A refusal counts once the entry is read.
            let late = late.filter(|(fault, _)| *fault != Fault::Message).unzip();
            let (fault, error) = (late.0.or(parked.fault), late.1.or(parked.error));
            let parked = Parked { due_in: Some(Duration::ZERO), fault, error, ..parked };
            self.change(id, ExceptionChange::Park(parked));
        }
    }

    /// Makes all postponed entries due: the receipts of the session will not come, or not to this
    /// machine.
    pub(crate) fn bring_all_forward(&mut self) {
        let ids: Vec<EntryId> = self.silent.postponed.keys().copied().collect();
        ids.into_iter().for_each(|id| self.bring_forward(id));
    }

    /// Returns whether a topic stays blocked although one of its messages was answered, because its
    /// silent part would pile up.
    pub(super) fn stays_blocked(&self, topic: &str) -> bool {
        self.awaits_many() && self.silent.awaited.has_topic(topic) && self.blocks.is_blocked(topic)
    }

    fn awaits_many(&self) -> bool {
        let EngineOptions { window_entries, window_bytes, .. } = self.settings;
        let many = Amount { entries: window_entries / 2, bytes: window_bytes / 2 };
        self.silent.awaited.amount().reaches(many)
    }

    /// Returns the maximum amount that may be awaited: the amount that one topic alone can have in
    /// a full window, which is its bound plus one batch of the log. At least half a window is left
    /// for messages of destinations that answer.
    fn awaited_max(&self) -> Amount {
        let EngineOptions { window_entries, window_bytes, page_entries, page_bytes, .. } = self.settings;
        Amount {
            entries: window_entries.saturating_add(page_entries.min(window_entries / 2)),
            bytes: window_bytes.saturating_add(page_bytes.min(window_bytes / 2)),
        }
    }

    /// Returns whether the publisher has too many unanswered messages to get more.
    pub(super) fn is_publisher_full(&self) -> bool {
        let EngineOptions { window_entries, window_bytes, .. } = self.settings;
        let has = self.session.in_flight().plus(self.silent.awaited.amount());
        has.reaches(Amount {
            entries: window_entries.saturating_mul(PUBLISHER_WINDOWS_MAX),
            bytes: window_bytes.saturating_mul(PUBLISHER_WINDOWS_MAX),
        })
    }
}

#[cfg(test)]
mod tests {
    use message::Receipt;

    use super::super::bench::{Bench, message_for};
    use super::*;

    #[test]
    fn a_client_has_room_for_two_windows() {
        let options = EngineOptions { window_bytes: 1 << 20, ..EngineOptions::default() };
        assert_eq!(options.check_room("queue", 2 << 20), Ok(()));
        let refused = options.check_room("queue", (2 << 20) - 1).unwrap_err().to_string();
        assert!(
            refused.contains("queue: 2097151 is less than 2097152, twice the window of 1MiB"),
            "{refused}"
        );
    }

    /// Goal: a destination that had no room for a message has not answered for its topic, however
    /// late it says so. Oracle: the stopped topics.
    #[test]
    fn a_destination_without_room_continues_no_topic_late() {
        for (is_saturated, blocked_topics) in [(true, 1), (false, 0)] {
            let mut bench = Bench::new(MaxInFlightPerKey::One);
            bench.read(&message_for("t", "k"));
            let ticket = bench.machine.submissions(9)[0].ticket;
            bench.only_others_are_answered();
            assert_eq!(bench.machine.load().blocked_topics, 1);
            let error = PublishError::new(Fault::Broker, FaultScope::Message, "enough others wait");
            let error = if is_saturated { error.saturated() } else { error };
            bench.machine.receipt(Receipt { ticket, outcome: Err(error) }, 0.5);
            assert_eq!(bench.machine.load().blocked_topics, blocked_topics, "{is_saturated}");
        }
    }

    /// Goal: memory does not grow with the number of topics, which is unbounded because their names
    /// come from rows, even where messages are published in transactions. Oracle: the topics whose
    /// answers are kept after thousands were answered, each in its own transaction.
    #[test]
    fn transactions_to_ever_new_topics_use_no_more_memory() {
        let mut bench = Bench::new(MaxInFlightPerKey::Pipelined);
        for number in 0..3_000 {
            bench.publish(&format!("orders-{number}"), "k");
            assert!(bench.machine.transaction_checkpoint(true).is_some());
            bench.machine.checkpointed();
        }
        assert!(!bench.machine.silence.is_large());
    }
}
