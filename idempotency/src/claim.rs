//! A key held on lease.

use std::time::Duration;

use message::crash_points::reached;
use message::shield;
use outbox::StoreError;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::again::again;
use crate::error::CompleteError;
use crate::handle::IdempotencyKeys;
use crate::id::KeyId;
use crate::options::OnExpired;
use crate::record::{Ending, Record, State};
use crate::store::{Ask, Change, End, KeyStore};
use crate::{crash_points, telemetry};

/// A key held on lease: the right to run one request.
///
/// When it is dropped without an ending, it stays held until its lease expires, because it is
/// unknown whether the request had an effect. A holder whose lease has expired may still complete
/// while no other caller has taken over.
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
    pub(crate) fn new(keys: IdempotencyKeys<DB>, ask: Ask, attempt: u32) -> Self {
        let Ask { id, asked, lease, .. } = ask;
        Self { keys, id, holder: asked.holder, attempt, lease, on_expired: asked.on_expired }
    }

    /// Returns the same claim, so that another task can renew or release it.
    pub(crate) fn share(&self) -> Self {
        let Self { keys, id, holder, attempt, lease, on_expired } = self;
        let keys = keys.clone();
        let id = id.clone();
        Self { keys, id, holder: *holder, attempt: *attempt, lease: *lease, on_expired: *on_expired }
    }

    /// Returns the key that is held. Pass [`KeyId::downstream`] to the service that has the effect.
    #[must_use]
    pub fn id(&self) -> &KeyId {
        &self.id
    }

    /// Returns the id of the holder, as operators and logs show it.
    #[cfg(feature = "http")]
    pub(crate) fn holder(&self) -> Uuid {
        self.holder
    }

    /// Returns the number of this attempt, from 1. It is greater than that of every earlier holder
    /// of the key, so a service that compares the numbers can reject late holders.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns how long the lease lasts without renewal.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Ends the request: every repeated request gets this outcome. Returns the time, by the
    /// database's clock. The commit waits for the disk even if the server's settings do not ask for
    /// it. Runs to its end even if this call is dropped.
    ///
    /// # Errors
    /// [`CompleteError`]; a late holder changes nothing and gets the reason.
    pub async fn complete(self, ending: Ending, outcome: &[u8]) -> Result<OffsetDateTime, CompleteError> {
        let outcome = outcome.to_vec();
        let holder = self.holder;
        let operation = self.id.operation().clone();
        let work = async move { self.change(Change::End(End { ending, outcome: &outcome })).await };
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

    /// Ends the claim with an unknown outcome. Under [`OnExpired::Refuse`] the key waits for an
    /// operator from now on. Under [`OnExpired::TakeOver`] the next caller may run the request when
    /// the lease has expired, as when the claim is dropped.
    ///
    /// # Errors
    /// [`CompleteError`] as for [`complete`](Self::complete); then the lease expires.
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

    /// Releases the key: nothing has happened, and any caller may run the request.
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

    /// Extends the lease to its original duration from now. Cancel-safe.
    ///
    /// # Errors
    /// [`CompleteError`]: another holder has the key. Stop the work if possible.
    pub async fn renew(&self) -> Result<(), CompleteError> {
        match self.change(Change::Renew(self.lease)).await? {
            Some(Record { holder, state: State::InProgress { .. }, .. }) if holder == self.holder => Ok(()),
            other => Err(late(other)),
        }
    }

    async fn change(&self, change: Change<'_>) -> Result<Option<Record>, StoreError> {
        again(self.keys.db(), "complete an idempotency key", || {
            DB::change(self.keys.pool(), self.keys.tables(), &self.id, self.holder, change)
        })
        .await
    }
}

/// Treats an ending by the same holder as success: it is an earlier try, whose answer was lost.
fn decide_end(found: Option<Record>, holder: Uuid) -> Result<OffsetDateTime, CompleteError> {
    match found {
        Some(Record {
            holder: by, state: State::Ended(_), processed_at: Some(at), outcome: Some(_), ..
        }) if by == holder => Ok(at),
        other => Err(late(other)),
    }
}

/// Returns the error for a holder that no longer has the key.
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
