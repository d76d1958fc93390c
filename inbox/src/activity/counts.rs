//! Counts of deliveries and rows, by consumer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use time::OffsetDateTime;

/// Counts of one consumer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that took effect.
    pub applied: u64,
    /// Deliveries suppressed as duplicates.
    pub duplicates: u64,
}

/// Stored counts of one consumer.
pub(crate) struct ConsumerCounts {
    pub(crate) consumer: String,
    pub(crate) counts: Counts,
    /// The latest minute in which something was applied.
    pub(crate) last_applied_at: Option<OffsetDateTime>,
}

/// Counts that a process has not stored yet. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally(Arc<Cells>);

#[derive(Debug, Default)]
struct Cells {
    applied: AtomicU64,
    duplicates: AtomicU64,
}

impl Tally {
    pub(crate) fn add(&self, counts: Counts) {
        self.0.applied.fetch_add(counts.applied, Ordering::Relaxed);
        self.0.duplicates.fetch_add(counts.duplicates, Ordering::Relaxed);
    }

    /// Takes the counts and resets them to zero; `None` when they are zero.
    pub(crate) fn take(&self) -> Option<Counts> {
        let counts = Counts {
            applied: self.0.applied.swap(0, Ordering::Relaxed),
            duplicates: self.0.duplicates.swap(0, Ordering::Relaxed),
        };
        (counts != Counts::default()).then_some(counts)
    }
}

/// A number of rows of one consumer, with the first or last time among them.
pub(crate) struct ActivityRow {
    pub(crate) consumer: String,
    pub(crate) count: u64,
    pub(crate) at: Option<OffsetDateTime>,
}

/// The open dead letters of one consumer, with the first time among those that are not held.
pub(crate) struct LetterRow {
    pub(crate) consumer: String,
    pub(crate) dead: u64,
    pub(crate) dead_since: Option<OffsetDateTime>,
    pub(crate) held: u64,
}

/// The rows of three tables.
pub(crate) struct ActivityRows {
    pub(crate) applied: Vec<ActivityRow>,
    pub(crate) failing: Vec<ActivityRow>,
    pub(crate) letters: Vec<LetterRow>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_taken_once_and_given_back_when_it_was_not_stored() {
        let tally = Tally::default();
        assert_eq!(tally.take(), None);
        tally.add(Counts { applied: 2, duplicates: 1 });
        let shared = tally.clone();
        shared.add(Counts { applied: 1, duplicates: 0 });
        let taken = tally.take();
        assert_eq!(taken, Some(Counts { applied: 3, duplicates: 1 }));
        assert_eq!(tally.take(), None);
        taken.into_iter().for_each(|counts| tally.add(counts));
        assert_eq!(tally.take(), taken);
    }
}
