//! What was placed against what took effect. Pure, and independent of the toolkit's own code.

use std::collections::{BTreeMap, BTreeSet};

/// One committed business fact, or one applied effect.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fact {
    /// The ordering key.
    pub key: String,
    /// Its number within the key, in the order of commits.
    pub seq: i64,
}

impl Fact {
    /// A fact.
    #[must_use]
    pub fn new(key: impl Into<String>, seq: i64) -> Self {
        Self { key: key.into(), seq }
    }
}

/// What an order promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Effects of one key come in the order of its commits.
    PerKey,
    /// None.
    Free,
}

/// Whether every placed fact took effect exactly once, in order, and nothing else did.
///
/// # Errors
/// What was lost, doubled, invented or out of order: the count and the first few.
pub fn exactly_once(placed: &[Fact], effects: &[Fact], order: Order) -> Result<(), String> {
    let expected: BTreeSet<&Fact> = placed.iter().collect();
    let mut counts: BTreeMap<&Fact, usize> = BTreeMap::new();
    for effect in effects {
        *counts.entry(effect).or_default() += 1;
    }
    let lost: Vec<_> = expected.iter().filter(|fact| !counts.contains_key(**fact)).collect();
    let doubled: Vec<_> = counts.iter().filter(|(_, count)| **count > 1).collect();
    let invented: Vec<_> = counts.keys().filter(|fact| !expected.contains(**fact)).collect();
    let overtaken = match order {
        Order::PerKey => overtaken(effects),
        Order::Free => Vec::new(),
    };
    if lost.is_empty() && doubled.is_empty() && invented.is_empty() && overtaken.is_empty() {
        return Ok(());
    }
    Err(format!(
        "of {} placed facts {} are lost {}, {} doubled {}, {} invented {}, {} out of order {}",
        placed.len(),
        lost.len(),
        first(&lost),
        doubled.len(),
        first(&doubled),
        invented.len(),
        first(&invented),
        overtaken.len(),
        first(&overtaken),
    ))
}

/// First occurrences that come after a later one of their key.
#[must_use]
pub fn overtaken(occurrences: &[Fact]) -> Vec<&Fact> {
    let mut seen: BTreeSet<&Fact> = BTreeSet::new();
    let mut newest: BTreeMap<&str, i64> = BTreeMap::new();
    let mut overtaken = Vec::new();
    for fact in occurrences {
        if !seen.insert(fact) {
            continue;
        }
        let newest = newest.entry(&fact.key).or_insert(i64::MIN);
        if fact.seq < *newest {
            overtaken.push(fact);
        }
        *newest = fact.seq.max(*newest);
    }
    overtaken
}

fn first<T: std::fmt::Debug>(all: &[T]) -> String {
    format!("{:?}", &all[..all.len().min(3)])
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
        assert!(check(&[("a", 1), ("b", 1)]).unwrap_err().contains("1 are lost"));
        assert!(check(&[("a", 1), ("a", 1), ("b", 1), ("a", 2)]).unwrap_err().contains("1 doubled"));
        assert!(check(&[("a", 1), ("a", 2), ("b", 1), ("c", 9)]).unwrap_err().contains("1 invented"));
        assert!(check(&[("a", 2), ("a", 1), ("b", 1)]).unwrap_err().contains("1 out of order"));
        let swapped = facts(&[("a", 2), ("a", 1), ("b", 1)]);
        assert_eq!(exactly_once(&placed, &swapped, Order::Free), Ok(()));
    }

    #[test]
    fn a_repetition_of_an_earlier_run_is_no_disorder() {
        let log = facts(&[("a", 1), ("a", 2), ("a", 1), ("a", 2), ("a", 3)]);
        assert_eq!(overtaken(&log), Vec::<&Fact>::new());
    }
}
