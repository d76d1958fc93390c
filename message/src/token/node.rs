//! Ids that name a numbered node. Pure: no clock, no database; `outbox::nodes` leases the numbers.

use std::time::Duration;

use uuid::Uuid;

use crate::id::{MILLIS_MAX, MessageId};

/// How far ids may run ahead of the clock: after a step back, or when more ids are made than a
/// millisecond holds.
const LEAD_MAX: Duration = Duration::from_secs(60);

/// The number of ids in a millisecond.
const COUNTERS: u16 = 1 << 12;

/// A number that a node holds until a given time of its own monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeTerm {
    /// The node's number.
    pub number: u16,
    /// The fencing token: a later holder of the number has a larger one.
    pub epoch: u32,
    /// Random; 14 bits of it are used. Distinguishes terms with the same epoch, which is assigned
    /// again after the database was restored from a backup.
    pub salt: u16,
    /// The end of the term, as measured by [`Clock::elapsed`](super::Clock::elapsed).
    pub until: Duration,
}

impl NodeTerm {
    /// Returns number and epoch of an id that a node made. For any other id they mean nothing.
    #[must_use]
    pub fn of(id: MessageId) -> (u16, u32) {
        let bits = id.as_uuid().as_u128();
        ((bits >> 46) as u16, (bits >> 14) as u32)
    }

    fn id(&self, millis: u64, counter: u16) -> MessageId {
        let fixed =
            (u128::from(self.number) << 46) | (u128::from(self.epoch) << 14) | u128::from(self.salt & 0x3fff);
        MessageId::of_bits(millis, counter, fixed)
    }
}

/// The reason why a node generates no ids now. Try again later: the process takes a lease again as
/// soon as it can reach the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Stale {
    /// The node holds no number: it was lost, released, or not acquired yet.
    #[error(
        "this node has no node number, so its ids might collide with those of another node; it is \
         requesting a number from the database"
    )]
    NoNumber,
    /// The lease was not renewed in time.
    #[error(
        "this node's lease on number {number} (epoch {epoch}) expired {ago:?} ago, and another node may get \
         the number; check whether the database is reachable"
    )]
    Expired {
        /// The number.
        number: u16,
        /// Its epoch.
        epoch: u32,
        /// The time since the lease ended.
        ago: Duration,
    },
    /// The clock stepped back or stopped.
    #[error(
        "the ids of this node are {behind:?} ahead of the clock, and the maximum is {LEAD_MAX:?}: correct the clock, or wait"
    )]
    Behind {
        /// How far the clock is behind.
        behind: Duration,
    },
}

impl Stale {
    /// Returns the word for metrics and logs.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::NoNumber => "no_number",
            Self::Expired { .. } => "expired",
            Self::Behind { .. } => "behind",
        }
    }
}

/// Makes the ids of one node.
///
/// | bits | what |
/// |---|---|
/// | 48 | milliseconds since 1970 |
/// | 4 | version 7 |
/// | 12 | counter within the millisecond |
/// | 2 | variant |
/// | 16 | the node's number |
/// | 32 | the epoch: how often the number has been assigned |
/// | 14 | random, one for each term |
///
/// A number has one holder in each epoch, and a holder never uses a pair of milliseconds and
/// counter twice. So no two ids are equal, whatever the clocks do. This holds even when a stopped
/// holder resumes after its number went to another node: its ids carry the earlier epoch.
#[derive(Debug, Default)]
pub struct NodeIdGenerator {
    term: Option<NodeTerm>,
    millis: u64,
    counter: u16,
}

impl NodeIdGenerator {
    /// Continues with this term: a new one, or the same one extended.
    pub fn hold(&mut self, term: NodeTerm) {
        self.term = Some(term);
    }

    /// Stops making ids.
    pub fn give_up(&mut self) {
        self.term = None;
    }

    /// Returns the term, which may have ended.
    #[must_use]
    pub fn term(&self) -> Option<NodeTerm> {
        self.term
    }

    /// Returns the next id at these times of both clocks. Ids ascend strictly, across all terms.
    ///
    /// # Errors
    /// [`Stale`]: it cannot make an id that is certain to be unique.
    pub fn next(&mut self, since_1970: Duration, elapsed: Duration) -> Result<MessageId, Stale> {
        let term = self.term.ok_or(Stale::NoNumber)?;
        if elapsed >= term.until {
            let NodeTerm { number, epoch, until, .. } = term;
            return Err(Stale::Expired { number, epoch, ago: elapsed - until });
        }
        let now = u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX).min(MILLIS_MAX);
        let (millis, counter) = if now > self.millis {
            (now, 0)
        } else if self.counter + 1 < COUNTERS {
            (self.millis, self.counter + 1)
        } else {
            (self.millis + 1, 0)
        };
        let behind = Duration::from_millis(millis - now);
        if behind > LEAD_MAX || millis > MILLIS_MAX {
            return Err(Stale::Behind { behind });
        }
        (self.millis, self.counter) = (millis, counter);
        Ok(term.id(millis, counter))
    }
}

