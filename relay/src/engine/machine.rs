//! The relay's decisions: what to publish next, what every outcome means, where the cursor stands.
//!
//! A state machine without I/O, clock or randomness of its own: the driver feeds it pages, due and held
//! exceptions and receipts, and takes submissions and checkpoints out of it. Everything that decides about
//! order and loss is in here and in the pure modules below it.
//!
//! # Why order cannot break
//! Entries of a key enter in the order of the log. A key with anything beside the log (retrying, held, dead)
//! takes no direct entries: they are held as well, and leave the exceptions in the order of their ids. So the
//! first occurrences of a key in the broker are in log order, whatever fails in between, and whatever an older
//! relay process that has not noticed its successor still sends: both send contiguous runs that start at or
//! below the last checkpoint.
//!
//! A change beside the log is stored only together with a cursor that has passed its entry. So a successor never
//! finds an exception ahead of its cursor, which it could send before entries that it has yet to read again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use message::{Fault, KeyWindow, PublishError, Receipt, Scope, Submission, Ticket, TraceContext};
use outbox::log::{
    Cursor, Difference, Entry, EntryId, Exception, ExceptionChange, ExceptionState, ExceptionSummary, Page,
    Parked,
};

use crate::engine::backoff;
use crate::engine::blocks::Blocks;
use crate::engine::judge::{Verdict, judge};
use crate::engine::lanes::Lanes;
use crate::engine::settings::{DeadPolicy, Settings};
use crate::engine::window::{Item, Origin, Window};

/// Sessions that may break without any confirmation before messages go one by one.
const FRUITLESS_BEFORE_CARE: u32 = 3;
/// Sessions that may break before a message that was alone in flight is put beside the log. It is not counted
/// as an attempt: nobody knows whose fault it is.
const FRUITLESS_BEFORE_RETRY: u32 = 6;

/// What happened, for logs and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The broker confirmed a message.
    Published {
        /// Its message id.
        message_id: message::MessageId,
        /// Its topic.
        topic: message::Topic,
        /// The trace in which it was enqueued.
        trace: Option<TraceContext>,
    },
    /// An entry was put beside the log.
    Parked(Parked),
    /// A topic stopped taking messages.
    TopicBlocked {
        /// The topic.
        topic: String,
        /// Whose fault.
        fault: Fault,
        /// What is wrong and what to do.
        reason: String,
    },
    /// A topic takes messages again.
    TopicUnblocked {
        /// The topic.
        topic: String,
    },
}

/// What is to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The new cursor.
    pub cursor: Cursor,
    /// Changes beside the log, committed with it.
    pub changes: Vec<ExceptionChange>,
}

/// The state machine of one lease.
#[derive(Debug)]
pub struct Machine {
    settings: Settings,
    window: Window,
    lanes: Lanes,
    blocks: Blocks,
    /// Exceptions that are in the window, so that a second read of them is recognised.
    aside: HashSet<EntryId>,
    /// Changes since the last checkpoint, the latest one of each entry.
    changes: BTreeMap<EntryId, ExceptionChange>,
    /// Entries of the log that were put beside it and that the cursor has not passed: not stored yet.
    ahead: HashSet<EntryId>,
    /// Changes that are on their way to the database: it may still show the state before.
    storing: HashMap<EntryId, ExceptionChange>,
    /// Failures of entries beside the log since the takeover, counted attempts or not: they space the retries.
    failures: HashMap<EntryId, u32>,
    stored: Cursor,
    in_flight: usize,
    /// Sessions in a row that broke before anything was confirmed.
    fruitless: u32,
    /// Something was blocked: queued entries must be looked at again before the next submission.
    requeue: bool,
    session_broken: bool,
    events: Vec<Event>,
}

