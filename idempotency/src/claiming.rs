//! Claims keys: with a lease, or in a transaction.

use message::crash_points::reached;
use message::token::Drift;
use message::{Fingerprint, shield};
use migrations::SqlErrorKind;
use outbox::StoreError;
use tokio::sync::oneshot;
use tokio::time::Instant;
use uuid::Uuid;

use crate::again::{PAUSE, may_try_again};
use crate::claim::Claim;
use crate::claimed::Claimed;
use crate::decide::{Asked, Verdict};
use crate::error::ClaimError;
use crate::handle::IdempotencyKeys;
use crate::hold::{begin_holding, hold, lease};
use crate::id::KeyId;
use crate::options::ClaimOptions;
use crate::store::{Ask, KeyStore};
use crate::token::Dated;
use crate::transaction::KeyTransaction;
use crate::undelivered::Undelivered;
use crate::{crash_points, telemetry};

impl<DB: KeyStore> IdempotencyKeys<DB> {
    /// Claims a key on lease: for effects outside this database. Cancel-safe: a claim whose caller
    /// has been dropped when it is granted is released.
    ///
    /// # Errors
    /// [`ClaimError`]; the key is not claimed, or its claim ends with the lease.
    pub async fn claim(
        &self,
        id: &KeyId,
        fingerprint: Fingerprint,
        options: &ClaimOptions,
    ) -> Result<Claimed<Claim<DB>>, ClaimError> {
        let ask = self.ask(id, fingerprint, options)?;
        let keys = self.clone();
        let (done, outcome) = oneshot::channel();
        tokio::spawn(async move {
            // A dropped caller receives nothing: the claim is dropped here, or in the channel.
            drop(done.send(keys.claim_now(ask).await.map(Undelivered::new)));
        });
        let gone = |error| StoreError::broken("finish because the runtime was shut down", error);
        outcome.await.map_err(gone)?.map(Undelivered::deliver)
    }

    /// Begins a transaction that holds a key: for effects in this database. It runs at the
    /// isolation level READ COMMITTED. Cancel-safe.
    ///
    /// # Errors
    /// [`ClaimError`]; no transaction is open.
    pub async fn begin(
        &self,
        id: &KeyId,
        fingerprint: Fingerprint,
        options: &ClaimOptions,
    ) -> Result<Claimed<KeyTransaction<DB>>, ClaimError> {
        let keys = self.clone();
        let id = id.clone();
        let options = *options;
        shield(async move { keys.begin_here(&id, fingerprint, &options).await }).await
    }

    /// Does the same as [`begin`](Self::begin), for a caller that runs to its end anyway. Not
    /// cancel-safe.
    pub(crate) async fn begin_here(
        &self,
        id: &KeyId,
        fingerprint: Fingerprint,
        options: &ClaimOptions,
    ) -> Result<Claimed<KeyTransaction<DB>>, ClaimError> {
        let ask = self.ask(id, fingerprint, options)?;
        let failed = || StoreError::during("hold an idempotency key");
        let mut tx = begin_holding(self, &ask).await.map_err(failed())?;
        let held = hold::<DB>(&mut tx, self.tables(), &ask, false);
        let verdict = match self.inner.db.call(held).await.map_err(failed())? {
            Ok(verdict) => verdict,
            Err(drift) => {
                self.inner.db.call(tx.rollback()).await.map_err(StoreError::during("roll back"))?;
                return Err(refused(&ask.id, drift));
            }
        };
        let claimed = match Claimed::of(verdict) {
            Ok(attempt) => {
                reached(crash_points::AFTER_CLAIM);
                Claimed::Acquired(KeyTransaction::new(self.clone(), tx, ask, attempt))
            }
            Err(replay @ Claimed::Replay(_)) => {
                // Rolls back in the background: reading a stored outcome waits for no lock.
                drop(tx);
                replay
            }
            Err(refused) => {
                // The key may be locked. Without the rollback, the next caller would find it in
                // flight although no request is running.
                self.inner.db.call(tx.rollback()).await.map_err(StoreError::during("roll back"))?;
                refused
            }
        };
        let attempt = if let Claimed::Acquired(tx) = &claimed { tx.attempt() } else { 0 };
        tell(id, &claimed, attempt);
        Ok(claimed)
    }

