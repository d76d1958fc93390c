//! Unanswered submissions: their entries are parked, and their receipts may still come. Pure.
//!
//! A publisher owes exactly one receipt for each submission. As long as its session lives, a silent
//! message is not submitted again: it is parked, and the submission itself shows when its
//! destination answers. So a silence of any length costs no copies within a session.

use std::collections::HashMap;
use std::sync::Arc;

use message::{Headers, Message, Ticket};
use outbox_log::EntryId;

use crate::amount::Amount;
use crate::silence::Submitted;
use crate::window::Item;

/// A submission without an answer, whose entry is parked.
#[derive(Debug, Clone)]
pub(crate) struct Unanswered {
    /// The entry.
    pub(crate) id: EntryId,
    /// The message that was submitted, without its payload and headers.
    pub(crate) message: Arc<Message>,
    /// Failed attempts before it that counted.
    pub(crate) attempts: u32,
    /// The whole message, as the publisher keeps it.
    amount: Amount,
    /// When it was submitted.
    pub(crate) submitted: Submitted,
}

impl Unanswered {
    /// Stores what is needed when the receipt arrives. The payload and the headers are released:
    /// only the publisher needs them, and the entry is read again before it is submitted again.
    #[must_use]
    pub(crate) fn new(item: &Item, submitted: Submitted) -> Self {
        let message = &item.message;
        let amount = Amount::of(item.bytes);
        let light =
            Message { payload: Vec::<u8>::new().into(), headers: Headers::new(), ..Message::clone(message) };
        Self { id: item.id, message: Arc::new(light), attempts: item.attempts, amount, submitted }
    }
}

/// All unanswered submissions of one session.
#[derive(Debug, Default)]
pub(crate) struct Awaited {
    tickets: HashMap<Ticket, Unanswered>,
    ids: HashMap<EntryId, Submitted>,
    /// The number of submissions of each topic.
    topics: HashMap<String, usize>,
    amount: Amount,
}

impl Awaited {
    /// Adds a submission whose receipt may still come.
    pub(crate) fn insert(&mut self, ticket: Ticket, unanswered: Unanswered) {
        self.amount = self.amount.plus(unanswered.amount);
        self.ids.insert(unanswered.id, unanswered.submitted);
        *self.topics.entry(unanswered.message.topic.as_str().to_owned()).or_default() += 1;
        self.tickets.insert(ticket, unanswered);
    }

    /// Removes a submission whose receipt has come.
    pub(crate) fn take(&mut self, ticket: Ticket) -> Option<Unanswered> {
        let unanswered = self.tickets.remove(&ticket)?;
        self.amount = self.amount.minus(unanswered.amount);
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

    /// Returns the unanswered messages, as publishers keep them in memory.
    #[must_use]
    pub(crate) fn amount(&self) -> Amount {
        self.amount
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::silence::Silence;
    use crate::window::Origin;
    use message::{EventType, Topic};
    use std::time::Duration;

    #[test]
    fn what_is_waited_for_is_counted_until_its_receipt_comes() {
        let message = Message::new(Topic::new("t").unwrap(), EventType::new("e").unwrap(), "payload");
        let bytes = 2 * message.wire_bytes();
        let both = Amount { entries: 2, bytes: 2 * bytes };
        let submitted = Silence::new(Duration::from_secs(1)).submitted();
        let mut awaited = Awaited::default();
        for id in [1, 2] {
            let message = Arc::new(message.clone());
            let item = Item {
                id: EntryId(id),
                message,
                bytes,
                origin: Origin::Held,
                attempts: 0,
                in_flight: None,
                waits: false,
            };
            awaited.insert(Ticket(id as u64), Unanswered::new(&item, submitted));
        }
        assert_eq!(awaited.amount(), both);
        let taken = awaited.take(Ticket(1)).unwrap();
        assert!(taken.message.payload.is_empty() && awaited.take(Ticket(1)).is_none());
        assert_eq!(awaited.amount(), Amount::of(bytes));
        assert!(!awaited.contains(EntryId(1)) && awaited.contains(EntryId(2)) && awaited.has_topic("t"));
        assert_eq!(awaited.clear().count(), 1);
        assert!(awaited.is_empty() && !awaited.has_topic("t"));
        assert_eq!(awaited.amount(), Amount::default());
    }
}
