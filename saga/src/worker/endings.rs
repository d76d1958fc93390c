//! Sagas that are about to end.

use std::sync::{Mutex, PoisonError};

use tokio::sync::oneshot;

use crate::error::StoreError;
use crate::record::Held;

/// Maximum sagas that one statement ends.
const TOGETHER_MAX: usize = 64;

/// Sagas that are about to end.
#[derive(Debug, Default)]
pub(crate) struct Finishing {
    waiting: Mutex<Vec<Ending>>,
    /// Held while a statement is under way.
    pub(super) turn: tokio::sync::Mutex<()>,
}

/// A saga that ends, and the caller that waits for it.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) held: Held,
    pub(super) output: String,
    pub(super) done: oneshot::Sender<Result<bool, StoreError>>,
}

impl Finishing {
    pub(super) fn add(&self, ending: Ending) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(ending);
    }

    pub(super) fn take(&self) -> Vec<Ending> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let count = waiting.len().min(TOGETHER_MAX);
        waiting.drain(..count).collect()
    }
}