impl Machine {
    /// The state after taking the lease: at the stored cursor, with the exceptions that block something.
    #[must_use]
    pub fn new(
        settings: Settings,
        cursor: Cursor,
        blocking: impl IntoIterator<Item = ExceptionSummary>,
    ) -> Self {
        Self {
            window: Window::new(cursor.clone(), settings.window_bytes, settings.window_entries),
            lanes: Lanes::new(KeyWindow::One),
            blocks: Blocks::load(blocking, settings.on_dead),
            aside: HashSet::new(),
            changes: BTreeMap::new(),
            ahead: HashSet::new(),
            storing: HashMap::new(),
            failures: HashMap::new(),
            stored: cursor,
            in_flight: 0,
            fruitless: 0,
            requeue: false,
            session_broken: false,
            events: Vec::new(),
            settings,
        }
    }

    /// Takes a page of the log in.
    pub fn page(&mut self, difference: &Arc<Difference>, page: Page) {
        for entry in page.entries {
            self.entry(difference, entry);
        }
        if page.exhausted {
            self.window.end(difference);
        }
    }

    fn entry(&mut self, difference: &Arc<Difference>, entry: Entry) {
        let id = entry.id;
        let parked = if let Some(due_in) = entry.deliver_in {
            Some(parked_entry(&entry, ExceptionState::Scheduled, 0, Some(due_in), None))
        } else if self.blocks.holds(entry.topic(), entry.key()) {
            Some(parked_entry(&entry, ExceptionState::Held, 0, None, None))
        } else {
            self.unacceptable(&entry).map(|problem| {
                parked_entry(&entry, ExceptionState::Dead, 1, None, Some((Fault::Message, problem)))
            })
        };
        match (parked, entry.message) {
            (None, Ok(message)) => {
                let origin = Origin::Log(Arc::clone(difference));
                self.queue(Item { id, message, origin, attempts: 0, in_flight: false });
            }
            (Some(parked), _) => {
                self.ahead.insert(id);
                self.park(parked);
                self.window.pass(difference, id);
            }
            // `unacceptable` has parked every invalid entry.
            (None, Err(_)) => {}
        }
    }

    fn unacceptable(&self, entry: &Entry) -> Option<String> {
        match &entry.message {
            Err(invalid) => Some(invalid.problem.clone()),
            Ok(message) => self.settings.size_limit.check(message).err().map(|error| error.to_string()),
        }
    }

    fn queue(&mut self, item: Item) {
        let key = item.message.key.clone();
        let ticket = self.window.push(item);
        self.lanes.push(ticket, key.as_ref());
    }

    /// Takes exceptions in that are due: scheduled, retrying, discarded.
    pub fn due(&mut self, exceptions: Vec<Exception>) {
        self.look_again();
        for exception in exceptions {
            let id = exception.entry.id;
            let newer = self.changes.contains_key(&id) || self.storing.contains_key(&id);
            if newer || self.aside.contains(&id) {
                continue; // memory is ahead of what was read
            }
            match exception.state {
                ExceptionState::Discarded => {
                    // It may have been the one that probed its topic.
                    self.unblock_topic(exception.entry.topic());
                    self.resolve(exception.entry.key(), id);
                }
                ExceptionState::Scheduled => self.scheduled(exception),
                // Stays due, and is read again.
                ExceptionState::Retrying if self.blocks.has_before(exception.entry.key(), id) => {}
                ExceptionState::Retrying => self.aside(exception, Origin::Due),
                ExceptionState::Held | ExceptionState::Dead => {}
            }
        }
    }

    fn scheduled(&mut self, exception: Exception) {
        let entry = &exception.entry;
        if self.blocks.holds(entry.topic(), entry.key()) {
            let parked = parked_entry(entry, ExceptionState::Held, exception.attempts, None, None);
            self.park(parked);
        } else {
            self.aside(exception, Origin::Due);
        }
    }

    /// Takes held exceptions in, in the order of their ids. Those that must go on waiting are left out.
    pub fn held(&mut self, exceptions: Vec<Exception>) {
        self.look_again();
        for exception in exceptions {
            let entry = &exception.entry;
            if self.blocks.take_held(entry.topic(), entry.key(), entry.id) {
                self.aside(exception, Origin::Held);
            }
        }
    }

