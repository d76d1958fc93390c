//! Resident memory of relays and consumers, sampled while they run and compared with a bound.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use crate::clock;
use crate::stage::{Role, Stage};

/// The memory of a process at one point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct MemorySample {
    /// The time of the sample; see [`crate::clock`].
    pub at: u64,
    /// Current resident memory, in KiB.
    pub resident_kib: u64,
    /// The peak of resident memory in this process's life, in KiB.
    pub peak_kib: u64,
}

/// The memory of every process.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct MemorySeries {
    /// The samples by the name of the process. A process that is restarted continues the same
    /// series.
    pub processes: BTreeMap<String, Vec<MemorySample>>,
}

const EVERY: Duration = Duration::from_secs(1);
const KIB_PER_MIB: u64 = 1_024;
/// The maximum for an engine.
const ENGINE_MIB: u64 = 96;
/// The additional memory of an unoptimised program, idle and at work.
const UNOPTIMISED_MIB: u64 = 32;
/// Maximum number of lines shown of a series.
const SHOWN: usize = 20;

/// Returns the maximum for a process of this role in MiB, or `None` for a role without a bound.
#[must_use]
pub fn limit_mib(role: Role) -> Option<u64> {
    let unoptimised = if cfg!(debug_assertions) { UNOPTIMISED_MIB } else { 0 };
    matches!(role, Role::Relay | Role::Consumer).then_some(ENGINE_MIB + unoptimised)
}

/// Adds samples for as long as it is polled.
pub(crate) async fn watch(stage: Arc<Stage>, series: Arc<std::sync::Mutex<MemorySeries>>) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        for name in [Role::Relay, Role::Consumer].into_iter().flat_map(|role| stage.processes.of(role)) {
            let Some(pid) = stage.processes.pid(&name) else { continue };
            let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()));
            let Some(sample) = status.ok().and_then(|status| sample(&status, clock::now())) else { continue };
            let mut series = series.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            series.processes.entry(name).or_default().push(sample);
        }
    }
}

/// Parses `/proc/<pid>/status`. Returns `None` for a process that has just ended and no longer has
/// memory.
fn sample(status: &str, at: u64) -> Option<MemorySample> {
    let kib = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    Some(MemorySample { at, resident_kib: kib("VmRSS")?, peak_kib: kib("VmHWM")? })
}

impl MemorySeries {
    /// Returns the peak of all processes of this role, in MiB.
    #[must_use]
    pub fn peak_mib(&self, role: Role) -> u64 {
        let series = self.processes.iter().filter(|(name, _)| name.starts_with(role.as_str()));
        let peak = series.flat_map(|(_, samples)| samples).map(|sample| sample.peak_kib).max();
        peak.unwrap_or_default().div_ceil(KIB_PER_MIB)
    }

    /// Returns the processes that exceeded their bound, each with its series.
    #[must_use]
    pub fn breaches(&self) -> Vec<String> {
        let mut breaches = Vec::new();
        for role in [Role::Relay, Role::Consumer] {
            let Some(limit) = limit_mib(role) else { continue };
            for (name, samples) in self.processes.iter().filter(|(name, _)| name.starts_with(role.as_str())) {
                let peak = samples.iter().map(|sample| sample.peak_kib).max().unwrap_or_default();
                if peak > limit * KIB_PER_MIB {
                    let peak = peak.div_ceil(KIB_PER_MIB);
                    breaches.push(format!(
                        "{name} used {peak} MiB of memory; its limit is {limit} MiB\n{}",
                        shown(samples)
                    ));
                }
            }
        }
        breaches
    }
}

fn shown(samples: &[MemorySample]) -> String {
    let mut text = String::new();
    let begun = samples.first().map_or(0, |sample| sample.at);
    for MemorySample { at, resident_kib, peak_kib } in
        samples.iter().step_by(samples.len().div_ceil(SHOWN).max(1))
    {
        let (resident, peak) = (resident_kib / KIB_PER_MIB, peak_kib / KIB_PER_MIB);
        let seconds = (at - begun) / 1_000_000;
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {seconds:>5} s  {resident} MiB resident, {peak} at most");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str, peak_mib: u64) -> MemorySeries {
        let sample = MemorySample { at: 1, resident_kib: 1_024, peak_kib: peak_mib * KIB_PER_MIB };
        MemorySeries { processes: BTreeMap::from([(name.to_owned(), vec![sample])]) }
    }

    #[test]
    fn the_kernels_words_are_read() {
        let status = "Name:\trelay\nVmPeak:\t  999 kB\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(sample(status, 7), Some(MemorySample { at: 7, resident_kib: 1_024, peak_kib: 2_048 }));
        assert_eq!(sample("Name:\trelay\nState:\tZ (zombie)\n", 7), None);
    }

    #[test]
    fn a_process_above_its_bound_is_named_with_its_series() {
        let limit = limit_mib(Role::Relay).expect("a bound");
        assert!(series("relay-0", limit).breaches().is_empty());
        let breaches = series("relay-0", limit + 1).breaches();
        assert!(breaches[0].contains("relay-0") && breaches[0].contains("MiB resident"), "{breaches:?}");
        assert_eq!(series("consumer-audit-1", 700).breaches().len(), 1);
        assert!(series("producer-0", 700).breaches().is_empty());
    }
}
