//! A session: two producers that take turns.
//!
//! A producer cannot begin a transaction before its last one is committed, and the brokers take a
//! while to write that down everywhere. So each transaction goes to the producer that did not have
//! the one before.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SendError, Sender};
use std::sync::{Arc, OnceLock};

use message::{Fault, PublishError, Receipts, TransactionMark};
use tokio::sync::oneshot;

use super::publisher::TransactionalPublisher;
use super::worker::Command;

/// The first failure of a session, of whichever producer: with it the session is over.
pub(super) type SessionEnd = Arc<OnceLock<(Fault, String)>>;

/// How many producers a session has.
pub(super) const PRODUCERS: usize = 2;

/// The threads of a session; they end when nobody holds their commands.
#[derive(Debug, Clone)]
pub(super) struct Session {
    pub(super) producers: [Sender<Command>; PRODUCERS],
    /// Whose turn it is.
    pub(super) turn: Arc<AtomicUsize>,
    /// Messages of a transaction at most.
    pub(super) batch_len: usize,
    pub(super) end: SessionEnd,
}

impl Session {
    pub(super) fn publisher(&self, receipts: Receipts) -> TransactionalPublisher {
        TransactionalPublisher::new(self.clone(), receipts)
    }

    /// Sends a request to the producer whose turn it is.
    pub(super) fn send(&self, command: Command) -> Result<(), SendError<Command>> {
        self.producers[self.turn.load(Ordering::Acquire)].send(command)
    }

    /// Ends the turn of a producer, and says which one.
    pub(super) fn turn(&self) -> usize {
        self.turn.fetch_xor(1, Ordering::AcqRel)
    }

    /// Has a producer put a mark behind what it has sent, and commit both.
    pub(super) async fn commit(&self, producer: usize, mark: TransactionMark) -> Result<(), PublishError> {
        let (answer, answered) = oneshot::channel();
        let commands = self.producers.get(producer).ok_or_else(lost)?;
        commands.send(Command::Commit(mark, answer)).map_err(|_| lost())?;
        answered.await.map_err(|_| lost())?
    }

    /// Gives up what is open, and ends the threads.
    pub(super) fn end(&self) {
        for commands in &self.producers {
            // A thread that has ended has given it up already.
            let _ = commands.send(Command::End);
        }
    }
}

pub(super) fn lost() -> PublishError {
    PublishError::session_lost("the kafka session ended before its transaction")
}
