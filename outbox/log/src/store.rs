//! The database operations that the relay needs.

use std::time::Duration;

use async_trait::async_trait;
use message::MessageId;

use crate::cursor::{Cursor, Difference, Mark};
use crate::entry::{EntryId, Page, PageLimit};
use crate::error::LogError;
use crate::exception::{Exception, ExceptionChange, StuckPage};
use crate::lease::{Acquired, Fenced, OtherHolder, RelayName};
use crate::pause::PauseScope;
use crate::queue::{DueKind, DuePage, DuePosition, HeldAsk, HeldPage, HeldQueues, QueueName};
use crate::trouble::BrokerTrouble;

/// A database that holds an outbox. It opens one connection for each of the relay's two jobs. Each
/// job owns its connection, so both notice a database restart and no pool hides it.
#[async_trait]
pub trait LogStore: Send + Sync + 'static {
    /// Names the database, for logs and tables: `postgresql 10.0.0.7:5432/orders`. Never contains a
    /// secret.
    fn origin(&self) -> &str;

    /// Opens a connection for reading, after checking that the schema fits.
    ///
    /// # Errors
    /// [`LogError`]: unreachable, wrong credentials, schema missing, too old or too new.
    /// Cancel-safe.
    async fn reader(&self, relay: &RelayName) -> Result<Box<dyn LogReader>, LogError>;

    /// Opens a connection for lease, cursor and exceptions, after checking that the schema fits.
    /// `holder` names this process for operators (host, process id, a random part).
    ///
    /// # Errors
    /// As for [`LogStore::reader`]. Cancel-safe.
    async fn checkpoint_store(
        &self,
        relay: &RelayName,
        holder: &str,
    ) -> Result<Box<dyn CheckpointStore>, LogError>;

    /// Returns the cause of an error of this log, for [`LogError::caused_by`], if the database can
    /// name one: the session whose lock kept a call waiting. Runs in a separate session, for up to
    /// 3 s: never call this while holding the lease. Cancel-safe. The default, for a database that
    /// names no sessions, returns `None`.
    async fn cause_of(&self, error: &LogError) -> Option<String> {
        let _ = error;
        None
    }
}

/// Reads the log. After any error, drop the reader and load the cursor again. No call is
/// cancel-safe: drop the reader with the future.
#[async_trait]
pub trait LogReader: Send {
    /// Forgets the facts that were read when the connection was opened. The reader is opened before
    /// the lease is taken: call this once it is granted, before anything is read. The default, for
    /// a reader that reads no facts on opening, does nothing.
    async fn begin(&mut self) -> Result<(), LogError> {
        Ok(())
    }

    /// Returns the next difference after `base`, or `None` when nothing has committed since. An
    /// empty poll is cheap: it writes nothing, and its cost does not depend on the length of the
    /// history or the backlog. The difference's own `base` may be later than the requested mark
    /// when no row lies between them. Continue with that one.
    async fn next_difference(&mut self, base: &Mark) -> Result<Option<Difference>, LogError>;

    /// Returns entries of a difference with ids above `after`, in the order of their ids.
    async fn read_page(
        &mut self,
        difference: &Difference,
        after: EntryId,
        limit: PageLimit,
    ) -> Result<Page, LogError>;

    /// Returns the exceptions of a kind that need the relay now. They follow `after` in the order
    /// of (`due_at`, id). Its cost does not depend on how many of the other kind are due.
    async fn read_due(
        &mut self,
        kind: DueKind,
        after: Option<DuePosition>,
        limit: PageLimit,
    ) -> Result<DuePage, LogError>;

    /// Returns exceptions that are due and that come before the others: retrying ones with these
    /// ids, then those that operators have requeued, edited or discarded lately, each in the order
    /// of (`due_at`, id).
    /// A limit that ends the answer early leaves out the last ones. The default, for a log in which
    /// nothing comes before the others, returns none.
    async fn read_first(&mut self, probes: &[EntryId], limit: PageLimit) -> Result<Vec<Exception>, LogError> {
        let _ = (probes, limit);
        Ok(Vec::new())
    }

