//! A transaction, which is invisible before its commit, and leaves nothing behind if it is dropped.

use std::sync::Arc;

use checker::Content;
use message::{Committed, Fingerprint, Message, MessageId};

use super::tables::Remembered;
use crate::process::ProcessId;
use crate::world::{State, World};

/// An open transaction of a consumer.
#[derive(Debug)]
pub(crate) struct SimulatedTransaction {
    pub(super) world: Arc<World>,
    pub(super) process: ProcessId,
    pub(super) number: u64,
    /// The messages in the order of their admission.
    pub(super) admitted: Vec<MessageId>,
    pub(super) rows: Vec<(MessageId, Fingerprint, Content)>,
    pub(super) effects: Vec<(MessageId, Content)>,
    pub(super) forgotten: Vec<MessageId>,
    /// Whether a statement failed: then only a rollback is possible.
    pub(super) is_broken: bool,
}

/// Returns the content of a copy of a message.
pub(crate) fn content(message: &Message) -> Content {
    Content::of(message.key.as_ref().map_or("", |key| key.as_str()), &message.payload)
}

impl SimulatedTransaction {
    pub(super) fn proofs(&self) -> Vec<Committed> {
        self.admitted.iter().map(|id| Committed::attest(id.as_uuid())).collect()
    }

    /// Applies everything at once.
    pub(super) fn apply(&mut self, state: &mut State) {
        let processed_at = state.database_time();
        let names: Vec<_> = self.effects.iter().map(|(id, _)| state.name(*id)).collect();
        state.note(format_args!("{} commits effects of {names:?}", self.process));
        for (id, fingerprint, content) in self.rows.drain(..) {
            state.inbox.rows.insert(id, Remembered { fingerprint, processed_at, content });
        }
        state.inbox.effects.append(&mut self.effects);
        for id in self.forgotten.drain(..) {
            state.inbox.failures.remove(&id);
        }
    }
}

impl Drop for SimulatedTransaction {
    fn drop(&mut self) {
        let number = self.number;
        self.world.lock().inbox.locks.retain(|_, holder| *holder != number);
        self.world.inbox_unlocked.notify_waiters();
    }
}
