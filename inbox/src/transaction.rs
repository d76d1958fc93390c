//! A transaction that gives the proof of its commit.

use std::ops::{Deref, DerefMut};

use message::{Chunk, Committed, Message, MessageId};
use sqlx::Transaction;
use uuid::Uuid;

use crate::batch::{Candidate, count_refusals};
use crate::chunks::Gathered;
use crate::dialect::{ChunkSet, Dialect, Key};
use crate::error::{AdmitError, CommitError};
use crate::guard::{Admission, Guard, key};
use crate::inbox::Inbox;
use crate::name::{ConsumerName, Scope};
use crate::refusal::Refusal;
use crate::store_error::StoreError;

/// A transaction of the inbox's database that knows which messages it admitted. It derefs to the sqlx transaction,
/// for the effects. Dropped without [`commit`](Self::commit), it rolls back.
///
/// Only its `commit` makes the proofs that settle deliveries, and only after it has seen its own inbox rows in the
/// very transaction that then commits. That look is not a formality: with sqlx, `commit()` after a statement error
/// that somebody swallowed returns `Ok` although PostgreSQL rolled everything back.
#[derive(Debug)]
#[must_use = "dropping it rolls it back"]
pub struct InboxTransaction<DB: Dialect> {
    inbox: Inbox<DB>,
    tx: Transaction<'static, DB>,
    admitted: Vec<Admitted>,
}

#[derive(Debug)]
struct Admitted {
    subject: Uuid,
    /// What must be there at the commit; nothing when the guard was switched off.
    evidence: Option<Evidence>,
}

/// Of one message.
#[derive(Debug)]
struct Evidence {
    consumer: ConsumerName,
    scope: Scope,
    id: MessageId,
    /// A chunk is kept instead of an inbox row.
    chunk: Option<Box<Chunk>>,
}

impl<DB: Dialect> Inbox<DB> {
    /// Begins a transaction. Cancel-safe: the work is done by a task that runs to its end.
    ///
    /// # Errors
    /// [`StoreError`] when the database refused or is away.
    pub async fn begin(&self) -> Result<InboxTransaction<DB>, StoreError> {
        let inbox = self.clone();
        self.complete("begin a transaction", async move {
            let tx = inbox.begin_raw("begin a transaction").await?;
            Ok(InboxTransaction { inbox, tx, admitted: Vec::new() })
        })
        .await
    }
}

impl<DB: Dialect> InboxTransaction<DB> {
    /// Admits a message: see [`Inbox::admit`].
    ///
    /// # Errors
    /// [`AdmitError`]; roll back, or drop the transaction. Not cancel-safe.
    pub async fn admit(
        &mut self,
        consumer: &ConsumerName,
        scope: &Scope,
        message: &Message,
    ) -> Result<Admission<DB>, AdmitError> {
        let admission = self.inbox.admit(&mut self.tx, consumer, scope, message).await?;
        self.note(consumer, scope, message);
        Ok(admission)
    }

    /// As [`admit`](Self::admit), but accepts an id that is older than this process's retention as long as the
    /// tables remember its day.
    pub(crate) async fn admit_late(
        &mut self,
        consumer: &ConsumerName,
        scope: &Scope,
        message: &Message,
    ) -> Result<Admission<DB>, AdmitError> {
        self.inbox.judge(&mut self.tx, message.id, true).await?;
        let admission = self.inbox.admit_judged(&mut self.tx, consumer, scope, message).await?;
        self.note(consumer, scope, message);
        Ok(admission)
    }

