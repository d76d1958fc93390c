//! Schedules of faults from a seed. Pure: the same seed, faults and length give the same schedule.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};

/// The properties of a fault in a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultKind {
    /// The unique name, also in reports: lower case, words joined by hyphens.
    pub name: &'static str,
    /// Frequency of the fault relative to other faults. Zero means never.
    pub weight: u32,
    /// Whether the fault is injected without being requested by name.
    pub by_default: bool,
    /// Time until the fault is healed. Zero means that it needs no healing.
    pub lasts: RangeInclusive<Duration>,
}

impl FaultKind {
    /// Creates a kind with this name and weight 10. It is injected by default, and needs no
    /// healing.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Self { name, weight: 10, by_default: true, lasts: Duration::ZERO..=Duration::ZERO }
    }

    /// Sets the weight.
    #[must_use]
    pub fn weight(self, weight: u32) -> Self {
        Self { weight, ..self }
    }

    /// Sets whether it is injected by default, or only on request.
    #[must_use]
    pub fn by_default(self, by_default: bool) -> Self {
        Self { by_default, ..self }
    }

    /// Sets the bounds of the fault's duration.
    #[must_use]
    pub fn lasts(self, lasts: RangeInclusive<Duration>) -> Self {
        Self { lasts, ..self }
    }
}

/// A planned injection of a fault.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct PlannedFault<M> {
    /// The moment: a time since the beginning of the run, or a point of its progress.
    pub at: M,
    /// The fault.
    pub fault: &'static str,
    /// The duration of the fault.
    pub lasts: Duration,
    /// The seed of the fault's target and parameters.
    pub seed: u64,
}

/// The range of pauses between the beginnings of two injections.
const PAUSE: RangeInclusive<Duration> = Duration::from_millis(300)..=Duration::from_millis(2_500);
/// Pause between the end of a fault and its next injection.
const RECOVERY: Duration = Duration::from_secs(1);
/// Maximum number of concurrent faults.
const OVERLAP_MAX: usize = 3;

/// Chooses faults for a run of this length. As far as time allows, every fault is injected once
/// before any is repeated.
#[must_use]
pub fn over_time(seed: u64, kinds: &[FaultKind], length: Duration) -> Vec<PlannedFault<Duration>> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut first: Vec<_> = kinds.iter().filter(|kind| kind.weight > 0).collect();
    first.shuffle(&mut rng);
    let mut planned = Vec::new();
    let (mut running, mut free_at): (Vec<Duration>, HashMap<&str, Duration>) = (Vec::new(), HashMap::new());
    let mut at = rng.random_range(PAUSE);
    while at < length {
        let busy = |kind: &FaultKind| free_at.get(kind.name).is_some_and(|free_at| *free_at > at);
        running.retain(|end| *end > at);
        // The choice is made even if it is not used, because the stream of random numbers must not
        // depend on times.
        let next = first.iter().rposition(|kind| !busy(kind));
        let chosen = match next {
            _ if running.len() >= OVERLAP_MAX => None,
            Some(place) => Some(first.remove(place)),
            None => {
                let free: Vec<_> = kinds.iter().filter(|kind| !busy(kind)).collect();
                free.choose_weighted(&mut rng, |kind| kind.weight).ok().copied()
            }
        };
        if let Some(kind) = chosen {
            let (fault, lasts) = (kind.name, rng.random_range(kind.lasts.clone()));
            running.push(at + lasts);
            free_at.insert(fault, at + lasts + RECOVERY);
            planned.push(PlannedFault { at, fault, lasts, seed: rng.random() });
        }
        at += rng.random_range(PAUSE);
    }
    planned
}

/// Chooses `count` points in the progress of a run up to `whole`: one in each of `count` equal
/// parts, not at the very ends of a part.
#[must_use]
pub fn over_progress(rng: &mut StdRng, count: u64, whole: u64) -> Vec<u64> {
    (0..count)
        .map(|part| {
            let share = (part as f64 + rng.random_range(0.15..0.85)) / count as f64;
            ((whole as f64 * share) as u64).max(1)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::seconds;

    const HOUR: Duration = seconds(3_600);

    fn planned(seed: u64, length: Duration) -> Vec<PlannedFault<Duration>> {
        let kinds = [
            FaultKind::new("kill").weight(30),
            FaultKind::new("stop").lasts(seconds(4)..=seconds(6)),
            FaultKind::new("crash").weight(1).lasts(seconds(1)..=seconds(20)),
            FaultKind::new("never").weight(0).lasts(seconds(1)..=seconds(1)),
        ];
        over_time(seed, &kinds, length)
    }

    #[test]
    fn one_seed_makes_one_schedule_and_others_make_others() {
        assert_eq!(planned(7, HOUR), planned(7, HOUR));
        assert_ne!(planned(7, HOUR), planned(8, HOUR));
    }

    #[test]
    fn a_longer_run_begins_like_a_shorter_one() {
        let (short, long) = (planned(7, HOUR / 60), planned(7, HOUR));
        assert_eq!(long[..short.len()], short);
    }

    #[test]
    fn every_fault_has_its_turn_and_weights_count() {
        for seed in 0..20 {
            let planned = planned(seed, HOUR);
            let times = |name| planned.iter().filter(|planned| planned.fault == name).count();
            let mut first: Vec<_> = planned[..3].iter().map(|planned| planned.fault).collect();
            first.sort_unstable();
            assert_eq!(first, ["crash", "kill", "stop"]);
            assert!(times("kill") > times("crash") && times("stop") > times("crash"));
            assert_eq!(times("never"), 0);
        }
    }

    #[test]
    fn no_fault_begins_before_it_is_cured_and_few_at_once() {
        let planned = planned(3, HOUR);
        for (place, fault) in planned.iter().enumerate() {
            let before = &planned[..place];
            let ends = |other: &PlannedFault<Duration>| other.at + other.lasts;
            assert!(
                before.iter().all(|other| other.fault != fault.fault || ends(other) + RECOVERY <= fault.at)
            );
            assert!(before.iter().filter(|other| ends(other) > fault.at).count() < OVERLAP_MAX);
        }
    }
}
