//! Takes in entries and exceptions that were read.

use std::sync::Arc;
use std::time::Duration;

use message::Fault;
use outbox_log::{
    Difference, DueKind, Entry, EntryId, Exception, ExceptionState, HeldAsk, HeldPage, HeldQueues, Page,
    Parked, QueueName,
};

use super::Machine;
use crate::blocks::{Blocks, Place};
use crate::event::Event;
use crate::held::{QueueHash, Read};
use crate::paused::Paused;
use crate::window::{Item, Origin};

impl Machine {
    /// Takes in a page of the log, unless one of its entries shares its id with another entry.
    pub(crate) fn page(&mut self, difference: &Arc<Difference>, page: Page) {
        if self.has_shared_id(&page) {
            return;
        }
        if let Some(entry) = page.entries.last() {
            self.read.last = entry.message_id().parse().ok().map(|message_id| (entry.id, message_id));
        }
        let mut left_out = 0;
        for entry in page.entries {
            if self.settings.filter.takes(&entry) {
                self.entry(difference, entry);
            } else {
                left_out += 1;
                self.read.left_before.remove(&entry.id);
                self.window.leave_out(difference, entry.id);
            }
        }
        if left_out > 0 {
            self.events.push(Event::LeftOut(left_out));
        }
        if page.exhausted {
            self.window.end(difference);
        }
    }

