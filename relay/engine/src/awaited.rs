//! Unanswered submissions: their entries are parked, and their receipts may still come. Pure.
//!
//! A publisher owes exactly one receipt for each submission. As long as its session lives, a silent
//! message is not submitted again: it is parked, and the submission itself shows when its
//! destination answers. So a silence of any length costs no copies within a session.

use std::collections::HashMap;
use std::sync::Arc;

use message::{Message, Ticket};
use outbox_log::EntryId;

use crate::silence::Submitted;

/// A submission without an answer, whose entry is parked.
#[derive(Debug, Clone)]
pub(crate) struct Unanswered {
    /// The entry.
    pub(crate) id: EntryId,
    /// The message that was submitted.
    pub(crate) message: Arc<Message>,
    /// When it was submitted.
    pub(crate) submitted: Submitted,
}

/// All unanswered submissions of one session.
#[derive(Debug, Default)]
pub(crate) struct Awaited {
    tickets: HashMap<Ticket, Unanswered>,
    ids: HashMap<EntryId, Submitted>,
    /// The number of submissions of each topic.
    topics: HashMap<String, usize>,
    bytes: usize,
}

impl Awaited {
    /// Adds a submission whose receipt may still come.
    pub(crate) fn insert(&mut self, ticket: Ticket, unanswered: Unanswered) {
        self.bytes += unanswered.message.wire_bytes();
        self.ids.insert(unanswered.id, unanswered.submitted);
        *self.topics.entry(unanswered.message.topic.as_str().to_owned()).or_default() += 1;
        self.tickets.insert(ticket, unanswered);
    }

    /// Removes a submission whose receipt has come.
    pub(crate) fn take(&mut self, ticket: Ticket) -> Option<Unanswered> {
        let unanswered = self.tickets.remove(&ticket)?;
        self.bytes -= unanswered.message.wire_bytes();
        self.ids.remove(&unanswered.id);
        let topic = unanswered.message.topic.as_str();
        if let Some(count) = self.topics.get_mut(topic) {
            *count -= 1;
            if *count == 0 {
                self.topics.remove(topic);
            }
        }
        Some(unanswered)
    }

    /// Removes and returns all submissions, because their receipts will not come.
    pub(crate) fn clear(&mut self) -> impl Iterator<Item = Unanswered> + use<> {
        std::mem::take(self).tickets.into_values()
    }

    /// Returns whether the entry must not be submitted, because an earlier submission of it may
    /// still be answered.
    #[must_use]
    pub(crate) fn contains(&self, id: EntryId) -> bool {
        self.ids.contains_key(&id)
    }

    /// Returns when an unanswered entry was submitted.
    #[must_use]
    pub(crate) fn submitted(&self, id: EntryId) -> Option<Submitted> {
        self.ids.get(&id).copied()
    }

    /// Returns whether any message of the topic is unanswered.
    #[must_use]
    pub(crate) fn has_topic(&self, topic: &str) -> bool {
        self.topics.contains_key(topic)
    }

    /// Returns the number of unanswered submissions.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.tickets.len()
    }

    /// Returns whether no submission is unanswered.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.tickets.is_empty()
    }

    /// Returns whether at least this many entries or bytes are unanswered: publishers keep them in
    /// memory.
    #[must_use]
    pub(crate) fn reaches(&self, entries: usize, bytes: usize) -> bool {
        self.tickets.len() >= entries || self.bytes >= bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::silence::Silence;
    use message::{EventType, Topic};
    use std::time::Duration;

    #[test]
    fn what_is_waited_for_is_counted_until_its_receipt_comes() {
        let message = Message::new(Topic::new("t").unwrap(), EventType::new("e").unwrap(), "payload");
        let submitted = Silence::new(Duration::from_secs(1)).submitted();
        let mut awaited = Awaited::default();
        for id in [1, 2] {
            let unanswered = Unanswered { id: EntryId(id), message: Arc::new(message.clone()), submitted };
            awaited.insert(Ticket(id as u64), unanswered);
        }
        assert!(awaited.reaches(2, usize::MAX) && awaited.reaches(9, message.wire_bytes() * 2));
        assert!(awaited.take(Ticket(1)).is_some() && awaited.take(Ticket(1)).is_none());
        assert!(!awaited.contains(EntryId(1)) && awaited.contains(EntryId(2)) && awaited.has_topic("t"));
        assert_eq!(awaited.clear().count(), 1);
        assert!(awaited.is_empty() && !awaited.has_topic("t") && !awaited.reaches(9, 1));
    }
}
