//! The times of each message.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use harness::watched::Watch;
use message::{Message, PublishError};

use crate::Failure;

/// The number in the payload of a message that is not measured.
pub(super) const UNMEASURED: u64 = u64::MAX;

/// One slot for each message, with nanoseconds since the beginning, or 0 for never.
pub(super) struct Clock {
    began: Instant,
    slots: Vec<[AtomicU64; 4]>,
    consumed: AtomicUsize,
    unmeasured: AtomicUsize,
}

/// The times of one message.
#[derive(Debug, Clone, Copy)]
pub(super) enum Moment {
    Intended,
    Committed,
    Acknowledged,
    Consumed,
}

/// The times of one message, as durations since the beginning.
pub(super) struct Times {
    pub(super) intended: Duration,
    pub(super) committed: Duration,
    pub(super) acknowledged: Duration,
    pub(super) consumed: Duration,
}

/// Returns the number in the payload of a message.
pub(super) fn number(message: &Message) -> Option<u64> {
    Some(u64::from_be_bytes(message.payload.get(..8)?.try_into().ok()?))
}

impl Clock {
    pub(super) fn new(messages: usize) -> Self {
        let slots = std::iter::repeat_with(Default::default).take(messages).collect();
        Self { began: Instant::now(), slots, consumed: AtomicUsize::new(0), unmeasured: AtomicUsize::new(0) }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Records a time, if it is the first of its kind: copies change nothing.
    pub(super) fn note(&self, number: u64, moment: Moment, at: Instant) {
        let Some(slot) = usize::try_from(number).ok().and_then(|index| self.slots.get(index)) else {
            if matches!(moment, Moment::Consumed) {
                self.unmeasured.fetch_add(1, Relaxed);
            }
            return;
        };
        let since =
            u64::try_from(at.saturating_duration_since(self.began).as_nanos()).unwrap_or(u64::MAX).max(1);
        let first = slot[moment as usize].compare_exchange(0, since, Relaxed, Relaxed).is_ok();
        if first && matches!(moment, Moment::Consumed) {
            self.consumed.fetch_add(1, Relaxed);
        }
    }

    /// Waits until an unmeasured message has come through: then everything is connected.
    pub(super) async fn warm(&self, patience: Duration) -> Result<(), Failure> {
        Self::wait(patience, || self.unmeasured.load(Relaxed) > 0).await
    }

    /// Waits until the last message has taken effect, for as long as the consumer makes progress
    /// within `patience`.
    pub(super) async fn all_consumed(&self, patience: Duration) -> Result<(), Failure> {
        let all = self.slots.len();
        loop {
            let consumed = self.consumed.load(Relaxed);
            if consumed == all {
                return Ok(());
            }
            let gets_on = Self::wait(patience, || self.consumed.load(Relaxed) > consumed).await;
            gets_on.map_err(|_| {
                format!("{consumed} of {all} messages took effect, and no other within {patience:?}")
            })?;
        }
    }

    async fn wait(patience: Duration, done: impl Fn() -> bool) -> Result<(), Failure> {
        let since = Instant::now();
        while !done() {
            if since.elapsed() > patience {
                return Err(format!("nothing came through within {patience:?}").into());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    pub(super) fn times(&self) -> impl Iterator<Item = Times> {
        self.slots.iter().map(|slot| {
            let [intended, committed, acknowledged, consumed] =
                [0, 1, 2, 3].map(|moment| Duration::from_nanos(slot[moment].load(Relaxed)));
            Times { intended, committed, acknowledged, consumed }
        })
    }
}

impl Watch for Clock {
    fn answered(&self, message: &Arc<Message>, outcome: &Result<(), PublishError>) {
        if let (Some(number), Ok(())) = (number(message), outcome) {
            self.note(number, Moment::Acknowledged, Instant::now());
        }
    }
}
