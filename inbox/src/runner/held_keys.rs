//! Which admitted messages wait behind a dead letter of their key.
//!
//! [`crate::held_keys`] explains why that keeps the order.

use std::collections::HashSet;

use message::{Message, OrderingKey, Topic};

use super::store::{Admitted, Store};
use super::worker::Worker;
use crate::batch::Candidate;
use crate::dead_letter::DeadLetterId;
use crate::name::Tenant;
use crate::refusal::Refusal;
use crate::store_error::StoreError;

impl<S: Store> Worker<S> {
    /// Returns the open dead letter that holds the key of an admitted message, if the consumer
    /// holds keys.
    pub(super) async fn holder(
        &self,
        tx: &mut S::Tx,
        tenant: &Tenant,
        message: &Message,
    ) -> Result<Option<DeadLetterId>, StoreError> {
        if !self.holds_keys || message.key.is_none() || !self.store.has_effect(message) {
            return Ok(None);
        }
        let candidate = Candidate { tenant: tenant.clone(), message };
        Ok(self.store.holders(tx, &[candidate]).await?.into_iter().next().flatten())
    }

    /// Returns the positions of the new messages in an admitted batch that must not be handled with
    /// it. A dead letter holds their key, or an earlier message of their key was refused and will
    /// become a dead letter.
    pub(super) async fn held_places(
        &self,
        tx: &mut S::Tx,
        candidates: &[Candidate<'_>],
        admissions: &[Result<Admitted<S::Guard>, Refusal>],
    ) -> Result<HashSet<usize>, StoreError> {
        let mut held = HashSet::new();
        if !self.holds_keys {
            return Ok(held);
        }
        let mut refused: HashSet<(&Tenant, &Topic, &OrderingKey)> = HashSet::new();
        let mut places = Vec::new();
        let mut fresh = Vec::new();
        for (at, (candidate, admission)) in candidates.iter().zip(admissions).enumerate() {
            let Candidate { tenant, message } = candidate;
            let Some(key) = &message.key else { continue };
            let key = (tenant, &message.topic, key);
            let is_idle = !self.store.has_effect(candidate.message);
            match admission {
                Err(_) => {
                    refused.insert(key);
                }
                Ok(Ok(_)) if is_idle => {}
                Ok(Ok(_)) if refused.contains(&key) => {
                    held.insert(at);
                }
                Ok(Ok(_)) => {
                    places.push(at);
                    fresh.push(candidate.clone());
                }
                Ok(Err(_)) => {}
            }
        }
        if !fresh.is_empty() {
            let holders = self.store.holders(tx, &fresh).await?;
            held.extend(places.into_iter().zip(holders).filter_map(|(at, holder)| holder.map(|_| at)));
        }
        Ok(held)
    }
}