impl MessageId {
    /// Builds a version 7 UUID from 48, 12 and 62 bits.
    pub(super) fn of_bits(millis: u64, counter: u16, rest: u128) -> Self {
        let bits = (u128::from(millis) << 80)
            | (7 << 76)
            | (u128::from(counter & 0xfff) << 64)
            | (0b10 << 62)
            | (rest & ((1 << 62) - 1));
        Self::of_generator(Uuid::from_u128(bits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::Clock as _;
    use crate::token::clock::tests::Steps;
    use proptest::prelude::*;
    use std::collections::HashSet;

    const START: i64 = 1_770_000_000_000;
    const TTL: Duration = Duration::from_secs(30);

    fn term(number: u16, epoch: u32, until: Duration) -> NodeTerm {
        NodeTerm { number, epoch, salt: 0xffff, until }
    }

    fn next(mint: &mut NodeIdGenerator, clock: &Steps) -> Result<MessageId, Stale> {
        mint.next(clock.since_1970(), clock.elapsed())
    }

    #[test]
    fn an_id_is_a_version_7_uuid_that_tells_its_node() {
        for (number, epoch) in [(0, 1), (u16::MAX, u32::MAX), (513, 70_000)] {
            let clock = Steps::at(START);
            let mut mint = NodeIdGenerator::default();
            mint.hold(term(number, epoch, TTL));
            let id = next(&mut mint, &clock).unwrap();
            assert_eq!(MessageId::try_from(id.as_uuid()).unwrap(), id);
            assert_eq!((id.millis(), NodeTerm::of(id)), (clock.millis(), (number, epoch)));
        }
    }

    #[test]
    fn a_node_whose_lease_has_ended_stops_loudly() {
        let clock = Steps::at(START);
        let mut mint = NodeIdGenerator::default();
        assert_eq!(next(&mut mint, &clock), Err(Stale::NoNumber));
        mint.hold(term(3, 9, TTL));
        clock.pass(29_999);
        assert!(next(&mut mint, &clock).is_ok());
        // The time of day has no effect: it can be set back.
        clock.step(-3_600);
        clock.pass(1);
        assert_eq!(next(&mut mint, &clock), Err(Stale::Expired { number: 3, epoch: 9, ago: Duration::ZERO }));
        mint.hold(term(3, 9, 2 * TTL));
        assert!(next(&mut mint, &clock).is_ok());
        mint.give_up();
        assert_eq!(next(&mut mint, &clock), Err(Stale::NoNumber));
    }

    #[test]
    fn more_ids_than_a_millisecond_has_run_ahead_up_to_the_limit() {
        let clock = Steps::at(START);
        let mut mint = NodeIdGenerator::default();
        mint.hold(term(1, 1, TTL));
        let ids: Vec<_> = (0..10_000).map(|_| next(&mut mint, &clock).unwrap()).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(ids[9_999].millis() - clock.millis(), 2);
        clock.step(-60_000);
        assert!(matches!(next(&mut mint, &clock), Err(Stale::Behind { .. })));
        clock.step(1_000);
        assert!(next(&mut mint, &clock).unwrap() > ids[9_999]);
    }

    proptest! {
        /// Two nodes hold the same number, one after the other. The first is stopped before its
        /// lease ends and resumes later; both clocks step at random.
        #[test]
        fn no_two_ids_are_equal_not_even_a_stopped_nodes(
            // Mostly the same few milliseconds, where only the epoch distinguishes the two.
            moves in prop::collection::vec((any::<bool>(), prop_oneof![0_i64..2, -20_000_i64..20_000]), 1..300)
        ) {
            let clock = Steps::at(START);
            let forever = Duration::from_secs(u64::MAX);
            let (mut stopped, mut successor) = (NodeIdGenerator::default(), NodeIdGenerator::default());
            stopped.hold(term(7, 1, forever));
            successor.hold(term(7, 2, forever));
            let mut seen = HashSet::new();
            let mut last = [None, None];
            for (first, step) in moves {
                clock.step(step);
                let mint = if first { &mut stopped } else { &mut successor };
                if let Ok(id) = next(mint, &clock) {
                    prop_assert!(seen.insert(id), "{id} twice");
                    prop_assert!(Some(id) > last[usize::from(first)], "a node's ids ascend");
                    last[usize::from(first)] = Some(id);
                }
            }
        }
    }
}