    fn aside(&mut self, exception: Exception, origin: Origin) {
        let Exception { entry, attempts, state } = exception;
        let id = entry.id;
        match self.unacceptable(&entry) {
            Some(problem) => self.park(parked_entry(
                &entry,
                ExceptionState::Dead,
                attempts.saturating_add(1),
                None,
                Some((Fault::Message, problem)),
            )),
            None => {
                let Ok(message) = entry.message else { return };
                if state == ExceptionState::Retrying {
                    self.blocks.block(message.key.as_ref().map(message::OrderingKey::as_str), id);
                }
                self.aside.insert(id);
                self.queue(Item { id, message, origin, attempts, in_flight: false });
            }
        }
    }

    /// A publisher is connected: everything unsettled is queued again, in order.
    pub fn session_started(&mut self, window: KeyWindow) {
        self.lanes = Lanes::new(window);
        if std::mem::take(&mut self.session_broken) {
            self.fruitless = self.fruitless.saturating_add(1);
        }
        self.in_flight = 0;
        for ticket in self.window.open_tickets() {
            if let Some(item) = self.window.get_mut(ticket) {
                item.in_flight = false;
            }
        }
        self.requeue = true;
    }

    /// Sessions break without a word about any message. After some in a row, messages go one by one, so that one
    /// that breaks sessions is found and does not stop all others.
    fn is_careful(&self) -> bool {
        self.fruitless >= FRUITLESS_BEFORE_CARE
    }

    /// Whether the publisher must be closed and a new one connected.
    #[must_use]
    pub fn session_broken(&self) -> bool {
        self.session_broken
    }

    /// What to hand to the publisher now, at most `len` messages, in order. Empty while the session is broken.
    pub fn submissions(&mut self, len: usize) -> Vec<Submission> {
        if self.session_broken || (self.is_careful() && self.in_flight > 0) {
            return Vec::new();
        }
        self.look_again();
        let len = if self.is_careful() { 1 } else { len };
        let mut batch = Vec::with_capacity(len.min(self.lanes.ready_len()));
        while batch.len() < len
            && let Some(ticket) = self.lanes.pop()
        {
            if let Some(item) = self.window.get_mut(ticket) {
                item.in_flight = true;
                self.in_flight += 1;
                batch.push(Submission { ticket, message: item.message.clone() });
            }
        }
        batch
    }

    /// Looks at all queued entries again, if something was blocked since: those whose key or topic is blocked by
    /// now are held. Before anything else is queued, because a held entry that is read back queues at the end.
    fn look_again(&mut self) {
        if !std::mem::take(&mut self.requeue) {
            return;
        }
        self.lanes = Lanes::new(self.lanes.window());
        for ticket in self.window.open_tickets() {
            let Some(item) = self.window.get_mut(ticket) else { continue };
            let key = item.message.key.clone();
            if item.in_flight {
                self.lanes.occupy(key.as_ref());
                continue;
            }
            let topic = item.message.topic.clone();
            let hold = match item.origin {
                Origin::Due => false,
                Origin::Held => self.blocks.blocks_running(topic.as_str(), item.key(), item.id),
                Origin::Log(_) => self.blocks.holds_queued(topic.as_str(), item.key(), item.id),
            };
            if hold {
                self.set_aside(ticket, ExceptionState::Held, None, None, None);
            } else {
                self.lanes.push(ticket, key.as_ref());
            }
        }
    }

    /// Takes a receipt. `uniform` in `0.0..1.0` spreads the retries.
    pub fn receipt(&mut self, receipt: Receipt, uniform: f64) {
        match receipt.outcome {
            Ok(()) => self.confirmed(receipt.ticket),
            Err(error) => self.failed(receipt.ticket, &error, uniform),
        }
    }

