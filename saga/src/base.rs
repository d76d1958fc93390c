//! The parts that all runs of sagas share: tables, outbox, options and signals.

use message::SteadyClock;
use message::crash_points::reached;
use outbox::{Bounded, Outbox};
use sqlx::pool::PoolConnection;
use tokio::sync::{Notify, Semaphore};

use crate::dialect::Dialect;
use crate::error::StoreError;
use crate::key::SagaId;
use crate::options::WorkerOptions;
use crate::passes::Passes;
use crate::tables::Tables;
use crate::worker::Finishing;

/// The parts that runs share: all of a handle except the functions of sagas.
pub(crate) struct Base<DB: Dialect> {
    pub(crate) db: Bounded<DB>,
    /// The second clock that must agree before a saga is forgotten, or a wait ends.
    pub(crate) clock: SteadyClock,
    /// Permits for transactions that run the code of steps.
    pub(crate) turns: Semaphore,
    pub(crate) outbox: Outbox<DB>,
    pub(crate) tables: Tables<DB>,
    pub(crate) options: WorkerOptions,
    /// Notified of a start, a reply or a decision in this process.
    pub(crate) notify: Notify,
    pub(crate) finishing: Finishing,
    pub(crate) passes: Passes,
    #[cfg(feature = "testing")]
    pub(crate) hook: Option<crate::hook::Hook>,
}

/// Connections that steps leave free, for renewing leases and for short statements.
const KEPT_FREE: u32 = 2;

/// Returns the maximum number of concurrent transactions of steps, for a number of connections.
pub(crate) fn turns(connections: u32) -> usize {
    let turns = connections.saturating_sub(KEPT_FREE).max(1);
    usize::try_from(turns).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS)
}

impl<DB: Dialect> Base<DB> {
    /// Acquires a connection, within the call timeout.
    pub(crate) async fn acquire(&self) -> Result<PoolConnection<DB>, StoreError> {
        self.db.acquire().await.map_err(StoreError::during("give a connection"))
    }

    /// Returns whether leases are renewed independently of steps. They are not in a pool that is
    /// too small to reserve a connection for it, and not on SQLite, where a step is the only
    /// writer.
    pub(crate) fn renews_beside_steps(&self) -> bool {
        let connections = self.db.pool().options().get_max_connections();
        connections > KEPT_FREE && DB::DIALECT == migrations::Dialect::Postgres
    }

    /// Reports that a crash point is reached. Returns whether the worker ends here, which happens
    /// only in tests.
    pub(crate) async fn vanishes_at(&self, saga: &SagaId, place: &'static str) -> bool {
        reached(place);
        #[cfg(feature = "testing")]
        if let Some(hook) = &self.hook {
            return hook(saga.id(), place).await;
        }
        #[cfg(not(feature = "testing"))]
        let _ = saga;
        false
    }
}
