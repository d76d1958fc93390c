//! A session: two producers that take turns.
//!
//! A producer cannot begin a transaction before its last one is committed, and the brokers need
//! some time to record the commit everywhere. So transactions alternate between the two producers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SendError, Sender};
use std::sync::{Arc, OnceLock};

use message::{Fault, PublishError, Receipts, TransactionMark};
use tokio::sync::{oneshot, watch};

use super::publisher::TransactionalPublisher;
use super::worker::Command;

/// The first failure of any producer of a session, which ends the session.
pub(super) type SessionEnd = Arc<OnceLock<(Fault, String)>>;

/// Whether the session ended by itself, without a request whose answer would report it.
pub(super) type EndedByItself = Arc<watch::Sender<bool>>;

/// Number of producers of a session.
pub(super) const PRODUCERS: usize = 2;

/// The threads of a session; they end when no sender of their commands is left.
#[derive(Debug, Clone)]
pub(super) struct Session {
    pub(super) producers: [Sender<Command>; PRODUCERS],
    /// Index of the producer whose turn it is.
    pub(super) turn: Arc<AtomicUsize>,
    /// Maximum messages of a transaction.
    pub(super) batch_len: usize,
    pub(super) end: SessionEnd,
    pub(super) ended_by_itself: EndedByItself,
}

impl Session {
    pub(super) fn publisher(&self, receipts: Receipts) -> TransactionalPublisher {
        TransactionalPublisher::new(self.clone(), receipts)
    }

    /// Sends a request to the producer whose turn it is.
    pub(super) fn send(&self, command: Command) -> Result<(), SendError<Command>> {
        self.producers[self.turn.load(Ordering::Acquire)].send(command)
    }

    /// Ends the turn of a producer. Returns its index.
    pub(super) fn turn(&self) -> usize {
        self.turn.fetch_xor(1, Ordering::AcqRel)
    }

    /// Makes a producer write a mark after its messages, and commit both.
    pub(super) async fn commit(&self, producer: usize, mark: TransactionMark) -> Result<(), PublishError> {
        let (answer, answered) = oneshot::channel();
        let commands = self.producers.get(producer).ok_or_else(lost)?;
        commands.send(Command::Commit(mark, answer)).map_err(|_| lost())?;
        answered.await.map_err(|_| lost())?
    }

    /// Completes when the session has ended by itself. Cancel-safe.
    pub(super) async fn ended_by_itself(&self) {
        // The sender is the session's own, so the wait ends in no other way.
        let _ = self.ended_by_itself.subscribe().wait_for(|is_over| *is_over).await;
    }

    /// Abandons open transactions, and ends the threads.
    pub(super) fn end(&self) {
        for commands in &self.producers {
            // If a thread has ended, it has already abandoned its open transaction.
            let _ = commands.send(Command::End);
        }
    }
}

pub(super) fn lost() -> PublishError {
    PublishError::session_lost("the kafka session ended before its transaction")
}
