//! Ids that ascend in one process.

use std::sync::{Mutex, PoisonError};

use uuid::{ContextV7, Timestamp, Uuid};

use super::clock::{Clock, SystemClock};
use super::generator::{IdGenerator, MintError};
use crate::id::MessageId;

/// Generates ids that ascend strictly, even if the clock stops or steps back. Then they keep the
/// latest time seen, and a counter of 42 bits counts up (RFC 9562 section 6.2 method 1). The rest
/// is random, so ids of many processes are unique without any coordination.
///
/// After a step back the ids carry a time ahead of the clock, until the clock has caught up or the
/// process restarts. If that lead exceeds the skew that an inbox allows, the inbox refuses them.
///
/// [`MessageId::new`] uses the generator of this process.
#[derive(Debug)]
pub struct Monotonic<C = SystemClock> {
    clock: C,
    context: Mutex<ContextV7>,
}

impl<C: Clock> Monotonic<C> {
    /// Makes an independent generator. Its ids ascend, but not relative to other generators.
    #[must_use]
    pub fn new(clock: C) -> Self {
        Self { clock, context: Mutex::new(ContextV7::new()) }
    }

    /// Returns the next id.
    #[must_use]
    pub fn next(&self) -> MessageId {
        let context = self.context.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock: otherwise an earlier time could arrive later and waste room in the
        // counter.
        let now = self.clock.since_1970();
        let timestamp = Timestamp::from_unix(&*context, now.as_secs(), now.subsec_nanos());
        MessageId::of_generator(Uuid::new_v7(timestamp))
    }
}

impl<C: Clock> IdGenerator for Monotonic<C> {
    fn mint(&self) -> Result<MessageId, MintError> {
        Ok(self.next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::clock::tests::Steps;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ids_ascend_strictly_whatever_the_clock_does(steps in prop::collection::vec(-3_600_000_i64..3_600_000, 1..200)) {
            let clock = Steps::at(1_770_000_000_000);
            let ids = Monotonic::new(clock.clone());
            let mut last = ids.next();
            let mut latest = clock.millis();
            for step in steps {
                clock.step(step);
                latest = latest.max(clock.millis());
                for _ in 0..3 {
                    let next = ids.next();
                    prop_assert!(next > last, "{next} after {last}");
                    prop_assert_eq!(next.millis(), latest);
                    last = next;
                }
            }
        }
    }

    #[test]
    fn threads_share_one_order() {
        let ids = Monotonic::new(Steps::at(1_770_000_000_000));
        let mut all: Vec<_> = std::thread::scope(|scope| {
            let made = || (0..2_000).map(|_| ids.next()).collect::<Vec<_>>();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(made)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 8_000);
    }
}