    /// Returns held entries of several queues: one page for each, in the order of the requests.
    /// `limit` is the total for all pages.
    async fn read_held(&mut self, asks: &[HeldAsk], limit: PageLimit) -> Result<Vec<HeldPage>, LogError>;

    /// Returns up to `queues_max` queues with held entries, behind `after` in the order of names.
    async fn held_queues(
        &mut self,
        after: Option<&QueueName>,
        queues_max: usize,
    ) -> Result<HeldQueues, LogError>;

    /// Returns the exceptions that block their keys, in the order of their ids: retrying ones, and
    /// dead ones if `dead_blocks`. Those without a key block nothing. Looks at up to `walked_max`
    /// retrying and dead exceptions with ids above `after`, so that the time of a call does not
    /// depend on how many of them block nothing.
    async fn stuck(
        &mut self,
        after: EntryId,
        walked_max: usize,
        dead_blocks: bool,
    ) -> Result<StuckPage, LogError>;

    /// Returns what operators have paused, in any order: at most [`PAUSES_MAX`](crate::PAUSES_MAX)
    /// topics and keys, and the pipeline. Empty for a log without pauses.
    async fn paused_scopes(&mut self) -> Result<Vec<PauseScope>, LogError> {
        Ok(Vec::new())
    }
}

/// Stores the relay's state: lease, cursor, exceptions. After any error, drop the store, take the
/// lease again and load the cursor again. No call is cancel-safe: drop the store with the future.
#[async_trait]
pub trait CheckpointStore: Send {
    /// Returns who else holds the lease, or `None` when it may be free. Writes nothing, so a
    /// standby may call it often. The default, for a log that reports this only when the lease is
    /// requested, returns `None`.
    async fn other_holder(&mut self) -> Result<Option<OtherHolder>, LogError> {
        Ok(None)
    }

    /// Requests the lease. It is granted when it is free, or has expired by the database's clock.
    /// The cursor of a new relay name starts before the first entry.
    async fn acquire(&mut self, ttl: Duration) -> Result<Acquired, LogError>;

    /// Returns the names of other relays that have led here and that no process runs, at most ten.
    /// For a warning when a new name leads: one of them may have been renamed. The default, for a
    /// log without names, returns none.
    async fn left_relays(&mut self) -> Result<Vec<String>, LogError> {
        Ok(Vec::new())
    }

    /// Extends the lease. A server that crashes afterwards allocates no id again that it had
    /// allocated before.
    async fn renew(&mut self, epoch: i64, ttl: Duration) -> Result<Fenced, LogError>;

    /// Moves the cursor and applies the changes in one transaction, if the lease is still
    /// this holder's under this epoch.
    async fn checkpoint(
        &mut self,
        epoch: i64,
        cursor: &Cursor,
        changes: &[ExceptionChange],
    ) -> Result<Fenced, LogError>;

    /// Stores for operators why no message reaches the broker; `None` means that messages do.
    /// Stores nothing when the epoch is no longer valid. Later checkpoints keep the text. The
    /// default, for a log that cannot store it, does nothing.
    async fn note_trouble(&mut self, epoch: i64, trouble: Option<BrokerTrouble>) -> Result<(), LogError> {
        let _ = (epoch, trouble);
        Ok(())
    }

    /// Returns why a cursor that this database never stored cannot be trusted here, or `None` when
    /// it can. Either it was made in another history, or `last_read`, the last entry that its relay
    /// read, is not in this log. Call it while holding the lease.
    async fn doubt(
        &mut self,
        cursor: &Cursor,
        last_read: Option<(EntryId, MessageId)>,
    ) -> Result<Option<String>, LogError>;

    /// Gives new ids to the later of two entries with the same id, neither of which the relay has
    /// passed. This happens when a sequence was set back. Ends every lease of the log.
    ///
    /// # Errors
    ///
    /// By default, [`LogError::Corrupt`]: a log whose own key keeps ids unique is damaged then.
    async fn renumber(&mut self, id: EntryId) -> Result<(), LogError> {
        Err(LogError::Corrupt { what: "log", problem: format!("two entries have the id {}", id.0) })
    }

    /// Releases the lease, so that a standby takes over at once.
    async fn release(&mut self, epoch: i64) -> Result<Fenced, LogError>;
}
