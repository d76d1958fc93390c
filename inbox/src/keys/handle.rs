//! The handle to the tables of idempotency keys.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use message::crash_points::reached;
use message::token::Drift;
use message::{Fingerprint, to_its_end};
use migrations::{Line, Migrator};
use sqlx::Pool;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::claim::Claim;
use super::claimed::Claimed;
use super::crash_points;
use super::error::ClaimError;
use super::id::KeyId;
use super::judge::{Asked, judge};
use super::options::{ClaimOptions, KeyOptions};
use super::record::Found;
use super::store::Ask;
use super::token::Dated;
use super::transaction::KeyTransaction;
use crate::backoff::Backoff;
use crate::dialect::Dialect;
use crate::store_error::{StoreError, Trouble};
use crate::telemetry;

/// How often a step is done again that lost against another one, or whose answer got lost. Every step may be: the holder's
/// number tells whether an earlier try of it was carried out.
const TRIES: u32 = 5;
const PAUSE: Backoff = Backoff { first: Duration::from_millis(10), max: Duration::from_millis(250) };

/// The tables in one database that remember which requests have run. Cheap to clone.
pub struct IdempotencyKeys<DB: Dialect>(Arc<Inner<DB>>);

struct Inner<DB: Dialect> {
    pool: Pool<DB>,
    statements: DB::KeyStatements,
    retention: Duration,
    is_rotating: AtomicBool,
}

impl<DB: Dialect> IdempotencyKeys<DB> {
    /// Opens tables that exist, and makes their retention as long as this process needs it.
    ///
    /// # Errors
    /// [`ClaimError`]: an option out of its bounds, a schema that does not fit (says which command to run), or a database
    /// that is away. Run it to its end.
    pub async fn open(pool: Pool<DB>, options: KeyOptions) -> Result<Self, ClaimError> {
        options.check()?;
        let statements = DB::key_statements(options.schema.as_ref());
        let mut connection = pool.acquire().await.map_err(StoreError::during("give a connection"))?;
        Migrator::<DB>::new(Line::Idempotency).schema(options.schema.clone()).check(&mut connection).await?;
        let longest = DB::retention(&mut connection, &statements)
            .await
            .map_err(StoreError::during("read how long keys are kept"))?;
        drop(connection);
        if longest < options.retention {
            DB::retain(&pool, &statements, options.retention)
                .await
                .map_err(StoreError::during("keep keys for longer"))?;
        }
        let retention = options.retention;
        Ok(Self(Arc::new(Inner { pool, statements, retention, is_rotating: AtomicBool::new(false) })))
    }

    /// Where its tables are.
    #[must_use]
    pub fn pool(&self) -> &Pool<DB> {
        &self.0.pool
    }

    /// Claims a key on lease: for effects outside this database. Cancel-safe: a claim whose caller is gone by the time it
    /// is granted is given back.
    ///
    /// # Errors
    /// [`ClaimError`]; the key is not claimed, or its claim lapses with the lease.
    pub async fn claim(
        &self,
        id: &KeyId,
        fingerprint: Fingerprint,
        options: &ClaimOptions,
    ) -> Result<Claimed<Claim<DB>>, ClaimError> {
        let (ask, dated) = self.ask(id, fingerprint, options)?;
        let keys = self.clone();
        let (done, outcome) = oneshot::channel();
        tokio::spawn(async move {
            // Nobody hears of it where the caller is gone.
            if let Err(Ok(Claimed::Acquired(claim))) = done.send(keys.claim_now(ask, dated).await) {
                give_back(claim).await;
            }
        });
        let gone =
            |error| StoreError::new("finish, because the runtime was shut down", Trouble::Outage, error);
        outcome.await.map_err(gone)?
    }

