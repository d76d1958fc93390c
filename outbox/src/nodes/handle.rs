//! The handle that makes ids with the number of this node.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use message::MessageId;
use message::token::{Clock, IdGenerator, MintError, NodeIdGenerator, Stale};
use sqlx::Pool;
use tokio::sync::{mpsc, oneshot};

use super::error::NodeError;
use super::options::NodeOptions;
use super::renewal::{Command, Renewal};
use crate::bounded::Bounded;
use crate::dialect::Dialect;
use crate::telemetry;

/// The largest batch: the maximum number of ids in one millisecond.
pub const BATCH_MAX: usize = 4_096;

/// Makes ids that name this node. Cheap to clone; clones share the number. Dropping the last clone
/// releases the number.
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
    /// Leases a number and renews it in the background as long as a handle exists. Needs the
    /// producers' role on PostgreSQL.
    ///
    /// # Errors
    /// [`NodeError`]: an option out of bounds, a missing table, no number left, or an unavailable
    /// database. Not cancel-safe: a number leased by a dropped call is free again when its lease
    /// ends.
    pub async fn open<DB: Dialect>(pool: Pool<DB>, options: NodeOptions) -> Result<Self, NodeError> {
        options.check()?;
        let options = options.unmistakable();
        let shared = Arc::new(Shared { mint: Mutex::default(), clock: Arc::clone(&options.clock) });
        let statements = DB::producer_statements(options.schema.as_ref());
        let db = Bounded::new(pool, options.call_limit());
        let renewal = Renewal { db, statements, options, shared: Arc::clone(&shared) };
        renewal.take().await?;
        let (commands, asked) = mpsc::channel(1);
        tokio::spawn(renewal.run(asked));
        Ok(Self { shared, renewal: commands })
    }

    /// Returns the next id. Ids of one node ascend strictly. Does not block.
    ///
    /// # Errors
    /// [`Stale`]: another node may have this number by now, or the clock is behind. Try again
    /// later.
    pub fn next(&self) -> Result<MessageId, Stale> {
        self.minted(NodeIdGenerator::next)
    }

    /// Returns `count` ids at once, capped at [`BATCH_MAX`]: all or none.
    ///
    /// # Errors
    /// As for [`next`](Self::next).
    pub fn batch(&self, count: usize) -> Result<Vec<MessageId>, Stale> {
        self.minted(|mint, since_1970, elapsed| {
            (0..count.min(BATCH_MAX)).map(|_| mint.next(since_1970, elapsed)).collect()
        })
    }

    /// Returns the number and its epoch; `None` while the node has no number. The lease may have
    /// ended.
    #[must_use]
    pub fn number(&self) -> Option<(u16, u32)> {
        self.shared.mint().term().map(|term| (term.number, term.epoch))
    }

    /// Renews now, for example after the machine was suspended. Takes another number when this one
    /// is lost. Cancel-safe.
    ///
    /// # Errors
    /// [`NodeError`]. Ids are still made until the lease ends.
    pub async fn renew(&self) -> Result<(), NodeError> {
        self.ask(Command::Renew).await
    }

    /// Releases the number, so that another node can take it at once. Afterwards no clone makes
    /// ids. Cancel-safe.
    ///
    /// # Errors
    /// [`NodeError`] when the database did not answer. The number is then free when its lease ends.
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
        // Read under the lock: a time read earlier could be from before a renewal.
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
