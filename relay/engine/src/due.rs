//! Decides when to read due exceptions, and from which position on. Pure.
//!
//! They come in pages, ordered by time. Exceptions in the window stay due in the database, so a
//! pass continues after the previous page. It starts over at the first exception only from time to
//! time. This finds exceptions that an operator requeued or discarded, or that were stored late.
//!
//! Scheduled and discarded exceptions have passes of their own. A pass does not end while more are
//! due than there is room for, for example while a destination fails on all of its messages, or
//! after a large number of them were scheduled for one moment. Nothing else may wait for such a
//! pass. So while it takes long, the probes of stopped topics and what operators have decided about
//! are read by themselves (`wants_first`).

use std::time::Duration;

use outbox_log::{DueKind, DuePage, DuePosition};
use tokio::time::Instant;

/// Interval at which a pass starts at the first exception: an operator's decision is noticed within
/// this time.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How long a pass goes on before it starts over: exceptions that were stored late lie behind its
/// position.
const PASS_MAX: Duration = Duration::from_secs(10);

/// The progress of reading due exceptions.
#[derive(Debug)]
pub(crate) struct Due {
    scheduled: Passes,
    retrying: Passes,
    /// When to read those that come first, if a pass is under way then.
    first_at: Instant,
}

impl Due {
    /// Starts with an immediate look at both kinds.
    pub(crate) fn new(now: Instant) -> Self {
        Self { scheduled: Passes::new(now), retrying: Passes::new(now), first_at: now }
    }

    fn each(&mut self) -> [&mut Passes; 2] {
        [&mut self.scheduled, &mut self.retrying]
    }

    fn of(&self, kind: DueKind) -> &Passes {
        match kind {
            DueKind::Scheduled => &self.scheduled,
            DueKind::Retrying => &self.retrying,
        }
    }

    /// Returns when the next pass begins; `None` while passes of both kinds are under way.
    pub(crate) fn at(&self) -> Option<Instant> {
        self.scheduled.at().into_iter().chain(self.retrying.at()).min()
    }

    /// Returns the position after which to read exceptions of a kind now, if any are to be read.
    pub(crate) fn wanted(&self, kind: DueKind) -> Option<Option<DuePosition>> {
        self.of(kind).wanted()
    }

    /// Returns whether to read exceptions that come before the others, because a pass has taken
    /// long: at most once in each interval.
    pub(crate) fn wants_first(&mut self, now: Instant) -> bool {
        let is_reading = self.retrying.is_reading || self.scheduled.is_reading;
        let is_time = is_reading && now >= self.first_at;
        if is_time {
            self.first_at = now + LOOK_INTERVAL;
        }
        is_time
    }

    /// Begins the passes for which it is time. A pass starts at the first exception if that costs
    /// little, or if the last one from there was long enough ago.
    pub(crate) fn begin(&mut self, now: Instant, is_cheap: bool) {
        if !self.retrying.is_reading && !self.scheduled.is_reading {
            self.first_at = now + LOOK_INTERVAL;
        }
        for passes in self.each() {
            if passes.at().is_some_and(|at| at <= now) {
                passes.begin(now, is_cheap);
            }
        }
    }

    /// Records that a stored exception will become due.
    pub(crate) fn look(&mut self, now: Instant) {
        self.each().into_iter().for_each(|passes| passes.look(now));
    }

    /// Records that a page of a kind was read.
    pub(crate) fn read(&mut self, kind: DueKind, page: &DuePage, now: Instant) {
        match kind {
            DueKind::Scheduled => self.scheduled.read(page, now),
            DueKind::Retrying => self.retrying.read(page, now),
        }
    }
}

/// The passes over the exceptions of one kind.
#[derive(Debug)]
struct Passes {
    position: Option<DuePosition>,
    /// Whether a pass is in progress. Then the next page is read as soon as there is room.
    is_reading: bool,
    /// When the next pass begins.
    at: Instant,
    /// When the last pass from the first exception began.
    began_at: Option<Instant>,
}

impl Passes {
    /// Starts with an immediate look.
    fn new(now: Instant) -> Self {
        Self { position: None, is_reading: false, at: now, began_at: None }
    }

    /// Returns when the next pass begins; `None` while a pass is under way.
    fn at(&self) -> Option<Instant> {
        (!self.is_reading).then_some(self.at)
    }

    /// Returns the position after which to read now, if anything is to be read.
    fn wanted(&self) -> Option<Option<DuePosition>> {
        self.is_reading.then_some(self.position)
    }

    /// Begins a pass. It starts at the first exception if that costs little, or if the last pass
    /// from there was long enough ago.
    fn begin(&mut self, now: Instant, is_cheap: bool) {
        let is_time = self.began_at.is_none_or(|began_at| now.duration_since(began_at) >= LOOK_INTERVAL);
        if is_cheap || is_time {
            self.position = None;
            self.began_at = Some(now);
        }
        self.is_reading = true;
    }

