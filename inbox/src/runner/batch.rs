//! A batch of deliveries in one transaction: sorts them by outcome, and tries the rest again.
//!
//! They are admitted in one round trip and handled in their order. When one fails, everything is
//! rolled back. The deliveries before it are done again without it; the failed one and those behind
//! it on its key are handled one by one; and the rest remains a batch. A failure of unknown
//! cause (at the commit, or one that may affect every message and repeats) halves the batch.
//! Messages whose key is held by a dead letter are taken out in the same way.

use std::collections::{HashSet, VecDeque};

use message::MessageId;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::batch_attempt::{Attempt, Placed, waited};
use super::key_queues::{Held, Lane};
use super::step::Done;
use super::store::Store;
use super::waits::Outages;
use super::worker::Worker;
use crate::ids::{MessageName, Tenant};

/// Number of consecutive outages after which a batch is still tried whole. Then it is halved, until
/// the message that cannot succeed is alone.
const OUTAGES_WHOLE: u32 = 2;

/// The deliveries of a batch, sorted by outcome.
#[derive(Debug, Default)]
pub(super) struct Sorted {
    /// Committed.
    pub(super) settled: Vec<Settled>,
    /// To be handled one by one, in this order.
    pub(super) singles: Vec<Held>,
    /// Not handled, because the worker is stopping.
    pub(super) released: Vec<Held>,
}

/// A delivery whose transaction is committed.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) held: Held,
    pub(super) done: Done,
}

/// A delivery that is handled alone, and its position in the batch.
struct Single {
    at: usize,
    held: Held,
}

/// A batch that is being handled.
#[derive(Default)]
struct Batch {
    /// The parts that are still to be handled, each in one transaction, in their order.
    parts: VecDeque<Vec<Placed>>,
    singles: Vec<Single>,
    settled: Vec<Settled>,
}

impl Batch {
    /// Takes out a delivery that is handled alone, and what follows it on its key: all parts are
    /// later than the delivery.
    fn take_out(&mut self, at: usize, held: Held) {
        self.take_behind(&held);
        self.singles.push(Single { at, held });
    }

    fn take_behind(&mut self, culprit: &Held) {
        let Some(lane) = &culprit.lane else { return };
        for part in &mut self.parts {
            let (behind, rest): (Vec<_>, Vec<_>) =
                std::mem::take(part).into_iter().partition(|placed| placed.held.lane.as_ref() == Some(lane));
            self.singles.extend(behind.into_iter().map(|placed| Single { at: placed.at, held: placed.held }));
            *part = rest;
        }
    }

    /// Sorts the deliveries of a committed part. A refused one has no end: it will become a dead
    /// letter that holds its key, but is not stored yet.
    fn settle(&mut self, part: Vec<Placed>, ends: Vec<Option<Done>>, holds_keys: bool) {
        for (Placed { at, held, .. }, done) in part.into_iter().zip(ends) {
            match done {
                Some(done) => self.settled.push(Settled { held, done }),
                None if holds_keys => self.take_out(at, held),
                None => self.singles.push(Single { at, held }),
            }
        }
    }

    /// Takes out the deliveries at these positions of a part; the others continue.
    fn take_places(&mut self, part: Vec<Placed>, places: &HashSet<usize>) {
        let mut rest = Vec::with_capacity(part.len().saturating_sub(places.len()));
        for (place, placed) in part.into_iter().enumerate() {
            if places.contains(&place) {
                self.take_out(placed.at, placed.held);
            } else {
                rest.push(placed);
            }
        }
        self.parts.push_front(rest);
    }

    /// Takes out one delivery of a part and those that follow it on its key; the others continue.
    fn take_culprit(&mut self, mut part: Vec<Placed>, place: usize) {
        self.parts.push_front(part.split_off(place + 1));
        if let Some(Placed { at, held, .. }) = part.pop() {
            self.take_out(at, held);
        }
        self.parts.push_front(part);
    }

    /// Halves a part, or takes out its only delivery.
    fn halve(&mut self, mut part: Vec<Placed>) {
        if part.len() < 2 {
            return self.take_culprit(part, 0);
        }
        let rest = part.split_off(part.len() / 2);
        self.parts.push_front(rest);
        self.parts.push_front(part);
    }
}

