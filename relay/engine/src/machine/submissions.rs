//! Chooses the messages to hand to the publisher.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use message::{MaxInFlightPerKey, Submission, Ticket};
use outbox_log::{EntryId, ExceptionState};

use super::{Machine, SessionEnd};
use crate::amount::Amount;
use crate::awaited::Unanswered;
use crate::blocks::Place;
use crate::event::Event;
use crate::key_queues::KeyQueues;
use crate::window::Origin;

impl Machine {
    /// Records that a publisher is connected. Everything unsettled is queued again, in order.
    pub(crate) fn session_started(&mut self, window: MaxInFlightPerKey) {
        self.key_queues = KeyQueues::new(window);
        self.is_pipelined |= window == MaxInFlightPerKey::Pipelined;
        self.session.start();
        let mut given_up: BTreeMap<_, EntryId> = BTreeMap::new();
        for Unanswered { id, message, .. } in
            self.silent.awaited.clear().filter(|given_up| given_up.message.key.is_none())
        {
            given_up
                .entry(message.topic.to_string())
                .and_modify(|first| *first = id.min(*first))
                .or_insert(id);
        }
        given_up.iter().for_each(|(topic, first)| self.blocks.read_again(topic, *first));
        self.blocks.session_ended();
        for topic in std::mem::take(&mut self.silent.kept_blocked) {
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

    /// Returns whether all messages in flight have waited long enough that their destination may be
    /// silent.
    fn is_overdue(&self) -> bool {
        let mut in_flight = self.window.open().filter_map(|(_, item)| item.in_flight);
        self.session.in_flight_len() == 0 || in_flight.all(|submitted| self.silence.is_overdue(submitted))
    }

    /// Takes the next entry to submit. While messages are sent one by one and one is overdue,
    /// others are added one at a time, each with a different topic and key. An answer to any of
    /// them shows which destination is silent.
    fn next_ready(&mut self) -> Option<Ticket> {
        if !self.session.is_careful() || self.session.in_flight_len() == 0 {
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
                // No entry of its key may pass it.
                keys.extend(key.cloned());
            }
            may
        })
    }

    /// Returns whether the next entry to submit probes a blocked topic.
    fn is_probe_next(&mut self) -> bool {
        let next = self.key_queues.front().and_then(|ticket| self.window.get_mut(ticket));
        next.is_some_and(|item| self.blocks.is_probe(item.message.topic.as_str(), item.id))
    }

    /// Returns why the publisher must be closed and a new one connected, if it must.
    #[must_use]
    pub(crate) fn session_end(&self) -> Option<SessionEnd> {
        self.session.must_end()
    }

    /// Returns the messages to hand to the publisher now, at most `len`, in order. Empty while the
    /// session is broken, the publisher has reached its limit, or an operator has paused the
    /// pipeline.
    ///
    /// Where a failure ends the session, probes of blocked topics leave in a batch of their own: in
    /// a transaction, a probe that fails takes the whole batch with it.
    pub(crate) fn submissions(&mut self, len: usize) -> Vec<Submission> {
        if self.session.must_end().is_some()
            || self.is_paused()
            || (self.session.is_careful() && !self.is_overdue())
        {
            return Vec::new();
        }
        self.look_at_busy();
        self.look_again();
        self.let_refused_go();
        let len = if self.session.is_careful() { 1 } else { len };
        let separates =
            self.key_queues.window() == MaxInFlightPerKey::Pipelined && self.blocks.topics_len() > 0;
        let is_of_probes = separates && self.is_probe_next();
        let mut batch = Vec::with_capacity(len.min(self.key_queues.ready_len()));
        while batch.len() < len
            && !self.is_publisher_full()
            && (!separates || self.is_probe_next() == is_of_probes)
            && let Some(ticket) = self.next_ready()
        {
            if let Some(item) = self.window.get_mut(ticket) {
                item.in_flight = Some(self.silence.submitted());
                self.session.submitted(Amount::of(item.bytes));
                batch.push(Submission { ticket, message: Arc::clone(&item.message) });
            }
        }
        batch
    }

    /// Lets busy topics continue if their destinations may have room again.
    fn look_at_busy(&mut self) {
        let Self { window, blocks, .. } = self;
        let over = blocks.look_at_busy(self.silence.now(), window.open_of());
        self.events.extend(over.into_iter().map(|topic| Event::NotBusy { topic }));
        let over = blocks.named_over(self.silence.now());
        self.events.extend(over.into_iter().map(|reason| Event::NamedNotBusy { reason }));
    }

