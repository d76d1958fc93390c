//! The checkpoint that is committed together with the messages of a transaction.

use std::collections::BTreeSet;

use message::MessageId;
use outbox_log::{EntryId, ExceptionChange};

use super::{Checkpoint, Machine};

/// A checkpoint, and the entries that were published although its cursor has not passed them.
/// Together they name exactly the published entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TransactionCheckpoint {
    /// The database stores it afterwards.
    pub(crate) checkpoint: Checkpoint,
    /// A successor skips these when it reads them again.
    pub(crate) settled: BTreeSet<EntryId>,
    /// The entry that was read last, unless earlier checkpoints have passed everything that was
    /// read. A database without this entry has another history.
    pub(crate) last_read: Option<(EntryId, MessageId)>,
}

impl Machine {
    /// Returns the checkpoint to commit with the messages that were confirmed since the last one.
    /// Call it while nothing is in flight. Unlike [`Machine::checkpoint`], it has every removal of
    /// an exception: each of those entries may have been published in this transaction. Like that
    /// function, it allows one checkpoint on its way at a time.
    ///
    /// Returns `None` when two entries share an id; without `has_messages`, also when nothing has
    /// changed.
    pub(crate) fn transaction_checkpoint(&mut self, has_messages: bool) -> Option<TransactionCheckpoint> {
        if self.read.shared.is_some() {
            return None;
        }
        let (cursor, passed, mut settled) = self.window.take_settled();
        let is_same = self.unstored.passed_len() == 0 && passed.is_empty() && cursor == self.stored;
        if is_same && !has_messages {
            return None;
        }
        let (left, parked): (Vec<_>, Vec<_>) =
            self.unstored.passed().partition(|(_, change)| matches!(change, ExceptionChange::Resolve(_)));
        let parked = parked.into_iter().take(self.settings.checkpoint_changes);
        let others = left.into_iter().chain(parked).map(|(id, _)| id).collect();
        settled.extend(&self.read.left_before);
        let checkpoint = self.take_checkpoint(cursor, passed, others);
        let last_read = self.read.last;
        if self.window.is_empty() {
            // The entry is passed, and retention may remove it once this checkpoint is stored.
            self.read.last = None;
        }
        Some(TransactionCheckpoint { checkpoint, settled, last_read })
    }
}