    /// Puts messages in chunks together: see [`Inbox::gather`]. The proof for a chunk that is kept, or that comes after its
    /// message took effect, comes with the commit.
    ///
    /// # Errors
    /// [`AdmitError`]; roll back, or drop the transaction. Not cancel-safe.
    pub async fn gather(
        &mut self,
        consumer: &ConsumerName,
        scope: &Scope,
        message: &Message,
    ) -> Result<Gathered, AdmitError> {
        let gathered = self.inbox.gather(&mut self.tx, consumer, scope, message).await?;
        match gathered {
            Gathered::Kept { .. } => self.note_evidence(consumer, scope, message.id, message.chunk.clone()),
            Gathered::Whole(_) => self.forget_chunks(consumer, scope, message.id),
            Gathered::Duplicate(_) => {
                self.forget_chunks(consumer, scope, message.id);
                self.note(consumer, scope, message);
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

    /// As [`admit_batch`](Self::admit_batch), for the runner: it takes what is refused once more, alone.
    pub(crate) async fn admit_batch_uncounted(
        &mut self,
        consumer: &ConsumerName,
        candidates: &[Candidate<'_>],
    ) -> Result<Vec<Result<Admission<DB>, Refusal>>, AdmitError> {
        let admissions = self.inbox.admit_batch_uncounted(&mut self.tx, consumer, candidates).await?;
        for (candidate, admission) in candidates.iter().zip(&admissions) {
            if admission.is_ok() {
                self.note(consumer, &candidate.scope, candidate.message);
            }
        }
        Ok(admissions)
    }

    /// Lets a message through without looking: for showing what happens without an inbox.
    #[doc(hidden)]
    pub fn admit_unguarded(
        &mut self,
        consumer: &ConsumerName,
        scope: &Scope,
        message: &Message,
    ) -> Guard<DB> {
        self.admitted.push(Admitted { subject: message.id.as_uuid(), evidence: None });
        Guard::new(&self.inbox, consumer, scope, message)
    }

    /// Commits, and returns one proof per admitted message, fresh or duplicate, in the order of admission. Runs to
    /// its end even if this call is dropped.
    ///
    /// # Errors
    /// [`CommitError::RolledBack`] when nothing was committed, [`CommitError::Unknown`] when the answer got lost:
    /// then settle nothing; the deliveries come again, and the inbox knows.
    pub async fn commit(self) -> Result<Vec<Committed>, CommitError> {
        match tokio::spawn(self.finish()).await {
            Ok(result) => result,
            Err(error) => Err(CommitError::Unknown { source: Box::new(error) }),
        }
    }

    /// Rolls back. Dropping does the same, later.
    ///
    /// # Errors
    /// [`StoreError`] when the database did not answer; it rolls back when it notices the lost connection.
    pub async fn rollback(self) -> Result<(), StoreError> {
        let Self { inbox, tx, .. } = self;
        let work = async move { tx.rollback().await.map_err(StoreError::during("roll back")) };
        inbox.complete("roll back", work).await
    }

    fn note(&mut self, consumer: &ConsumerName, scope: &Scope, message: &Message) {
        self.note_evidence(consumer, scope, message.id, None);
    }

    /// Chunks that this transaction kept are gone again: the inbox row of their message is the evidence now.
    fn forget_chunks(&mut self, consumer: &ConsumerName, scope: &Scope, id: MessageId) {
        for evidence in self.admitted.iter_mut().filter_map(|admitted| admitted.evidence.as_mut()) {
            if evidence.id == id && evidence.consumer == *consumer && evidence.scope == *scope {
                evidence.chunk = None;
            }
        }
    }

    fn note_evidence(
        &mut self,
        consumer: &ConsumerName,
        scope: &Scope,
        id: MessageId,
        chunk: Option<Box<Chunk>>,
    ) {
        let evidence = Some(Evidence { consumer: consumer.clone(), scope: scope.clone(), id, chunk });
        self.admitted.push(Admitted { subject: id.as_uuid(), evidence });
    }

    async fn finish(mut self) -> Result<Vec<Committed>, CommitError> {
        self.check().await?;
        self.tx.commit().await.map_err(judge_commit)?;
        Ok(self.admitted.iter().map(|admitted| Committed::attest(admitted.subject)).collect())
    }

    /// Sees every inbox row and kept chunk in the transaction that is about to commit. An aborted transaction fails the
    /// statement (25P02); one that was rolled back, or exchanged for another, lacks the rows.
    async fn check(&mut self) -> Result<(), CommitError> {
        let evidence = || self.admitted.iter().filter_map(|admitted| admitted.evidence.as_ref());
        let rows = evidence().filter(|evidence| evidence.chunk.is_none());
        let mut keys: Vec<Key<'_>> = rows.map(|row| key(&row.consumer, &row.scope, row.id)).collect();
        keys.sort_unstable_by_key(|key| (key.consumer, key.id, key.scope));
        keys.dedup();
        for keys in keys.chunk_by(|one, other| one.consumer == other.consumer) {
            let found = DB::count(&mut self.tx, self.inbox.statements(), keys).await.map_err(check_failed)?;
            if found != keys.len() as u64 {
                return Err(CommitError::RolledBack { reason: GONE, source: None });
            }
        }
        for Evidence { consumer, scope, id, chunk } in evidence() {
            let Some(chunk) = chunk else { continue };
            let set = ChunkSet { key: key(consumer, scope, *id), fingerprint: chunk.fingerprint() };
            let is_kept = DB::has_chunk(&mut self.tx, self.inbox.statements(), set, chunk).await;
            if !is_kept.map_err(check_failed)? {
                return Err(CommitError::RolledBack { reason: GONE, source: None });
            }
        }
        Ok(())
    }
}

const GONE: &str = "its inbox rows are gone: it was rolled back, to a savepoint or wholly";

fn check_failed(error: sqlx::Error) -> CommitError {
    CommitError::RolledBack {
        reason: "the check before the commit failed, so an earlier statement has aborted it",
        source: Some(Box::new(error)),
    }
}

/// What a failed COMMIT means. Only an answer that names a broken rule or a lost conflict says that nothing was
/// committed; anything else (connection gone, server going down) leaves it open.
pub(crate) fn judge_commit(error: sqlx::Error) -> CommitError {
    let refused = match &error {
        sqlx::Error::Database(answer) => answer.code().is_some_and(|code| says_rolled_back(&code)),
        _ => false,
    };
    let source = Box::new(error);
    if refused {
        let reason = "the database refused at the commit";
        return CommitError::RolledBack { reason, source: Some(source) };
    }
    CommitError::Unknown { source }
}

/// By SQLSTATE: integrity violations (deferred constraints), lost conflicts except 40003 (completion unknown),
/// errors raised by deferred triggers, an aborted transaction. By SQLite result code: BUSY and constraints.
fn says_rolled_back(code: &str) -> bool {
    if code.len() == 5 {
        return code != "40003" && ["22", "23", "25", "40", "P0"].contains(&&code[..2]);
    }
    matches!(code.parse::<u32>().map(|code| code & 0xff), Ok(5 | 6 | 19))
}

impl<DB: Dialect> Deref for InboxTransaction<DB> {
    type Target = Transaction<'static, DB>;

    fn deref(&self) -> &Self::Target {
        &self.tx
    }
}

impl<DB: Dialect> DerefMut for InboxTransaction<DB> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.tx
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refusal_says_that_nothing_was_committed() {
        for (code, rolled_back) in [
            ("23505", true),
            ("40001", true),
            ("P0001", true),
            ("25P02", true),
            ("40003", false),
            ("57P01", false),
            ("08006", false),
            ("XX000", false),
            ("5", true),
            ("787", true), // CONSTRAINT_FOREIGNKEY
            ("10", false), // IOERR
        ] {
            assert_eq!(says_rolled_back(code), rolled_back, "{code}");
        }
        assert!(!judge_commit(sqlx::Error::WorkerCrashed).is_rolled_back());
    }
}
