//! A transaction that returns the proof of its commit.

use std::ops::{Deref, DerefMut};

use message::{Chunk, Committed, Message, MessageId, shield};
use migrations::SqlErrorKind;
use migrations::own_transaction::{ENDED, roll_back};
use outbox::{OutboxTransaction, Sealed, UnknownCommit, no_answer};
use sqlx::{Connection as _, Transaction};
use uuid::Uuid;

use crate::batch::{Candidate, count_refusals};
use crate::chunks::Gathered;
use crate::dialect::{ChunkSet, Dialect, Mark, Outcome};
use crate::error::{AdmitError, CommitError};
use crate::guard::{Admission, Guard};
use crate::ids::{ConsumerName, DeadLetterId, Key, Tenant, key};
use crate::inbox::Inbox;
use crate::refusal::Refusal;
use crate::store_error::StoreError;
use crate::within::within;

const CHECK_FAILED: &str = "the check before the commit failed";
const UNADMITTED: &str = "an assembled message was not admitted";
const GONE: &str = "its inbox rows are missing: it was rolled back, completely or to a savepoint";

/// A transaction of the inbox's database that tracks which messages it admitted. It derefs to the
/// [`OutboxTransaction`], for the effects: rows, and messages if the inbox [has an
/// outbox](Inbox::with_outbox). When dropped without [`commit`](Self::commit), it rolls back.
///
/// Only its `commit` makes the proofs that settle deliveries, and only if its own inbox rows exist
/// in the committing transaction. That check is necessary: with sqlx, `commit()` after a swallowed
/// statement error returns `Ok` although PostgreSQL rolled everything back. It also refuses after
/// an enqueue that failed, even if its error was swallowed. Await every `begin()` (a savepoint) in
/// it. A `begin()` that is refused, or dropped before its answer, ends the whole transaction, and
/// later writes commit separately.
#[derive(Debug)]
#[must_use = "dropping it rolls it back"]
pub struct InboxTransaction<DB: Dialect> {
    inbox: Inbox<DB>,
    tx: OutboxTransaction<DB>,
    admitted: Vec<Admitted>,
    /// Messages that were assembled and must be admitted, because their chunks are deleted with the
    /// commit.
    wholes: Vec<(ConsumerName, Tenant, MessageId)>,
    /// Whether it has its own mark.
    is_marked: bool,
}

#[derive(Debug)]
struct Admitted {
    subject: Uuid,
    evidence: Evidence,
}

/// The evidence in the database that must exist at the commit.
#[derive(Debug)]
enum Evidence {
    /// An inbox row that this transaction inserted.
    Row { consumer: ConsumerName, tenant: Tenant },
    /// A chunk that this transaction keeps.
    Chunk { consumer: ConsumerName, tenant: Tenant, chunk: Box<Chunk> },
    /// None: an earlier transaction inserted the row, or the guard was switched off.
    None,
}

impl<DB: Dialect> Inbox<DB> {
    /// Begins a transaction. Cancel-safe: the work runs to its end.
    ///
    /// # Errors
    /// [`StoreError`] when the database refused or is unavailable.
    pub async fn begin(&self) -> Result<InboxTransaction<DB>, StoreError> {
        let tx = self.begin_raw("begin a transaction").await?;
        Ok(InboxTransaction::new(self.clone(), tx))
    }
}

impl<DB: Dialect> InboxTransaction<DB> {
    fn new(inbox: Inbox<DB>, tx: Transaction<'static, DB>) -> Self {
        let tx = OutboxTransaction::adopt(tx, inbox.outbox().cloned());
        Self { inbox, tx, admitted: Vec::new(), wholes: Vec::new(), is_marked: false }
    }

    /// Admits a message: see [`Inbox::admit`].
    ///
    /// # Errors
    /// [`AdmitError`]; roll back, or drop the transaction. Not cancel-safe.
    pub async fn admit(
        &mut self,
        consumer: &ConsumerName,
        tenant: &Tenant,
        message: &Message,
    ) -> Result<Admission<DB>, AdmitError> {
        self.check_open().await?;
        let admission =
            self.inbox.admit_marked(self.tx.as_sqlx(), consumer, tenant, message, Mark::Yes).await?;
        self.note(consumer, tenant, message, &admission);
        Ok(admission)
    }

