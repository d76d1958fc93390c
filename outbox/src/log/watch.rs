//! A lease whose end lies further ahead than its holder can have asked for. Pure.
//!
//! A holder stores the end of its lease by the database's clock, on SQLite by that of its machine.
//! When that clock goes back, or another server takes over whose clock is behind, the lease seems
//! to last for longer than it was granted. Then its end says nothing, but its holder, if it lives,
//! renews it within its length. So it is watched by this machine's clock, which only counts on: a
//! lease that nobody has touched for its whole length has ended. A holder of a release that stores
//! no length is waited for.

use std::ops::ControlFlow;
use std::time::Duration;

use tokio::time::Instant;

use crate::log::lease::{Acquired, RelayName};
use crate::log::row;

/// Differences up to this are those of two statements.
const ALLOWANCE: Duration = Duration::from_secs(1);

/// A lease of somebody else, as it stands.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Held<T> {
    pub(crate) epoch: i64,
    /// When it ends, in the database's own notation.
    pub(crate) until: T,
    /// How long from now that is by the database's clock.
    pub(crate) expires_in: Duration,
    /// For how long its holder asked, as far as it is stored.
    pub(crate) length: Option<Duration>,
}

/// A row about a lease: who holds it, for how many seconds from now, epoch, end, and for how many
/// seconds it was asked for.
pub(crate) type HolderRow<T> = (String, f64, i64, T, Option<f64>);

impl<T> Held<T> {
    /// Who holds a lease that is not over, and how.
    pub(crate) fn of((holder, seconds, epoch, until, length): HolderRow<T>) -> Option<(String, Self)> {
        let (expires_in, length) = (row::wait(seconds)?, length.and_then(row::wait));
        Some((holder, Self { epoch, until, expires_in, length }))
    }
}

/// The next step about such a lease: to wait, or to take it over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// Ask again when it can have ended.
    For(Duration),
    /// Nobody has touched it for its whole length: take it over.
    Over,
}

/// A lease that is watched.
#[derive(Debug, Clone)]
pub(crate) struct Watch<T>(Option<(Held<T>, Instant)>);

impl<T> Default for Watch<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: PartialEq + Clone> Watch<T> {
    /// Whether to ask for a lease, as it was found: a lease that is over although it ends in the
    /// future, nothing where it is free, or who has it.
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
                    "the lease ends later than its holder asked for, so a clock went back or was ahead; nobody has \
                     renewed it for its whole length, and it is taken over"
                );
                ControlFlow::Continue(Some(held))
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn held(until: &str, expires_in: u64) -> Held<String> {
        let length = Some(Duration::from_secs(15));
        Held { epoch: 3, until: until.to_owned(), expires_in: Duration::from_secs(expires_in), length }
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
        // Its holder lives.
        assert_eq!(watch.look(held("u", 3_600), at(14)), Wait::For(Duration::from_secs(15)));
        assert_eq!(watch.look(held("u", 3_586), at(28)), Wait::For(Duration::from_secs(1)));
        assert_eq!(watch.look(held("u", 3_584), at(29)), Wait::Over);
    }
}
