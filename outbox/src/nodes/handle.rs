//! The handle that makes ids which name the node.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use message::MessageId;
use message::token::{Clock, IdGenerator, MintError, NodeIdGenerator, Stale};
use sqlx::Pool;
use tokio::sync::{mpsc, oneshot};

use super::error::NodeError;
use super::options::NodeOptions;
use super::renewal::{Command, Renewal};
use crate::dialect::Dialect;
use crate::telemetry;

/// The largest batch: what one millisecond has room for.
pub const BATCH_MAX: usize = 4_096;

/// Makes ids that name this node. Cheap to clone; clones share the number. When the last one is
/// dropped, the number is given back.
#[derive(Clone)]
pub struct NodeIds {
    shared: Arc<Shared>,
    renewal: mpsc::Sender<Command>,
}

pub(super) struct Shared {
    mint: Mutex<NodeIdGenerator>,
    clock: Arc<dyn Clock>,
}

impl Shared {
    pub(super) fn mint(&self) -> MutexGuard<'_, NodeIdGenerator> {
        self.mint.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NodeIds {
    /// Leases a number, and keeps it renewed in the background for as long as a handle exists. On
    /// PostgreSQL as the role of producers.
    ///
    /// # Errors
    /// [`NodeError`]: an option out of its bounds, a table that is missing, no number left, or a
    /// database that is away. Run it to its end: a number that was leased meanwhile is free again
    /// when its lease has ended.
    pub async fn open<DB: Dialect>(pool: Pool<DB>, options: NodeOptions) -> Result<Self, NodeError> {
        options.check()?;
        let shared = Arc::new(Shared { mint: Mutex::default(), clock: Arc::clone(&options.clock) });
        let statements = DB::statements(options.schema.as_ref());
        let renewal = Renewal { pool, statements, options, shared: Arc::clone(&shared) };
        renewal.take().await?;
        let (commands, asked) = mpsc::channel(1);
        tokio::spawn(renewal.run(asked));
        Ok(Self { shared, renewal: commands })
    }

    /// The next id. Ids of one node ascend strictly. It does not block.
    ///
    /// # Errors
    /// [`Stale`]: this node's number may be another one's by now, or the clock is behind. Try again
    /// later.
    pub fn next(&self) -> Result<MessageId, Stale> {
        self.minted(NodeIdGenerator::next)
    }

    /// So many ids at once, at most [`BATCH_MAX`] whatever is asked for: all or none.
    ///
    /// # Errors
    /// As for [`next`](Self::next).
    pub fn batch(&self, count: usize) -> Result<Vec<MessageId>, Stale> {
        self.minted(|mint, since_1970, elapsed| {
            (0..count.min(BATCH_MAX)).map(|_| mint.next(since_1970, elapsed)).collect()
        })
    }

    /// The number and its epoch; nothing while there is none. The lease may have ended.
    #[must_use]
    pub fn number(&self) -> Option<(u16, u32)> {
        self.shared.mint().term().map(|term| (term.number, term.epoch))
    }

    /// Renews now, for example when the machine was suspended; takes another number when this one
    /// is lost. Cancel-safe.
    ///
    /// # Errors
    /// [`NodeError`]; ids are made until the lease ends.
    pub async fn renew(&self) -> Result<(), NodeError> {
        self.ask(Command::Renew).await
    }

    /// Gives the number back: another node may have it at once. No clone makes ids after it.
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`NodeError`] when the database did not answer; the number is free when its lease has ended.
    pub async fn close(self) -> Result<(), NodeError> {
        self.ask(Command::Close).await
    }

    async fn ask(
        &self,
        command: fn(oneshot::Sender<Result<(), NodeError>>) -> Command,
    ) -> Result<(), NodeError> {
        let (done, answer) = oneshot::channel();
        self.renewal.send(command(done)).await.map_err(|_| NodeError::Closed)?;
        answer.await.map_err(|_| NodeError::Closed)?
    }

    fn minted<T>(
        &self,
        make: impl FnOnce(&mut NodeIdGenerator, std::time::Duration, std::time::Duration) -> Result<T, Stale>,
    ) -> Result<T, Stale> {
        let mut mint = self.shared.mint();
        // Under the lock: a moment read before could be one of before a renewal.
        let (since_1970, elapsed) = (self.shared.clock.since_1970(), self.shared.clock.elapsed());
        make(&mut mint, since_1970, elapsed).inspect_err(telemetry::node_refused)
    }
}

impl IdGenerator for NodeIds {
    fn mint(&self) -> Result<MessageId, MintError> {
        self.next().map_err(MintError::new)
    }
}

impl fmt::Debug for NodeIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeIds").field("number", &self.number()).finish_non_exhaustive()
    }
}
