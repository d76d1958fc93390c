//! Keeps the chunks of a message until all have arrived.

use message::Message;

use super::apply::OneAttempt;
use super::course::Course;
use super::crash::CrashPoint;
use super::failure::FailureKind;
use super::step::{NewDeadLetter, Step};
use super::store::Store;
use super::worker::Worker;
use crate::attempts::Forget;
use crate::chunks::Gathered;
use crate::dead_letters::Reason;
use crate::error::AdmitError;

/// A whole message, and the open transaction in which its last chunk was stored.
pub(super) struct Whole<S: Store> {
    pub(super) tx: S::Tx,
    pub(super) message: Message,
}

impl<S: Store> Worker<S> {
    /// Stores a chunk. Returns the whole message if it was the last missing one, and otherwise the
    /// step that follows.
    pub(super) async fn gather(
        &self,
        mut tx: S::Tx,
        chunk: OneAttempt<'_>,
        course: &Course,
    ) -> Result<Whole<S>, Step> {
        let OneAttempt { tenant, message, .. } = chunk;
        let step = match self.store.gather(&mut tx, tenant, message).await {
            Ok(Gathered::Whole(message)) => return Ok(Whole { tx, message }),
            Ok(Gathered::Kept { held, count }) => {
                let step = self.keep(tx, chunk, course).await;
                if let Step::Settle(_) = &step {
                    self.meter.chunk();
                    tracing::debug!(held, count, "chunk kept");
                    self.crash(CrashPoint::AfterCommit, message.id);
                }
                step
            }
            Ok(Gathered::Duplicate(duplicate)) => self.suppress(tx, chunk, &duplicate).await,
            Err(error @ AdmitError::Damaged { .. }) => {
                self.meter.refused(Reason::Malformed);
                let dead = NewDeadLetter::new(Reason::Malformed, error.to_string(), 0);
                match error {
                    AdmitError::Damaged { whole, .. } => Step::DeadLetter(dead.of_whole(whole)),
                    _ => Step::DeadLetter(dead),
                }
            }
            Err(error) => self.refuse(tx, error).await.of_chunk(),
        };
        Err(step)
    }

    /// Commits a chunk that waits for others.
    ///
    /// All chunks share one note, and a set with a recorded failure counts as being retried: it
    /// does not expire. A chunk that is only stored must not hide that the handler of the whole
    /// failed or ended a process. Only a failure to store this very chunk is cleared.
    async fn keep(&self, mut tx: S::Tx, chunk: OneAttempt<'_>, course: &Course) -> Step {
        let forget = if course.has_failed_here() { Forget::Unsuspected } else { Forget::Untouched };
        if let Err(error) = self.forget(&mut tx, chunk, forget).await {
            return Step::failed(FailureKind::Chunk, error);
        }
        self.commit(tx).await.of_chunk().without_handler()
    }

    /// Dead-letters a message whose chunks were gathered. Rolls back first, because storing the
    /// dead letter removes the chunks itself.
    pub(super) async fn give_up(&self, tx: S::Tx, dead: NewDeadLetter) -> Step {
        match self.store.rollback(tx).await {
            Ok(()) => {
                self.meter.failed();
                Step::DeadLetter(dead)
            }
            Err(error) => Step::failed(FailureKind::Database, error),
        }
    }
}
