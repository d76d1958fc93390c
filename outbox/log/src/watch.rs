//! A lease that ends later than its holder can have requested. Pure.
//!
//! A holder stores the end of its lease by the database's clock; on SQLite, by its machine's clock.
//! When that clock is set back, or a server with a slower clock takes over, the lease appears to
//! last longer than it was granted. Its end is then unreliable. But a live holder renews its lease
//! within its length. So this machine watches the lease by its own monotonic clock: a lease that
//! has not changed for its whole length has ended. Where the holder's release stores no length,
//! only the stored end counts.

use std::ops::ControlFlow;
use std::time::Duration;

use tokio::time::Instant;

use crate::lease::{Acquired, OtherHolder, RelayName};
use crate::row;

/// A smaller excess can come from the two statements that wrote and read the lease.
const ALLOWANCE: Duration = Duration::from_secs(1);

/// Another holder's lease, as it was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Held<T> {
    pub(crate) epoch: i64,
    /// The end of the lease, in the database's own notation.
    pub(crate) until: T,
    /// Time until the end, by the database's clock.
    pub(crate) expires_in: Duration,
    /// The length that the holder requested, if it is stored.
    pub(crate) length: Option<Duration>,
}

/// The columns of a lease: holder, seconds until it ends, epoch, end, and the seconds that the
/// holder requested.
pub type HolderRow<T> = (String, f64, i64, T, Option<f64>);

impl<T> Held<T> {
    /// Returns the holder and the lease, if it has not ended.
    pub(crate) fn of((holder, seconds, epoch, until, length): HolderRow<T>) -> Option<(String, Self)> {
        let (expires_in, length) = (row::wait(seconds)?, length.and_then(row::wait));
        Some((holder, Self { epoch, until, expires_in, length }))
    }
}

/// The next step about another holder's lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// Try again after this time, when it can have ended.
    For(Duration),
    /// It has not changed for its whole length: take it over.
    Over,
}

/// The lease that is being watched.
#[derive(Debug, Clone)]
pub(crate) struct Watch<T>(Option<(Held<T>, Instant)>);

impl<T> Default for Watch<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: PartialEq + Clone> Watch<T> {
    /// Decides whether to take the lease. `Continue(None)`: it is free or belongs to the claimant.
    /// `Continue(Some(_))`: it has ended, although its stored end is in the future. `Break`:
    /// another holder has it.
    pub(crate) fn claim(
        &mut self,
        relay: &RelayName,
        claimant: &str,
        found: Option<HolderRow<T>>,
    ) -> ControlFlow<Acquired, Option<Held<T>>> {
        let held = found.and_then(Held::of).filter(|(holder, _)| holder != claimant);
        let Some((holder, held)) = held else { return ControlFlow::Continue(None) };
        let Held { expires_in, length, .. } = held;
        match self.look(held.clone(), Instant::now()) {
            Wait::For(expires_in) => ControlFlow::Break(Acquired::Busy { holder, expires_in }),
            Wait::Over => {
                tracing::warn!(
                    relay = relay.as_str(),
                    holder,
                    ?expires_in,
                    ?length,
                    "the lease ends later than its holder requested, so a clock went back or was ahead; it \
                     was not renewed for its whole length, and is taken over"
                );
                ControlFlow::Continue(Some(held))
            }
        }
    }

    /// Returns the other holder of the lease, unless it is free or over.
    pub(crate) fn other_holder(
        &mut self,
        claimant: &str,
        found: Option<HolderRow<T>>,
    ) -> Option<OtherHolder> {
        let (holder, held) = found.and_then(Held::of).filter(|(holder, _)| holder != claimant)?;
        match self.look(held, Instant::now()) {
            Wait::For(expires_in) => Some(OtherHolder { holder, expires_in }),
            Wait::Over => None,
        }
    }

    fn look(&mut self, held: Held<T>, now: Instant) -> Wait {
        let Some(length) = held.length.filter(|length| held.expires_in > *length + ALLOWANCE) else {
            self.0 = None;
            return Wait::For(held.expires_in);
        };
        let since = match &self.0 {
            Some((known, since)) if known.epoch == held.epoch && known.until == held.until => *since,
            _ => now,
        };
        self.0 = Some((held, since));
        match length.checked_sub(now.duration_since(since)) {
            Some(left) if !left.is_zero() => Wait::For(left),
            _ => Wait::Over,
        }
    }
}

/// Whether the holder of a lease is alive, for a caller that does not want the lease itself.
#[derive(Debug, Clone, PartialEq)]
pub enum Life<T> {
    /// The holder has renewed the lease, or may still do it in time.
    Alive { holder: String },
    /// The lease ends later than the holder can have requested. Check again after this time.
    Unknown(Duration),
    /// The lease is free, or over although its stored end lies in the future.
    Over(Option<Held<T>>),
}

