//! What was read.

use std::sync::Arc;
use std::time::Duration;

use message::Fault;
use outbox::log::{Difference, Entry, EntryId, Exception, ExceptionState, Page, Parked};

use super::Machine;
use crate::engine::window::{Item, Origin};

impl Machine {
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
            self.held_on_a_guess += usize::from(self.silence.is_guess());
            Some(parked_entry(&entry, ExceptionState::Held, 0, None, None))
        } else {
            self.unacceptable(&entry).map(|problem| {
                parked_entry(&entry, ExceptionState::Dead, 1, None, Some((Fault::Message, problem)))
            })
        };
        match (parked, entry.message) {
            (None, Ok(message)) => {
                let origin = Origin::Log(Arc::clone(difference));
                self.queue(Item { id, message: Arc::new(message), origin, attempts: 0, in_flight: None });
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
            Ok(message) => self.settings.check_size(message).err().map(|error| error.to_string()),
        }
    }

    pub(super) fn queue(&mut self, item: Item) {
        let key = item.message.key.clone();
        let ticket = self.window.push(item);
        self.lanes.push(ticket, key.as_ref());
    }

    /// Takes exceptions in that are due: scheduled, retrying, discarded. `uniform` in `0.0..1.0` spreads the retries.
    pub fn due(&mut self, exceptions: Vec<Exception>, uniform: f64) {
        self.look_again();
        for exception in exceptions {
            let id = exception.entry.id;
            let newer = self.changes.contains_key(&id) || self.storing.contains_key(&id);
            if newer || self.aside.contains(&id) {
                continue; // memory is ahead of what was read
            }
            if self.is_awaited(&exception, uniform) {
                continue; // it is with the publisher already
            }
            match exception.state {
                ExceptionState::Discarded => {
                    // It may have been the one that probed its topic.
                    self.unblock_topic(exception.entry.topic());
                    self.resolve(exception.entry.key(), id);
                }
                ExceptionState::Scheduled => self.scheduled(exception),
                ExceptionState::Retrying if self.blocks.has_before(exception.entry.key(), id) => {
                    self.waits(exception.entry.topic(), id);
                }
                ExceptionState::Retrying => self.aside(exception, Origin::Due),
                ExceptionState::Held | ExceptionState::Dead => {}
            }
        }
    }

    /// A due entry waits for an earlier one of its key: it stays due, and is read again. It cannot probe its topic
    /// meanwhile, and the one it waits for can be held by that very topic (its transaction committed late). So the
    /// topic is released, and the next entry that it refuses probes it.
    fn waits(&mut self, topic: &str, id: EntryId) {
        if self.blocks.is_probe(topic, id) {
            self.unblock_topic(topic);
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
            if self.awaited.contains(entry.id) {
                continue; // it is with the publisher already
            }
            if self.blocks.take_held(entry.topic(), entry.key(), entry.id) {
                self.aside(exception, Origin::Held);
            }
        }
    }

    pub(super) fn aside(&mut self, exception: Exception, origin: Origin) {
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
                self.queue(Item { id, message: Arc::new(message), origin, attempts, in_flight: None });
            }
        }
    }
}

pub(super) fn parked_entry(
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
