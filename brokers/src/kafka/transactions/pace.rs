//! Decides how many messages a transaction takes: as many as arrive within its patience. Pure.
//!
//! A cluster that is slow, far away or throttled by a quota takes longer for a full window than a
//! transaction may last. Then every transaction would fail, and the topics of the missing messages
//! would be blamed for a silence that does not exist.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum messages of a transaction: about 50 ms of what two cores publish.
const BATCH_LEN_MAX: usize = 10_000;
/// Maximum messages of a transaction while a culprit is searched for.
const SINGLES_LEN_MAX: usize = 500;

/// The lengths shared by the sessions of a connector; each session keeps the length known when it
/// was opened.
#[derive(Debug)]
pub(super) struct Pace {
    batch: AtomicUsize,
    singles: AtomicUsize,
}

impl Default for Pace {
    fn default() -> Self {
        Self { batch: AtomicUsize::new(BATCH_LEN_MAX), singles: AtomicUsize::new(SINGLES_LEN_MAX) }
    }
}

impl Pace {
    fn of(&self, is_single: bool) -> (&AtomicUsize, usize) {
        if is_single { (&self.singles, SINGLES_LEN_MAX) } else { (&self.batch, BATCH_LEN_MAX) }
    }

    /// Returns how many messages the next session takes at once.
    pub(super) fn batch_len(&self, is_single: bool) -> usize {
        self.of(is_single).0.load(Ordering::Acquire)
    }

    /// Records that only `arrived` messages arrived in time: the next session takes half as many.
    pub(super) fn slow(&self, is_single: bool, arrived: usize) {
        self.of(is_single).0.store((arrived / 2).max(1), Ordering::Release);
    }

    /// Records that `arrived` messages took less than a quarter of the time: the next session may
    /// take twice as many.
    pub(super) fn quick(&self, is_single: bool, arrived: usize) {
        let (len, max) = self.of(is_single);
        len.fetch_max((arrived * 2).min(max), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_takes_what_arrives_in_time() {
        let pace = Pace::default();
        pace.slow(false, 800);
        assert_eq!((pace.batch_len(false), pace.batch_len(true)), (400, SINGLES_LEN_MAX));
        pace.quick(false, 150);
        assert_eq!(pace.batch_len(false), 400, "a small batch says nothing about larger ones");
        pace.quick(false, 400);
        assert_eq!(pace.batch_len(false), 800);
        pace.quick(false, 9_000);
        assert_eq!(pace.batch_len(false), BATCH_LEN_MAX);
        pace.slow(true, 1);
        assert_eq!(pace.batch_len(true), 1);
    }
}
