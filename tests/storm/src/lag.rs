//! Checks that the system catches up after everything is healed, while producers continue at their
//! own rate. Pure.

use std::fmt;
use std::time::Duration;

use crate::read::Pending;

/// The messages in flight at some time after the last fault was healed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct LagSample {
    /// Time since the last fault was healed.
    pub at: Duration,
    /// The messages in flight.
    pub pending: Pending,
}

/// The lag after the last fault was healed, as a series of samples.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub struct LagSeries {
    /// The samples in the order of their times.
    pub samples: Vec<LagSample>,
    /// When producers stopped.
    pub producers_ended: Duration,
    /// The time by which the lag has to be gone, unless it keeps falling; see
    /// [`LagSeries::producers_end`].
    pub limit: Duration,
    /// The longest time for which the lag may stay unchanged.
    pub reaction: Duration,
    /// The longest time for which relays may publish nothing.
    pub relay_pause: Duration,
}

/// Effects of one message. Each of two consumers has one.
const EFFECTS: f64 = 2.0;
/// A factor; see [`LagSeries::slack`].
const SLACK: u32 = 4;
/// Minimum number of held entries that counts as a problem. Fewer are normal.
const HELD_MANY: u64 = 100;
/// Maximum number of lines shown of a series.
const SHOWN: usize = 20;

impl LagSeries {
    /// Records that producers stop, and derives the time by which the lag has to be gone. The
    /// backlog at the healing of the last fault drains at the rate of producers, in addition to
    /// their new messages. All other delays together may only be as long as the deliberate pauses.
    /// A machine with other work is slower, but then the lag still falls all the time.
    pub fn producers_end(&mut self, at: Duration, reaction: Duration, relay_pause: Duration) {
        let lag = |sample: &LagSample| sample.pending.lag() as f64 / EFFECTS;
        let (first, last) = (self.samples.first(), self.samples.last());
        let backlog = first.map_or(0.0, lag);
        let sent = first
            .zip(last)
            .map_or(0, |(first, last)| last.pending.messages.saturating_sub(first.pending.messages));
        let per_second = (sent as f64 / at.as_secs_f64().max(1.0)).max(1.0);
        self.producers_ended = at;
        (self.reaction, self.relay_pause) = (reaction, relay_pause);
        self.limit = at + reaction + Duration::from_secs_f64(backlog / per_second);
    }

    /// Returns the first time without a lag after producers had stopped.
    #[must_use]
    pub fn caught_up(&self) -> Option<Duration> {
        let after = self.samples.iter().filter(|sample| sample.at >= self.producers_ended);
        after.filter(|sample| sample.pending.lag() == 0).map(|sample| sample.at).next()
    }

    /// Returns the extra time that a busy machine gets until the lag must be gone. It is a multiple
    /// of the longest pause between two samples, each of which is a few short queries.
    fn slack(&self) -> Duration {
        let times = self.samples.iter().map(|sample| sample.at);
        let pauses = times.clone().skip(1).zip(times).map(|(next, last)| next.saturating_sub(last));
        pauses.max().unwrap_or_default() * SLACK
    }

    /// Returns the longest time after producers had stopped in which the lag did not go down.
    fn stood_still(&self) -> Duration {
        let (mut least, mut since, mut longest) = (u64::MAX, self.producers_ended, Duration::ZERO);
        for LagSample { at, pending } in
            self.samples.iter().filter(|sample| sample.at >= self.producers_ended)
        {
            longest = longest.max(at.saturating_sub(since));
            if pending.lag() < least {
                (least, since) = (pending.lag(), *at);
            }
            if least == 0 {
                break;
            }
        }
        longest
    }

    /// Returns the problem if entries stayed held while producers continued: entries that were held
    /// after the longest pause of relays did not drain. A short storm ends before that. While a
    /// backlog drains, bursts of its busy keys are held in turn, so that their number alone says
    /// nothing: then the lag falls.
    fn held_under_load(&self) -> Option<String> {
        let mut judged = self
            .samples
            .iter()
            .filter(|sample| sample.at >= self.relay_pause && sample.at < self.producers_ended)
            .map(|sample| sample.pending);
        let first = judged.next()?;
        let held = judged.clone().map(|pending| pending.held).min()?;
        let lag = judged.map(Pending::lag).min()?;
        (first.held >= HELD_MANY && held >= first.held && lag >= first.lag()).then(|| {
            let waited = self.relay_pause.as_secs_f64();
            format!(
                "{} entries were held {waited:.0} s after healing, and never fewer until producers stopped, \
                 nor did the lag fall\n{self}",
                first.held
            )
        })
    }

    /// Returns the problem if the lag was not gone in time and stood still, or if entries stayed
    /// held.
    #[must_use]
    pub fn breach(&self) -> Option<String> {
        self.held_under_load().or_else(|| self.late())
    }

    fn late(&self) -> Option<String> {
        if self.stood_still() <= self.reaction + self.slack() {
            return None;
        }
        let limit = self.limit + self.slack();
        let late = match self.caught_up() {
            Some(at) if at <= limit => return None,
            Some(at) => format!("was gone after {:.0} s", at.as_secs_f64()),
            None => {
                let last = self.samples.last()?;
                if last.at <= limit {
                    return None;
                }
                format!("was {} after {:.0} s", last.pending.lag(), last.at.as_secs_f64())
            }
        };
        let limit = limit.as_secs_f64();
        Some(format!("the lag after healing {late}; the limit was {limit:.0} s\n{self}"))
    }
}