    /// Checks all queued entries again if something was blocked meanwhile, and holds those whose
    /// key or topic is now blocked. Call it before anything else is queued, because a held entry
    /// that is read back is queued at the end. It works in the order of ids, because a held entry
    /// enters the window after entries of the log that wait for it. Where a failure ends the
    /// session, probes of blocked topics come last: entries behind them would have to wait for the
    /// next session. Entries that were refused before wait until nothing else does (`refused.rs`).
    pub(super) fn look_again(&mut self) {
        let before = self.window.open_len();
        self.check_again();
        self.moved_out_since(before);
    }

    /// Does the same as [`look_again`](Self::look_again), but tells busy topics nothing.
    pub(super) fn check_again(&mut self) {
        self.requeue |= self.blocks.held.take_requeue();
        if !std::mem::take(&mut self.requeue) {
            return;
        }
        self.key_queues = KeyQueues::new(self.key_queues.window());
        self.refused.clear();
        let mut open: Vec<(EntryId, Ticket)> = self.window.open_tickets();
        open.sort_unstable();
        // Entries in flight occupy their keys before any other entry does, whatever their ids.
        for (_, ticket) in &open {
            if let Some(item) = self.window.get_mut(*ticket).filter(|item| item.in_flight.is_some()) {
                self.key_queues.occupy(item.message.key.as_ref());
            }
        }
        let is_pipelined = self.key_queues.window() == MaxInFlightPerKey::Pipelined;
        let puts_off = self.puts_refused_off();
        let mut probes = Vec::new();
        for (id, ticket) in open {
            let Some(item) = self.window.get_mut(ticket).filter(|item| item.in_flight.is_none()) else {
                continue;
            };
            let key = item.message.key.clone();
            let topic = item.message.topic.clone();
            let was_refused = item.was_refused();
            if let Origin::Due(_) = item.origin {
                match () {
                    // If it were read again later, others of its key could be ahead.
                    () if self.blocks.stops_due(topic.as_str(), item.key(), id) => {
                        self.park_from_window(ticket, ExceptionState::Held, None, None, None);
                    }
                    () if is_pipelined && self.blocks.is_probe(topic.as_str(), id) => {
                        probes.push((ticket, key));
                    }
                    () if puts_off && was_refused => {
                        self.refused.put(ticket, self.silence.now());
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

    /// Tells busy topics if entries that were not in flight have left the window, which had
    /// `before` open ones.
    pub(super) fn moved_out_since(&mut self, before: usize) {
        let Self { window, blocks, .. } = self;
        if window.open_len() < before {
            blocks.moved_out(window.open_of());
        }
    }
}

#[cfg(test)]
mod tests {
    use message::{PublishError, Receipt};

    use super::super::bench::{Bench, exception, message_for};
    use super::*;

    /// Goal: in a transaction, a probe that fails costs no other message a second transaction.
    /// Oracle: the topics of each batch. Two probes are due, and others wait in front of them,
    /// between them and behind them.
    #[test]
    fn probes_of_blocked_topics_leave_in_a_batch_of_their_own() {
        let mut bench = Bench::new(MaxInFlightPerKey::Pipelined);
        let missing = [message_for("t", "a"), message_for("u", "b")];
        missing.iter().for_each(|message| bench.read(message));
        for Submission { ticket, .. } in bench.machine.submissions(9) {
            let refused = PublishError::topic_unavailable("no such topic");
            bench.machine.receipt(Receipt { ticket, outcome: Err(refused) }, 0.5);
        }
        assert_eq!(bench.machine.load().blocked_topics, 2);
        bench.cursor();
        bench.machine.session_started(MaxInFlightPerKey::Pipelined);
        bench.machine.submissions(9);
        bench.read(&message_for("v", "c"));
        for (number, message) in (1..).zip(&missing) {
            bench.machine.due(vec![exception(number, message, ExceptionState::Retrying)], 0.5);
            bench.read(&message_for("v", "c"));
        }
        let mut batches: Vec<Vec<String>> = Vec::new();
        loop {
            let batch = bench.machine.submissions(9);
            if batch.is_empty() {
                break;
            }
            batches.push(batch.iter().map(|sent| sent.message.topic.to_string()).collect());
        }
        assert_eq!(batches, [vec!["v"], vec!["t"], vec!["v"], vec!["u"], vec!["v"]]);
    }
}
