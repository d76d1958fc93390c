//! The causes that stop keys: entries that are stuck, and submissions whose answers may still come.
//! Pure.

use std::collections::{BTreeSet, HashMap};

use outbox_log::EntryId;

use crate::held::QueueHash;

/// All stopped keys.
#[derive(Debug, Default)]
pub(crate) struct Stuck {
    /// Entries that are retrying or dead: no message of their key may be published before them.
    ids: BTreeSet<(QueueHash, EntryId)>,
    keys_len: usize,
    /// For each key, submissions of this session for whose answers we stopped waiting. A new
    /// submission of the key could overtake them.
    awaited: HashMap<QueueHash, usize>,
}

impl Stuck {
    /// Returns whether no key is stopped.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.ids.is_empty() && self.awaited.is_empty()
    }

    /// Returns how many keys have stuck entries.
    #[must_use]
    pub(crate) const fn keys_len(&self) -> usize {
        self.keys_len
    }

    /// Returns whether anything stops new entries of the key.
    #[must_use]
    pub(crate) fn stops(&self, queue: QueueHash) -> bool {
        self.awaited.contains_key(&queue) || self.first(queue).is_some()
    }

    /// Returns whether anything stops this entry: a stuck one before it, or a submission that may
    /// still be answered.
    #[must_use]
    pub(crate) fn stops_entry(&self, queue: QueueHash, id: EntryId) -> bool {
        self.awaited.contains_key(&queue) || self.first(queue).is_some_and(|stuck| stuck < id)
    }

    /// Returns whether held entries from this id on can be published. The stuck entry itself is not
    /// among them.
    #[must_use]
    pub(crate) fn lets_read(&self, queue: QueueHash, from: EntryId) -> bool {
        !self.awaited.contains_key(&queue) && self.first(queue).is_none_or(|stuck| from < stuck)
    }

    fn first(&self, queue: QueueHash) -> Option<EntryId> {
        let all = (queue, EntryId(i64::MIN))..=(queue, EntryId(i64::MAX));
        self.ids.range(all).next().map(|(_, id)| *id)
    }

    /// Records that an entry is stuck.
    pub(crate) fn insert(&mut self, queue: QueueHash, id: EntryId) {
        self.keys_len += usize::from(self.first(queue).is_none());
        self.ids.insert((queue, id));
    }

    /// Records that an entry is no longer stuck. Returns whether it was.
    pub(crate) fn remove(&mut self, queue: QueueHash, id: EntryId) -> bool {
        let was_stuck = self.ids.remove(&(queue, id));
        self.keys_len -= usize::from(was_stuck && self.first(queue).is_none());
        was_stuck
    }

    /// Records that we stopped waiting for an answer to a submission of this key.
    pub(crate) fn give_up(&mut self, queue: QueueHash) {
        *self.awaited.entry(queue).or_default() += 1;
    }

    /// Records that a submission for which we stopped waiting was answered. Returns whether it was
    /// the last such submission of its key.
    pub(crate) fn answered(&mut self, queue: QueueHash) -> bool {
        let Some(count) = self.awaited.get_mut(&queue) else { return false };
        *count -= 1;
        let is_last = *count == 0;
        if is_last {
            self.awaited.remove(&queue);
        }
        is_last
    }

    /// Records that the session has ended, so its answers will not come.
    pub(crate) fn session_ended(&mut self) {
        self.awaited.clear();
    }
}
