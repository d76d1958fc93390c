//! Renews the leases of all sagas that a worker runs, with one statement.
//!
//! It uses a separate connection, so that steps that exhaust the pool cost no lease.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use tokio::time::Instant;

use crate::dialect::Dialect;
use crate::error::{StoreError, chain};
use crate::lease::Lease;
use crate::record::Held;
use crate::sagas::Sagas;

/// The sagas that a worker runs.
#[derive(Debug, Default)]
pub(super) struct InHand(Mutex<HashMap<Held, Lease>>);

/// A saga whose lease is renewed until this is dropped.
pub(super) struct Renewed {
    sagas: Arc<InHand>,
    held: Held,
}

impl InHand {
    pub(super) fn add(self: &Arc<Self>, held: Held, lease: Lease) -> Renewed {
        self.lock().insert(held.clone(), lease);
        Renewed { sagas: Arc::clone(self), held }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Held, Lease>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Renewed {
    fn drop(&mut self) {
        self.sagas.lock().remove(&self.held);
    }
}

/// Renews every lease after each third of its length, forever. After a failure it tries again
/// sooner.
pub(super) async fn keep_renewing<DB: Dialect>(sagas: Sagas<DB>, in_hand: Arc<InHand>) {
    let mut renewal = Renewal { sagas, in_hand, connection: None };
    let every = renewal.sagas.0.options.lease / 3;
    let mut pause = Duration::ZERO;
    loop {
        tokio::time::sleep(pause).await;
        pause = match tokio::time::timeout(every, renewal.once()).await {
            Ok(Ok(())) => every,
            failed => {
                // A connection that did not answer in time is not used again.
                renewal.connection = None;
                let problem = match failed {
                    Ok(Err(error)) => chain(&error),
                    _ => {
                        renewal.in_hand.lock().values().for_each(Lease::unanswered);
                        format!("the database did not answer within {every:?}")
                    }
                };
                tracing::warn!(error = problem, "the leases of sagas could not be renewed; trying again");
                every / 10
            }
        };
    }
}

struct Renewal<DB: Dialect> {
    sagas: Sagas<DB>,
    in_hand: Arc<InHand>,
    connection: Option<PoolConnection<DB>>,
}

impl<DB: Dialect> Renewal<DB> {
    async fn once(&mut self) -> Result<(), StoreError> {
        let inner = &self.sagas.0;
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.sagas.acquire().await?,
        };
        let held: Vec<Held> = self.in_hand.lock().keys().cloned().collect();
        if !held.is_empty() {
            let (asked_at, lease) = (Instant::now(), inner.options.lease);
            let renewed = inner.tables.renew(&mut connection, &held, lease).await;
            let renewed = renewed.map_err(StoreError::during("renew the leases of sagas"))?;
            for (held, lease_of) in self.in_hand.lock().iter().filter(|(held, _)| renewed.contains(held)) {
                tracing::trace!(saga = %held.id, "its lease was renewed");
                lease_of.renewed(asked_at, lease);
            }
        }
        // Otherwise the pool lends a connection for each renewal.
        if inner.renews_beside_steps() {
            self.connection = Some(connection);
        }
        Ok(())
    }
}
