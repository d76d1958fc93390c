//! Changes of exceptions, and the checkpoints that store them together with the cursor.

use outbox_log::{Cursor, EntryId, ExceptionChange, ExceptionState, Parked};

use super::Machine;
use crate::event::Event;
use crate::settings::DeadPolicy;

/// A cursor and the changes to store with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// The new cursor.
    pub(crate) cursor: Cursor,
    /// Changes of exceptions, committed with it.
    pub(crate) changes: Vec<ExceptionChange>,
}

impl Machine {
    pub(super) fn park(&mut self, parked: Parked) {
        if parked.state != ExceptionState::Retrying && self.blocks.is_probe(&parked.topic, parked.id) {
            // This entry stops probing the topic; the next one that the topic refuses takes over.
            self.unblock_topic(&parked.topic);
        }
        let key = parked.key.as_deref();
        if parked.state == ExceptionState::Dead {
            self.failures.forget(parked.id);
            self.forget_late(parked.id);
            self.blocks.forget_suspect(&parked.topic, parked.id);
        }
        match parked.state {
            ExceptionState::Retrying => self.blocks.block(key, parked.id),
            ExceptionState::Held => self.blocks.hold(&parked.topic, key, parked.id),
            ExceptionState::Dead if self.settings.on_dead == DeadPolicy::Hold => {
                self.blocks.block(key, parked.id);
            }
            _ => self.blocks.resolve(key, parked.id),
        }
        self.change(parked.id, ExceptionChange::Park(parked.clone()));
        self.events.push(Event::Parked(Box::new(parked)));
    }

    pub(super) fn resolve(&mut self, topic: &str, key: Option<&str>, id: EntryId, message_id: &str) {
        if self.is_of_another(id, message_id) {
            return;
        }
        self.blocks.resolve(key, id);
        self.readmitted.remove(&id);
        self.forget_late(id);
        self.failures.forget(id);
        self.blocks.forget_suspect(topic, id);
        self.change(id, ExceptionChange::Resolve(id));
    }

    pub(super) fn change(&mut self, id: EntryId, change: ExceptionChange) {
        if let ExceptionChange::Park(parked) = &change
            && self.is_of_another(id, &parked.message_id)
        {
            return;
        }
        if let Some(queue) = self.unstored.collect(id, change) {
            self.blocks.held.stored(&queue, id);
        }
    }

    /// Returns the checkpoint to store now, or `None` when nothing has changed or two entries share
    /// an id. One checkpoint may be on its way at a time. It is bounded: at most
    /// `checkpoint_changes` first changes of entries that the cursor passes with it, and as many
    /// changes of others.
    pub(crate) fn checkpoint(&mut self) -> Option<Checkpoint> {
        if self.read.shared.is_some() {
            return None;
        }
        let (cursor, passed) = self.window.take_passed();
        if self.unstored.passed_len() == 0 && passed.is_empty() && cursor == self.stored {
            return None;
        }
        let behind = self.unstored.passed().map(|(id, _)| id);
        let others = behind.take(self.settings.checkpoint_changes).collect();
        Some(self.take_checkpoint(cursor, passed, others))
    }

    /// Takes the checkpoint at a cursor, with the changes of the entries that it passes now and of
    /// others behind it.
    pub(super) fn take_checkpoint(
        &mut self,
        cursor: Cursor,
        passed: Vec<EntryId>,
        others: Vec<EntryId>,
    ) -> Checkpoint {
        self.stored = cursor.clone();
        Checkpoint { cursor, changes: self.unstored.take(passed, others) }
    }

    /// Records that the checkpoint on its way is stored.
    pub(crate) fn checkpointed(&mut self) {
        for (queue, id) in self.unstored.stored() {
            self.blocks.held.stored(&queue, id);
        }
        self.forget_answers();
    }

    /// Returns the number of changes that could be stored now.
    #[must_use]
    pub(crate) fn changes_len(&self) -> usize {
        self.unstored.passed_len() + self.window.parked_len()
    }
}
