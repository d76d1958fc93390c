//! Claims due sagas, fairly between types.

use tokio::time::Instant;
use uuid::Uuid;

use crate::dialect::Dialect;
use crate::error::StoreError;
use crate::lease::Lease;
use crate::record::{LOST, SagaKind, SagaOutline, SagaRecord};
use crate::sagas::Sagas;
use crate::telemetry;

/// The types and versions that run here. Each poll starts with the next one, and none takes more
/// than its share while others may have work.
pub(super) struct Claims<'a, DB: Dialect> {
    sagas: &'a Sagas<DB>,
    kinds: Vec<SagaKind>,
    first: usize,
    worker: Uuid,
    /// Number of claims that were tried.
    count: u64,
}

impl<'a, DB: Dialect> Claims<'a, DB> {
    pub(super) fn new(sagas: &'a Sagas<DB>) -> Self {
        Self { sagas, kinds: sagas.0.registry.runnable(), first: 0, worker: Uuid::now_v7(), count: 0 }
    }

    /// Claims at most `free` sagas.
    pub(super) async fn take(&mut self, free: usize) -> Result<Vec<(SagaRecord, Lease)>, StoreError> {
        let mut taken = Vec::new();
        if self.kinds.is_empty() {
            return Ok(taken);
        }
        let inner = &self.sagas.0;
        let mut connection = self.sagas.acquire().await?;
        let due = self.due(&mut connection).await?;
        self.first = (self.first + 1) % self.kinds.len();
        let turns = (0..self.kinds.len()).map(|turn| (self.first + turn) % self.kinds.len());
        let due: Vec<usize> = turns.filter(|place| due[*place]).collect();
        for (turn, place) in due.iter().enumerate() {
            let kind = &self.kinds[*place];
            let share = share(free.saturating_sub(taken.len()), due.len() - turn);
            if share == 0 {
                break;
            }
            let (asked_at, lease) = (Instant::now(), inner.options.lease);
            let pause = inner.options.backoff;
            self.count += 1;
            let claim = format!("{}/{}", self.worker, self.count);
            let claimed = inner.tables.claim(&mut connection, kind, share, &claim, lease, pause);
            match self.sagas.call("claim due sagas", claimed).await {
                Ok(sagas) => {
                    for saga in sagas {
                        if saga.outline.worker.is_some() {
                            taken.push((saga, Lease::granted(asked_at, lease)));
                        } else {
                            telemetry::failed(saga.outline.id.saga_type());
                            let SagaOutline { id, attempts, .. } = saga.outline;
                            tracing::warn!(saga = %id, attempts, "the saga is retried later: {LOST}");
                        }
                    }
                }
                // Sagas that are already claimed still run.
                Err(error) if taken.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(taken)
    }

    /// Returns which kinds have a due saga, with one query for all of them.
    async fn due(&self, connection: &mut DB::Connection) -> Result<Vec<bool>, StoreError> {
        if self.kinds.len() == 1 {
            return Ok(vec![true]);
        }
        let due = self.sagas.0.tables.due_kinds(connection, &self.kinds);
        self.sagas.call("find due sagas", due).await
    }
}

/// Returns the share of `free` for the next of `kinds` kinds, rounded up.
fn share(free: usize, kinds: usize) -> u32 {
    u32::try_from(free.div_ceil(kinds)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_share() {
        assert_eq!([share(16, 4), share(1, 4), share(5, 2), share(0, 3)], [4, 1, 3, 0]);
    }
}