impl fmt::Display for LagSeries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = self.samples.len().div_ceil(SHOWN).max(1);
        for LagSample { at, pending } in self.samples.iter().step_by(step) {
            writeln!(f, "  {:>6.1} s  {pending}", at.as_secs_f64())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns a series with these lags, one a second. Producers send 100 messages a second and
    /// stop after ten seconds.
    fn series(lags: &[u64]) -> LagSeries {
        let mut series = LagSeries::default();
        for (second, lag) in (0..).zip(lags) {
            if second == 10 {
                series.producers_end(SECOND * 10, SECOND * 20, SECOND * 7);
            }
            let messages = u64::from(second).min(10) * 100;
            let pending = Pending { messages, undecided: *lag, ..Pending::default() };
            series.samples.push(LagSample { at: SECOND * second, pending });
        }
        series
    }

    #[test]
    fn a_lag_that_is_gone_in_time_is_fine() {
        let falling: Vec<u64> = (0..=20).rev().map(|second| second * 100).collect();
        let series = series(&falling);
        assert_eq!(series.caught_up(), Some(SECOND * 20));
        // Ten seconds of producers, twenty of pauses, 1,000 messages at about 100 a second.
        assert!((SECOND * 40..SECOND * 43).contains(&series.limit), "{:?}", series.limit);
        assert_eq!(series.breach(), None);
    }

    #[test]
    fn a_lag_that_never_falls_is_a_breach_with_its_series() {
        let series = series(&[2_000; 60]);
        let breach = series.breach().expect("a breach");
        assert!(breach.contains("was 2000 after 59 s") && breach.lines().count() > 10, "{breach}");
    }

    #[test]
    fn a_lag_that_goes_down_slowly_all_along_is_fine() {
        let falling: Vec<u64> = (0..=200).rev().map(|second| second * 10).collect();
        let series = series(&falling);
        assert!(series.caught_up() > Some(series.limit * 2) && series.breach().is_none());
    }

    /// Builds a series with these held entries, one a second while producers continue. Returns the
    /// problem that it finds.
    fn held(looks: &[u64]) -> Option<String> {
        let mut series = LagSeries::default();
        for (second, held) in (0..).zip(looks) {
            let pending = Pending { held: *held, ..Pending::default() };
            series.samples.push(LagSample { at: SECOND * second, pending });
        }
        series.producers_end(SECOND * u32::try_from(looks.len()).unwrap(), SECOND * 20, SECOND * 7);
        series.breach()
    }

    #[test]
    fn entries_that_stay_held_while_producers_go_on_are_a_breach() {
        assert!(held(&[300; 9]).unwrap().starts_with("300 entries were held 7 s after healing"));
        assert!(held(&[0, 0, 0, 0, 0, 0, 0, 200, 400, 200]).is_some());
        let ending_in = |held_last: u64| held(&[300, 300, 300, 300, 300, 300, 300, 300, 400, held_last]);
        assert!(ending_in(300).is_some());
        assert_eq!(ending_in(299), None);
        assert_eq!(held(&[5; 9]), None);
        assert_eq!(held(&[0, 5, 0, 5, 0, 5, 0, 5, 0]), None);
    }

    #[test]
    fn bursts_that_are_held_in_turn_while_the_lag_falls_are_fine() {
        let mut series = LagSeries::default();
        for second in 0..12 {
            let undecided = 5_000 - 100 * u64::from(second);
            let pending = Pending { held: 300, undecided, ..Pending::default() };
            series.samples.push(LagSample { at: SECOND * second, pending });
        }
        series.producers_end(SECOND * 12, SECOND * 20, SECOND * 7);
        assert_eq!(series.breach(), None);
        for sample in &mut series.samples {
            sample.pending.undecided = 5_000;
        }
        assert!(series.breach().unwrap().starts_with("300 entries were held 7 s after healing"));
    }

    #[test]
    fn what_is_held_may_wait_for_the_lease_of_a_relay_that_was_killed() {
        // In a short storm, producers stop before that.
        assert_eq!(held(&[300; 8]), None);
        assert_eq!(held(&[300, 400, 500, 600, 700, 700, 700, 700, 200]), None);
        // A crash point that was still armed fired after the entries had drained.
        assert_eq!(held(&[300, 300, 300, 300, 300, 300, 300, 300, 0, 400, 400]), None);
    }

    #[test]
    fn a_lag_that_was_not_seen_until_its_limit_is_no_breach() {
        assert_eq!(series(&[2_000; 30]).breach(), None);
        assert_eq!(LagSeries::default().breach(), None);
    }

    #[test]
    fn a_machine_that_hardly_answers_the_storm_gets_more_time() {
        let mut series = series(&[2_000; 41]);
        let gone = LagSample { at: SECOND * 60, pending: Pending::default() };
        series.samples.push(gone);
        // The series has no sample for 20 seconds.
        assert_eq!(series.breach(), None);
        series.samples.splice(
            41..41,
            (41..60)
                .map(|second| LagSample { at: SECOND * second, ..series.samples[40] })
                .collect::<Vec<_>>(),
        );
        assert!(series.breach().is_some());
    }

    #[test]
    fn a_lag_that_comes_back_while_producers_send_is_measured_afterwards() {
        let mut lags = vec![0; 10];
        lags.extend([500; 60]);
        assert!(series(&lags).breach().is_some());
    }
}
