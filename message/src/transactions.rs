//! The seam towards brokers that publish in transactions: messages and a mark become visible
//! together, or not at all.

use std::time::Duration;

use async_trait::async_trait;

use crate::publisher::{Connector, PublishError};

/// The owner of a series of transactions: one relay on one log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransactionScope {
    /// The identity of the log, 1 to 64 characters of `a–z 0–9 -`. Logs with different identities
    /// never see each other's marks.
    pub log: String,
    /// The relay's name, 1 to 63 characters of `a–z 0–9 - _`.
    pub relay: String,
    /// Whether no transaction of this scope was ever committed. Only then may the topic of the
    /// marks be missing; it is created.
    pub is_new: bool,
    /// How long a transaction may stay open; the broker aborts an older one.
    pub timeout: Duration,
}

/// The position that is committed with a transaction: how far a relay has come. The broker stores
/// it beside the messages, so that a successor learns from the broker itself which messages have
/// left. Its content belongs to the caller; the broker keeps its number and its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransactionMark {
    /// Counts the transactions of a scope, from 1.
    pub number: u64,
    /// The caller's bytes, at most 64 MiB.
    pub content: Vec<u8>,
}

/// A transaction to which nothing more is added: see [`Transactions::close`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClosedTransaction {
    /// The session that it belongs to.
    pub session: u64,
    /// The index of the session's producer that it is in.
    pub producer: usize,
}

/// A broker that publishes in transactions.
///
/// Its publishers accept one batch at a time and add it to the open transaction as a whole. Either
/// every receipt of a batch is `Ok`, or none is. They are `Ok` once the broker has all messages of
/// the batch inside the open transaction; they are errors once the transaction is discarded.
/// Readers of committed messages see nothing before [`commit`](Transactions::commit). One
/// transaction may be open while the previous one, which is closed, is committed.
#[async_trait]
pub trait Transactions: Connector {
    /// Ends any transaction that an earlier session of the scope left open, fences that session,
    /// and returns the last committed mark. The next session that connects continues from it.
    ///
    /// # Errors
    /// [`PublishError`]: the operator's fault when marks are missing that should exist, or are not
    /// stored as required; the broker's when it does not answer. Cancel-safe.
    async fn take_over(&self, scope: &TransactionScope) -> Result<Option<TransactionMark>, PublishError>;

    /// Returns the number of the session that connected last.
    fn session(&self) -> u64;

    /// Closes the transaction of `session`: confirmed messages belong to it, and later batches to
    /// the next one. Call it when every message has its receipt, and not again before
    /// [`commit`](Transactions::commit) has returned. Does no I/O.
    fn close(&self, session: u64) -> ClosedTransaction;

    /// Commits a closed transaction, and the mark.
    ///
    /// # Errors
    /// [`PublishError`]: the outcome is unknown. Only [`take_over`](Transactions::take_over) can
    /// determine it.
    async fn commit(&self, closed: ClosedTransaction, mark: TransactionMark) -> Result<(), PublishError>;

    /// Whether a session found, while connecting, that another process has committed since. Then
    /// nothing that this process knows holds any longer.
    fn is_superseded(&self) -> bool;
}
