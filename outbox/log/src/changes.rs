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
