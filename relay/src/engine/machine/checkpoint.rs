//! What stands beside the log, and what is stored together with the cursor.

use outbox::log::{EntryId, ExceptionChange, ExceptionState, Parked};

use super::{Checkpoint, Event, Machine};
use crate::engine::settings::DeadPolicy;

impl Machine {
    pub(super) fn park(&mut self, parked: Parked) {
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
        self.events.push(Event::Parked(Box::new(parked)));
    }

    pub(super) fn resolve(&mut self, key: Option<&str>, id: EntryId) {
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

    pub(super) fn note_passed(&mut self) {
        for id in self.window.take_passed() {
            self.ahead.remove(&id);
        }
    }

    /// Whether held entries may be able to leave since the last call: store a checkpoint, then read them.
    pub fn take_released(&mut self) -> bool {
        let answered = self.awaited.take_released();
        self.blocks.take_released() || answered
    }

    /// Changes that the next checkpoint stores.
    pub fn changes_len(&mut self) -> usize {
        self.note_passed();
        self.changes.len().saturating_sub(self.ahead.len())
    }
}
