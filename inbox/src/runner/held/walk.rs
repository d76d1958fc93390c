//! Redrives the held messages that are due, key after key.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use message::back;
use time::OffsetDateTime;
use tokio::time::Instant;
use tracing::Instrument;

use super::redrive::HeldCourses;
use crate::dead_letters::{HeldFirst, HeldKey};
use crate::ids::DeadLetterId;
use crate::runner::store::Store;
use crate::runner::worker::Worker;
use crate::store_error::StoreError;

/// Maximum number of keys per read.
const BATCH: u32 = 500;

/// Maximum number of messages of one key that are redriven before other keys and operators are
/// served.
const ROUNDS: usize = 10;

/// Interval at which every held key is checked, even if nothing was closed.
const WALK_EVERY: Duration = Duration::from_secs(300);

/// Maximum number of dead letters closed since the last check for which only their keys are
/// checked.
const CLOSED_MAX: u32 = 1_000;

/// Maximum time until others see that a dead letter was closed, or that a message is held behind
/// it.
const CLOSING_MAX: Duration = Duration::from_secs(30);

/// State of a process between checks for held messages.
#[derive(Debug, Default)]
pub(in crate::runner) struct HeldLook {
    /// The attempts of held messages that fail.
    courses: HeldCourses,
    /// Held messages that the current walk over all keys has seen fail: a part of `courses`.
    seen: HashSet<DeadLetterId>,
    /// Number of held keys that the walk has found so far.
    found: usize,
    /// The key after which the walk continues.
    after: Option<HeldKey>,
    /// When the last walk began.
    walked: Option<Instant>,
    /// Time up to which closed dead letters have been checked, by the database's clock.
    looked: Option<OffsetDateTime>,
}

impl HeldLook {
    /// Begins a walk over all keys.
    fn begin_walk(&mut self, begun_at: Instant, looked: OffsetDateTime) {
        self.walked = Some(begun_at);
        self.looked = Some(looked);
        self.seen.clear();
        self.found = 0;
    }

    /// Records that a message was processed. Only failing ones are remembered, whose number is
    /// bounded.
    fn had_turn(&mut self, letter: DeadLetterId) {
        if self.courses.contains_key(&letter) {
            self.seen.insert(letter);
        } else {
            self.seen.remove(&letter);
        }
    }

    /// Ends a walk: forgets the attempts at messages that it has not found.
    fn end_walk(&mut self) {
        let Self { courses, seen, .. } = self;
        courses.retain(|letter, _| seen.contains(letter));
    }
}

/// Held messages to redrive now, and those behind them.
struct Turns {
    queue: VecDeque<InTurn>,
    /// Number of messages that may still be closed before other keys and operators are served.
    left: usize,
    is_any_closed: bool,
}

/// The first held message of a key.
struct InTurn {
    letter: DeadLetterId,
    key: HeldKey,
    /// Whether the walk has reached its key.
    is_of_walk: bool,
}

impl Turns {
    fn of(firsts: impl IntoIterator<Item = InTurn>) -> Self {
        let queue: VecDeque<_> = firsts.into_iter().collect();
        Self { left: queue.len() * ROUNDS, queue, is_any_closed: false }
    }
}

impl<S: Store> Worker<S> {
    /// Redrives held messages that are due, and those behind them, until `ends_at`; the next call
    /// continues from there. Returns whether there may be more.
    ///
    /// A message that fails in any way does not block the others. Only a database that is
    /// unavailable before anything has begun ends the call.
    pub(in crate::runner) async fn redrive_held(
        &self,
        look: &mut HeldLook,
        ends_at: Instant,
    ) -> Result<bool, StoreError> {
        if look.after.is_none() {
            let begun_at = Instant::now();
            let looked = self.store.now();
            if let Some(freed) = self.freed(look).await? {
                let mut turns = Turns::of(freed);
                if self.take_turns(&mut turns, look, ends_at).await? {
                    look.looked = Some(looked);
                }
                return Ok(turns.is_any_closed);
            }
            look.begin_walk(begun_at, looked);
        }
        self.walk(look, ends_at).await
    }

