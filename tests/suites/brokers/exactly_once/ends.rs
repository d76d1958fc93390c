//! Ends the process between two steps of a transaction, as a power cut would.
//!
//! | place | state of Kafka | state of the database |
//! |---|---|---|
//! | `before_take_over` | as the previous relay left it | has the identity of the log |
//! | `after_take_over` | no other relay can commit | the same |
//! | `before_commit` | has messages in an open transaction | is at the previous mark |
//! | `after_commit` | has committed them with their mark | is one mark behind |
//! | `before_checkpoint` | the same | the same |
//! | `after_checkpoint` | the same | is at the mark |
//!
//! At `in_commit` the process hangs forever instead, before the request to commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use message::{
    ClosedTransaction, Connector, MessageId, PublishError, Publisher, Receipts, TransactionMark,
    TransactionScope, Transactions,
};
use outbox_log::{
    Acquired, CheckpointStore, Cursor, EntryId, ExceptionChange, Fenced, LogError, LogReader, LogStore,
    OtherHolder, RelayName,
};
use tests::Failure;

/// The place at which this process ends, if any.
#[derive(Debug, Clone, Default)]
pub(super) struct Ends(Option<Arc<(String, AtomicU32)>>);

impl Ends {
    /// Environment variable that holds `place=times`.
    pub(super) const VARIABLE: &str = "OUTBOX_TRANSACTIONAL_RELAY_ENDS";

    pub(super) fn from_environment() -> Result<Self, Failure> {
        let Ok(text) = std::env::var(Self::VARIABLE) else { return Ok(Self::default()) };
        let (place, times) = text.split_once('=').ok_or("not of the form place=times")?;
        Ok(Self(Some(Arc::new((place.to_owned(), AtomicU32::new(times.parse()?))))))
    }

    fn at(&self, place: &str) {
        if self.is_reached(place) {
            eprintln!("ends {place}");
            std::process::abort();
        }
    }

    async fn stand_still_at(&self, place: &str) {
        if self.is_reached(place) {
            eprintln!("stands still {place}");
            std::future::pending::<()>().await;
        }
    }

    fn is_reached(&self, place: &str) -> bool {
        self.0.as_ref().is_some_and(|end| end.0 == place && end.1.fetch_sub(1, Ordering::Relaxed) == 1)
    }
}

/// A broker that may end the process before and after each step.
pub(super) struct EndsBroker {
    inner: Arc<dyn Transactions>,
    ends: Ends,
}

impl EndsBroker {
    pub(super) fn new(inner: Arc<dyn Transactions>, ends: Ends) -> Self {
        Self { inner, ends }
    }
}

#[async_trait]
impl Connector for EndsBroker {
    fn destination(&self) -> &str {
        self.inner.destination()
    }

    async fn connect(&self, receipts: Receipts) -> Result<Box<dyn Publisher>, PublishError> {
        self.inner.connect(receipts).await
    }
}

#[async_trait]
impl Transactions for EndsBroker {
    async fn take_over(&self, scope: &TransactionScope) -> Result<Option<TransactionMark>, PublishError> {
        self.ends.at("before_take_over");
        let taken = self.inner.take_over(scope).await;
        self.ends.at("after_take_over");
        taken
    }

    fn session(&self) -> u64 {
        self.inner.session()
    }

    fn close(&self, session: u64) -> ClosedTransaction {
        self.inner.close(session)
    }

    async fn commit(&self, closed: ClosedTransaction, mark: TransactionMark) -> Result<(), PublishError> {
        self.ends.at("before_commit");
        self.ends.stand_still_at("in_commit").await;
        let committed = self.inner.commit(closed, mark).await;
        self.ends.at("after_commit");
        committed
    }

    fn is_superseded(&self) -> bool {
        self.inner.is_superseded()
    }
}

/// A database that may end the process before and after each checkpoint.
pub(super) struct EndsDatabase {
    inner: Arc<dyn LogStore>,
    ends: Ends,
}

impl EndsDatabase {
    pub(super) fn new(inner: Arc<dyn LogStore>, ends: Ends) -> Self {
        Self { inner, ends }
    }
}

#[async_trait]
impl LogStore for EndsDatabase {
    fn origin(&self) -> &str {
        self.inner.origin()
    }

    async fn reader(&self, relay: &RelayName) -> Result<Box<dyn LogReader>, LogError> {
        self.inner.reader(relay).await
    }

    async fn checkpoint_store(
        &self,
        relay: &RelayName,
        holder: &str,
    ) -> Result<Box<dyn CheckpointStore>, LogError> {
        let inner = self.inner.checkpoint_store(relay, holder).await?;
        Ok(Box::new(EndsCheckpoints { inner, ends: self.ends.clone() }))
    }

    async fn cause_of(&self, error: &LogError) -> Option<String> {
        self.inner.cause_of(error).await
    }
}

struct EndsCheckpoints {
    inner: Box<dyn CheckpointStore>,
    ends: Ends,
}

#[async_trait]
impl CheckpointStore for EndsCheckpoints {
    async fn other_holder(&mut self) -> Result<Option<OtherHolder>, LogError> {
        self.inner.other_holder().await
    }

    async fn acquire(&mut self, ttl: Duration) -> Result<Acquired, LogError> {
        self.inner.acquire(ttl).await
    }

    async fn renew(&mut self, epoch: i64, ttl: Duration) -> Result<Fenced, LogError> {
        self.inner.renew(epoch, ttl).await
    }

    async fn checkpoint(
        &mut self,
        epoch: i64,
        cursor: &Cursor,
        changes: &[ExceptionChange],
    ) -> Result<Fenced, LogError> {
        self.ends.at("before_checkpoint");
        let stored = self.inner.checkpoint(epoch, cursor, changes).await;
        self.ends.at("after_checkpoint");
        stored
    }

    async fn doubt(
        &mut self,
        cursor: &Cursor,
        last_read: Option<(EntryId, MessageId)>,
    ) -> Result<Option<String>, LogError> {
        self.inner.doubt(cursor, last_read).await
    }

    async fn release(&mut self, epoch: i64) -> Result<Fenced, LogError> {
        self.inner.release(epoch).await
    }
}