    /// Does the same as [`admit`](Self::admit), but accepts an id that is older than this process's
    /// retention while the tables remember its day.
    pub(crate) async fn admit_late(
        &mut self,
        consumer: &ConsumerName,
        tenant: &Tenant,
        message: &Message,
    ) -> Result<Admission<DB>, AdmitError> {
        self.check_open().await?;
        self.inbox.validate(self.tx.as_sqlx(), message.id, true).await?;
        let admission =
            self.inbox.admit_validated(self.tx.as_sqlx(), consumer, tenant, message, Mark::Yes).await?;
        self.note(consumer, tenant, message, &admission);
        Ok(admission)
    }

    /// Takes over the row of a dead letter for its message, which will be applied in this
    /// transaction. Returns `None` when there is no such row.
    pub(crate) async fn take_over(
        &mut self,
        consumer: &ConsumerName,
        tenant: &Tenant,
        message: &Message,
        letter: DeadLetterId,
    ) -> Result<Option<Guard<DB>>, StoreError> {
        let key = key(consumer, tenant, message.id);
        self.check_open().await?;
        let content = self.inbox.content(message);
        let cleared = self.inbox.tables().clear_dead(&mut self.tx, key, letter, content).await;
        let cleared = cleared.map_err(StoreError::during("take over the inbox row of a dead letter"))?;
        if cleared == 0 {
            return Ok(None);
        }
        let evidence = Evidence::Row { consumer: consumer.clone(), tenant: tenant.clone() };
        self.admitted.push(Admitted { subject: key.id, evidence });
        Ok(Some(Guard::new(&self.inbox, consumer, tenant, message, None)))
    }

    /// Gathers the chunks of a message: see [`Inbox::gather`]. The commit returns the proof for a
    /// chunk that is kept, or that arrived after its message took effect.
    ///
    /// # Errors
    /// [`AdmitError`]; roll back, or drop the transaction. Not cancel-safe.
    pub async fn gather(
        &mut self,
        consumer: &ConsumerName,
        tenant: &Tenant,
        message: &Message,
    ) -> Result<Gathered, AdmitError> {
        self.check_open().await?;
        let gathered = self.inbox.gather(self.tx.as_sqlx(), consumer, tenant, message).await?;
        let subject = message.id.as_uuid();
        match &gathered {
            Gathered::Kept { .. } => {
                self.admitted.extend(message.chunk.clone().map(|chunk| {
                    let consumer = consumer.clone();
                    let tenant = tenant.clone();
                    Admitted { subject, evidence: Evidence::Chunk { consumer, tenant, chunk } }
                }));
            }
            Gathered::Whole(_) => {
                self.forget_chunks(consumer, tenant, message.id);
                self.wholes.push((consumer.clone(), tenant.clone(), message.id));
            }
            Gathered::Duplicate(_) => {
                self.forget_chunks(consumer, tenant, message.id);
                self.admitted.push(Admitted { subject, evidence: Evidence::None });
            }
        }
        Ok(gathered)
    }