    fn entry(&mut self, difference: &Arc<Difference>, entry: Entry) {
        let id = entry.id;
        if self.read.left_before.remove(&id) {
            return self.window.skip(difference, id);
        }
        let place = self.blocks.place(entry.topic(), entry.key());
        let parked = if let Some(due_in) = entry.deliver_in {
            Some(parked_entry(&entry, ExceptionState::Scheduled, 0, Some(due_in), None))
        } else if place == Place::Hold {
            self.silent.held_on_a_guess += usize::from(self.silence.is_guess());
            self.held_from_log(entry.topic(), entry.key(), self.settings.entry_bytes(&entry));
            Some(parked_entry(&entry, ExceptionState::Held, 0, None, None))
        } else {
            self.unacceptable(&entry).map(|problem| {
                parked_entry(&entry, ExceptionState::Dead, 1, None, Some((Fault::Message, problem)))
            })
        };
        match (parked, entry.message) {
            (None, Ok(message)) => {
                let origin = Origin::Log(Arc::clone(difference));
                let bytes = self.settings.wire_bytes(&message);
                let (message, waits) = (Arc::new(message), place == Place::Wait);
                self.queue(Item { id, message, bytes, origin, attempts: 0, in_flight: None, waits });
            }
            (Some(parked), _) => {
                self.unstored.set_ahead(id);
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
        let (key, topic, waits) = (item.message.key.clone(), item.message.topic.clone(), item.waits);
        let goes_last = self.goes_last(&item);
        self.blocks.admitted(topic.as_str());
        let ticket = self.window.push(item);
        if waits {
            let queue = QueueHash::of(topic.as_str(), key.as_ref().map(message::OrderingKey::as_str));
            self.blocks.held.wait(queue, ticket);
        } else if goes_last {
            self.refused.put(ticket, self.silence.now());
        } else {
            self.key_queues.push(ticket, key.as_ref());
        }
    }

    /// Records that a query goes to the database.
    pub(crate) fn asks(&mut self) {
        self.unstored.ask();
    }

    /// Returns whether memory has a newer state of an entry than the answer to a query that was
    /// asked earlier.
    fn is_known(&self, id: EntryId) -> bool {
        self.readmitted.contains(&id) || self.unstored.is_newer(id)
    }

    /// Returns the probes of blocked topics that are not in the window.
    pub(crate) fn probes(&self) -> Vec<EntryId> {
        let probes = self.blocks.probes().map(|(_, id)| *id);
        probes.filter(|id| !self.readmitted.contains(id)).collect()
    }

    /// Takes in due exceptions: scheduled, retrying, discarded. `uniform` in `0.0..1.0` spreads the
    /// retries.
    pub(crate) fn due(&mut self, exceptions: Vec<Exception>, uniform: f64) {
        self.look_again();
        for exception in exceptions {
            let id = exception.entry.id;
            if self.is_known(id) {
                continue;
            }
            if self.is_awaited(&exception, uniform) {
                continue; // it is with the publisher already
            }
            match exception.state {
                ExceptionState::Discarded => {
                    let topic = exception.entry.topic();
                    self.resolve(topic, exception.entry.key(), id, &exception.entry.message_id());
                    self.blocks.take_out(topic, exception.entry.key(), id);
                    // The next entry that the topic refuses becomes its probe.
                    if self.blocks.is_probe(topic, id) {
                        self.unblock_topic(topic);
                    }
                }
                ExceptionState::Scheduled => self.scheduled(exception),
                ExceptionState::Retrying
                    if self.blocks.is_full(exception.entry.topic())
                        || self.blocks.stops_due(exception.entry.topic(), exception.entry.key(), id) =>
                {
                    let Exception { entry, attempts, .. } = &exception;
                    self.park(parked_entry(entry, ExceptionState::Held, *attempts, None, None));
                }
                ExceptionState::Retrying => self.readmit(exception, Origin::Due(DueKind::Retrying)),
                ExceptionState::Held | ExceptionState::Dead => {}
            }
        }
        self.unstored.answered();
    }

    fn scheduled(&mut self, exception: Exception) {
        let entry = &exception.entry;
        match self.blocks.place(entry.topic(), entry.key()) {
            Place::Free => self.readmit(exception, Origin::Due(DueKind::Scheduled)),
            // If it were read again later, others of its key could be ahead.
            Place::Wait | Place::Hold => {
                let parked = parked_entry(entry, ExceptionState::Held, exception.attempts, None, None);
                self.park(parked);
            }
        }
    }

    /// Takes in the pauses that operators have set.
    pub(crate) fn pauses(&mut self, paused: Paused) {
        self.requeue |= self.blocks.set_paused(paused);
        self.unstored.answered();
    }

    /// Returns where to continue reading queue names: after this queue, or from the start if the
    /// inner option is `None`. Returns `None` if no more names are needed.
    #[must_use]
    pub(crate) fn wanted_names(&self) -> Option<Option<QueueName>> {
        self.blocks.held.wanted_names()
    }

    /// Takes in names of queues.
    pub(crate) fn names(&mut self, names: HeldQueues) {
        self.blocks.walked(names);
        self.unstored.answered();
    }

    /// Holds the entries that wait in the window for held ones, if there is no room for those.
    pub(crate) fn give_way(&mut self) {
        if !self.has_room_for_exceptions() && self.blocks.held.wants_asks() && self.blocks.held.give_way() {
            self.look_again();
        }
    }

    /// Returns whether queues wait for a checkpoint.
    #[must_use]
    pub(crate) fn wants_store(&self) -> bool {
        self.blocks.held.wants_store()
    }

    /// Takes in held exceptions, page by page, in the order of their ids. Those that must keep
    /// waiting are left out.
    pub(crate) fn held(&mut self, asks: &[HeldAsk], pages: Vec<HeldPage>) {
        self.look_again();
        for (ask, page) in asks.iter().zip(pages) {
            let queue = QueueHash::of_name(&ask.queue);
            if self.blocks.held.answered(queue, ask.from) {
                self.blocks.read_back();
                let mut passed = None;
                let read = self.held_page(ask, queue, page, &mut passed);
                self.blocks.held.read(queue, read);
                if let Some((topic, first)) = passed {
                    self.blocks.passed_suspects(&topic, first);
                }
            }
        }
        self.unstored.answered();
        self.queue_freed();
    }

    /// Takes in a page of a queue. `passed` becomes the topic and the first of the entries that
    /// were passed over, if any.
    fn held_page(
        &mut self,
        ask: &HeldAsk,
        queue: QueueHash,
        page: HeldPage,
        passed: &mut Option<(String, EntryId)>,
    ) -> Read {
        let mut last = EntryId(ask.from.0.saturating_sub(1));
        let mut share = self.blocks.held.share(queue);
        let mut topic = None;
        for exception in page.exceptions {
            let (id, entry) = (exception.entry.id, &exception.entry);
            if let Some(unstored) = self.blocks.held.shown(queue, id) {
                return Read::Unstored(unstored);
            }
            if self.silent.awaited.contains(id) {
                // The publisher already has the entry, which is read again if it fails. An
                // unanswered entry with a key stops its queue.
                debug_assert!(
                    entry.key().is_none(),
                    "a queue is read although its entry {} has no answer yet",
                    id.0
                );
                last = id;
                continue;
            }
            // If the entry was held again since the query was sent, the row agrees with memory.
            let is_held = self.unstored.is_held_still(id) && !self.readmitted.contains(&id);
            let is_kept = |blocks: &mut Blocks| {
                blocks.keeps(entry.topic(), entry.key(), id)
                    && !blocks.take_witness(entry.topic(), entry.key(), id)
            };
            if self.is_known(id) && !is_held {
                // Memory has a newer state.
            } else if self.blocks.passes_suspect(entry.topic(), entry.key(), id) {
                passed.get_or_insert_with(|| (entry.topic().to_owned(), id));
            } else if is_kept(&mut self.blocks) {
                self.blocks.stopped_at(entry.topic(), &ask.queue, false);
                return Read::StoppedAt(id);
            } else if share == Some(0) && self.blocks.leaves_to_next_turn(entry.topic()) {
                self.blocks.stopped_at(entry.topic(), &ask.queue, true);
                return Read::StoppedAt(id);
            } else {
                share = share.map(|left| left.saturating_sub(1));
                topic = share.map(|_| entry.topic().to_owned());
                self.blocks.bursts.take(queue, self.settings.entry_bytes(entry));
                self.readmit(exception, Origin::Held);
            }
            last = id;
        }
        if page.exhausted {
            return Read::All;
        }
        if let Some(topic) = topic.filter(|topic| self.blocks.leaves_to_next_turn(topic)) {
            self.blocks.stopped_at(&topic, &ask.queue, true);
            return Read::StoppedAt(EntryId(last.0.saturating_add(1)));
        }
        Read::UpTo(last)
    }

    /// Queues the entries that waited until their queue had been read back.
    fn queue_freed(&mut self) {
        for ticket in self.blocks.held.take_freed() {
            let Some(item) = self.window.get_mut(ticket) else { continue };
            item.waits = false;
            let (key, topic) = (item.message.key.clone(), item.message.topic.clone());
            // An entry of this queue that was read meanwhile may have got stuck.
            if self.blocks.place_queued(topic.as_str(), item.key(), item.id, false) == Place::Hold {
                self.park_from_window(ticket, ExceptionState::Held, None, None, None);
            } else {
                self.key_queues.push(ticket, key.as_ref());
            }
        }
    }

    /// Takes an exception into the window, to be submitted again. One whose last attempt was
    /// refused after it had been parked as silent is parked with that refusal first.
    pub(super) fn readmit(&mut self, exception: Exception, origin: Origin) {
        let Exception { entry, attempts, state } = exception;
        let id = entry.id;
        if self.counts_late(&entry, attempts) {
            return;
        }
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
                self.readmitted.insert(id);
                let bytes = self.settings.wire_bytes(&message);
                let message = Arc::new(message);
                self.queue(Item { id, message, bytes, origin, attempts, in_flight: None, waits: false });
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
