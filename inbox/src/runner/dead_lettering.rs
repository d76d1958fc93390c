//! Dead-letters a delivery, however long the database is unavailable.

use message::{Committed, Delivery};
use tokio_util::sync::CancellationToken;

use super::step::NewDeadLetter;
use super::store::Store;
use super::waits::{Outages, Waited};
use super::worker::{GivenUp, Worker};
use crate::dead_letters::{Cause, Reason};
use crate::ids::Tenant;

impl<S: Store> Worker<S> {
    /// Dead-letters a delivery, however long the database is unavailable.
    pub(super) async fn store_dead_letter(
        &self,
        delivery: &Delivery,
        tenant: &Tenant,
        dead: NewDeadLetter,
        give_up: &CancellationToken,
    ) -> Result<Committed, GivenUp> {
        let NewDeadLetter { cause, whole } = dead;
        let mut outages = Outages::default();
        loop {
            let stored = match &whole {
                Some(whole) => self.store.dead_letter_whole(tenant, delivery, whole, cause.clone()).await,
                None => self.store.dead_letter(tenant, delivery, cause.clone()).await,
            };
            match stored {
                Ok(proof) => {
                    let Cause { reason, error, attempts } = cause;
                    self.meter.dead(reason);
                    let subject = delivery.subject();
                    let origin = &delivery.origin;
                    if reason == Reason::Held {
                        tracing::info!(consumer = %self.consumer, message_id = %subject, origin, error, "held");
                    } else {
                        tracing::error!(consumer = %self.consumer, message_id = %subject, origin, %reason,
                            attempts, error, "dead-lettered");
                    }
                    return Ok(proof);
                }
                Err(error) => {
                    self.wait_out(&mut outages, Waited::one(delivery.id()), &error, give_up).await?;
                }
            }
        }
    }
}
