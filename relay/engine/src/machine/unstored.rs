//! Changes of exceptions that the database does not have yet.
//!
//! A change is collected, goes to the database with a checkpoint, and is forgotten when the
//! checkpoint is stored. Invariants: an entry has at most one collected change, the latest; a
//! checkpoint contains no change of an entry that the cursor has not passed; an answer does not
//! count for an entry whose change was stored after the query was sent.

use std::collections::{BTreeMap, HashMap, HashSet};

use outbox_log::{EntryId, ExceptionChange, ExceptionState, Parked, QueueName};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Unstored {
    /// Changes since the last checkpoint, the latest one of each entry.
    collected: BTreeMap<EntryId, ExceptionChange>,
    /// Parked entries of the log that the cursor has not passed: their changes cannot be stored
    /// yet.
    ahead: HashSet<EntryId>,
    /// Changes that are on their way to the database: it may still show the previous state.
    storing: BTreeMap<EntryId, ExceptionChange>,
    /// Entries in `storing` whose change is their first one: they were not exceptions before.
    first: HashSet<EntryId>,
    /// While a query is in flight: entries whose change was stored since it was sent, so that the
    /// answer may show the previous state. The value is whether that change holds the entry: then a
    /// held row in the answer is up to date.
    stored_since_question: Option<HashMap<EntryId, bool>>,
}

impl Unstored {
    /// Returns the number of changes that are not stored.
    pub(super) fn len(&self) -> usize {
        self.collected.len() + self.storing.len()
    }

    /// Returns the number of collected changes of entries that the cursor has passed.
    pub(super) fn passed_len(&self) -> usize {
        self.collected.len().saturating_sub(self.ahead.len())
    }

