//! The numbered facts that tests send and apply, and the verdict of the independent checker on
//! them.

use std::collections::BTreeMap;

use checker::{Consumer, Content, Effect, History, Occurrence, OutboxRow, Promise, TopicRead, Verdict};
use uuid::Uuid;

/// One committed business fact, or one applied effect.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fact {
    /// The ordering key.
    pub key: String,
    /// The number of the fact within the key, in the order of commits.
    pub seq: i64,
}

impl Fact {
    /// Creates a fact.
    #[must_use]
    pub fn new(key: impl Into<String>, seq: i64) -> Self {
        Self { key: key.into(), seq }
    }
}

/// The promised order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The facts of one key come in the order of their commits.
    PerKey,
    /// No order.
    Free,
}

/// Checks that every placed fact took effect exactly once, in order, and that no other fact did.
///
/// # Errors
/// The breaches that the checker found.
pub fn exactly_once(placed: &[Fact], effects: &[Fact], order: Order) -> Result<(), String> {
    let ids = Ids::of(placed, effects);
    let effects = effects.iter().map(|fact| Effect { id: ids.id(fact), ..Effect::default() }).collect();
    let ordered = order == Order::PerKey;
    let consumer =
        Consumer { name: "workload".into(), ordered, effects: Some(effects), ..Consumer::default() };
    let history = History { consumers: vec![consumer], ..ids.history(placed) };
    check(&history, &[Promise::AtMostOnce, Promise::ExactlyOnce, Promise::NoPhantom], order)
}

/// Checks that the broker holds every sent fact, in order, and no other fact. Copies are allowed.
///
/// # Errors
/// The breaches that the checker found.
pub fn all_stored(sent: &[Fact], stored: &[Fact], order: Order) -> Result<(), String> {
    let ids = Ids::of(sent, stored);
    let seen = stored.iter().map(|fact| Occurrence { id: Some(ids.id(fact)), ..Occurrence::default() });
    let topic_read =
        TopicRead { ordered: order == Order::PerKey, complete: true, occurrences: seen.collect() };
    let history = History { topic_read: Some(topic_read), ..ids.history(sent) };
    check(&history, &[Promise::NoLoss, Promise::NoPhantom], order)
}

/// Checks that no promise is broken, and that these promises were checked.
fn check(history: &History, promises: &[Promise], order: Order) -> Result<(), String> {
    let verdict = Verdict::of(history);
    let in_order = (order == Order::PerKey).then_some(&Promise::CausalOrder);
    let checked = promises.iter().chain(in_order).all(|promise| verdict.ruling(*promise).holds());
    if checked && verdict.holds() { Ok(()) } else { Err(verdict.to_string()) }
}

/// The message id of each fact. Facts are equal if and only if their ids are.
struct Ids<'a>(BTreeMap<&'a Fact, Uuid>);

impl<'a> Ids<'a> {
    fn of(some: &'a [Fact], others: &'a [Fact]) -> Self {
        let number = |fact: &Fact, nth: usize| {
            // The id ends with the number of the fact, so that a failure is readable.
            let seq = u128::from(fact.seq.unsigned_abs());
            Uuid::from_u128((nth as u128) << 64 | seq)
        };
        Self(some.iter().chain(others).enumerate().map(|(nth, fact)| (fact, number(fact, nth))).collect())
    }

    fn id(&self, fact: &Fact) -> Uuid {
        self.0[fact]
    }

    /// Returns a quiet system in which these facts are committed.
    fn history(&self, committed: &[Fact]) -> History {
        let row = |(position, fact): (usize, &Fact)| OutboxRow {
            id: self.id(fact),
            position: position as i64,
            seq: u64::try_from(fact.seq).ok(),
            content: Content { key: Some(fact.key.as_str().into()), ..Content::default() },
            ..OutboxRow::default()
        };
        History {
            quiet: true,
            outbox: Some(committed.iter().enumerate().map(row).collect()),
            parked: Some(Vec::new()),
            ..History::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(pairs: &[(&str, i64)]) -> Vec<Fact> {
        pairs.iter().map(|(key, seq)| Fact::new(*key, *seq)).collect()
    }

    #[test]
    fn every_kind_of_failure_is_found() {
        let placed = facts(&[("a", 1), ("a", 2), ("b", 1)]);
        let check = |effects: &[(&str, i64)]| exactly_once(&placed, &facts(effects), Order::PerKey);
        assert_eq!(check(&[("a", 1), ("b", 1), ("a", 2)]), Ok(()));
        assert!(check(&[("a", 1), ("b", 1)]).unwrap_err().contains("took no effect"));
        assert!(check(&[("a", 1), ("a", 1), ("b", 1), ("a", 2)]).unwrap_err().contains("took effect again"));
        assert!(check(&[("a", 1), ("a", 2), ("b", 1), ("c", 9)]).unwrap_err().contains("not in the outbox"));
        assert!(check(&[("a", 2), ("a", 1), ("b", 1)]).unwrap_err().contains("after a later message"));
        let swapped = facts(&[("a", 2), ("a", 1), ("b", 1)]);
        assert_eq!(exactly_once(&placed, &swapped, Order::Free), Ok(()));
    }

    #[test]
    fn a_repetition_of_an_earlier_run_is_no_disorder() {
        let sent = facts(&[("a", 1), ("a", 2), ("a", 3)]);
        let check = |stored: &[(&str, i64)]| all_stored(&sent, &facts(stored), Order::PerKey);
        assert_eq!(check(&[("a", 1), ("a", 2), ("a", 1), ("a", 2), ("a", 3)]), Ok(()));
        assert!(check(&[("a", 2), ("a", 1), ("a", 3)]).unwrap_err().contains("after a later message"));
        assert!(check(&[("a", 1), ("a", 2)]).unwrap_err().contains("never published"));
    }
}
