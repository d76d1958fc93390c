//! Where the transaction of a leader stands.

use std::sync::Arc;

use message::{PublishError, Runtime, TransactionMark, Transactions};
use outbox::log::{BrokerTransaction, LogError};
use tokio_util::task::AbortOnDropHandle;

use super::flushes::Flushes;
use super::mark::Mark;
use super::recovery::{Recovered, log_error};
use crate::engine::machine::{Checkpoint, TransactionCheckpoint};

/// One transaction after another.
pub(crate) struct Commits {
    transactions: Arc<dyn Transactions>,
    epoch: i64,
    log: String,
    /// The last transaction that was committed.
    number: u64,
    /// The session of the batch that is on its way.
    session: u64,
    /// A batch was submitted and its transaction is not committed.
    is_open: bool,
    /// Some of it was confirmed: from here on a failure leaves memory ahead of the broker.
    is_confirmed: bool,
    /// A checkpoint is wanted, with or without messages.
    is_wanted: bool,
    /// Whether everything that was read survives a crash of the database.
    pub(crate) flushes: Flushes,
    committing: Option<(AbortOnDropHandle<Result<(), PublishError>>, Checkpoint)>,
}

impl Commits {
    pub(crate) fn new(transactions: Arc<dyn Transactions>, epoch: i64, recovered: &Recovered) -> Self {
        Self {
            transactions,
            epoch,
            log: recovered.log.clone(),
            number: recovered.number,
            session: 0,
            is_open: false,
            is_confirmed: false,
            is_wanted: false,
            flushes: Flushes::default(),
            committing: None,
        }
    }

    /// Whether another process has committed since.
    pub(crate) fn is_superseded(&self) -> bool {
        self.transactions.is_superseded()
    }

    /// A session is connected.
    pub(crate) fn connected(&mut self) {
        self.session = self.transactions.session();
        self.is_open = false;
    }

    /// Whether a batch may be submitted: one transaction at a time.
    pub(crate) fn may_submit(&self) -> bool {
        !self.is_open && self.committing.is_none()
    }

    /// A batch is on its way.
    pub(crate) fn submitted(&mut self) {
        self.is_open = true;
    }

    /// A message of it was confirmed: all of them will be.
    pub(crate) fn confirmed(&mut self) {
        self.is_confirmed = true;
    }

    /// Whether messages were confirmed whose transaction is not committed.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.is_confirmed
    }

    /// A checkpoint is wanted.
    pub(crate) fn want(&mut self) {
        self.is_wanted = true;
    }

    /// Whether nothing is left to commit.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_confirmed && !self.is_wanted && self.committing.is_none()
    }

    /// Whether a commit is on its way.
    pub(crate) fn is_committing(&self) -> bool {
        self.committing.is_some()
    }

    /// Whether a checkpoint is to be made now, when every message was answered.
    pub(crate) fn is_due(&self) -> bool {
        self.committing.is_none() && (self.is_confirmed || self.is_wanted)
    }

    /// Every message of the batch was answered, and there is nothing to commit.
    pub(crate) fn nothing(&mut self) {
        (self.is_open, self.is_wanted) = (self.is_open && self.is_confirmed, false);
    }

    /// Begins to commit the confirmed messages, and the checkpoint with them.
    pub(crate) fn commit(&mut self, content: TransactionCheckpoint, host: &Runtime) -> Result<(), LogError> {
        let number = self.number + 1;
        let mark = Mark { log: self.log.clone(), epoch: self.epoch, content };
        let bytes = mark.write().map_err(|problem| LogError::Corrupt { what: "mark", problem })?;
        let Mark { content: TransactionCheckpoint { mut checkpoint, .. }, .. } = mark;
        let position = BrokerTransaction { log: self.log.clone(), number, is_rebased: false };
        checkpoint.cursor.transaction = Some(position);
        let (transactions, session) = (Arc::clone(&self.transactions), self.session);
        let mark = TransactionMark { number, content: bytes };
        let task = host.spawn(async move { transactions.commit(session, mark).await });
        self.committing = Some((AbortOnDropHandle::new(task), checkpoint));
        self.is_wanted = false;
        Ok(())
    }

    /// Waits for the commit that is on its way, and returns the checkpoint for the database.
    /// Pending when there is none. Cancel-safe.
    pub(crate) async fn committed(&mut self) -> Result<Checkpoint, LogError> {
        let Some((task, _)) = &mut self.committing else { return std::future::pending().await };
        let outcome = task.await;
        let checkpoint = self.committing.take().map(|(_, checkpoint)| checkpoint);
        match (outcome, checkpoint) {
            (Ok(Ok(())), Some(checkpoint)) => {
                self.number += 1;
                (self.is_open, self.is_confirmed) = (false, false);
                Ok(checkpoint)
            }
            (Ok(Err(error)), _) => Err(log_error(error)),
            (Err(panic), _) => Err(unavailable(format!("committing a transaction failed: {panic}"))),
            (Ok(Ok(())), None) => Err(unavailable(String::from("a commit lost its checkpoint"))),
        }
    }

    /// The error of a session that ended with confirmed messages in its transaction.
    pub(crate) fn broken(&self) -> LogError {
        unavailable(String::from("the broker's session ended before its transaction was committed"))
    }
}

fn unavailable(reason: String) -> LogError {
    LogError::Unavailable { reason, source: None }
}