    /// Returns whether a parked entry has not been passed by the cursor.
    pub(super) fn has_ahead(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// Records that an entry ahead of the cursor is about to be parked.
    pub(super) fn set_ahead(&mut self, id: EntryId) {
        self.ahead.insert(id);
    }

    /// Collects a change. If it replaces a collected change that held the entry, and does not hold
    /// the entry itself, returns the queue of the replaced change.
    pub(super) fn collect(&mut self, id: EntryId, change: ExceptionChange) -> Option<QueueName> {
        let is_held = held_in(&change).is_some();
        let before = self.collected.insert(id, change)?;
        held_in(&before).filter(|_| !is_held)
    }

    /// Returns the collected change that parks an entry.
    pub(super) fn parked(&self, id: EntryId) -> Option<&Parked> {
        match self.collected.get(&id)? {
            ExceptionChange::Park(parked) => Some(parked),
            ExceptionChange::Resolve(_) => None,
        }
    }

    /// Returns the collected changes of entries that the cursor has passed, in the order of ids.
    pub(super) fn passed(&self) -> impl Iterator<Item = (EntryId, &ExceptionChange)> {
        self.collected.iter().map(|(id, change)| (*id, change)).filter(|(id, _)| !self.ahead.contains(id))
    }

    /// Takes the changes of entries that the cursor passes now, and of others that it has passed
    /// before, for the next checkpoint. Returns everything to store with it.
    pub(super) fn take(&mut self, passed: Vec<EntryId>, others: Vec<EntryId>) -> Vec<ExceptionChange> {
        for id in passed {
            if self.ahead.remove(&id)
                && let Some(change) = self.collected.remove(&id)
            {
                self.first.insert(id);
                self.storing.insert(id, change);
            }
        }
        self.storing.extend(others.into_iter().filter_map(|id| self.collected.remove_entry(&id)));
        self.storing.values().cloned().collect()
    }

    /// Forgets the changes on their way, which are stored now. Returns the entries that the
    /// database holds with them, by their queues.
    pub(super) fn stored(&mut self) -> Vec<(QueueName, EntryId)> {
        let first = std::mem::take(&mut self.first);
        let mut held = Vec::new();
        for (id, change) in std::mem::take(&mut self.storing) {
            let queue = held_in(&change);
            if let Some(stored) = &mut self.stored_since_question
                && !first.contains(&id)
            {
                stored.insert(id, queue.is_some());
            }
            // If the entry was held again meanwhile, that change is not stored yet.
            if let Some(queue) = queue
                && self.collected.get(&id).and_then(held_in).is_none()
            {
                held.push((queue, id));
            }
        }
        held
    }

    /// Records that a query goes to the database.
    pub(super) fn ask(&mut self) {
        self.stored_since_question = Some(HashMap::new());
    }

    /// Records that the query was answered.
    pub(super) fn answered(&mut self) {
        self.stored_since_question = None;
    }

    /// Returns whether a change of an entry is not stored.
    fn has(&self, id: EntryId) -> bool {
        self.collected.contains_key(&id) || self.storing.contains_key(&id)
    }

    fn stored_since(&self, id: EntryId) -> Option<bool> {
        self.stored_since_question.as_ref()?.get(&id).copied()
    }

    /// Returns whether a newer state of an entry is known than the answer shows.
    pub(super) fn is_newer(&self, id: EntryId) -> bool {
        self.has(id) || self.stored_since(id).is_some()
    }

    /// Returns whether a held row in the answer is up to date, although the entry changed since the
    /// query was sent.
    pub(super) fn is_held_still(&self, id: EntryId) -> bool {
        self.stored_since(id) == Some(true) && !self.has(id)
    }

    /// Returns all changes, those on their way first.
    #[cfg(test)]
    pub(super) fn all(&self) -> impl Iterator<Item = (&EntryId, &ExceptionChange)> {
        self.storing.iter().chain(&self.collected)
    }

    /// Returns the latest change of an entry.
    #[cfg(test)]
    pub(super) fn latest(&self, id: EntryId) -> Option<&ExceptionChange> {
        self.collected.get(&id).or_else(|| self.storing.get(&id))
    }
}

/// Returns the queue in which a change holds its entry, if it holds it.
fn held_in(change: &ExceptionChange) -> Option<QueueName> {
    match change {
        ExceptionChange::Park(parked) if parked.state == ExceptionState::Held => {
            Some(QueueName::of(&parked.topic, parked.key.as_deref()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn park(id: i64, state: ExceptionState) -> ExceptionChange {
        ExceptionChange::Park(Parked {
            id: EntryId(id),
            message_id: id.to_string(),
            topic: String::from("orders"),
            key: Some(String::from("k")),
            state,
            attempts: 0,
            due_in: None,
            fault: None,
            error: None,
        })
    }

    #[test]
    fn what_is_ahead_of_the_cursor_is_not_taken() {
        let mut unstored = Unstored::default();
        unstored.set_ahead(EntryId(5));
        unstored.collect(EntryId(5), park(5, ExceptionState::Retrying));
        unstored.collect(EntryId(2), ExceptionChange::Resolve(EntryId(2)));
        assert_eq!((unstored.len(), unstored.passed_len(), unstored.has_ahead()), (2, 1, true));
        assert_eq!(unstored.passed().map(|(id, _)| id).collect::<Vec<_>>(), [EntryId(2)]);
        assert_eq!(unstored.take(Vec::new(), vec![EntryId(2)]), [ExceptionChange::Resolve(EntryId(2))]);
        let taken = unstored.take(vec![EntryId(5)], Vec::new());
        assert_eq!(taken.len(), 2, "what is on its way stays with the checkpoint");
        assert_eq!((unstored.len(), unstored.has_ahead()), (2, false));
        unstored.stored();
        assert_eq!(unstored.len(), 0);
    }

    #[test]
    fn an_answer_does_not_count_for_what_was_stored_after_the_question() {
        let mut unstored = Unstored::default();
        for (id, state) in [(1, ExceptionState::Held), (2, ExceptionState::Retrying)] {
            unstored.collect(EntryId(id), park(id, state));
            unstored.take(Vec::new(), vec![EntryId(id)]);
        }
        unstored.ask();
        assert!(unstored.is_newer(EntryId(1)) && !unstored.is_held_still(EntryId(1)), "on its way");
        assert_eq!(unstored.stored(), [(QueueName::of("orders", Some("k")), EntryId(1))]);
        assert!(unstored.is_newer(EntryId(1)) && unstored.is_held_still(EntryId(1)));
        assert!(unstored.is_newer(EntryId(2)) && !unstored.is_held_still(EntryId(2)));
        unstored.collect(EntryId(1), ExceptionChange::Resolve(EntryId(1)));
        assert!(!unstored.is_held_still(EntryId(1)), "it has left since");
        unstored.answered();
        assert!(!unstored.is_newer(EntryId(2)));
    }

    #[test]
    fn a_queue_is_told_what_it_no_longer_holds() {
        let mut unstored = Unstored::default();
        assert_eq!(unstored.collect(EntryId(1), park(1, ExceptionState::Held)), None);
        assert_eq!(unstored.collect(EntryId(1), park(1, ExceptionState::Held)), None, "it still does");
        let left = unstored.collect(EntryId(1), ExceptionChange::Resolve(EntryId(1)));
        assert_eq!(left, Some(QueueName::of("orders", Some("k"))));
        assert_eq!(unstored.parked(EntryId(1)), None);
        // Held again before the first change is stored.
        unstored.collect(EntryId(2), park(2, ExceptionState::Held));
        unstored.take(Vec::new(), vec![EntryId(2)]);
        unstored.collect(EntryId(2), park(2, ExceptionState::Held));
        assert_eq!(unstored.stored(), []);
    }
}
