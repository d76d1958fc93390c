//! The broker transactions of a leader: one is open, and the one before it may be closed but not
//! yet committed.

use std::sync::Arc;

use message::{ClosedTransaction, PublishError, Runtime, TransactionMark, Transactions};
use outbox_log::{BrokerTransaction, LogError};
use tokio_util::task::AbortOnDropHandle;

use super::flushes::Flushes;
use super::mark::Mark;
use super::recovery::{Continued, log_error};
use crate::machine::{Checkpoint, TransactionCheckpoint};

/// Transactions one after another: the next is filled while the previous one is being committed.
pub(crate) struct Commits {
    transactions: Arc<dyn Transactions>,
    epoch: i64,
    log: String,
    /// The last committed transaction.
    number: u64,
    /// The session of the current batch.
    session: u64,
    /// Whether the transaction of a submitted batch is still open.
    is_open: bool,
    /// Whether part of the batch was confirmed. From then on, a failure leaves memory ahead of the
    /// broker.
    is_confirmed: bool,
    /// Whether a checkpoint is wanted, with or without messages.
    is_wanted: bool,
    flushes: Flushes,
    closed: Option<Closed>,
}

/// The transaction that is closed but not committed. Its checkpoint goes to the database next.
enum Closed {
    /// The transaction ids that its mark names are not on the database's disk yet.
    Waiting { transaction: ClosedTransaction, mark: TransactionMark, checkpoint: Checkpoint },
    /// The broker was asked to commit.
    Committing(AbortOnDropHandle<Result<(), PublishError>>, Checkpoint),
}

impl Commits {
    pub(crate) fn new(continued: &Continued, epoch: i64) -> Self {
        Self {
            transactions: Arc::clone(&continued.transactions),
            epoch,
            log: continued.recovered.log.clone(),
            number: continued.recovered.number,
            session: 0,
            is_open: false,
            is_confirmed: false,
            is_wanted: false,
            flushes: Flushes::default(),
            closed: None,
        }
    }

    /// Returns whether another process has committed since.
    pub(crate) fn is_superseded(&self) -> bool {
        self.transactions.is_superseded()
    }

    /// Records that a session is connected.
    pub(crate) fn connected(&mut self) {
        self.session = self.transactions.session();
        self.is_open = false;
    }

    /// Returns whether a batch may be submitted: each is a separate transaction.
    pub(crate) fn may_submit(&self) -> bool {
        !self.is_open
    }

    /// Records that a batch was submitted.
    pub(crate) fn submitted(&mut self) {
        self.is_open = true;
    }

    /// Records that a message of the batch was confirmed; the others will follow.
    pub(crate) fn confirmed(&mut self) {
        self.is_confirmed = true;
    }

    /// Returns whether the open transaction has confirmed messages.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.is_confirmed
    }

    /// Asks for a checkpoint.
    pub(crate) fn want(&mut self) {
        self.is_wanted = true;
    }

    /// Returns whether nothing is left to commit.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_confirmed && !self.is_wanted && self.closed.is_none()
    }

    /// Returns whether a transaction is closed but not committed.
    pub(crate) fn has_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Returns whether the broker was asked to commit but has not answered.
    pub(crate) fn is_committing(&self) -> bool {
        matches!(self.closed, Some(Closed::Committing(..)))
    }

    /// Returns whether to make a checkpoint once every message has been answered.
    pub(crate) fn is_due(&self) -> bool {
        self.closed.is_none() && (self.is_confirmed || self.is_wanted)
    }

    /// Records that every message of the batch was answered and that there is nothing to commit.
    pub(crate) fn nothing(&mut self) {
        (self.is_open, self.is_wanted) = (self.is_open && self.is_confirmed, false);
    }

    /// Closes the transaction of the confirmed messages, together with its checkpoint. Its commit
    /// begins as soon as everything that the checkpoint names is on disk.
    pub(crate) fn close(&mut self, content: TransactionCheckpoint, host: &Runtime) -> Result<(), LogError> {
        let number = self.number + 1;
        let mark = Mark { log: self.log.clone(), epoch: self.epoch, content };
        let bytes = mark.write().map_err(|problem| LogError::Corrupt { what: "mark", problem })?;
        let Mark { content: TransactionCheckpoint { mut checkpoint, .. }, .. } = mark;
        let position = BrokerTransaction { log: self.log.clone(), number, is_rebased: false };
        checkpoint.cursor.transaction = Some(position);
        let mark = TransactionMark { number, content: bytes };
        let transaction = self.transactions.close(self.session);
        self.closed = Some(Closed::Waiting { transaction, mark, checkpoint });
        (self.is_open, self.is_confirmed, self.is_wanted) = (false, false, false);
        self.flushes.want();
        self.commit(host);
        Ok(())
    }

    /// Records that rows were read.
    pub(crate) fn read(&mut self) {
        self.flushes.read();
    }

    /// Returns whether to ask the database for a flush.
    pub(crate) fn wants_flush(&self) -> bool {
        self.closed.is_some() && self.flushes.are_wanted()
    }

    /// Records that a flush was requested; `is_begun` is false if it could not be.
    pub(crate) fn flush_began(&mut self, is_begun: bool) {
        self.flushes.begun(is_begun);
    }

    /// Records that the flush has ended.
    pub(crate) fn flushed(&mut self, host: &Runtime) {
        self.flushes.done();
        self.commit(host);
    }

    /// Begins to commit the closed transaction, unless a flush must come first.
    fn commit(&mut self, host: &Runtime) {
        if !self.flushes.are_done() {
            return;
        }
        self.closed = self.closed.take().map(|closed| match closed {
            Closed::Waiting { transaction, mark, checkpoint } => {
                let transactions = Arc::clone(&self.transactions);
                let task = host.spawn(async move { transactions.commit(transaction, mark).await });
                Closed::Committing(AbortOnDropHandle::new(task), checkpoint)
            }
            committing @ Closed::Committing(..) => committing,
        });
    }

    /// Waits for the commit in progress, and returns the checkpoint for the database. Pending when
    /// there is none. Cancel-safe.
    pub(crate) async fn committed(&mut self) -> Result<Checkpoint, LogError> {
        let Some(Closed::Committing(task, _)) = &mut self.closed else { return std::future::pending().await };
        let outcome = task.await;
        match (outcome, self.closed.take()) {
            (Ok(Ok(())), Some(Closed::Committing(_, checkpoint))) => {
                self.number += 1;
                Ok(checkpoint)
            }
            (Ok(Err(error)), _) => Err(log_error(error)),
            (Err(panic), _) => Err(unavailable(format!("committing a transaction failed: {panic}"))),
            (Ok(Ok(())), _) => Err(unavailable(String::from("a commit lost its checkpoint"))),
        }
    }

    /// Returns the error for a session that ended with confirmed messages in its transaction.
    pub(crate) fn broken(&self) -> LogError {
        unavailable(String::from("the broker's session ended before its transaction was committed"))
    }
}

fn unavailable(reason: String) -> LogError {
    LogError::Unavailable { reason, source: None }
}
