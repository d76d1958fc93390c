//! Each promise decided from a history. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

use uuid::Uuid;

use super::history::{Effect, History, LogRecord, Order, OutboxRow};
use crate::demo::shop::{Facts, payload_of};

/// One thing that must not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Breach {
    /// Something is wrong with this message.
    Message(Uuid, &'static str),
    /// Something is wrong with this order.
    Order(u64, &'static str),
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(id, what) => write!(f, "message {id}: {what}"),
            Self::Order(number, what) => write!(f, "order {number}: {what}"),
        }
    }
}

/// What became of every promise. A promise holds when its list is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Committed orders.
    pub(crate) orders: u64,
    /// Rows of the outbox.
    pub(crate) enqueued: u64,
    /// Different messages of the outbox that were seen published.
    pub(crate) published: u64,
    /// Everything that was seen published, copies included.
    pub(crate) records: u64,
    /// Effects.
    pub(crate) effects: u64,
    /// What the committed orders cost.
    pub(crate) cents_ordered: u64,
    /// What the effects have charged.
    pub(crate) cents_charged: u64,
    /// An order without its message, a message without its order, or a message that says something else.
    pub(crate) not_atomic: Vec<Breach>,
    /// Traces of what was rolled back or never committed.
    pub(crate) phantom: Vec<Breach>,
    /// Enqueued, but never published.
    pub(crate) lost: Vec<Breach>,
    /// A key's message whose first occurrence came after that of a later one; `None` where the broker promises no
    /// order.
    pub(crate) order_violations: Option<Vec<Breach>>,
    /// Enqueued, but without effect; or put aside by relay or consumer.
    pub(crate) lost_effects: Vec<Breach>,
    /// Every effect of a message beyond its first.
    pub(crate) duplicate_effects: Vec<Breach>,
    /// One id with another payload somewhere.
    pub(crate) altered: Vec<Breach>,
}

impl Verdict {
    /// Decides.
    pub(crate) fn of(history: &History) -> Self {
        let outbox: HashMap<Uuid, &OutboxRow> = history.outbox.iter().map(|row| (row.id, row)).collect();
        let published: HashSet<Uuid> =
            history.log.iter().filter_map(|record| record.id).filter(|id| outbox.contains_key(id)).collect();
        let mut verdict = Self {
            orders: count(&history.orders),
            enqueued: count(&history.outbox),
            published: published.len() as u64,
            records: count(&history.log),
            effects: count(&history.effects),
            cents_ordered: history.orders.iter().map(|order| order.cents).sum(),
            cents_charged: history.effects.iter().map(|effect| effect.cents).sum(),
            ..Self::default()
        };
        verdict.not_atomic = not_atomic(history);
        verdict.phantom = phantom(history, &outbox);
        verdict.lost = missing(history, &published, "is in the outbox and was never published");
        verdict.order_violations = history.ordered.then(|| order_violations(&history.log));
        verdict.judge_effects(history);
        verdict.altered = altered(history, &outbox);
        verdict
    }

    /// Whether every promise held.
    pub(crate) fn holds(&self) -> bool {
        self.promises().iter().all(|breaches| breaches.is_empty())
    }

    /// The breaches of all promises.
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

    fn judge_effects(&mut self, history: &History) {
        let mut times: HashMap<Uuid, u64> = HashMap::new();
        for effect in &history.effects {
            let times = times.entry(effect.id).or_default();
            *times += 1;
            if *times > 1 {
                self.duplicate_effects.push(Breach::Message(effect.id, "took effect again"));
            }
        }
        let applied: HashSet<Uuid> = times.into_keys().collect();
        self.lost_effects = missing(history, &applied, "is in the outbox and took no effect");
        if !history.guarded {
            return;
        }
        // The inbox's row and the effect stand or fall together.
        let inbox: HashSet<Uuid> = history.inbox.iter().copied().collect();
        let remembered = inbox.difference(&applied);
        self.lost_effects
            .extend(remembered.map(|id| Breach::Message(*id, "is in the inbox and took no effect")));
        let forgotten = applied.difference(&inbox);
        self.duplicate_effects
            .extend(forgotten.map(|id| Breach::Message(*id, "took effect and is not in the inbox")));
    }
}