    /// Admits many messages: see [`Inbox::admit_batch`].
    ///
    /// # Errors
    /// [`AdmitError`]; roll back, or drop the transaction. Not cancel-safe.
    pub async fn admit_batch(
        &mut self,
        consumer: &ConsumerName,
        candidates: &[Candidate<'_>],
    ) -> Result<Vec<Result<Admission<DB>, Refusal>>, AdmitError> {
        let admissions = self.admit_batch_uncounted(consumer, candidates).await?;
        count_refusals(consumer, &admissions);
        Ok(admissions)
    }

    /// Does the same as [`admit_batch`](Self::admit_batch) without counting refusals. The runner
    /// uses it, because it handles refused messages again one by one.
    pub(crate) async fn admit_batch_uncounted(
        &mut self,
        consumer: &ConsumerName,
        candidates: &[Candidate<'_>],
    ) -> Result<Vec<Result<Admission<DB>, Refusal>>, AdmitError> {
        self.check_open().await?;
        let admissions =
            self.inbox.admit_batch_uncounted(self.tx.as_sqlx(), consumer, candidates, Mark::Yes).await?;
        for (candidate, admission) in candidates.iter().zip(&admissions) {
            if let Ok(admission) = admission {
                self.note(consumer, &candidate.tenant, candidate.message, admission);
            }
        }
        Ok(admissions)
    }

    /// Admits a message without any check, to demonstrate what happens without an inbox.
    #[doc(hidden)]
    pub fn admit_unguarded(
        &mut self,
        consumer: &ConsumerName,
        tenant: &Tenant,
        message: &Message,
    ) -> Guard<DB> {
        self.forget_whole(consumer, tenant, message.id);
        self.admitted.push(Admitted { subject: message.id.as_uuid(), evidence: Evidence::None });
        Guard::new(&self.inbox, consumer, tenant, message, None)
    }

    /// Commits, and returns one proof per admitted message, fresh or duplicate, in the order of
    /// admission. Runs to its end even if this call is dropped.
    ///
    /// # Errors
    /// [`CommitError::Unknown`] when the answer was lost: then settle nothing; deliveries are
    /// repeated, and the inbox knows whether they took effect. After any other one, nothing was
    /// committed.
    pub async fn commit(self) -> Result<Vec<Committed>, CommitError> {
        Ok(self.commit_and_chain().await?.0)
    }

    /// Commits as [`commit`](Self::commit) does. Also returns the next transaction when the
    /// database begins one in the same message (PostgreSQL, `COMMIT AND CHAIN`); otherwise
    /// [begin](Inbox::begin) one. This is for a loop that already has its next message: it saves
    /// one of the four round trips to the server per message.
    ///
    /// The next transaction's `now()` is the time of this commit, and an open transaction occupies
    /// its connection. Drop it if there is nothing to do in it now.
    ///
    /// # Errors
    /// As for [`commit`](Self::commit).
    pub async fn commit_and_chain(self) -> Result<(Vec<Committed>, Option<Self>), CommitError> {
        let limit = self.inbox.options().call_timeout;
        shield(async move {
            let finished = tokio::time::timeout(limit, self.finish()).await;
            finished.unwrap_or_else(|_| {
                let commit = UnknownCommit::default();
                Err(CommitError::Unknown { commit, source: no_answer(limit).into() })
            })
        })
        .await
    }

    /// Rolls back now. Dropping the transaction does the same, later.
    ///
    /// # Errors
    /// [`StoreError`] when the database did not answer. The database rolls back when it notices the
    /// lost connection.
    pub async fn rollback(self) -> Result<(), StoreError> {
        let limit = self.inbox.options().call_timeout;
        let tx = self.tx.into_sqlx();
        let work = async move { roll_back(tx).await.map_err(StoreError::during(ROLL_BACK)) };
        shield(within(limit, ROLL_BACK, work)).await
    }

    /// Rolls back, and clears the prepared statements of the session.
    pub(crate) async fn discard(self) -> Result<(), StoreError> {
        let mut tx = self.tx.into_sqlx();
        let limit = self.inbox.options().call_timeout;
        let work = async move {
            tx.clear_cached_statements().await.map_err(StoreError::during(ROLL_BACK))?;
            roll_back(tx).await.map_err(StoreError::during(ROLL_BACK))
        };
        shield(within(limit, ROLL_BACK, work)).await
    }

    fn note(
        &mut self,
        consumer: &ConsumerName,
        tenant: &Tenant,
        message: &Message,
        admission: &Admission<DB>,
    ) {
        self.forget_whole(consumer, tenant, message.id);
        let evidence = match admission {
            Admission::Fresh(_) => Evidence::Row { consumer: consumer.clone(), tenant: tenant.clone() },
            // If the row is this transaction's own, it was recorded when it was inserted.
            Admission::Duplicate(_) => Evidence::None,
        };
        self.admitted.push(Admitted { subject: message.id.as_uuid(), evidence });
    }

    /// Removes an assembled message from the list, because it is admitted now.
    fn forget_whole(&mut self, consumer: &ConsumerName, tenant: &Tenant, id: MessageId) {
        self.wholes.retain(|(c, s, whole)| (c, s, *whole) != (consumer, tenant, id));
    }

    /// Drops the evidence for chunks that this transaction kept: they are deleted, because the
    /// inbox row of their message exists or will exist.
    fn forget_chunks(&mut self, consumer: &ConsumerName, tenant: &Tenant, id: MessageId) {
        for Admitted { evidence, .. } in self.admitted.iter_mut().filter(|one| one.subject == id.as_uuid()) {
            if matches!(evidence, Evidence::Chunk { consumer: c, tenant: s, .. } if c == consumer && s == tenant)
            {
                *evidence = Evidence::None;
            }
        }
    }

    /// Refuses to continue after the transaction has ended: later writes would commit on their own.
    async fn check_open(&mut self) -> Result<(), StoreError> {
        let what = "continue a transaction";
        if DB::is_open(&mut self.tx).await.map_err(StoreError::during(what))? {
            return Ok(());
        }
        Err(StoreError::new(what, SqlErrorKind::Refused, ENDED))
    }

    async fn finish(mut self) -> Result<(Vec<Committed>, Option<Self>), CommitError> {
        if let Err(error) = self.check_open().await {
            return Err(CommitError::RolledBack { reason: ENDED, source: Some(Box::new(error)) });
        }
        self.check_chunks().await?;
        if self.tx.has_staged()
            && let Err(error) = self.check_rows().await
        {
            return Err(CommitError::RolledBack { reason: CHECK_FAILED, source: Some(Box::new(error)) });
        }
        let Self { inbox, tx, admitted, .. } = self;
        let Sealed { tx, commit, wake } = tx.seal().await?;
        let rows = rows_of(&admitted);
        let committed = DB::commit(tx, inbox.tables(), &rows).await;
        let committed = committed.map_err(|error| CommitError::at(commit, error))?;
        let Outcome::Done(next) = committed else {
            return Err(CommitError::RolledBack { reason: GONE, source: None });
        };
        if let Some(wake) = wake {
            wake.wake();
        }
        let proofs = admitted.iter().map(|admitted| Committed::attest(admitted.subject)).collect();
        Ok((proofs, next.map(|tx| Self::new(inbox, tx))))
    }

    /// Checks that the transaction has its inbox rows, before anything is stored that is true only
    /// together with them: in a transaction that has ended it would be stored alone.
    pub(crate) async fn check_rows(&mut self) -> Result<(), StoreError> {
        self.check_open().await?;
        let what = "find the inbox rows of a transaction";
        let rows = rows_of(&self.admitted);
        let has_rows = DB::has_marked(&mut self.tx, self.inbox.tables(), &rows).await;
        let has_rows = has_rows.map_err(StoreError::during(what))?;
        let has_mark =
            !self.is_marked || DB::is_marked(&mut self.tx).await.map_err(StoreError::during(what))?;
        if has_rows && has_mark {
            return Ok(());
        }
        Err(StoreError::new(what, SqlErrorKind::Refused, GONE))
    }

    /// Marks the transaction, for an effect without an inbox row: see
    /// [`check_rows`](Self::check_rows).
    pub(crate) async fn mark(&mut self) -> Result<(), StoreError> {
        DB::mark(&mut self.tx).await.map_err(StoreError::during("mark a transaction"))?;
        self.is_marked = true;
        Ok(())
    }

    /// Checks that every kept chunk is in the transaction that is about to commit, and that every
    /// assembled message was admitted.
    async fn check_chunks(&mut self) -> Result<(), CommitError> {
        if !self.wholes.is_empty() {
            return Err(CommitError::RolledBack { reason: UNADMITTED, source: None });
        }
        for Admitted { subject, evidence } in &self.admitted {
            let Evidence::Chunk { consumer, tenant, chunk } = evidence else { continue };
            let key = Key { consumer: consumer.as_str(), tenant: tenant.as_str(), id: *subject };
            let set = ChunkSet { key, fingerprint: chunk.fingerprint() };
            let is_kept = self.inbox.tables().has_chunk(&mut self.tx, set, chunk).await;
            let is_kept = is_kept.map_err(|error| CommitError::RolledBack {
                reason: CHECK_FAILED,
                source: Some(Box::new(error)),
            })?;
            if !is_kept {
                return Err(CommitError::RolledBack { reason: GONE, source: None });
            }
        }
        Ok(())
    }
}

const ROLL_BACK: &str = "roll back";

/// Returns the keys of the inbox rows that a transaction inserted.
fn rows_of(admitted: &[Admitted]) -> Vec<Key<'_>> {
    let rows = admitted.iter().filter_map(|Admitted { subject, evidence }| match evidence {
        Evidence::Row { consumer, tenant } => {
            Some(Key { consumer: consumer.as_str(), tenant: tenant.as_str(), id: *subject })
        }
        _ => None,
    });
    rows.collect()
}

impl<DB: Dialect> Deref for InboxTransaction<DB> {
    type Target = OutboxTransaction<DB>;

    fn deref(&self) -> &Self::Target {
        &self.tx
    }
}

impl<DB: Dialect> DerefMut for InboxTransaction<DB> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.tx
    }
}
