//! The seam towards brokers that publish in transactions: messages and a mark become visible
//! together, or none of them does.
//!
//! The mark says how far a relay has come. It is stored by the broker, beside the messages, so that
//! a successor learns from the broker itself which messages have left. What it holds is the
//! caller's; the broker keeps its number and its bytes.

use std::time::Duration;

use async_trait::async_trait;

use crate::publisher::{Connector, PublishError};

/// Whose transactions these are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransactionScope {
    /// The identity of the log, 1 to 64 characters of `a–z 0–9 -`. Logs with different identities
    /// never see each other's marks.
    pub log: String,
    /// The relay's name, 1 to 63 characters of `a–z 0–9 - _`.
    pub relay: String,
    /// Whether no transaction of this scope was ever committed. Only then may the place of the
    /// marks be missing, and is made.
    pub is_new: bool,
    /// How long a transaction may stay open; the broker aborts an older one.
    pub timeout: Duration,
}

/// The position that is committed with a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransactionMark {
    /// Counts the transactions of a scope, from 1.
    pub number: u64,
    /// The caller's bytes, at most 64 MiB.
    pub content: Vec<u8>,
}

/// A transaction to which nothing is added any more: see [`Transactions::close`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClosedTransaction {
    /// The session that it belongs to.
    pub session: u64,
    /// Which of the session's producers it is in.
    pub producer: usize,
}

/// A broker that publishes in transactions.
///
/// Its publishers take one batch at a time, and each batch is a transaction. Every receipt of a
/// batch is `Ok`, or none is: the first when the broker has all of its messages inside the open
/// transaction, the second when the transaction was given up. No reader of committed messages sees
/// them before [`commit`](Transactions::commit). One transaction may be open while the one before
/// it, which is closed, is committed.
#[async_trait]
pub trait Transactions: Connector {
    /// Ends whatever an earlier session of the scope has left open, shuts that session out, and
    /// returns the last mark that was committed. The next session that is connected goes on from
    /// it.
    ///
    /// # Errors
    /// [`PublishError`] of the operator's when the marks are missing although there should be some,
    /// or are not kept as they have to be; of the broker's when it does not answer. Cancel-safe.
    async fn take_over(&self, scope: &TransactionScope) -> Result<Option<TransactionMark>, PublishError>;

    /// The number of the session that was connected last.
    fn session(&self) -> u64;

    /// Closes the transaction of `session`: what was confirmed belongs to it, and a batch that is
    /// submitted from now on to the next one. To be called when no message is without its receipt,
    /// and not again before [`commit`](Transactions::commit) has answered. Asks nobody.
    fn close(&self, session: u64) -> ClosedTransaction;

    /// Commits a closed transaction, and the mark.
    ///
    /// # Errors
    /// [`PublishError`]: whether it was committed is not known. Only
    /// [`take_over`](Transactions::take_over) tells.
    async fn commit(&self, closed: ClosedTransaction, mark: TransactionMark) -> Result<(), PublishError>;

    /// Whether a session found, when it was connected, that another process has committed since:
    /// nothing that this process knows holds any longer.
    fn is_superseded(&self) -> bool;
}
