//! The verdict about each promise of the demo.

use std::collections::HashSet;

use checker::{Breach, History, Limits, Promise, Violation};
use uuid::Uuid;

/// The verdict on every promise. A promise holds if its list is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Committed orders.
    pub(crate) orders: u64,
    /// Rows of the outbox.
    pub(crate) enqueued: u64,
    /// Distinct messages of the outbox that were found published.
    pub(crate) published: u64,
    /// All messages that were found published, copies included.
    pub(crate) records: u64,
    /// Effects.
    pub(crate) effects: u64,
    /// The sum of the committed orders, in cents.
    pub(crate) cents_ordered: u64,
    /// The sum that the effects have charged, in cents.
    pub(crate) cents_charged: u64,
    /// Orders without their message, messages without their order, and messages whose content
    /// differs from that of their order.
    pub(crate) not_atomic: Vec<Breach>,
    /// Traces of orders that were rolled back or never committed.
    pub(crate) phantom: Vec<Breach>,
    /// Messages that were enqueued, but never published.
    pub(crate) lost: Vec<Breach>,
    /// Messages whose first occurrence came after that of a later message of their key, or `None`
    /// if the broker promises no order.
    pub(crate) order_violations: Option<Vec<Breach>>,
    /// Messages that were enqueued, but took no effect, even if they are parked or dead letters.
    pub(crate) lost_effects: Vec<Breach>,
    /// Every effect of a message after its first.
    pub(crate) duplicate_effects: Vec<Breach>,
    /// Messages whose payload differs in some place.
    pub(crate) altered: Vec<Breach>,
}

/// Limits of the checker. A report counts everything but lists little.
const LIMITS: Limits = Limits { breaches_max: usize::MAX, events_max: 8 };

impl Verdict {
    /// Decides about a history of one consumer, with the sums of orders and charges.
    pub(crate) fn of(history: &History, (cents_ordered, cents_charged): (u64, u64)) -> Self {
        let count = |rows: Option<usize>| rows.unwrap_or_default() as u64;
        let outbox: HashSet<Uuid> = history.outbox.iter().flatten().map(|row| row.id).collect();
        let log = history.topic_read.as_ref().map(|read| &read.occurrences);
        let published: HashSet<Uuid> = log
            .into_iter()
            .flatten()
            .filter_map(|occurrence| occurrence.id)
            .filter(|id| outbox.contains(id))
            .collect();
        let effects = history.consumers.iter().filter_map(|consumer| consumer.effects.as_ref());
        let is_ordered = history.topic_read.as_ref().is_some_and(|read| read.ordered);
        let mut verdict = Self {
            orders: count(history.business.as_ref().map(Vec::len)),
            enqueued: count(history.outbox.as_ref().map(Vec::len)),
            published: published.len() as u64,
            records: count(log.map(Vec::len)),
            effects: effects.map(|effects| effects.len() as u64).sum(),
            cents_ordered,
            cents_charged,
            order_violations: is_ordered.then(Vec::new),
            ..Self::default()
        };
        for breach in checker::Verdict::with_limits(history, LIMITS).into_breaches() {
            verdict.list(&breach).push(breach);
        }
        verdict
    }

    /// Returns the list to which this breach belongs.
    fn list(&mut self, breach: &Breach) -> &mut Vec<Breach> {
        match (breach.violation, breach.violation.promise()) {
            // The inbox remembers an effect that never happened, or an effect happened that the
            // inbox would not recognise on redelivery.
            (Violation::RememberedUnapplied, _) => &mut self.lost_effects,
            (Violation::AppliedUnremembered, _) => &mut self.duplicate_effects,
            (_, Promise::NoPhantom | Promise::HonestOutcomes) => &mut self.phantom,
            (_, Promise::NoLoss) => &mut self.lost,
            (_, Promise::CausalOrder) => self.order_violations.get_or_insert_default(),
            (_, Promise::ExactlyOnce) => &mut self.lost_effects,
            (_, Promise::AtMostOnce) => &mut self.duplicate_effects,
            (_, Promise::Unaltered) => &mut self.altered,
            // The other violations need parts that a demo does not record.
            _ => &mut self.not_atomic,
        }
    }

    /// Returns whether every promise held.
    pub(crate) fn holds(&self) -> bool {
        self.promises().iter().all(|breaches| breaches.is_empty())
    }

    /// Returns the breaches of all promises.
    pub(crate) fn promises(&self) -> [&[Breach]; 7] {
        [
            &self.not_atomic,
            &self.phantom,
            &self.lost,
            self.order_violations.as_deref().unwrap_or_default(),
            &self.lost_effects,
            &self.duplicate_effects,
            &self.altered,
        ]
    }
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