    /// Records that a stored exception will become due.
    fn look(&mut self, now: Instant) {
        self.at = now;
    }

    /// Records that a page was read.
    fn read(&mut self, page: &DuePage, now: Instant) {
        self.position = page.position;
        if page.exhausted {
            self.is_reading = false;
            self.at = now + page.next_in.unwrap_or(LOOK_INTERVAL).min(LOOK_INTERVAL);
        } else if self.began_at.is_none_or(|began_at| now.duration_since(began_at) >= PASS_MAX) {
            self.begin(now, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use outbox_log::EntryId;

    use super::*;

    fn page(at_micros: i64, exhausted: bool, next_in: Option<Duration>) -> DuePage {
        let position = Some(DuePosition { at_micros, id: EntryId(1) });
        DuePage { exceptions: Vec::new(), position, exhausted, next_in }
    }

    #[test]
    fn a_pass_goes_on_behind_each_page_and_ends_with_the_last() {
        let now = Instant::now();
        let mut due = Passes::new(now);
        assert_eq!((due.at(), due.wanted()), (Some(now), None));
        due.begin(now, true);
        assert_eq!((due.at(), due.wanted()), (None, Some(None)));
        due.read(&page(7, false, None), now);
        assert_eq!(due.wanted().unwrap().unwrap().at_micros, 7);
        due.read(&page(9, true, Some(Duration::from_millis(300))), now);
        assert_eq!((due.at(), due.wanted()), (Some(now + Duration::from_millis(300)), None));
    }

    #[test]
    fn a_pass_begins_anew_only_now_and_then_when_much_is_in_the_window() {
        let now = Instant::now();
        let mut due = Passes::new(now);
        due.begin(now, false);
        due.read(&page(7, true, None), now);
        due.begin(now + LOOK_INTERVAL / 2, false);
        assert!(due.wanted().unwrap().is_some());
        due.read(&page(7, true, None), now);
        due.begin(now + LOOK_INTERVAL, false);
        assert_eq!(due.wanted(), Some(None));
    }

    /// Goal: what is stored behind the position of a pass is found although the pass does not end.
    #[test]
    fn a_pass_that_takes_long_starts_over() {
        let now = Instant::now();
        let mut due = Passes::new(now);
        due.begin(now, true);
        due.read(&page(7, false, None), now + PASS_MAX / 2);
        assert_eq!(due.wanted().unwrap().unwrap().at_micros, 7);
        due.read(&page(9, false, None), now + PASS_MAX);
        assert_eq!(due.wanted(), Some(None));
        due.read(&page(7, false, None), now + PASS_MAX);
        assert_eq!(due.wanted().unwrap().unwrap().at_micros, 7, "it goes on");
    }

    /// Goal: a pass over retried exceptions that never ends delays nothing that is scheduled or
    /// discarded. Oracle: when the passes of both kinds begin, and where.
    #[test]
    fn a_pass_over_what_is_retried_that_never_ends_delays_nothing_else() {
        let now = Instant::now();
        let mut due = Due::new(now);
        due.begin(now, true);
        due.read(DueKind::Scheduled, &page(1, true, None), now);
        for step in 1..=100 {
            due.read(DueKind::Retrying, &page(step, false, None), now);
            assert!(due.wanted(DueKind::Retrying).is_some());
            let later = now + LOOK_INTERVAL * u32::try_from(step).unwrap();
            assert_eq!((due.at(), due.wanted(DueKind::Scheduled)), (Some(later), None));
            due.begin(later, false);
            assert_eq!(due.wanted(DueKind::Scheduled), Some(None), "from the first on");
            due.read(DueKind::Scheduled, &page(1, true, None), later);
        }
    }

    #[test]
    fn while_a_pass_takes_long_the_first_ones_are_read_once_in_each_interval() {
        for kind in [DueKind::Retrying, DueKind::Scheduled] {
            let now = Instant::now();
            let mut due = Due::new(now);
            assert!(!due.wants_first(now + 2 * LOOK_INTERVAL), "there is no pass");
            due.begin(now, true);
            let other = if kind == DueKind::Retrying { DueKind::Scheduled } else { DueKind::Retrying };
            due.read(other, &page(1, true, None), now);
            due.read(kind, &page(7, false, None), now);
            assert!(!due.wants_first(now + LOOK_INTERVAL / 2), "it has only begun");
            for looks in 1..4 {
                assert!(due.wants_first(now + looks * LOOK_INTERVAL));
                assert!(!due.wants_first(now + looks * LOOK_INTERVAL));
            }
            due.read(kind, &page(9, true, None), now);
            assert!(!due.wants_first(now + 9 * LOOK_INTERVAL));
        }
    }
}
