//! The last hour of a pipeline, sampled from its database. Pure.

use std::collections::VecDeque;

/// The time between two points of a plot, in seconds.
pub(crate) const STEP_SECONDS: u64 = 60;
/// Number of points of a plot.
pub(crate) const STEPS: usize = 60;

/// One sample: the waiting and the dead messages, and the relay's position in the log.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sample {
    /// Seconds since the first sample.
    pub(crate) at: u64,
    /// Maximum number of messages that wait to be published.
    pub(crate) waiting: u64,
    /// The age of the message that has waited longest.
    pub(crate) oldest_seconds: f64,
    /// Number of dead messages.
    pub(crate) dead: u64,
    /// The position in the log that the relay has passed.
    pub(crate) passed: Option<i64>,
}

/// Samples of the last hour.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples(VecDeque<Sample>);

/// The values of plots, one for each minute, latest last; `None` for minutes without a sample.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Hour {
    /// The age of the oldest waiting message in seconds: the maximum of each minute.
    pub(crate) lag: Vec<Option<f64>>,
    /// Dead messages: the maximum of each minute.
    pub(crate) dead: Vec<Option<f64>>,
    /// Messages that the relay passed per second: published, parked as dead, or left out.
    pub(crate) throughput: Vec<Option<f64>>,
    /// Messages that were enqueued per second, according to the log.
    pub(crate) enqueued: Vec<Option<f64>>,
}

impl Hour {
    /// Creates an hour without a sample.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self { enqueued: vec![None; STEPS], ..Samples::default().hour(0) }
    }
}

/// Returns the rate of enqueued messages in each minute, from the positions in the log of each
/// minute's first message and of the newest one. Gaps of transactions that were rolled back count
/// as well.
pub(crate) fn enqueued(firsts: &[Option<i64>], newest: Option<i64>) -> Vec<Option<f64>> {
    let Some(newest) = newest else { return vec![Some(0.0); firsts.len()] };
    // A minute without later messages ends at the end of the log.
    let mut after = newest.saturating_add(1);
    let mut rates: Vec<Option<f64>> = Vec::with_capacity(firsts.len());
    for first in firsts.iter().rev() {
        let first = first.unwrap_or(after).min(after);
        rates.push(Some(after.saturating_sub(first) as f64 / STEP_SECONDS as f64));
        after = first;
    }
    rates.reverse();
    rates
}

impl Samples {
    /// Adds a sample and removes those older than an hour.
    pub(crate) fn add(&mut self, sample: Sample) {
        let from = sample.at.saturating_sub(STEP_SECONDS * STEPS as u64);
        // One older sample is kept: the messages passed since then belong to the first minute.
        while self.0.get(1).is_some_and(|second| second.at < from) {
            self.0.pop_front();
        }
        self.0.push_back(sample);
    }

    /// Returns the last hour until `now`, in seconds since the first sample.
    pub(crate) fn hour(&self, now: u64) -> Hour {
        let mut lag: Vec<Option<f64>> = vec![None; STEPS];
        let mut dead: Vec<Option<f64>> = vec![None; STEPS];
        let mut passed: Vec<Option<(i64, u64)>> = vec![None; STEPS];
        let step = |at: u64| {
            let back = usize::try_from(now.saturating_sub(at) / STEP_SECONDS).ok()?;
            (STEPS - 1).checked_sub(back)
        };
        let mut before: Option<&Sample> = None;
        for sample in &self.0 {
            if let Some(step) = step(sample.at) {
                lag[step] = Some(lag[step].unwrap_or_default().max(sample.oldest_seconds));
                dead[step] = Some(dead[step].unwrap_or_default().max(sample.dead as f64));
                if let Some((from, to)) = before.and_then(|it| it.passed).zip(sample.passed) {
                    let (sum, seconds) = passed[step].unwrap_or_default();
                    // A cursor moves back when it adopts another server's history: no message was
                    // published then.
                    let more = to.saturating_sub(from).max(0);
                    let since = sample.at.saturating_sub(before.map_or(0, |it| it.at));
                    passed[step] = Some((sum.saturating_add(more), seconds + since));
                }
            }
            before = Some(sample);
        }
        let throughput = passed
            .into_iter()
            .map(|step| step.filter(|(_, seconds)| *seconds > 0).map(|(sum, over)| sum as f64 / over as f64))
            .collect();
        Hour { lag, dead, throughput, enqueued: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: u64, passed: i64) -> Sample {
        Sample { at, waiting: 0, oldest_seconds: at as f64, dead: at / 30, passed: Some(passed) }
    }

    #[test]
    fn each_minute_has_its_worst_lag_and_its_own_rate() {
        let mut samples = Samples::default();
        for (at, passed) in [(0, 0), (30, 300), (60, 600), (90, 1_200), (119, 1_200)] {
            samples.add(sample(at, passed));
        }
        let hour = samples.hour(119);
        assert_eq!((hour.lag.len(), hour.lag[57]), (STEPS, None));
        assert_eq!(hour.lag[58..], [Some(30.0), Some(119.0)]);
        assert_eq!(hour.dead[57..], [None, Some(1.0), Some(3.0)]);
        assert_eq!(hour.throughput[58], Some(10.0));
        let later = hour.throughput[59].unwrap();
        assert!((later - 900.0 / 89.0).abs() < 0.01, "{later}");
    }

    #[test]
    fn each_minute_has_what_was_enqueued_in_it() {
        let rates = enqueued(&[Some(1), Some(61), Some(61), None], Some(180));
        assert_eq!(rates, [Some(1.0), Some(0.0), Some(2.0), Some(0.0)]);
        assert_eq!(enqueued(&[None, None], None), [Some(0.0); 2]);
        // Ids that were generated elsewhere may be out of order.
        assert_eq!(enqueued(&[Some(500), Some(10)], Some(9)), [Some(0.0), Some(0.0)]);
    }

    #[test]
    fn an_hour_is_kept_and_a_cursor_that_goes_back_counts_nothing() {
        let mut samples = Samples::default();
        for step in 0..1_000 {
            samples.add(sample(step * 10, 0));
        }
        assert!(samples.0.len() <= 362, "{}", samples.0.len());
        samples.add(sample(10_000, -50));
        assert_eq!(samples.hour(10_000).throughput[59], Some(0.0));
    }
}
