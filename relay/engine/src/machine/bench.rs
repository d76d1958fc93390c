//! A machine with its own session, time and entries, for tests of single steps.

use std::sync::Arc;
use std::time::Duration;

use message::{EventType, MaxInFlightPerKey, Message, OrderingKey, PublishError, Receipt, Topic};
use outbox_log::{
    Cursor, Difference, Entry, EntryId, Exception, ExceptionState, HeldAsk, HeldPage, Mark, Page, QueueName,
};

use super::world::settings;
use super::*;

pub(super) fn message_for(topic: &str, key: &str) -> Message {
    Message::new(Topic::new(topic).unwrap(), EventType::new("e").unwrap(), "x")
        .with_key(OrderingKey::new(key).unwrap())
}

/// Maximum entries of a page.
const PAGE: usize = 1_000;

/// A machine with its own session, time and entries.
pub(super) struct Bench {
    pub(super) machine: Machine,
    pub(super) last: i64,
}

impl Bench {
    pub(super) fn new(window: MaxInFlightPerKey) -> Self {
        let mut machine = Machine::new(settings(), Cursor::at(Mark::new("0")), Blocks::default());
        machine.session_started(window);
        Self { machine, last: 0 }
    }

    pub(super) fn read(&mut self, message: &Message) {
        let mark = |id: i64| Mark::new(id.to_string());
        let (base, head) = (mark(self.last), mark(self.last + 1));
        self.last += 1;
        let difference = Arc::new(Difference { base, head, ceiling: self.last });
        let entry = Entry { id: EntryId(self.last), message: Ok(message.clone()), deliver_in: None };
        self.machine.page(&difference, Page { entries: vec![entry], exhausted: true });
    }

    /// Reads held entries back, from a database that holds exactly these. Returns their number.
    pub(super) fn read_back(&mut self, held: &[Exception]) -> usize {
        self.machine.asks();
        let asks = self.machine.held_asks();
        let len = self.machine.held_len(&asks).unwrap_or(PAGE).min(PAGE) / asks.len().max(1);
        let page = |ask: &HeldAsk| {
            let is_of = |entry: &Entry| {
                QueueName::of(entry.topic(), entry.key()) == ask.queue && entry.id >= ask.from
            };
            let mut found = held.iter().filter(|held| is_of(&held.entry)).cloned();
            let exceptions = found.by_ref().take(len.max(1)).collect();
            HeldPage { exceptions, exhausted: found.next().is_none() }
        };
        let pages: Vec<HeldPage> = asks.iter().map(page).collect();
        let read = pages.iter().map(|page| page.exceptions.len()).sum();
        self.machine.held(&asks, pages);
        read
    }

    /// Answers a message of another topic, late enough for the first submissions to count as
    /// silent.
    pub(super) fn only_others_are_answered(&mut self) {
        self.at(290);
        self.publish("u", "other");
        self.at(300);
        self.machine.look_for_silence(0.5);
    }

    /// Reads, submits and confirms a message.
    pub(super) fn publish(&mut self, topic: &str, key: &str) {
        self.read(&message_for(topic, key));
        let ticket = self.machine.submissions(9)[0].ticket;
        self.confirm(ticket);
    }

    pub(super) fn at(&mut self, ms: u64) {
        self.machine.set_now(Duration::from_millis(ms));
    }

    pub(super) fn confirm(&mut self, ticket: message::Ticket) {
        self.machine.receipt(Receipt { ticket, outcome: Ok(()) }, 0.5);
    }

    pub(super) fn fail(&mut self, ticket: message::Ticket) {
        self.machine
            .receipt(Receipt { ticket, outcome: Err(PublishError::topic_unavailable("no such topic")) }, 0.5);
    }

    pub(super) fn cursor(&mut self) -> Cursor {
        let cursor = self.machine.checkpoint().map(|checkpoint| checkpoint.cursor);
        self.machine.checkpointed();
        cursor.unwrap_or_else(|| self.machine.stored.clone())
    }
}

pub(super) fn exception(id: i64, message: &Message, state: ExceptionState) -> Exception {
    let entry = Entry { id: EntryId(id), message: Ok(message.clone()), deliver_in: None };
    Exception { entry, state, attempts: 0 }
}
