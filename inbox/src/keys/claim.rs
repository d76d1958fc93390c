//! A key held on lease.

use std::time::Duration;

use message::crash_points::reached;
use message::shield;
use time::OffsetDateTime;
use uuid::Uuid;

use super::crash_points;
use super::error::CompleteError;
use super::handle::{IdempotencyKeys, again};
use super::id::KeyId;
use super::options::OnExpired;
use super::record::{Ending, Record, State};
use super::store::KeyStore;
use super::store::{Ask, Change};
use super::telemetry;
use crate::store_error::StoreError;

/// A key held on lease: the right to run one request.
///
/// Dropped without an ending it stays held until its lease expires, because it is not known whether
/// the request had an effect. A holder whose lease has expired may still complete as long as nobody
/// has taken over.
#[derive(Debug)]
#[must_use = "a key that is not completed stays held until its lease expires"]
pub struct Claim<DB: KeyStore> {
    keys: IdempotencyKeys<DB>,
    id: KeyId,
    holder: Uuid,
    attempt: u32,
    lease: Duration,
    on_expired: OnExpired,
}

impl<DB: KeyStore> Claim<DB> {
    pub(super) fn new(keys: IdempotencyKeys<DB>, ask: Ask, attempt: u32) -> Self {
        let Ask { id, asked, lease, .. } = ask;
        Self { keys, id, holder: asked.holder, attempt, lease, on_expired: asked.on_expired }
    }

    /// The same claim, to be renewed elsewhere while this one is in use.
    #[cfg(feature = "http")]
    pub(crate) fn share(&self) -> Self {
        let Self { keys, id, holder, attempt, lease, on_expired } = self;
        let (keys, id) = (keys.clone(), id.clone());
        Self { keys, id, holder: *holder, attempt: *attempt, lease: *lease, on_expired: *on_expired }
    }

    /// Returns the key that is held. Pass [`KeyId::downstream`] on to the service that makes the
    /// effect.
    #[must_use]
    pub fn id(&self) -> &KeyId {
        &self.id
    }

    /// Who holds it, as operators and logs name the holder.
    #[cfg(feature = "http")]
    pub(crate) fn holder(&self) -> Uuid {
        self.holder
    }

    /// Which attempt this is, from 1: greater than that of every earlier holder of the key, so that
    /// a service which compares them can turn late ones away.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// How long the lease lasts without a sign of life.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Ends the request: everybody who asks again gets this outcome. When, by the database's clock.
    /// Runs to its end even if this call is dropped.
    ///
    /// # Errors
    /// [`CompleteError`]; a late holder changes nothing and is told so.
    pub async fn complete(self, ending: Ending, outcome: &[u8]) -> Result<OffsetDateTime, CompleteError> {
        let outcome = outcome.to_vec();
        let (holder, operation) = (self.holder, self.id.operation().clone());
        let work = async move { self.change(Change::End(ending, &outcome)).await };
        let found = shield(work).await?;
        let ended = decide_end(found, holder);
        telemetry::completed(&operation, ending, ended.is_ok());
        if ended.is_ok() {
            reached(crash_points::AFTER_COMPLETE);
        }
        ended
    }

    /// Returns the policy for the key once its lease has expired.
    #[must_use]
    pub fn on_expired(&self) -> OnExpired {
        self.on_expired
    }

    /// Leaves it open what came of the request. Under [`OnExpired::Refuse`] the key waits for an
    /// operator from now on; under [`OnExpired::TakeOver`] the next one may run the request when
    /// the lease has expired, as when the claim is dropped.
    ///
    /// # Errors
    /// [`CompleteError`] as for [`complete`](Self::complete); the lease expires by itself then.
    pub async fn leave_unknown(self) -> Result<(), CompleteError> {
        tracing::info!(key = %self.id, holder = %self.holder, "the outcome of a request is unknown");
        if self.on_expired == OnExpired::TakeOver {
            return Ok(());
        }
        let holder = self.holder;
        match shield(async move { self.change(Change::Lapse).await }).await? {
            Some(Record { holder: by, state: State::InProgress { .. }, .. }) if by == holder => Ok(()),
            other => Err(late(other)),
        }
    }

