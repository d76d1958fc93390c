//! What leaves for the publisher.

use std::sync::Arc;

use message::{KeyWindow, Submission};
use outbox::log::ExceptionState;

use super::Machine;
use crate::engine::lanes::Lanes;
use crate::engine::window::Origin;

/// Sessions that may break without any confirmation before messages go one by one.
const FRUITLESS_BEFORE_CARE: u32 = 3;

impl Machine {
    /// A publisher is connected: everything unsettled is queued again, in order.
    pub fn session_started(&mut self, window: KeyWindow) {
        self.lanes = Lanes::new(window);
        if std::mem::take(&mut self.session_broken) {
            self.fruitless = self.fruitless.saturating_add(1);
        }
        self.in_flight = 0;
        self.awaited.clear();
        self.silence.session_started();
        for ticket in self.window.open_tickets() {
            if let Some(item) = self.window.get_mut(ticket) {
                item.in_flight = None;
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
                item.in_flight = Some(self.silence.submitted());
                self.in_flight += 1;
                batch.push(Submission { ticket, message: Arc::clone(&item.message) });
            }
        }
        batch
    }

    /// Looks at all queued entries again, if something was blocked since: those whose key or topic is blocked by
    /// now are held. Before anything else is queued, because a held entry that is read back queues at the end.
    pub(super) fn look_again(&mut self) {
        if !std::mem::take(&mut self.requeue) {
            return;
        }
        self.lanes = Lanes::new(self.lanes.window());
        for ticket in self.window.open_tickets() {
            let Some(item) = self.window.get_mut(ticket) else { continue };
            let key = item.message.key.clone();
            if item.in_flight.is_some() {
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
}
