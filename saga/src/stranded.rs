//! Wakes sagas whose next turn was stored while the server's clock was ahead.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use message::shield;
use time::OffsetDateTime;

use crate::dialect::Dialect;
use crate::error::StoreError;
use crate::record::SagaKind;
use crate::sagas::Sagas;

/// Maximum sagas of a type and version that one pass reads. Most of them have long pauses, which is
/// correct; reading them takes some milliseconds.
pub(crate) const SLICE: u32 = 5_000;

/// Where the last pass over each type and version ended; none if it read all of them.
#[derive(Debug, Default)]
pub(crate) struct Passes(Mutex<HashMap<SagaKind, OffsetDateTime>>);

impl Passes {
    fn after(&self, kind: &SagaKind) -> Option<OffsetDateTime> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(kind).copied()
    }

    fn ended(&self, kind: &SagaKind, at: Option<OffsetDateTime>) {
        let mut passes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match at {
            Some(at) => passes.insert(kind.clone(), at),
            None => passes.remove(kind),
        };
    }
}

impl<DB: Dialect> Sagas<DB> {
    /// Makes registered sagas due that wait for no step and whose next turn is impossibly far
    /// ahead, because it was stored while the server's clock was ahead. The limit is 1 h, or 24 h
    /// for a saga that failed. Sagas whose worker may be alive become due after the longest lease.
    /// Returns the number of sagas. Reads up to 5,000 sagas of each type and version; the next
    /// call continues there. A running worker does this once a minute.
    ///
    /// A timer that began while the clock was ahead cannot be distinguished from a long one: it
    /// fires at its time, unless the saga is cancelled.
    ///
    /// # Errors
    /// [`StoreError`]; sagas woken before the error stay due. Runs to its end even if this call is
    /// dropped.
    pub async fn wake_stranded(&self) -> Result<u64, StoreError> {
        let sagas = self.clone();
        shield(async move {
            let inner = &sagas.0;
            let mut woken = 0;
            for kind in inner.registry.runnable() {
                let mut connection = sagas.acquire().await?;
                let after = inner.passes.after(&kind);
                let waking = inner.tables.wake_stranded(&mut connection, &kind, after);
                let slice = sagas.call("wake sagas that a wrong clock has postponed", waking).await?;
                inner.passes.ended(&kind, slice.end);
                woken += slice.woken;
                if slice.woken > 0 {
                    tracing::warn!(
                        saga_type = kind.saga_type,
                        version = kind.version,
                        sagas = slice.woken,
                        "the server's clock was ahead when these sagas were postponed; they are due now"
                    );
                }
            }
            Ok(woken)
        })
        .await
    }
}
