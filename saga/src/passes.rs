//! Passes over postponed sagas, a slice in each.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use time::OffsetDateTime;

use crate::record::SagaKind;

/// Where the last pass over each type and version ended; none if it read all of them.
#[derive(Debug, Default)]
pub(crate) struct Passes(Mutex<HashMap<SagaKind, OffsetDateTime>>);

impl Passes {
    /// Returns where the next pass continues; none for the beginning.
    pub(crate) fn after(&self, kind: &SagaKind) -> Option<OffsetDateTime> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(kind).copied()
    }

    /// Keeps where a pass ended.
    pub(crate) fn ended(&self, kind: &SagaKind, at: Option<OffsetDateTime>) {
        let mut passes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match at {
            Some(at) => passes.insert(kind.clone(), at),
            None => passes.remove(kind),
        };
    }
}