    fn ask(&self, id: &KeyId, fingerprint: Fingerprint, options: &ClaimOptions) -> Result<Ask, ClaimError> {
        let retention = options.check(self.inner.retention)?;
        let dated = Dated::of(id, &options.retention(retention));
        if let Err(ClaimError::NotAToken(_)) = dated {
            telemetry::claimed(id.operation(), "not_a_token");
        }
        let asked = Asked {
            fingerprint,
            holder: Uuid::now_v7(),
            on_expired: options.on_expired,
            expires_until: self.forgets_until(),
        };
        Ok(Ask { id: id.clone(), asked, lease: options.lease, retention, dated: dated? })
    }

    async fn claim_now(&self, ask: Ask) -> Result<Claimed<Claim<DB>>, ClaimError> {
        let held = self.lease(&ask).await.map_err(StoreError::during("claim an idempotency key"))?;
        let verdict = held.map_err(|drift| refused(&ask.id, drift))?;
        let id = ask.id.clone();
        let claimed = match Claimed::of(verdict) {
            Ok(attempt) => {
                let claim = Claim::new(self.clone(), ask, attempt);
                reached(crash_points::AFTER_CLAIM);
                Claimed::Acquired(claim)
            }
            Err(refused) => refused,
        };
        tell(&id, &claimed, if let Claimed::Acquired(claim) = &claimed { claim.attempt() } else { 0 });
        Ok(claimed)
    }

    /// Claims a key on lease, with retries. After a lost answer, the outcome is unknown until the
    /// session of that try has ended: until then it holds the lock of the key and may still commit.
    async fn lease(&self, ask: &Ask) -> Result<Result<Verdict, Drift>, sqlx::Error> {
        let until = Instant::now() + self.inner.db.limit();
        let mut attempt = 1;
        let mut lost = None;
        loop {
            let error = match lease(self, ask).await {
                Ok(busy @ Ok(Verdict::Busy)) => match lost.take() {
                    Some(error) => error,
                    None => return Ok(busy),
                },
                Err(error) if may_try_again(&error, attempt) => error,
                done => return done,
            };
            let pause = PAUSE.delay(attempt, rand::random());
            if Instant::now() + pause >= until {
                return Err(error);
            }
            tracing::debug!(attempt, %error, "claiming an idempotency key again");
            if SqlErrorKind::of(&error) == SqlErrorKind::Lost {
                lost = Some(error);
            }
            tokio::time::sleep(pause).await;
            attempt += 1;
        }
    }
}

fn refused(id: &KeyId, drift: Drift) -> ClaimError {
    tracing::info!(key = %id, %drift, "an idempotency key was refused because of its time");
    telemetry::claimed(id.operation(), drift.as_str());
    ClaimError::Drift(drift)
}

/// Counts a claim and logs it. Refusals and takeovers are logged at info level, so that an operator
/// finds them by the key that a client reports.
fn tell<T>(id: &KeyId, claimed: &Claimed<T>, attempt: u32) {
    let result = claimed.as_str();
    match claimed {
        Claimed::Conflict { .. } | Claimed::Stuck { .. } | Claimed::Discarded { .. } => {
            tracing::info!(key = %id, result, "an idempotency key was refused");
        }
        Claimed::Acquired(_) if attempt > 1 => {
            tracing::info!(key = %id, attempt, "an idempotency key was taken over");
        }
        _ => tracing::debug!(key = %id, result, "an idempotency key was claimed"),
    }
    telemetry::claimed(id.operation(), result);
}