    fn confirmed(&mut self, ticket: Ticket) {
        let Some(item) = self.window.settle(ticket) else { return };
        self.landed(item.in_flight);
        self.fruitless = 0;
        self.lanes.settled(item.message.key.as_ref());
        if !matches!(item.origin, Origin::Log(_)) {
            self.resolve(item.key(), item.id);
        }
        self.unblock_topic(item.message.topic.as_str());
        self.events.push(Event::Published {
            message_id: item.message.id,
            trace: item.message.trace,
            topic: item.message.topic,
        });
    }

    fn unblock_topic(&mut self, topic: &str) {
        if self.blocks.unblock_topic(topic) {
            self.events.push(Event::TopicUnblocked { topic: topic.to_owned() });
        }
    }

    fn landed(&mut self, was_in_flight: bool) {
        self.in_flight -= usize::from(was_in_flight);
    }

    fn failed(&mut self, ticket: Ticket, error: &PublishError, uniform: f64) {
        if self.lanes.window() == KeyWindow::Pipelined || error.scope() == Scope::Session {
            self.session_broken = true;
        }
        let Some(item) = self.window.get_mut(ticket) else { return };
        let was_in_flight = std::mem::take(&mut item.in_flight);
        let (id, attempts) = (item.id, item.attempts);
        let (topic, probe) = (item.message.topic.clone(), item.origin == Origin::Due);
        self.landed(was_in_flight);
        let scope = match error.scope() {
            // Alone in flight, again and again: whatever breaks the session, the others must not wait for it.
            Scope::Session if self.fruitless >= FRUITLESS_BEFORE_RETRY => Scope::Message,
            scope => scope,
        };
        let fault = if scope == error.scope() { error.fault() } else { Fault::Broker };
        let failure = (fault, error.to_string());
        if (scope, fault) == (Scope::Message, Fault::Message) {
            // The topic itself answers.
            self.unblock_topic(topic.as_str());
        }
        // Whatever follows, what was queued behind this entry must be looked at again.
        self.requeue = true;
        match judge(fault, scope, attempts, self.settings.retry.attempts_max) {
            Verdict::Resend => {}
            Verdict::Dead { attempts } => {
                self.settle_lane(ticket);
                self.set_aside(ticket, ExceptionState::Dead, Some(attempts), None, Some(failure));
            }
            Verdict::Retry { attempts, block_topic } => {
                let news = block_topic && self.blocks.block_topic(topic.as_str());
                if news {
                    let (fault, reason) = failure.clone();
                    self.events.push(Event::TopicBlocked { topic: topic.to_string(), fault, reason });
                }
                self.settle_lane(ticket);
                if block_topic && !news && !probe {
                    // The topic has its probe; this one waits like the rest.
                    self.set_aside(ticket, ExceptionState::Held, None, None, Some(failure));
                    return;
                }
                let due_in = Some(self.retry_in(id, fault, uniform));
                self.set_aside(ticket, ExceptionState::Retrying, Some(attempts), due_in, Some(failure));
            }
        }
    }

    fn retry_in(&mut self, id: EntryId, fault: Fault, uniform: f64) -> Duration {
        let failures = self.failures.entry(id).or_default();
        *failures = failures.saturating_add(1);
        let delay = backoff::delay(&self.settings.retry, *failures, uniform);
        // Outages end without notice: look again soon.
        if fault == Fault::Message { delay } else { delay.min(self.settings.outage_delay_max) }
    }

    /// The entry at the head of its lane is about to leave the window.
    fn settle_lane(&mut self, ticket: Ticket) {
        if let Some(item) = self.window.get_mut(ticket) {
            let key = item.message.key.clone();
            self.lanes.settled(key.as_ref());
        }
    }

