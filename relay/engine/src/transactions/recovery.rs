//! The work of a new lease holder before it leads: it shuts the previous leader out and brings the
//! database up to the last mark.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use message::{Fault, PublishError, TransactionMark, TransactionScope, Transactions};
use outbox_log::{BrokerTransaction, CheckpointStore, Cursor, EntryId, Fenced, Lease, LogError, RelayName};
use tokio::time::Instant;

use super::mark::Mark;
use crate::machine::TransactionCheckpoint;
use crate::telemetry::Telemetry;

/// The starting point of a leader that publishes in transactions.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// The identity of the log.
    pub(crate) log: String,
    /// The number of the last transaction.
    pub(crate) number: u64,
    /// Entries ahead of the cursor that were published.
    pub(crate) settled: BTreeSet<EntryId>,
    /// When the lease or its last renewal was requested.
    pub(crate) asked_at: Instant,
}

/// The broker transactions to publish in, and where they continue.
pub(crate) struct Continued {
    pub(crate) transactions: Arc<dyn Transactions>,
    pub(crate) recovered: Recovered,
}

/// Outcome of a recovery.
#[derive(Debug)]
pub(crate) enum Recovery {
    /// The database is at the last mark.
    Done(Recovered),
    /// The database has just been brought to the last mark: take the lease again, so that its
    /// cursor is compared with the server's history.
    Again,
    /// Another process has taken over.
    LeaseLost,
}

/// The inputs of a recovery.
pub(crate) struct Recovering<'a> {
    pub(crate) transactions: &'a Arc<dyn Transactions>,
    pub(crate) checkpointer: &'a mut dyn CheckpointStore,
    pub(crate) relay: &'a RelayName,
    pub(crate) lease: Lease,
    pub(crate) asked_at: Instant,
    pub(crate) renew_interval: Duration,
    pub(crate) timeout: Duration,
    pub(crate) telemetry: &'a Telemetry,
}

