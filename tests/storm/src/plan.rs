//! Which fault injected when, from a seed. Pure: the same seed, faults and length make the same
//! plan.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};

use crate::pair::Pair;

/// A fault as the plan sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kind {
    /// Its name.
    pub name: &'static str,
    /// How often it is chosen in comparison with others; zero for never.
    pub weight: u32,
    /// How long it stays.
    pub lasts: RangeInclusive<Duration>,
}

/// One inject of a fault.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct PlannedFault {
    /// Since the beginning of the storm.
    pub at: Duration,
    /// Which fault.
    pub fault: &'static str,
    /// How long it stays.
    pub lasts: Duration,
    /// The seed of its target and parameters.
    pub seed: u64,
}

/// The pauses between the beginnings of two injected.
const PAUSE: RangeInclusive<Duration> = Duration::from_millis(300)..=Duration::from_millis(2_500);
/// Between a fault's cure and its next inject.
const RECOVERY: Duration = Duration::from_secs(1);
/// So many faults at once at most.
const OVERLAP_MAX: usize = 3;

/// Plans a storm of this length. Every fault gets its turn before any injected again, as far as
/// time allows.
#[must_use]
pub fn plan(seed: u64, pair: Pair, kinds: &[Kind], length: Duration) -> Vec<PlannedFault> {
    let mut rng = StdRng::seed_from_u64(mix(seed, pair));
    let mut first: Vec<&Kind> = kinds.iter().filter(|kind| kind.weight > 0).collect();
    first.shuffle(&mut rng);
    let mut injected: Vec<PlannedFault> = Vec::new();
    let (mut running, mut free_at): (Vec<Duration>, HashMap<&str, Duration>) = (Vec::new(), HashMap::new());
    let mut at = rng.random_range(PAUSE);
    while at < length {
        let busy = |kind: &Kind| free_at.get(kind.name).is_some_and(|free_at| *free_at > at);
        running.retain(|end| *end > at);
        // The choice is made whether or not it is used: the stream of random numbers must not
        // depend on times.
        let next = first.iter().rposition(|kind| !busy(kind));
        let kind = match next {
            _ if running.len() >= OVERLAP_MAX => None,
            Some(place) => Some(first.remove(place)),
            None => {
                let free: Vec<&Kind> = kinds.iter().filter(|kind| !busy(kind)).collect();
                free.choose_weighted(&mut rng, |kind| kind.weight).ok().copied()
            }
        };
        if let Some(kind) = kind {
            let lasts = rng.random_range(kind.lasts.clone());
            running.push(at + lasts);
            free_at.insert(kind.name, at + lasts + RECOVERY);
            injected.push(PlannedFault { at, fault: kind.name, lasts, seed: rng.random() });
        }
        at += rng.random_range(PAUSE);
    }
    injected
}

/// Another plan for each pair.
fn mix(seed: u64, pair: Pair) -> u64 {
    let number = (pair.database as u64) << 8 | pair.broker as u64;
    seed ^ number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pair::{BrokerKind, DatabaseKind};

    const PAIR: Pair = Pair { database: DatabaseKind::Postgres, broker: BrokerKind::Kafka };
    const HOUR: Duration = Duration::from_secs(3_600);

    fn kinds() -> Vec<Kind> {
        let secs = Duration::from_secs;
        vec![
            Kind { name: "kill", weight: 30, lasts: secs(0)..=secs(0) },
            Kind { name: "stop", weight: 10, lasts: secs(4)..=secs(6) },
            Kind { name: "crash", weight: 1, lasts: secs(1)..=secs(20) },
            Kind { name: "never", weight: 0, lasts: secs(1)..=secs(1) },
        ]
    }

    #[test]
    fn one_seed_makes_one_plan_and_others_make_others() {
        assert_eq!(plan(7, PAIR, &kinds(), HOUR), plan(7, PAIR, &kinds(), HOUR));
        assert_ne!(plan(7, PAIR, &kinds(), HOUR), plan(8, PAIR, &kinds(), HOUR));
        let other = Pair { broker: BrokerKind::Sqs, ..PAIR };
        assert_ne!(plan(7, PAIR, &kinds(), HOUR), plan(7, other, &kinds(), HOUR));
    }

    #[test]
    fn a_longer_storm_begins_like_a_shorter_one() {
        let (short, long) = (plan(7, PAIR, &kinds(), HOUR / 60), plan(7, PAIR, &kinds(), HOUR));
        assert_eq!(long[..short.len()], short);
    }

    #[test]
    fn every_fault_has_its_turn_and_weights_count() {
        for seed in 0..20 {
            let injected = plan(seed, PAIR, &kinds(), HOUR);
            let times = |name| injected.iter().filter(|inject| inject.fault == name).count();
            let mut first: Vec<_> = injected[..3].iter().map(|inject| inject.fault).collect();
            first.sort_unstable();
            assert_eq!(first, ["crash", "kill", "stop"]);
            assert!(times("kill") > times("crash") && times("stop") > times("crash"));
            assert_eq!(times("never"), 0);
        }
    }

    #[test]
    fn no_fault_begins_before_it_is_cured_and_few_at_once() {
        let injected = plan(3, PAIR, &kinds(), HOUR);
        for (place, inject) in injected.iter().enumerate() {
            let before = &injected[..place];
            let ends = |other: &PlannedFault| other.at + other.lasts;
            assert!(
                before.iter().all(|other| other.fault != inject.fault || ends(other) + RECOVERY <= inject.at)
            );
            assert!(before.iter().filter(|other| ends(other) > inject.at).count() < OVERLAP_MAX);
        }
    }
}