impl<S: Store> Worker<S> {
    /// Handles a batch of readable deliveries.
    pub(super) async fn run_batch(&self, deliveries: Vec<Held>, give_up: &CancellationToken) -> Sorted {
        let mut batch = self.set_apart(deliveries);
        let mut released = Vec::new();
        let mut outages = Outages::default();
        while let Some(part) = batch.parts.pop_front() {
            if part.is_empty() {
                continue;
            }
            let messages = part.iter().filter_map(|placed| placed.held.delivery.message.as_ref().ok());
            let span = self.batch_span(&messages.collect::<Vec<_>>());
            let attempt = self.attempt_batch(&part, give_up).instrument(span).await;
            let is_given_up = match &attempt {
                Attempt::Outage(error) | Attempt::Away(error) => {
                    self.put_down(part.iter().map(|placed| &placed.held), give_up).await;
                    self.wait_out(&mut outages, waited(&part), &**error, give_up).await.is_err()
                }
                Attempt::GivenUp => true,
                _ => {
                    outages = Outages::default();
                    false
                }
            };
            if is_given_up {
                batch.parts.push_front(part);
                released.extend(batch.parts.drain(..).flatten().map(|placed| placed.held));
                break;
            }
            match attempt {
                Attempt::Done(ends) => batch.settle(part, ends, self.holds_keys),
                Attempt::Apart(places) => batch.take_places(part, &places),
                Attempt::Culprit(place) => batch.take_culprit(part, place),
                Attempt::Away(_) | Attempt::GivenUp => batch.parts.push_front(part),
                Attempt::Outage(_) if outages.count <= OUTAGES_WHOLE => batch.parts.push_front(part),
                Attempt::Outage(_) | Attempt::RolledBack => batch.halve(part),
            }
        }
        let Batch { mut singles, settled, .. } = batch;
        self.put_down(released.iter().chain(singles.iter().map(|single| &single.held)), give_up).await;
        // A later culprit can have an earlier position.
        singles.sort_unstable_by_key(|single| single.at);
        Sorted { settled, singles: singles.into_iter().map(|single| single.held).collect(), released }
    }

    /// Begins a batch. Splits off deliveries that are handled one by one: chunks, messages without
    /// a known tenant, and whatever follows one of these on its key.
    fn set_apart(&self, deliveries: Vec<Held>) -> Batch {
        let mut lanes: HashSet<Lane> = HashSet::new();
        let mut placed = Vec::with_capacity(deliveries.len());
        let mut singles = Vec::new();
        for (at, held) in deliveries.into_iter().enumerate() {
            let is_behind = held.lane.as_ref().is_some_and(|lane| lanes.contains(lane));
            let whole = held.delivery.message.as_ref().ok().filter(|message| message.chunk.is_none());
            match whole.and_then(|message| self.reader.tenant(message).ok()) {
                Some(tenant) if !is_behind => placed.push(Placed { at, held, tenant }),
                _ => {
                    lanes.extend(held.lane.clone());
                    singles.push(Single { at, held });
                }
            }
        }
        Batch { parts: VecDeque::from([placed]), singles, ..Batch::default() }
    }

    /// Records that deliveries that wait, continue alone, or return to the broker are no longer in
    /// hand.
    async fn put_down<'a>(&self, unhandled: impl Iterator<Item = &'a Held>, give_up: &CancellationToken) {
        let named = unhandled.filter(|held| held.is_suspect).filter_map(|held| {
            let message = held.delivery.message.as_ref().ok()?;
            Some((self.reader.tenant(message).ok()?, message.id))
        });
        let named: Vec<(Tenant, MessageId)> = named.collect();
        let names: Vec<_> = named.iter().map(|(tenant, id)| MessageName { tenant, id: *id }).collect();
        if !names.is_empty() {
            // Without an answer the notes stay, as after the end of this process.
            _ = self.noted(self.put_down_unhandled(&names), give_up).await;
        }
    }
}