fn count<T>(items: &[T]) -> u64 {
    items.len() as u64
}

/// Orders and outbox rows must pair off exactly.
fn not_atomic(history: &History) -> Vec<Breach> {
    let mut expected: BTreeMap<u64, (Vec<u8>, u32)> =
        history.orders.iter().map(|order| (order.number, (payload(order), 0))).collect();
    let mut breaches = Vec::new();
    for row in &history.outbox {
        let order = Facts::read(&row.payload).and_then(|facts| expected.get_mut(&facts.order));
        match order {
            None => breaches.push(Breach::Message(row.id, "is in the outbox without a committed order")),
            Some((payload, times)) => {
                *times += 1;
                if *payload != row.payload {
                    breaches.push(Breach::Message(row.id, "says something else than its order"));
                }
            }
        }
    }
    breaches.extend(expected.into_iter().filter_map(|(number, (_, times))| match times {
        0 => Some(Breach::Order(number, "is committed and has no message in the outbox")),
        1 => None,
        _ => Some(Breach::Order(number, "has more than one message in the outbox")),
    }));
    breaches
}

fn payload(order: &Order) -> Vec<u8> {
    payload_of(order.number, &order.customer, order.seq, order.cents)
}

/// Nothing may be anywhere that was not committed.
fn phantom(history: &History, outbox: &HashMap<Uuid, &OutboxRow>) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for order in history.orders.iter().filter(|order| history.rolled_back.contains(&order.number)) {
        breaches.push(Breach::Order(order.number, "was rolled back and is in its table"));
    }
    let undone =
        |payload: &[u8]| Facts::read(payload).is_some_and(|facts| history.rolled_back.contains(&facts.order));
    for row in history.outbox.iter().filter(|row| undone(&row.payload)) {
        breaches.push(Breach::Message(row.id, "was rolled back and is in the outbox"));
    }
    let mut seen = BTreeSet::new();
    let mut foreign = |id: Uuid, what| {
        if !outbox.contains_key(&id) && seen.insert((id, what)) {
            breaches.push(Breach::Message(id, what));
        }
    };
    history.inbox.iter().for_each(|id| foreign(*id, "is in the inbox and not in the outbox"));
    history.effects.iter().for_each(|effect| foreign(effect.id, "took effect and is not in the outbox"));
    for LogRecord { id, .. } in &history.log {
        foreign(id.unwrap_or_default(), "was published and is not in the outbox");
    }
    breaches
}

/// Messages of the outbox that are not among `present`.
fn missing(history: &History, present: &HashSet<Uuid>, what: &'static str) -> Vec<Breach> {
    let absent = history.outbox.iter().filter(|row| !present.contains(&row.id));
    absent.map(|row| Breach::Message(row.id, what)).collect()
}

/// First occurrences only: what is published again may come late.
fn order_violations(log: &[LogRecord]) -> Vec<Breach> {
    let (mut seen, mut latest) = (HashSet::new(), HashMap::<String, u64>::new());
    let mut breaches = Vec::new();
    for record in log {
        let Some((id, facts)) = record.id.zip(Facts::read(&record.payload)) else { continue };
        if !seen.insert(id) {
            continue;
        }
        let latest = latest.entry(facts.customer).or_default();
        if facts.seq <= *latest {
            breaches.push(Breach::Message(id, "came after a later message of its key"));
        }
        *latest = facts.seq.max(*latest);
    }
    breaches
}

/// One id, one payload: in the outbox, in the broker, at the effect.
fn altered(history: &History, outbox: &HashMap<Uuid, &OutboxRow>) -> Vec<Breach> {
    let differs = |id: &Uuid, payload: &[u8]| outbox.get(id).is_some_and(|row| row.payload != payload);
    let log = history.log.iter().filter_map(|LogRecord { id, payload }| Some((id.as_ref()?, payload)));
    let published = log
        .filter(|(id, payload)| differs(id, payload))
        .map(|(id, _)| Breach::Message(*id, "was published with another payload"));
    let effects = history.effects.iter().filter(|Effect { id, payload, .. }| differs(id, payload));
    let applied = effects.map(|effect| Breach::Message(effect.id, "took effect with another payload"));
    published.chain(applied).collect()
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
