//! A consumer group: its position, unsettled messages, and messages to redeliver.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use message::{DeliveryToken, Disposition, Malformed, Message, OrderingKey, Topic};

/// The position of one message: its topic and its index in the topic's log.
pub(super) type Place = (Topic, usize);

/// One group.
#[derive(Debug, Default)]
pub(super) struct Group {
    cursors: BTreeMap<Topic, Cursor>,
    flights: BTreeMap<DeliveryToken, Flight>,
    last_token: u64,
}

#[derive(Debug, Default)]
struct Cursor {
    /// Index of the first message that was never delivered.
    next: usize,
    /// Messages that were delivered and then released.
    returned: BTreeSet<usize>,
    /// Messages that were skipped because another member held their key.
    skipped: BTreeSet<usize>,
}

#[derive(Debug)]
struct Flight {
    place: Place,
    member: u64,
    key: Option<OrderingKey>,
}

/// A message picked for a member.
#[derive(Debug)]
pub(super) struct Picked {
    pub(super) token: DeliveryToken,
    pub(super) place: Place,
    pub(super) redelivered: bool,
}

impl Group {
    pub(super) fn join(&mut self, topics: &[Topic]) {
        for topic in topics {
            self.cursors.entry(topic.clone()).or_default();
        }
    }

    /// Schedules everything that was delivered and is not in flight for redelivery.
    pub(super) fn replay(&mut self, topic: &Topic) {
        let in_flight: HashSet<usize> = self
            .flights
            .values()
            .filter(|flight| flight.place.0 == *topic)
            .map(|flight| flight.place.1)
            .collect();
        if let Some(cursor) = self.cursors.get_mut(topic) {
            cursor.returned.extend((0..cursor.next).filter(|at| !in_flight.contains(at)));
            cursor.skipped.clear();
        }
    }

    /// Returns whether nothing is in flight or waiting; `len_of` returns the length of a topic's
    /// log.
    pub(super) fn is_drained(&self, len_of: impl Fn(&Topic) -> usize) -> bool {
        let is_read = |(topic, cursor): (&Topic, &Cursor)| {
            cursor.next >= len_of(topic) && cursor.returned.is_empty() && cursor.skipped.is_empty()
        };
        self.flights.is_empty() && self.cursors.iter().all(is_read)
    }

    /// Picks the oldest message of `topic` that `member` may have now.
    pub(super) fn pick(
        &mut self,
        member: u64,
        topic: &Topic,
        log: &[Result<Message, Malformed>],
    ) -> Option<Picked> {
        let busy = self.keys_of_others(member);
        let cursor = self.cursors.get_mut(topic)?;
        let key_of = |at: usize| {
            log.get(at).and_then(|entry| entry.as_ref().ok()).and_then(|message| message.key.clone())
        };
        let free = |at: &usize| key_of(*at).is_none_or(|key| !busy.contains(&key));
        let returned = cursor.returned.iter().copied().find(free);
        let skipped = cursor.skipped.iter().copied().find(free);
        let (at, redelivered) = match (returned, skipped) {
            (Some(old), Some(new)) => (old.min(new), old < new),
            (Some(old), None) => (old, true),
            (None, Some(new)) => (new, false),
            (None, None) => (cursor.advance(log.len(), free)?, false),
        };
        cursor.returned.remove(&at);
        cursor.skipped.remove(&at);
        let place = (topic.clone(), at);
        Some(Picked { token: self.take_off(member, place.clone(), key_of(at)), place, redelivered })
    }

    /// Delivers the same message once more, under another token.
    pub(super) fn duplicate(&mut self, picked: &Picked) -> Option<Picked> {
        let flight = self.flights.get(&picked.token)?;
        let (member, key) = (flight.member, flight.key.clone());
        let token = self.take_off(member, picked.place.clone(), key);
        Some(Picked { token, place: picked.place.clone(), redelivered: true })
    }

    /// Settles one delivery; ignores an unknown token.
    pub(super) fn settle(&mut self, token: DeliveryToken, disposition: &Disposition) {
        if let Some(flight) = self.flights.remove(&token)
            && *disposition != Disposition::Done
        {
            self.come_again(flight.place);
        }
    }

    /// Returns everything that a member holds to the group.
    pub(super) fn give_back(&mut self, member: u64) {
        let tokens: Vec<DeliveryToken> = self
            .flights
            .iter()
            .filter(|(_, flight)| flight.member == member)
            .map(|(token, _)| *token)
            .collect();
        for token in tokens {
            self.settle(token, &Disposition::Release);
        }
    }

    fn take_off(&mut self, member: u64, place: Place, key: Option<OrderingKey>) -> DeliveryToken {
        self.last_token += 1;
        let token = DeliveryToken(self.last_token);
        self.flights.insert(token, Flight { place, member, key });
        token
    }

    fn come_again(&mut self, (topic, at): Place) {
        if let Some(cursor) = self.cursors.get_mut(&topic) {
            cursor.returned.insert(at);
        }
    }

    fn keys_of_others(&self, member: u64) -> HashSet<OrderingKey> {
        let others = self.flights.values().filter(|flight| flight.member != member);
        others.filter_map(|flight| flight.key.clone()).collect()
    }
}

impl Cursor {
    /// Advances to the next free message and remembers those it skips.
    fn advance(&mut self, len: usize, free: impl Fn(&usize) -> bool) -> Option<usize> {
        while self.next < len {
            let at = self.next;
            self.next += 1;
            if free(&at) {
                return Some(at);
            }
            self.skipped.insert(at);
        }
        None
    }
}