impl Recovering<'_> {
    /// Recovers from the cursor that came with the lease. Renews the lease meanwhile. Not
    /// cancel-safe: drop the checkpoint store with the future.
    pub(crate) async fn run(mut self, cursor: &Cursor) -> Result<Recovery, LogError> {
        let known = match &cursor.transaction {
            Some(known) if known.is_rebased => return Err(rebased()),
            Some(known) => known.clone(),
            None => {
                // Stored before the first mark: a mark of an unknown log is not trusted.
                let log = format!("{:032x}", rand::random::<u128>());
                let known = BrokerTransaction { log, number: 0, is_rebased: false };
                let cursor = Cursor { transaction: Some(known.clone()), ..cursor.clone() };
                match self.checkpointer.checkpoint(self.lease.epoch, &cursor, &[]).await? {
                    Fenced::Held => known,
                    Fenced::Lost => return Ok(Recovery::LeaseLost),
                }
            }
        };
        let scope = TransactionScope {
            log: known.log.clone(),
            relay: self.relay.as_str().to_owned(),
            is_new: known.number == 0,
            timeout: self.timeout,
        };
        let Some(last) = self.take_over(&scope).await? else { return Ok(Recovery::LeaseLost) };
        let Some(last) = last else {
            if known.number == 0 {
                return Ok(Recovery::Done(self.recovered(known, BTreeSet::new())));
            }
            return Err(apart(&known, None));
        };
        let corrupt = |problem| LogError::Corrupt { what: "mark", problem };
        let mark = Mark::read(&last.content).map_err(corrupt)?;
        if mark.log != known.log {
            return Err(LogError::Operator {
                reason: format!(
                    "the last mark of this relay belongs to log {:?}, but this log is {:?}: the topic of the marks was copied, or another program wrote to it",
                    mark.log, known.log
                ),
                source: None,
            });
        }
        // A mark of a later epoch belongs to a later leader, unless the lease still holds: a
        // restored database counts its leases from an earlier number.
        if mark.epoch > self.lease.epoch && self.renew().await? == Fenced::Lost {
            return Ok(Recovery::LeaseLost);
        }
        match last.number.checked_sub(known.number) {
            Some(0) => Ok(Recovery::Done(self.recovered(known, mark.content.settled))),
            Some(1) => self.apply(known, mark).await,
            _ => Err(apart(&known, Some(last.number))),
        }
    }

    fn recovered(&self, known: BrokerTransaction, settled: BTreeSet<EntryId>) -> Recovered {
        Recovered { log: known.log, number: known.number, settled, asked_at: self.asked_at }
    }

    /// Shuts the previous leader out and reads the last mark. Returns `None` when the lease is lost
    /// meanwhile.
    async fn take_over(
        &mut self,
        scope: &TransactionScope,
    ) -> Result<Option<Option<TransactionMark>>, LogError> {
        let transactions = self.transactions;
        let mut taking = pin!(transactions.take_over(scope));
        loop {
            let renew_at = self.asked_at + self.renew_interval;
            tokio::select! {
                biased;
                taken = &mut taking => return taken.map(Some).map_err(log_error),
                () = tokio::time::sleep_until(renew_at) => {
                    if self.renew().await? == Fenced::Lost {
                        return Ok(None);
                    }
                }
            }
        }
    }

    async fn renew(&mut self) -> Result<Fenced, LogError> {
        let asked_at = Instant::now();
        let fenced = self.checkpointer.renew(self.lease.epoch, self.lease.ttl).await?;
        if fenced == Fenced::Held {
            self.asked_at = asked_at;
        }
        Ok(fenced)
    }

    /// Stores the checkpoint of the last mark.
    async fn apply(&mut self, known: BrokerTransaction, mark: Mark) -> Result<Recovery, LogError> {
        let TransactionCheckpoint { checkpoint, last_read, .. } = mark.content;
        // This database never stored that cursor, so it is not known to mean the same here.
        if let Some(doubt) = self.checkpointer.doubt(&checkpoint.cursor, last_read).await? {
            return Err(lost(known.number, &doubt));
        }
        let number = known.number + 1;
        let cursor = Cursor { transaction: Some(BrokerTransaction { number, ..known }), ..checkpoint.cursor };
        self.telemetry.stores_last_mark(number, checkpoint.changes.len());
        match self.checkpointer.checkpoint(self.lease.epoch, &cursor, &checkpoint.changes).await? {
            Fenced::Held => Ok(Recovery::Again),
            Fenced::Lost => Ok(Recovery::LeaseLost),
        }
    }
}

fn rebased() -> LogError {
    LogError::Operator {
        reason: String::from(
            "the database was restored or has another history, so published messages may be published again, and readers of Kafka would see copies; docs/kafka-exactly-once.md says what to do",
        ),
        source: None,
    }
}

fn lost(known: u64, doubt: &str) -> LogError {
    LogError::Operator {
        reason: format!(
            "the database has recorded transaction {known}, and the broker's next mark does not match it: {doubt}; the database was restored, or a lagging standby was promoted; docs/kafka-exactly-once.md says what to do"
        ),
        source: None,
    }
}

fn apart(known: &BrokerTransaction, last: Option<u64>) -> LogError {
    let found = last.map_or_else(|| String::from("none"), |last| last.to_string());
    LogError::Operator {
        reason: format!(
            "the database has recorded transaction {}, but the broker's last mark is {found}: the database was restored, or the topic of the marks was deleted; docs/kafka-exactly-once.md says what to do",
            known.number
        ),
        source: None,
    }
}

/// Converts a failure of the broker. While the lease is taken or a transaction is committed, it
/// ends the term as a database failure does: nothing in memory can be trusted.
pub(super) fn log_error(error: PublishError) -> LogError {
    match error.fault() {
        Fault::Operator => LogError::Operator { reason: error.to_string(), source: Some(Box::new(error)) },
        _ => LogError::Unavailable { reason: error.to_string(), source: Some(Box::new(error)) },
    }
}
