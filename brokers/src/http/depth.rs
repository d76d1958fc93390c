//! How many messages may wait for a receiver: as many as it takes in a short time, judged by how
//! long its requests take.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// How long a message may wait before its request begins. By default, a relay counts a message
/// without an answer as silent after 5 s, and after 1 s if others of its topic are silent already.
/// It cannot know that the message has not been sent, so no message may wait nearly that long.
pub(super) const WAIT_MAX: Duration = Duration::from_millis(500);

/// The longest time that counts in the average. At any longer time only the minimum may wait, and a
/// single hanging request must not outweigh many answers.
const COUNTED_MAX: Duration = Duration::from_secs(1);

/// A new time replaces one part in this many of the average.
const WEIGHT: u32 = 8;

/// The times that the requests of a share take.
#[derive(Debug, Default)]
pub(super) struct Times {
    /// When the requests in flight began, the oldest first.
    begun: VecDeque<Instant>,
    /// The average time of those that have ended. Recent ones count more.
    average: Option<Duration>,
}

impl Times {
    /// Records that a request begins. `now` is not before the time of an earlier call.
    pub(super) fn begins(&mut self, now: Instant) {
        self.begun.push_back(now);
    }

    /// Records the end of a request that began at `since`. If messages wait and fewer requests are
    /// in flight than allowed, other shares have the free places: each request then counts as
    /// `slowdown` times as long.
    pub(super) fn ends(&mut self, since: Instant, now: Instant, slowdown: u32) {
        self.drops(since);
        let taken = now.saturating_duration_since(since).saturating_mul(slowdown).min(COUNTED_MAX);
        let average = self.average.map_or(taken, |before| (before * (WEIGHT - 1) + taken) / WEIGHT);
        self.average = Some(average);
    }

    /// Records the end of a request that began at `since` and was never sent.
    pub(super) fn drops(&mut self, since: Instant) {
        if let Ok(place) = self.begun.binary_search(&since) {
            self.begun.remove(place);
        }
    }

    /// Returns how many messages may wait, at least `concurrency` and at most `max`: as many as
    /// `concurrency` requests at once send in [`WAIT_MAX`], without those that hang.
    pub(super) fn depth(&self, concurrency: usize, max: usize, now: Instant) -> usize {
        let age = |since: &Instant| now.saturating_duration_since(*since);
        let hanging = self.begun.partition_point(|since| age(since) >= WAIT_MAX);
        let oldest = || self.begun.front().map(age).unwrap_or_default();
        // Before the first answer, a request is known only to take longer than the oldest one so
        // far.
        let each = self.average.unwrap_or_else(oldest).as_micros().max(1);
        let sending = u128::try_from(concurrency.saturating_sub(hanging)).unwrap_or(u128::MAX);
        let sent = sending.saturating_mul(WAIT_MAX.as_micros()) / each;
        usize::try_from(sent).unwrap_or(usize::MAX).clamp(concurrency, max.max(concurrency))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Returns the depth after this many requests of the same time, one after the other.
    fn depth_after(times: &mut Times, requests: usize, each: Duration) -> usize {
        let begun = Instant::now();
        for _ in 0..requests {
            times.begins(begun);
            times.ends(begun, begun + each, 1);
        }
        times.depth(16, 512, begun + each)
    }

    #[test]
    fn as_many_may_wait_as_are_sent_in_half_a_second() {
        for (each, depth) in [(1, 512), (5, 512), (15, 512), (40, 200), (300, 26), (500, 16), (60_000, 16)] {
            assert_eq!(depth_after(&mut Times::default(), 20, ms(each)), depth, "{each} ms");
        }
    }

    #[test]
    fn the_average_follows_the_endpoint_and_outlasts_one_slow_request() {
        let mut times = Times::default();
        assert_eq!(depth_after(&mut times, 20, ms(5)), 512);
        let slow = depth_after(&mut times, 16, ms(300));
        assert!((26..40).contains(&slow), "{slow}");
        let quick = depth_after(&mut times, 32, ms(5));
        assert_eq!(quick, 512);
        depth_after(&mut times, 1, ms(30_000));
        assert_eq!(depth_after(&mut times, 20, ms(5)), 512, "one timeout among quick answers");
    }

    #[test]
    fn before_the_first_answer_the_age_of_the_oldest_request_counts() {
        let mut times = Times::default();
        let begun = Instant::now();
        assert_eq!(times.depth(16, 512, begun), 512);
        times.begins(begun);
        times.begins(begun + ms(90));
        for (age, depth) in [(0, 512), (10, 512), (100, 80), (400, 20), (500, 16), (60_000, 16)] {
            assert_eq!(times.depth(16, 512, begun + ms(age)), depth, "{age} ms");
        }
    }

    #[test]
    fn requests_that_hang_send_nothing() {
        let mut times = Times::default();
        assert_eq!(depth_after(&mut times, 20, ms(20)), 400);
        let begun = Instant::now();
        (0..12).for_each(|_| times.begins(begun));
        assert_eq!(times.depth(16, 512, begun + ms(499)), 400);
        assert_eq!(times.depth(16, 512, begun + ms(500)), 100, "four others go on");
        (0..4).for_each(|_| times.begins(begun + ms(600)));
        assert_eq!(times.depth(16, 512, begun + ms(1_100)), 16, "all of them hang");
        times.ends(begun, begun + ms(1_200), 1);
        assert_eq!(times.begun.len(), 15);
    }

    /// Goal: the places that others take from a share count. Oracle: the depth of one that has a
    /// quarter of its requests.
    #[test]
    fn a_share_that_gets_few_requests_is_slower() {
        let mut times = Times::default();
        let begun = Instant::now();
        for _ in 0..20 {
            times.begins(begun);
            times.ends(begun, begun + ms(20), 4);
        }
        assert_eq!(times.depth(16, 512, begun), 100);
    }
}
