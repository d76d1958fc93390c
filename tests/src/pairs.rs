//! Rows in which every pair of levels of two factors occurs at least once: pairwise testing (Cohen
//! et al., "The AETG system", 1997). The choice is greedy and deterministic.

use std::collections::BTreeSet;

/// Two pairs of a factor and its level.
pub type Pair = ((usize, usize), (usize, usize));

/// Returns every pair for factors with these numbers of levels.
#[must_use]
pub fn pairs(levels: &[usize]) -> BTreeSet<Pair> {
    let of = |factor: usize| (0..levels[factor]).map(move |level| (factor, level));
    let later = |factor: usize| (factor + 1..levels.len()).flat_map(of);
    (0..levels.len())
        .flat_map(|one| of(one).flat_map(move |at| later(one).map(move |other| (at, other))))
        .collect()
}

/// Returns the pairs of one row.
pub fn met(row: &[usize]) -> impl Iterator<Item = Pair> {
    let at = |factor: usize| (factor, row[factor]);
    (0..row.len()).flat_map(move |one| (one + 1..row.len()).map(move |other| (at(one), at(other))))
}

/// Returns rows that cover all pairs, each with a level for every factor.
#[must_use]
pub fn rows(levels: &[usize]) -> Vec<Vec<usize>> {
    let mut missing = pairs(levels);
    let mut rows = Vec::new();
    while let Some(((one, first), (other, second))) = missing.first().copied() {
        let mut row: Vec<Option<usize>> = vec![None; levels.len()];
        (row[one], row[other]) = (Some(first), Some(second));
        for factor in 0..levels.len() {
            if row[factor].is_none() {
                let gain = |level: usize| {
                    let with = |(at, chosen): (usize, &Option<usize>)| {
                        let other = (at, (*chosen)?);
                        let own = (factor, level);
                        Some(missing.contains(&(own.min(other), own.max(other))))
                    };
                    row.iter().enumerate().filter_map(with).filter(|is_missing| *is_missing).count()
                };
                // Chooses the first level among equal gains.
                row[factor] = (0..levels[factor]).rev().max_by_key(|level| gain(*level));
            }
        }
        let row: Vec<usize> = row.into_iter().flatten().collect();
        for pair in met(&row) {
            missing.remove(&pair);
        }
        rows.push(row);
    }
    rows
}
