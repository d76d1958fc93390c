//! Distinguishes processes that ended from processes that have not begun yet.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use uuid::Uuid;

/// Maximum time in which a process begins to handle what it has noted to be in hand. One that has
/// not begun by then has ended.
pub(super) const BEGINS_WITHIN: Duration = Duration::from_secs(1);

/// Maximum number of processes that are remembered. Then all are forgotten: the next message of one
/// that ended waits once more.
const OWNERS_MAX: usize = 1_000;

/// Other processes that ended with messages in hand.
///
/// A process first notes that it has a message in hand, and then begins to handle it. Between the
/// two it looks as if it had ended, so one check of a message is not enough. Two checks of a single
/// message are enough: the other messages of an ended process are taken over without waiting again.
#[derive(Debug, Default)]
pub(super) struct EndedOwners(Mutex<HashSet<Uuid>>);

impl EndedOwners {
    /// Returns whether a process that does not handle a message it has in hand has ended.
    /// `was_seen_before` is true if it was also not handling that message some time before.
    pub(super) fn has_ended(&self, owner: Uuid, was_seen_before: bool) -> bool {
        let mut ended = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if was_seen_before {
            if ended.len() >= OWNERS_MAX && !ended.contains(&owner) {
                ended.clear();
            }
            ended.insert(owner);
        }
        ended.contains(&owner)
    }

    /// Corrects the conclusion about a process: a message that it has in hand is being handled.
    pub(super) fn remove(&self, owner: Uuid) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_ended_once_it_was_seen_twice_with_one_message() {
        let (owners, [one, other]) = (EndedOwners::default(), [Uuid::from_u128(1), Uuid::from_u128(2)]);
        assert!(!owners.has_ended(one, false) && !owners.has_ended(other, false));
        assert!(!owners.has_ended(one, false), "another message");
        assert!(owners.has_ended(one, true));
        assert!(owners.has_ended(one, false) && !owners.has_ended(other, false));
        owners.remove(one);
        assert!(!owners.has_ended(one, false), "it was slow");
    }

    #[test]
    fn processes_are_not_remembered_without_bound() {
        let owners = EndedOwners::default();
        for number in 0..10 * OWNERS_MAX as u128 {
            let owner = Uuid::from_u128(number);
            assert!(owners.has_ended(owner, true) && owners.has_ended(owner, false), "{number}");
        }
        assert!(owners.0.lock().unwrap().len() <= OWNERS_MAX);
    }
}
