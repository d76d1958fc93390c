//! The handle to the table of idempotency keys.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use inbox::StoreError;
use inbox::shared::back;
use message::crash_points::reached;
use message::token::Drift;
use message::{Backoff, Fingerprint, SteadyClock, shield};
use migrations::{Line, Migrator, SqlErrorKind};
use outbox::{Bounded, Outbox};
use sqlx::Pool;
use time::OffsetDateTime;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use crate::claim::Claim;
use crate::claimed::Claimed;
use crate::decide::{Asked, Verdict};
use crate::error::ClaimError;
use crate::hold::{hold, lease};
use crate::id::KeyId;
use crate::options::{ClaimOptions, KeyOptions};
use crate::store::{Ask, KeyStore};
use crate::tables::KeyTables;
use crate::token::Dated;
use crate::transaction::KeyTransaction;
use crate::undelivered::Undelivered;
use crate::{crash_points, maintenance, telemetry};

/// Maximum tries of a step that lost against another one, or whose answer was lost. Every step may
/// be repeated: the holder's id shows whether an earlier try was carried out.
const TRIES: u32 = 5;
const PAUSE: Backoff = Backoff { first: Duration::from_millis(10), max: Duration::from_millis(250) };

/// The handle to the table in one database that remembers which requests have run. Cheap to clone.
/// While a handle exists, it [maintains](Self::maintain) the table in the background.
pub struct IdempotencyKeys<DB: KeyStore> {
    inner: Arc<Inner<DB>>,
    /// The outbox with which its transactions enqueue.
    outbox: Option<Outbox<DB>>,
}

pub(crate) struct Inner<DB: KeyStore> {
    db: Bounded<DB>,
    /// The second clock, by which a key must also have expired.
    clock: SteadyClock,
    tables: KeyTables<DB>,
    retention: Duration,
    audit_retention: Duration,
    _maintenance: AbortOnDropHandle<()>,
}

impl<DB: KeyStore> IdempotencyKeys<DB> {
    /// Opens an existing table.
    ///
    /// # Errors
    /// [`ClaimError`]: an option is out of bounds, the schema does not match (the error names the
    /// command to run), or the database is unavailable. Run it to its end.
    pub async fn open(pool: Pool<DB>, options: KeyOptions) -> Result<Self, ClaimError> {
        options.check()?;
        let KeyOptions { retention, audit_retention, schema, maintain_every, call_timeout } = options;
        let db = Bounded::new(pool, call_timeout);
        // Boxed, otherwise every caller's future would contain it twice.
        let look = Box::pin(async {
            let mut connection = db.acquire().await.map_err(StoreError::during("give a connection"))?;
            let lines = Migrator::<DB>::new(Line::Idempotency).schema(schema.clone());
            lines.check(&mut connection).await.map_err(ClaimError::from)
        });
        db.any(look).await.map_err(StoreError::during("look at its tables"))??;
        Ok(Self::of(Arc::new_cyclic(|keys| Inner {
            db,
            clock: SteadyClock::start(),
            tables: KeyTables::new(schema.as_ref()),
            retention,
            audit_retention,
            _maintenance: maintenance::spawn(Weak::clone(keys), maintain_every),
        })))
    }

    pub(crate) fn of(inner: Arc<Inner<DB>>) -> Self {
        Self { inner, outbox: None }
    }

    /// Returns these keys with an outbox, whose tables are in the same database: the transactions
    /// of [`begin`](Self::begin) and of the HTTP layer enqueue with it. Without one, they refuse to
    /// enqueue ([`EnqueueError::NoOutbox`](outbox::EnqueueError::NoOutbox)).
    #[must_use]
    pub fn with_outbox(self, outbox: Outbox<DB>) -> Self {
        Self { outbox: Some(outbox), ..self }
    }

    pub(crate) fn outbox(&self) -> Option<&Outbox<DB>> {
        self.outbox.as_ref()
    }

    /// Returns the pool of the database that has its table.
    #[must_use]
    pub fn pool(&self) -> &Pool<DB> {
        self.inner.db.pool()
    }

    pub(crate) fn db(&self) -> &Bounded<DB> {
        &self.inner.db
    }

    /// Returns the time up to which keys may be forgotten, if they have also expired by the
    /// database's clock.
    pub(crate) fn forgets_until(&self) -> OffsetDateTime {
        self.inner.clock.now()
    }

    /// Returns the time before which decisions are forgotten.
    pub(crate) fn forgets_decisions_before(&self) -> OffsetDateTime {
        back(self.inner.clock.now(), self.inner.audit_retention)
    }

    /// Claims a key on lease: for effects outside this database. Cancel-safe: a claim whose caller
    /// is gone when it is granted is released.
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
            // A caller that is gone receives nothing: it is dropped here, or in the channel.
            drop(done.send(keys.claim_now(ask).await.map(Undelivered::new)));
        });
        let gone = |error| StoreError::broken("finish, because the runtime was shut down", error);
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
        let (tx, held) = self
            .inner
            .db
            .call(async {
                let mut tx = DB::begin_holding(self.pool(), self.tables(), &ask).await?;
                let held = hold::<DB>(&mut tx, self.tables(), &ask, false).await?;
                Ok((tx, held))
            })
            .await
            .map_err(StoreError::during("hold an idempotency key"))?;
        let verdict = match held {
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
            let error = match self.inner.db.call(lease(self.pool(), self.tables(), ask)).await {
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

    pub(crate) fn tables(&self) -> &KeyTables<DB> {
        &self.inner.tables
    }
}

fn refused(id: &KeyId, drift: Drift) -> ClaimError {
    tracing::info!(key = %id, %drift, "an idempotency key was refused by its time");
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

/// Repeats a step until it neither conflicts with another one nor loses its answer. All tries
/// together take at most as long as one call may.
pub(crate) async fn again<DB: KeyStore, T, F>(
    db: &Bounded<DB>,
    what: &'static str,
    mut step: impl FnMut() -> F,
) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, sqlx::Error>>,
{
    let tries = async {
        let mut attempt = 1;
        loop {
            match step().await {
                Err(error) if may_try_again(&error, attempt) => {
                    tracing::debug!(attempt, %error, what, "trying again");
                    tokio::time::sleep(PAUSE.delay(attempt, rand::random())).await;
                    attempt += 1;
                }
                done => return done,
            }
        }
    };
    db.call(tries).await.map_err(StoreError::during(what))
}

fn may_try_again(error: &sqlx::Error, attempt: u32) -> bool {
    SqlErrorKind::of(error) != SqlErrorKind::Refused && attempt < TRIES
}

impl<DB: KeyStore> Clone for IdempotencyKeys<DB> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), outbox: self.outbox.clone() }
    }
}

impl<DB: KeyStore> fmt::Debug for IdempotencyKeys<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyKeys").field("retention", &self.inner.retention).finish_non_exhaustive()
    }
}