    /// Begins a transaction that holds a key: for effects in this database. It runs at the isolation level READ COMMITTED.
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`ClaimError`]; no transaction is open.
    pub async fn begin(
        &self,
        id: &KeyId,
        fingerprint: Fingerprint,
        options: &ClaimOptions,
    ) -> Result<Claimed<KeyTransaction<DB>>, ClaimError> {
        let (keys, id, options) = (self.clone(), id.clone(), *options);
        to_its_end(async move { keys.begin_here(&id, fingerprint, &options).await }).await
    }

    /// As [`begin`](Self::begin), for a caller that runs to its end anyway. Not cancel-safe.
    pub(crate) async fn begin_here(
        &self,
        id: &KeyId,
        fingerprint: Fingerprint,
        options: &ClaimOptions,
    ) -> Result<Claimed<KeyTransaction<DB>>, ClaimError> {
        let (ask, dated) = self.ask(id, fingerprint, options)?;
        let mut tx =
            DB::begin_holding(&self.0.pool).await.map_err(StoreError::during("begin a transaction"))?;
        let (found, held) = DB::hold(&mut tx, &self.0.statements, &ask)
            .await
            .map_err(StoreError::during("hold an idempotency key"))?;
        self.rotate_when_due(&found);
        let id = ask.id.clone();
        let drift = drift(dated, &found);
        let claimed = match Claimed::of(judge(found, &ask.asked)) {
            Ok(attempt) => {
                if let Some(drift) = drift {
                    tx.rollback().await.map_err(StoreError::during("roll back"))?;
                    return Err(refused(&id, drift));
                }
                reached(crash_points::AFTER_CLAIM);
                Claimed::Acquired(KeyTransaction::new(self.clone(), tx, ask, (attempt, held)))
            }
            Err(replay @ Claimed::Replay(_)) => {
                // It rolls back while the answer is on its way: who reads a stored outcome waits for no lock.
                drop(tx);
                replay
            }
            Err(refused) => {
                // The key may be locked: whoever asks next would find it in flight, although nobody works on it.
                tx.rollback().await.map_err(StoreError::during("roll back"))?;
                refused
            }
        };
        tracing::debug!(key = %id, result = claimed.as_str(), "an idempotency key was claimed");
        telemetry::claimed(id.operation(), claimed.as_str());
        Ok(claimed)
    }

    /// Forgets what has outlived the retention, if it is time: true when it did. Claims notice by themselves when it is;
    /// call it where no claims come for days and the space matters. Any number of processes may.
    ///
    /// # Errors
    /// [`StoreError`], also when open transactions were in the way; it is harmless to try again later.
    pub async fn maintain(&self) -> Result<bool, StoreError> {
        let keys = self.clone();
        to_its_end(async move { keys.rotate().await }).await
    }

    fn ask(
        &self,
        id: &KeyId,
        fingerprint: Fingerprint,
        options: &ClaimOptions,
    ) -> Result<(Ask, Option<Dated>), ClaimError> {
        let retention = options.check(self.0.retention)?;
        let dated = Dated::of(id, &options.retention(retention));
        if let Err(ClaimError::NotAToken(_)) = dated {
            telemetry::claimed(id.operation(), "not_a_token");
        }
        let asked = Asked { fingerprint, holder: Uuid::now_v7(), on_expired: options.on_expired };
        Ok((Ask { id: id.clone(), asked, lease: options.lease, retention }, dated?))
    }

    async fn claim_now(&self, ask: Ask, dated: Option<Dated>) -> Result<Claimed<Claim<DB>>, ClaimError> {
        let found =
            again("claim an idempotency key", || DB::claim(&self.0.pool, &self.0.statements, &ask)).await?;
        self.rotate_when_due(&found);
        let drift = drift(dated, &found);
        let Ask { id, asked, lease, .. } = ask;
        let claimed = match Claimed::of(judge(found, &asked)) {
            Ok(attempt) => {
                let claim = Claim::new(self.clone(), id.clone(), asked.holder, attempt, lease);
                if let Some(drift) = drift {
                    give_back(claim).await;
                    return Err(refused(&id, drift));
                }
                reached(crash_points::AFTER_CLAIM);
                Claimed::Acquired(claim)
            }
            Err(refused) => refused,
        };
        tracing::debug!(key = %id, result = claimed.as_str(), "an idempotency key was claimed");
        telemetry::claimed(id.operation(), claimed.as_str());
        Ok(claimed)
    }

    /// Rotates in the background, one at a time in this process.
    fn rotate_when_due(&self, found: &Found) {
        if !found.rotation_is_due || self.0.is_rotating.swap(true, Ordering::AcqRel) {
            return;
        }
        let keys = self.clone();
        tokio::spawn(async move {
            let rotated = keys.rotate().await;
            keys.0.is_rotating.store(false, Ordering::Release);
            match rotated {
                Ok(true) => tracing::info!("the oldest idempotency keys are forgotten"),
                Ok(false) => {}
                Err(error) => tracing::debug!(%error, "idempotency keys are kept a little longer"),
            }
        });
    }

    async fn rotate(&self) -> Result<bool, StoreError> {
        let rotated = DB::rotate(&self.0.pool, &self.0.statements)
            .await
            .map_err(StoreError::during("forget expired idempotency keys"))?;
        telemetry::rotated(rotated);
        Ok(rotated)
    }

    pub(super) fn statements(&self) -> &DB::KeyStatements {
        &self.0.statements
    }
}

/// Why a key that has no record may not run, by the database's clock at the time of the claim. Asked only of who would
/// run: a record that is still there answers whatever the key's time.
fn drift(dated: Option<Dated>, found: &Found) -> Option<Drift> {
    dated.and_then(|dated| dated.judge(found.read_at).err())
}

fn refused(id: &KeyId, drift: Drift) -> ClaimError {
    tracing::warn!(key = %id, %drift, "an idempotency key was refused by its time");
    telemetry::claimed(id.operation(), drift.as_str());
    ClaimError::Drift(drift)
}

/// Gives a claim back that nobody uses.
async fn give_back<DB: Dialect>(claim: Claim<DB>) {
    if let Err(error) = claim.release().await {
        tracing::debug!(%error, "a claim that nobody waits for is left to its lease");
    }
}

/// Does a step that may be done again, until it neither lost against another one nor lost its answer.
pub(super) async fn again<T, F>(what: &'static str, mut step: impl FnMut() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, sqlx::Error>>,
{
    let mut attempt = 1;
    loop {
        match step().await {
            Err(error) if Trouble::of(&error) != Trouble::Statement && attempt < TRIES => {
                tracing::debug!(attempt, %error, what, "trying again");
                tokio::time::sleep(PAUSE.delay(attempt, rand::random())).await;
                attempt += 1;
            }
            done => return done.map_err(StoreError::during(what)),
        }
    }
}

impl<DB: Dialect> Clone for IdempotencyKeys<DB> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<DB: Dialect> fmt::Debug for IdempotencyKeys<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyKeys").field("retention", &self.0.retention).finish_non_exhaustive()
    }
}