    /// Moves an entry from the window beside the log.
    fn set_aside(
        &mut self,
        ticket: Ticket,
        state: ExceptionState,
        attempts: Option<u32>,
        due_in: Option<Duration>,
        failure: Option<(Fault, String)>,
    ) {
        let Some(item) = self.window.settle(ticket) else { return };
        if matches!(item.origin, Origin::Log(_)) {
            self.ahead.insert(item.id);
        }
        self.aside.remove(&item.id);
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
    }

    fn park(&mut self, parked: Parked) {
        let key = parked.key.as_deref();
        match parked.state {
            ExceptionState::Retrying => self.blocks.block(key, parked.id),
            ExceptionState::Held => self.blocks.hold(key, parked.id),
            ExceptionState::Dead if self.settings.on_dead == DeadPolicy::Hold => {
                self.blocks.block(key, parked.id);
            }
            _ => self.blocks.resolve(key, parked.id),
        }
        self.changes.insert(parked.id, ExceptionChange::Park(parked.clone()));
        self.events.push(Event::Parked(parked));
    }

    fn resolve(&mut self, key: Option<&str>, id: EntryId) {
        self.blocks.resolve(key, id);
        self.aside.remove(&id);
        self.failures.remove(&id);
        self.changes.insert(id, ExceptionChange::Resolve(id));
    }

    /// What to store now, or `None` when nothing has changed. One checkpoint may be on its way at a time.
    pub fn checkpoint(&mut self) -> Option<Checkpoint> {
        self.note_passed();
        let cursor = self.window.cursor();
        let storable = self.changes.len() > self.ahead.len();
        if !storable && *cursor == self.stored {
            return None;
        }
        self.stored = cursor.clone();
        let ahead = &self.ahead;
        let changes: Vec<_> = self.changes.extract_if(.., |id, _| !ahead.contains(id)).collect();
        self.storing = changes.iter().cloned().collect();
        let changes = changes.into_iter().map(|(_, change)| change).collect();
        Some(Checkpoint { cursor: self.stored.clone(), changes })
    }

    /// The checkpoint that was on its way is stored.
    pub fn checkpointed(&mut self) {
        for change in std::mem::take(&mut self.storing).into_values() {
            if let ExceptionChange::Park(parked) = change
                && parked.state == ExceptionState::Held
            {
                self.blocks.held_is_stored(&parked.topic, parked.key.as_deref());
            }
        }
    }

    fn note_passed(&mut self) {
        for id in self.window.take_passed() {
            self.ahead.remove(&id);
        }
    }

    /// Whether held entries may be able to leave since the last call: store a checkpoint, then read them.
    pub fn take_released(&mut self) -> bool {
        self.blocks.take_released()
    }

    /// Whether another page or pass of exceptions may be taken in.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.window.has_room()
    }

    /// Entries that were read and are not settled.
    #[must_use]
    pub fn open_len(&self) -> usize {
        self.window.open_len()
    }

    /// Bytes of the entries that were read and are not settled.
    #[must_use]
    pub fn open_bytes(&self) -> usize {
        self.window.bytes()
    }

    /// Entries handed to the publisher and not yet reported.
    #[must_use]
    pub fn in_flight_len(&self) -> usize {
        self.in_flight
    }

    /// Changes that the next checkpoint stores.
    pub fn changes_len(&mut self) -> usize {
        self.note_passed();
        self.changes.len().saturating_sub(self.ahead.len())
    }

    /// Blocked keys and topics.
    #[must_use]
    pub fn blocked(&self) -> (usize, usize) {
        (self.blocks.keys_len(), self.blocks.topics_len())
    }

    /// What happened since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }
}

fn parked_entry(
    entry: &Entry,
    state: ExceptionState,
    attempts: u32,
    due_in: Option<Duration>,
    failure: Option<(Fault, String)>,
) -> Parked {
    let (fault, error) = failure.unzip();
    Parked {
        id: entry.id,
        message_id: entry.message_id(),
        topic: entry.topic().to_owned(),
        key: entry.key().map(str::to_owned),
        state,
        attempts,
        due_in,
        fault,
        error,
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
