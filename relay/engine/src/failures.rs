//! Failures that do not count as attempts: they space the retries of an entry. Pure.

use std::collections::HashMap;

use outbox_log::EntryId;

/// Maximum entries whose failures are remembered.
pub(crate) const REMEMBERED_MAX: usize = 10_000;

/// Failures of parked entries since the takeover.
#[derive(Debug, Default)]
pub(crate) struct Failures(HashMap<EntryId, u32>);

impl Failures {
    /// Counts a failure. Returns how many failures the entry has had. When too many entries fail to
    /// remember all of them, returns a number above that of any retry: an early retry of one of
    /// them would gain nothing.
    pub(crate) fn count(&mut self, id: EntryId) -> u32 {
        if self.0.len() >= REMEMBERED_MAX && !self.0.contains_key(&id) {
            return u32::MAX;
        }
        let failures = self.0.entry(id).or_default();
        *failures = failures.saturating_add(1);
        *failures
    }

    /// Forgets an entry that was published or is no longer retried automatically.
    pub(crate) fn forget(&mut self, id: EntryId) {
        self.0.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_a_bounded_number_of_entries_are_remembered() {
        let mut failures = Failures::default();
        let all = 1..=i64::try_from(REMEMBERED_MAX).unwrap();
        assert!(all.clone().all(|id| failures.count(EntryId(id)) == 1));
        assert_eq!(failures.count(EntryId(0)), u32::MAX, "one too many");
        assert_eq!((failures.count(EntryId(7)), failures.count(EntryId(7))), (2, 3));
        all.for_each(|id| failures.forget(EntryId(id)));
        assert_eq!(failures.count(EntryId(0)), 1);
        assert_eq!(failures.0.len(), 1, "only what fails is remembered");
    }
}
