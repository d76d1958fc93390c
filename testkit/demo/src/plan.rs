//! The plan of a run, made from a seed: orders, rollbacks, crashes, outages, copies. Pure: the same
//! seed and size give the same plan.

use std::collections::BTreeSet;

use harness::faults::over_progress;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

/// An order that a customer places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OrderPlan {
    /// The number of the order, unique in a run.
    pub(crate) number: u64,
    /// The customer, whose name is the ordering key of its message.
    pub(crate) customer: u32,
    /// The price in cents.
    pub(crate) cents: u32,
    /// Whether the order is rolled back to a savepoint while the rest of its transaction is kept.
    pub(crate) undone: bool,
}

impl OrderPlan {
    /// Returns the customer's name, which is the ordering key of the messages.
    pub(crate) fn customer(&self) -> String {
        format!("customer-{}", self.customer)
    }
}

/// A transaction of one to three orders, each with its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TransactionPlan {
    /// The orders of the transaction, sorted by customer, so that all producers lock rows in one
    /// order.
    pub(crate) orders: Vec<OrderPlan>,
    /// Whether the whole transaction is finally rolled back.
    pub(crate) rolled_back: bool,
}

impl TransactionPlan {
    /// Returns whether this order is meant to survive.
    pub(crate) fn keeps(&self, order: &OrderPlan) -> bool {
        !self.rolled_back && !order.undone
    }
}

/// The point at which a consumer crashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CrashPoint {
    /// Between the effect and the commit.
    BeforeCommit,
    /// Between the commit and the acknowledgement.
    BeforeAck,
}

/// A planned crash of the consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct CrashPlan {
    /// The number of effects after which the consumer crashes.
    pub(crate) effects: u64,
    /// The point at which the consumer crashes.
    pub(crate) point: CrashPoint,
}

/// Everything that will happen in a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The seed of the plan.
    pub(crate) seed: u64,
    /// Number of orders that will be committed.
    pub(crate) orders: u64,
    /// The transactions, in the order in which producers take them.
    pub(crate) transactions: Vec<TransactionPlan>,
    /// Numbers of confirmed messages after which the leading relay is killed without warning.
    /// Ascending.
    pub(crate) kills: Vec<u64>,
    /// The consumer's crashes, ascending by effects.
    pub(crate) crashes: Vec<CrashPlan>,
    /// Numbers of confirmed messages after which the broker is briefly taken down. Ascending.
    pub(crate) outages: Vec<u64>,
    /// The crash after which the consumer restarts from older offsets, if the broker has offsets.
    pub(crate) rewind_after: usize,
    /// Numbers of the orders whose message is copied on purpose.
    pub(crate) copies: BTreeSet<u64>,
}

/// Transactions that are rolled back, per thousand.
const ROLLED_BACK: u32 = 60;
/// Orders that are rolled back to a savepoint, per thousand orders in transactions that commit.
const UNDONE: u32 = 30;
/// Orders whose message is copied, per thousand.
const COPIED: u32 = 80;
/// Number of relays killed in a run.
const KILLS: u64 = 3;
/// Number of crashes of the consumer in a run.
const CRASHES: u64 = 4;
/// Number of outages of the broker in a run.
const OUTAGES: u64 = 2;

impl Plan {
    /// Creates the plan of a seed for this number of committed orders.
    pub(crate) fn new(seed: u64, orders: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let transactions = transactions(&mut rng, orders);
        let kept = transactions
            .iter()
            .flat_map(|transaction| transaction.orders.iter().filter(|order| transaction.keeps(order)));
        let mut copies: BTreeSet<u64> =
            kept.clone().filter(|_| rng.random_ratio(COPIED, 1_000)).map(|order| order.number).collect();
        // Even a small run has a copy.
        copies.extend(kept.map(|order| order.number).next());
        let kills = over_progress(&mut rng, KILLS, orders);
        let crashes = crashes(&mut rng, orders);
        let outages = over_progress(&mut rng, OUTAGES, orders);
        let rewind_after = rng.random_range(0..crashes.len());
        Self { seed, orders, transactions, kills, crashes, outages, rewind_after, copies }
    }

    /// Returns the numbers of the orders that will be rolled back, with their transaction or to a
    /// savepoint.
    pub(crate) fn rolled_back(&self) -> BTreeSet<u64> {
        self.transactions
            .iter()
            .flat_map(|tx| tx.orders.iter().filter(|order| !tx.keeps(order)).map(|order| order.number))
            .collect()
    }
}

fn transactions(rng: &mut StdRng, orders: u64) -> Vec<TransactionPlan> {
    // About twenty orders for each customer, so that the order of a key is worth checking.
    let customers = u32::try_from((orders / 20).clamp(1, 1_000)).unwrap_or(1_000);
    let (mut kept, mut number, mut transactions) = (0, 0, Vec::new());
    while kept < orders {
        let rolled_back = rng.random_ratio(ROLLED_BACK, 1_000);
        let mut transaction = TransactionPlan { orders: Vec::new(), rolled_back };
        for _ in 0..rng.random_range(1..=3) {
            number += 1;
            let order = OrderPlan {
                number,
                customer: rng.random_range(1..=customers),
                cents: rng.random_range(100..100_000),
                undone: rng.random_ratio(UNDONE, 1_000),
            };
            if transaction.keeps(&order) {
                if kept == orders {
                    continue;
                }
                kept += 1;
            }
            transaction.orders.push(order);
        }
        transaction.orders.sort_by_key(|order| order.customer);
        transactions.push(transaction);
    }
    transactions
}

/// Returns both kinds of crash in a random order.
fn crashes(rng: &mut StdRng, orders: u64) -> Vec<CrashPlan> {
    let mut kinds = [CrashPoint::BeforeCommit, CrashPoint::BeforeAck].repeat(CRASHES as usize / 2);
    kinds.shuffle(rng);
    let points = over_progress(rng, CRASHES, orders);
    points.into_iter().zip(kinds).map(|(effects, point)| CrashPlan { effects, point }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_plan_and_another_seed_another() {
        assert_eq!(Plan::new(7, 2_000), Plan::new(7, 2_000));
        assert_ne!(Plan::new(7, 2_000), Plan::new(8, 2_000));
    }

    #[test]
    fn exactly_so_many_orders_survive_whatever_the_seed() {
        for (seed, orders) in [(1, 1), (2, 7), (3, 1_000), (4, 10_000)] {
            let plan = Plan::new(seed, orders);
            let all: Vec<u64> =
                plan.transactions.iter().flat_map(|tx| tx.orders.iter().map(|order| order.number)).collect();
            let unique: BTreeSet<u64> = all.iter().copied().collect();
            assert_eq!(unique.len(), all.len());
            assert_eq!((all.len() - plan.rolled_back().len()) as u64, orders);
            assert!(plan.copies.is_disjoint(&plan.rolled_back()) && !plan.copies.is_empty());
        }
    }

    #[test]
    fn a_plan_of_usual_size_attempts_everything() {
        let plan = Plan::new(42, 10_000);
        assert!(plan.transactions.iter().any(|tx| tx.rolled_back));
        assert!(plan.transactions.iter().any(|tx| !tx.rolled_back && tx.orders.iter().any(|o| o.undone)));
        for point in [CrashPoint::BeforeCommit, CrashPoint::BeforeAck] {
            assert!(plan.crashes.iter().any(|crash| crash.point == point));
        }
        assert!(plan.kills.is_sorted() && plan.outages.is_sorted());
        assert!(plan.crashes.is_sorted_by_key(|crash| crash.effects));
        assert!(plan.crashes.iter().all(|crash| crash.effects < plan.orders));
    }
}