    /// Gives the key back: nothing has happened, and anybody may run the request.
    ///
    /// # Errors
    /// [`CompleteError`] as for [`complete`](Self::complete).
    pub async fn release(self) -> Result<(), CompleteError> {
        let holder = self.holder;
        match shield(async move { self.change(Change::Release).await }).await? {
            Some(record) if record.holder == holder && record.state == State::Released => Ok(()),
            other => Err(late(other)),
        }
    }

    /// Makes the lease last as long as at first, from now on. Cancel-safe.
    ///
    /// # Errors
    /// [`CompleteError`]: somebody else has the key. Stop what is under way if that is possible.
    pub async fn renew(&self) -> Result<(), CompleteError> {
        match self.change(Change::Renew(self.lease)).await? {
            Some(Record { holder, state: State::InProgress { .. }, .. }) if holder == self.holder => Ok(()),
            other => Err(late(other)),
        }
    }

    async fn change(&self, change: Change<'_>) -> Result<Option<Record>, StoreError> {
        again(self.keys.db(), "complete an idempotency key", || {
            DB::change(self.keys.pool(), self.keys.statements(), &self.id, self.holder, change)
        })
        .await
    }
}

/// An ending by the same holder is this one: an earlier try of it, whose answer got lost.
fn decide_end(found: Option<Record>, holder: Uuid) -> Result<OffsetDateTime, CompleteError> {
    match found {
        Some(Record {
            holder: by, state: State::Ended(_), processed_at: Some(at), outcome: Some(_), ..
        }) if by == holder => Ok(at),
        other => Err(late(other)),
    }
}

/// Returns the error for a holder that does not have the key any more.
fn late(found: Option<Record>) -> CompleteError {
    match found {
        Some(Record { state: State::Ended(ending), processed_at: Some(processed_at), .. }) => {
            CompleteError::Ended { ending, processed_at }
        }
        Some(Record { state: State::InProgress { .. }, attempt, .. }) => CompleteError::TakenOver { attempt },
        _ => CompleteError::NotHeld,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use message::Fingerprint;

    const AT: OffsetDateTime = OffsetDateTime::UNIX_EPOCH;
    const MINE: Uuid = Uuid::from_u128(1);

    fn record(state: State, holder: u128, outcome: bool) -> Option<Record> {
        let ended = matches!(state, State::Ended(_));
        Some(Record {
            fingerprint: Fingerprint::from([0; 32]),
            state,
            attempt: 2,
            holder: Uuid::from_u128(holder),
            outcome: outcome.then(Vec::new),
            processed_at: ended.then_some(AT),
            expires_at: AT,
            refuses: false,
        })
    }

    #[test]
    fn only_the_holders_own_ending_counts_and_a_late_one_is_told_why() {
        let told = |found| match decide_end(found, MINE) {
            Ok(_) => "ended",
            Err(CompleteError::TakenOver { attempt: 2 }) => "taken over",
            Err(CompleteError::Ended { .. }) => "ended before",
            Err(CompleteError::NotHeld) => "not held",
            Err(_) => "other",
        };
        let succeeded = State::Ended(Ending::Succeeded);
        for (found, expected) in [
            (record(succeeded, 1, true), "ended"),
            (record(succeeded, 2, true), "ended before"),
            (record(State::Ended(Ending::Failed), 1, false), "ended before"), // an operator has discarded it
            (record(State::InProgress { lease_until: AT }, 2, false), "taken over"),
            (record(State::Released, 1, false), "not held"),
            (None, "not held"),
        ] {
            assert_eq!(told(found), expected);
        }
    }
}