    /// Checks all keys after [`HeldLook::after`]. Returns whether there may be more.
    async fn walk(&self, look: &mut HeldLook, ends_at: Instant) -> Result<bool, StoreError> {
        let mut is_any_closed = false;
        loop {
            let firsts = self.store.held_firsts(look.after.as_ref(), BATCH).await?;
            look.found += firsts.len();
            let end = firsts.last().filter(|_| firsts.len() >= BATCH as usize).map(|first| first.key.clone());
            let in_turn = |HeldFirst { letter, key, .. }| InTurn { letter, key, is_of_walk: true };
            let mut turns = Turns::of(firsts.into_iter().filter(|first| first.is_in_turn).map(in_turn));
            if !self.take_turns(&mut turns, look, ends_at).await? {
                return Ok(true);
            }
            is_any_closed |= turns.is_any_closed;
            look.after = end;
            if look.after.is_none() {
                look.end_walk();
                self.status.holds(look.found);
                return Ok(is_any_closed);
            }
            if Instant::now() >= ends_at {
                return Ok(true);
            }
        }
    }

    /// Returns the held messages that may be due since the last check: the first ones of keys that
    /// had a dead letter closed, and those that are being retried. Returns `None` when all keys
    /// must be checked, which reads each of them.
    async fn freed(&self, look: &HeldLook) -> Result<Option<Vec<InTurn>>, StoreError> {
        let (Some(walked), Some(looked)) = (look.walked, look.looked) else { return Ok(None) };
        if walked.elapsed() >= WALK_EVERY {
            return Ok(None);
        }
        // A dead letter closed at that time may have been committed later, and a message may have
        // seen it open and been held since.
        let closed = self.store.keys_closed_since(back(looked, CLOSING_MAX), CLOSED_MAX).await?;
        let Some(keys) = closed.map(Vec::from_iter) else { return Ok(None) };
        let in_turn = |letter, key| InTurn { letter, key, is_of_walk: false };
        let mut freed = Vec::new();
        if !keys.is_empty() {
            let firsts = self.store.firsts_of(&keys).await?;
            let is_new = |letter: &DeadLetterId| !look.courses.contains_key(letter);
            let firsts = firsts.into_iter().zip(keys);
            freed.extend(firsts.filter_map(|(first, key)| Some(in_turn(first.filter(is_new)?, key))));
        }
        // These come last, because they may use up the time.
        freed.extend(look.courses.iter().map(|(letter, held)| in_turn(*letter, held.key.clone())));
        Ok(Some(freed))
    }

    /// Redrives held messages, and those behind them. Returns whether it finished before `ends_at`.
    async fn take_turns(
        &self,
        turns: &mut Turns,
        look: &mut HeldLook,
        ends_at: Instant,
    ) -> Result<bool, StoreError> {
        while let Some(InTurn { letter, key, is_of_walk }) = turns.queue.pop_front() {
            if Instant::now() >= ends_at {
                return Ok(false);
            }
            if is_of_walk {
                look.after = Some(key.clone());
            }
            let span = tracing::info_span!("redrive", consumer = %self.consumer, dead_letter = %letter);
            let turn = self.take_turn(letter, &key, &mut look.courses).instrument(span).await;
            look.had_turn(letter);
            // After an error the next check walks over all keys, so the others are served.
            if !turn.inspect_err(|_| look.walked = None)? {
                continue;
            }
            turns.is_any_closed = true;
            turns.left = turns.left.saturating_sub(1);
            if turns.left > 0
                && let Some(next) = self.store.firsts_of(std::slice::from_ref(&key)).await?.pop().flatten()
            {
                turns.queue.push_back(InTurn { letter: next, key, is_of_walk: false });
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::super::redrive::HeldCourse;
    use super::*;

    fn letter(number: u128) -> DeadLetterId {
        DeadLetterId(uuid::Uuid::from_u128(number))
    }

    /// Goal: a walk over any number of held keys remembers only those whose messages fail. Oracle:
    /// the messages that are remembered, and the attempts that are left after the walk.
    #[test]
    fn a_walk_remembers_only_messages_that_fail() {
        let mut look = HeldLook::default();
        look.begin_walk(Instant::now(), OffsetDateTime::UNIX_EPOCH);
        for number in [1, 2] {
            look.courses.insert(letter(number), HeldCourse::sample());
        }
        for number in 2..=100_000 {
            if number % 10_000 == 0 {
                look.courses.insert(letter(number), HeldCourse::sample());
            }
            look.had_turn(letter(number));
        }
        assert_eq!(look.seen.len(), 1 + 10);
        look.courses.remove(&letter(10_000));
        look.had_turn(letter(10_000));
        assert_eq!(look.seen.len(), 10, "what has left is not remembered");
        look.end_walk();
        assert!(!look.courses.contains_key(&letter(1)), "the walk has not found it");
        assert!(look.courses.contains_key(&letter(2)), "it failed before, and was not due");
        assert_eq!(look.courses.len(), 10);
    }
}
