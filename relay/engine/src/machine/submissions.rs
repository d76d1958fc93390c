//! Chooses the messages that leave for the publisher.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use message::{MaxInFlightPerKey, Submission, Ticket};
use outbox::log::{EntryId, ExceptionState};

use super::{Machine, SessionEnd};
use crate::awaited::Unanswered;
use crate::blocks::Place;
use crate::key_queues::KeyQueues;
use crate::window::Origin;

/// Sessions that may break without any confirmation before messages go one by one.
const FRUITLESS_BEFORE_CARE: u32 = 3;

impl Machine {
    /// A publisher is connected: everything unsettled is queued again, in order.
    pub fn session_started(&mut self, window: MaxInFlightPerKey) {
        self.key_queues = KeyQueues::new(window);
        if self.end.take() == Some(SessionEnd::Lost) {
            self.fruitless = self.fruitless.saturating_add(1);
        }
        self.in_flight = 0;
        let mut given_up: BTreeMap<_, EntryId> = BTreeMap::new();
        for Unanswered { id, message, .. } in
            self.awaited.clear().filter(|given_up| given_up.message.key.is_none())
        {
            given_up
                .entry(message.topic.to_string())
                .and_modify(|first| *first = id.min(*first))
                .or_insert(id);
        }
        given_up.iter().for_each(|(topic, first)| self.blocks.read_again(topic, *first));
        self.blocks.session_ended();
        for topic in std::mem::take(&mut self.kept_blocked) {
            self.unblock_topic(&topic);
        }
        self.bring_all_forward();
        self.silence.session_started();
        for (_, ticket) in self.window.open_tickets() {
            if let Some(item) = self.window.get_mut(ticket) {
                item.in_flight = None;
            }
        }
        self.requeue = true;
    }

    /// Sessions break without a word about any message. After some in a row, messages go one by
    /// one, so that one that breaks sessions is found and does not stop all others.
    fn is_careful(&self) -> bool {
        self.fruitless >= FRUITLESS_BEFORE_CARE
    }

    /// Whether everything in flight has waited for so long that its destination may be silent.
    fn is_overdue(&self) -> bool {
        let mut in_flight = self.window.open().filter_map(|(_, item)| item.in_flight);
        self.in_flight == 0 || in_flight.all(|submitted| self.silence.is_overdue(submitted))
    }

    /// The next entry to submit. While messages go one by one and one is overdue, others are tried:
    /// one more at a time, of another topic and another key. If any is answered, it is known who is
    /// silent.
    fn next_ready(&mut self) -> Option<Ticket> {
        if !self.is_careful() || self.in_flight == 0 {
            return self.key_queues.pop();
        }
        let (mut topics, mut keys) = (HashSet::new(), HashSet::new());
        for (_, item) in self.window.open().filter(|(_, item)| item.in_flight.is_some()) {
            topics.insert(item.message.topic.clone());
            keys.extend(item.message.key.clone());
        }
        let window = &mut self.window;
        self.key_queues.pop_where(|ticket| {
            let Some(item) = window.get_mut(ticket) else { return true };
            let key = item.message.key.as_ref();
            let may = !topics.contains(&item.message.topic) && key.is_none_or(|key| !keys.contains(key));
            if !may {
                // Nothing of its key passes it.
                keys.extend(key.cloned());
            }
            may
        })
    }

    /// Why the publisher must be closed and a new one connected, if it must.
    #[must_use]
    pub fn session_end(&self) -> Option<SessionEnd> {
        self.end
    }

    /// A refusal explains whatever else is said of the session, before or behind it.
    pub(super) fn end_session(&mut self, cause: SessionEnd) {
        if self.end != Some(SessionEnd::Refused) {
            self.end = Some(cause);
        }
    }

    /// Returns the messages to hand to the publisher now, at most `len`, in order. Empty while the
    /// session is broken or an operator has paused the pipeline.
    pub fn submissions(&mut self, len: usize) -> Vec<Submission> {
        if self.end.is_some() || self.is_paused() || (self.is_careful() && !self.is_overdue()) {
            return Vec::new();
        }
        self.look_again();
        let len = if self.is_careful() { 1 } else { len };
        let mut batch = Vec::with_capacity(len.min(self.key_queues.ready_len()));
        while batch.len() < len
            && let Some(ticket) = self.next_ready()
        {
            if let Some(item) = self.window.get_mut(ticket) {
                item.in_flight = Some(self.silence.submitted());
                self.in_flight += 1;
                batch.push(Submission { ticket, message: Arc::clone(&item.message) });
            }
        }
        batch
    }

    /// Looks at all queued entries again, if something was blocked since: those whose key or topic
    /// is blocked by now are held. Before anything else is queued, because a held entry that is
    /// read back queues at the end. In the order of ids: a held entry comes into the window after
    /// entries of the log that wait for it. What probes a blocked topic comes last where its
    /// failure ends the session, or what comes behind it would have to wait for the next one.
    pub(super) fn look_again(&mut self) {
        self.requeue |= self.blocks.held.take_requeue();
        if !std::mem::take(&mut self.requeue) {
            return;
        }
        self.key_queues = KeyQueues::new(self.key_queues.window());
        let mut open: Vec<(EntryId, Ticket)> = self.window.open_tickets();
        open.sort_unstable();
        // Entries in flight occupy their keys before any other entry does, whatever their ids.
        for (_, ticket) in &open {
            if let Some(item) = self.window.get_mut(*ticket).filter(|item| item.in_flight.is_some()) {
                self.key_queues.occupy(item.message.key.as_ref());
            }
        }
        let is_pipelined = self.key_queues.window() == MaxInFlightPerKey::Pipelined;
        let mut probes = Vec::new();
        for (id, ticket) in open {
            let Some(item) = self.window.get_mut(ticket).filter(|item| item.in_flight.is_none()) else {
                continue;
            };
            let key = item.message.key.clone();
            let topic = item.message.topic.clone();
            if item.origin == Origin::Due {
                match () {
                    () if self.blocks.waits_for_probe(topic.as_str(), id)
                        || self.blocks.is_paused(topic.as_str(), item.key()) =>
                    {
                        self.park_from_window(ticket, ExceptionState::Held, None, None, None);
                    }
                    () if self.blocks.has_before(item.key(), id) => self.withdraw(ticket),
                    () if is_pipelined && self.blocks.is_probe(topic.as_str(), id) => {
                        probes.push((ticket, key));
                    }
                    () => self.key_queues.push(ticket, key.as_ref()),
                }
                continue;
            }
            match self.blocks.place_queued(topic.as_str(), item.key(), id, item.waits) {
                Place::Hold => self.park_from_window(ticket, ExceptionState::Held, None, None, None),
                Place::Wait => {}
                Place::Free => {
                    item.waits = false;
                    self.key_queues.push(ticket, key.as_ref());
                }
            }
        }
        for (ticket, key) in probes {
            self.key_queues.push(ticket, key.as_ref());
        }
    }

    /// Takes an entry that is due out of the window: it stays due, and is read again when what
    /// stands before it has left.
    fn withdraw(&mut self, ticket: Ticket) {
        let Some(item) = self.window.settle(ticket, false) else { return };
        self.readmitted.remove(&item.id);
        self.waits(item.message.topic.as_str(), item.id);
    }
}
