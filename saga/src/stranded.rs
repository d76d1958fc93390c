//! Wakes sagas whose next run was scheduled while the server's clock was ahead.

use message::shield;

use crate::dialect::Dialect;
use crate::error::StoreError;
use crate::sagas::Sagas;
use crate::tables::Tables;

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
                let what = "wake sagas that a wrong clock postponed";
                let tx = sagas.begin(what, Tables::begin_change_by_index).await?;
                let after = inner.passes.after(&kind);
                let slice = sagas.call(what, inner.tables.wake_stranded(tx, &kind, after)).await?;
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
