//! Records which member has which message, and which must be redelivered.

use std::collections::{BTreeMap, BTreeSet};

use message::{DeliveryToken, Message, OrderingKey};

use super::Broker;
use crate::fault::PARTITIONS;
use crate::world::State;

/// A message in flight to a member.
#[derive(Debug)]
struct Flight {
    member: u64,
    place: usize,
}

/// The one group of consumers.
#[derive(Debug)]
pub(crate) struct Group {
    /// Whether each key is assigned to at most one member at a time.
    is_key_exclusive: bool,
    pub(super) members: BTreeSet<u64>,
    last_member: u64,
    next: usize,
    /// Places to deliver: those that come again, and those that were skipped because their key was
    /// busy.
    pending: BTreeSet<usize>,
    flights: BTreeMap<DeliveryToken, Flight>,
    delivered: BTreeSet<usize>,
    last_token: u64,
}

/// A message that was chosen for a member.
pub(super) struct Picked {
    pub(super) token: DeliveryToken,
    pub(super) place: usize,
    pub(super) is_redelivered: bool,
}

impl Group {
    pub(crate) fn new(is_key_exclusive: bool) -> Self {
        Self {
            is_key_exclusive,
            members: BTreeSet::new(),
            last_member: 0,
            next: 0,
            pending: BTreeSet::new(),
            flights: BTreeMap::new(),
            delivered: BTreeSet::new(),
            last_token: 0,
        }
    }

    /// Returns whether a key is with one member at a time.
    pub(crate) fn is_key_exclusive(&self) -> bool {
        self.is_key_exclusive
    }

    pub(super) fn join(&mut self) -> u64 {
        self.last_member += 1;
        self.members.insert(self.last_member);
        self.last_member
    }

    /// Removes a member; its deliveries are delivered again.
    pub(crate) fn leave(&mut self, member: u64) {
        self.members.remove(&member);
        self.take_back(|flight| flight.member == member);
    }

    /// Takes some deliveries back from their members, so that any member may get them. Returns how
    /// many.
    fn take_back(&mut self, is_taken: impl Fn(&Flight) -> bool) -> usize {
        let back = self.flights.extract_if(.., |_, flight| is_taken(flight));
        let back: Vec<_> = back.map(|(_, flight)| flight.place).collect();
        self.pending.extend(back.iter().copied());
        back.len()
    }

    pub(crate) fn leave_all(&mut self) {
        let members: Vec<_> = self.members.iter().copied().collect();
        members.into_iter().for_each(|member| self.leave(member));
    }

    /// Returns the oldest message that a member may get now.
    pub(super) fn pick(&mut self, member: u64, log: &[Message]) -> Option<Picked> {
        let key_of = |place: usize| log.get(place).and_then(|message| message.key.as_ref());
        let others = self.flights.values().filter(|flight| flight.member != member);
        let busy: BTreeSet<&OrderingKey> = others.filter_map(|flight| key_of(flight.place)).collect();
        self.pending.extend(self.next..log.len());
        self.next = log.len();
        let is_free =
            |place: &usize| !self.is_key_exclusive || key_of(*place).is_none_or(|key| !busy.contains(key));
        let place = self.pending.iter().copied().find(is_free)?;
        self.pending.remove(&place);
        self.last_token += 1;
        let token = DeliveryToken(self.last_token);
        self.flights.insert(token, Flight { member, place });
        Some(Picked { token, place, is_redelivered: !self.delivered.insert(place) })
    }

    /// Settles a delivery; ignores one that was taken back.
    pub(super) fn settle(&mut self, token: DeliveryToken, is_done: bool) {
        if let Some(flight) = self.flights.remove(&token)
            && !is_done
        {
            self.pending.insert(flight.place);
        }
    }

    /// Redelivers everything from a position on.
    pub(crate) fn replay(&mut self, from: usize) {
        self.pending.extend(from..self.next);
    }

    pub(crate) fn is_done(&self, log_len: usize) -> bool {
        self.next == log_len && self.pending.is_empty() && self.flights.is_empty()
    }

    /// Returns the number of unsettled deliveries.
    pub(crate) fn unsettled_len(&self) -> usize {
        self.flights.len()
    }
}

impl State {
    /// Assigns a partition to another member, or again to the same one.
    pub(crate) fn rebalance(&mut self, part: u8) {
        let Broker { group, log, .. } = &mut self.broker;
        let is_in = |place| log.get(place).is_some_and(|message| partition(message) == part);
        let moved = group.take_back(|flight| is_in(flight.place));
        self.note(format_args!("partition {part} is assigned anew, with {moved} deliveries"));
    }
}

/// Returns the partition of a message; messages without a key are in the first one.
fn partition(message: &Message) -> u8 {
    let sum = |key: &OrderingKey| key.as_str().bytes().fold(0_u8, u8::wrapping_add);
    message.key.as_ref().map_or(0, sum) % PARTITIONS
}
