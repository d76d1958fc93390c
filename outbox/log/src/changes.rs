//! The changes of one checkpoint, prepared for the database.

use std::collections::BTreeMap;

use crate::exception::{ExceptionChange, Parked};

/// The last change of each entry in a list of changes.
#[derive(Debug, Default)]
pub(crate) struct Changes<'a> {
    pub(crate) parked: Vec<&'a Parked>,
    pub(crate) resolved: Vec<i64>,
}

impl<'a> Changes<'a> {
    pub(crate) fn of(changes: &'a [ExceptionChange]) -> Self {
        let last: BTreeMap<i64, &ExceptionChange> = changes
            .iter()
            .map(|change| match change {
                ExceptionChange::Park(parked) => (parked.id.0, change),
                ExceptionChange::Resolve(id) => (id.0, change),
            })
            .collect();
        let mut left = Self::default();
        for (id, change) in last {
            match change {
                ExceptionChange::Park(parked) => left.parked.push(parked),
                ExceptionChange::Resolve(_) => left.resolved.push(id),
            }
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EntryId, ExceptionState};

    #[test]
    fn the_last_change_of_an_entry_counts() {
        let park = |id, attempts| {
            ExceptionChange::Park(Parked {
                id: EntryId(id),
                message_id: String::new(),
                topic: String::new(),
                key: None,
                state: ExceptionState::Retrying,
                attempts,
                due_in: None,
                fault: None,
                error: None,
            })
        };
        let all = [park(1, 1), ExceptionChange::Resolve(EntryId(1)), park(2, 1), park(2, 2)];
        let left = Changes::of(&all);
        assert_eq!(left.resolved, [1]);
        assert_eq!(left.parked.iter().map(|p| (p.id.0, p.attempts)).collect::<Vec<_>>(), [(2, 2)]);
    }
}