/// Watches the lease of a relay that is to be forgotten.
#[derive(Debug)]
pub struct Vigil<T> {
    watch: Watch<T>,
    /// The epoch and the end of the lease that is watched.
    watched: Option<(i64, T)>,
}

impl<T> Default for Vigil<T> {
    fn default() -> Self {
        Self { watch: Watch::default(), watched: None }
    }
}

impl<T: PartialEq + Clone> Vigil<T> {
    /// Decides whether the holder is alive. Call again with each later row.
    pub fn decide(&mut self, found: Option<HolderRow<T>>, now: Instant) -> Life<T> {
        let Some((holder, held)) = found.and_then(Held::of) else { return Life::Over(None) };
        let lease = (held.epoch, held.until.clone());
        let is_same = self.watched.as_ref() == Some(&lease);
        let wait = self.watch.look(held.clone(), now);
        let begins = self.watched.is_none() && self.watch.0.is_some();
        match wait {
            Wait::Over => Life::Over(Some(held)),
            Wait::For(left) if is_same || begins => {
                self.watched = Some(lease);
                Life::Unknown(left)
            }
            Wait::For(_) => Life::Alive { holder },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(until: &str, expires_in: u64) -> Held<String> {
        let length = Some(Duration::from_secs(15));
        Held { epoch: 3, until: until.to_owned(), expires_in: Duration::from_secs(expires_in), length }
    }

    fn row(until: &str, expires_in: f64) -> Option<HolderRow<String>> {
        Some((String::from("a"), expires_in, 7, String::from(until), Some(15.0)))
    }

    #[test]
    fn a_holder_that_renews_a_doubtful_lease_lives() {
        let (start, alive) = (Instant::now(), Life::Alive { holder: String::from("a") });
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(Vigil::default().decide(row("t", 15.0), start), alive, "its end proves it");
        let mut vigil = Vigil::default();
        assert_eq!(vigil.decide(None, start), Life::Over(None));
        assert_eq!(vigil.decide(row("t", 3_600.0), start), Life::Unknown(Duration::from_secs(15)));
        assert_eq!(vigil.decide(row("u", 3_600.0), at(15)), alive, "with a clock that is still ahead");
        let mut vigil = Vigil::default();
        vigil.decide(row("t", 3_600.0), start);
        assert_eq!(vigil.decide(row("u", 15.0), at(15)), alive, "with the right clock");
        let mut vigil = Vigil::default();
        vigil.decide(row("t", 3_600.0), start);
        let over = vigil.decide(row("t", 3_585.0), at(15));
        assert!(matches!(over, Life::Over(Some(Held { epoch: 7, .. }))), "{over:?}");
    }

    #[test]
    fn a_doubtful_lease_that_ends_soon_is_waited_for() {
        let (mut vigil, start) = (Vigil::default(), Instant::now());
        vigil.decide(row("t", 17.0), start);
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(vigil.decide(row("t", 2.0), at(15)), Life::Unknown(Duration::from_secs(2)));
        assert_eq!(vigil.decide(row("t", 0.5), at(16)), Life::Unknown(Duration::from_millis(500)));
        assert_eq!(vigil.decide(row("t", -0.5), at(17)), Life::Over(None));
    }

    #[test]
    fn a_lease_that_ends_in_time_is_waited_for() {
        let mut watch = Watch::default();
        let begun = Instant::now();
        for later in [0, 20] {
            let now = begun + Duration::from_secs(later);
            assert_eq!(watch.look(held("t", 12), now), Wait::For(Duration::from_secs(12)));
        }
    }

    #[test]
    fn a_lease_of_unknown_length_is_waited_for() {
        let mut watch = Watch::default();
        let begun = Instant::now();
        for later in [0, 60, 600] {
            let held = Held { length: None, ..held("t", 3_600) };
            let now = begun + Duration::from_secs(later);
            assert_eq!(watch.look(held, now), Wait::For(Duration::from_secs(3_600)));
        }
    }

    #[test]
    fn a_lease_far_ahead_is_over_when_nobody_renews_it() {
        let mut watch = Watch::default();
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(watch.look(held("t", 3_600), at(0)), Wait::For(Duration::from_secs(15)));
        assert_eq!(watch.look(held("t", 3_590), at(10)), Wait::For(Duration::from_secs(5)));
        // The holder is alive: it has renewed the lease.
        assert_eq!(watch.look(held("u", 3_600), at(14)), Wait::For(Duration::from_secs(15)));
        assert_eq!(watch.look(held("u", 3_586), at(28)), Wait::For(Duration::from_secs(1)));
        assert_eq!(watch.look(held("u", 3_584), at(29)), Wait::Over);
    }
}
