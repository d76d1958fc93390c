//! The operations that a database offers the relay.

use std::time::Duration;

use async_trait::async_trait;
use message::MessageId;

use crate::log::cursor::{Cursor, Difference, Mark};
use crate::log::entry::{EntryId, Page, PageLimit};
use crate::log::error::LogError;
use crate::log::exception::{ExceptionChange, ExceptionSummary};
use crate::log::lease::{Acquired, Fenced, RelayName};
use crate::log::pause::Pause;
use crate::log::queue::{DuePage, DuePosition, HeldAsk, HeldPage, HeldQueues, QueueName};
use crate::log::trouble::BrokerTrouble;

/// A database that holds an outbox. Opens connections for the two jobs of a relay; each job owns
/// its connection, so that a database restart is noticed by both and never papered over by a pool.
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
}

/// Reads the log. After any error the reader is dropped, and the cursor is loaded anew.
/// None of the calls is cancel-safe: drop the reader with the future.
#[async_trait]
pub trait LogReader: Send {
    /// The next difference after `base`, or `None` when nothing has committed since. An empty poll
    /// is cheap: it writes nothing and costs the same however long the history and the backlog are.
    /// The difference's own `base` may be a later mark than the one asked for, when nothing lies
    /// between the two: go on with that one.
    async fn next_difference(&mut self, base: &Mark) -> Result<Option<Difference>, LogError>;

    /// Entries of a difference with ids above `after`, in the order of their ids.
    async fn read_page(
        &mut self,
        difference: &Difference,
        after: EntryId,
        limit: PageLimit,
    ) -> Result<Page, LogError>;

    /// Exceptions that need the relay now: scheduled and retrying ones that are due, and discarded
    /// ones; behind `after`, in the order of (`due_at`, id).
    async fn read_due(&mut self, after: Option<DuePosition>, limit: PageLimit) -> Result<DuePage, LogError>;

    /// Held entries of some queues: a page for each, in the order of the asks. `limit` is for all
    /// of them together.
    async fn read_held(&mut self, asks: &[HeldAsk], limit: PageLimit) -> Result<Vec<HeldPage>, LogError>;

    /// Queues with held entries, behind `after` in the order of their names, at most `queues_max`.
    async fn held_queues(
        &mut self,
        after: Option<&QueueName>,
        queues_max: usize,
    ) -> Result<HeldQueues, LogError>;

    /// Exceptions for which their keys wait: retrying and dead ones with ids above `after`, in the
    /// order of their ids, at most `entries_max`; fewer only at the end.
    async fn stuck(&mut self, after: EntryId, entries_max: usize) -> Result<Vec<ExceptionSummary>, LogError>;

    /// The pauses that operators have set. None, in a log that knows no pauses.
    async fn pauses(&mut self) -> Result<Vec<Pause>, LogError> {
        Ok(Vec::new())
    }
}

/// Keeps the relay's state: lease, cursor, exceptions. After any error, drop the store,
/// take the lease and load the cursor anew. None of the calls is cancel-safe: drop the store with
/// the future.
#[async_trait]
pub trait CheckpointStore: Send {
    /// Asks for the lease; it is granted when nobody holds it or when it has expired by the
    /// database's clock. The first time a relay's name is seen, its cursor starts before the first
    /// entry.
    async fn acquire(&mut self, ttl: Duration) -> Result<Acquired, LogError>;

    /// Prolongs the lease. A server that crashes afterwards gives out nothing anew that it had
    /// given out before.
    async fn renew(&mut self, epoch: i64, ttl: Duration) -> Result<Fenced, LogError>;

    /// Moves the cursor and applies the changes in one transaction, if the epoch still holds.
    async fn checkpoint(
        &mut self,
        epoch: i64,
        cursor: &Cursor,
        changes: &[ExceptionChange],
    ) -> Result<Fenced, LogError>;

    /// Keeps for operators why no message reaches the broker, or that they do (`None`), if the
    /// epoch still holds; checkpoints keep it as well. Nothing, in a log that keeps no such thing.
    async fn note_trouble(&mut self, epoch: i64, trouble: Option<BrokerTrouble>) -> Result<(), LogError> {
        let _ = (epoch, trouble);
        Ok(())
    }

    /// Says why a cursor that this database never stored cannot be believed here, if it cannot: it
    /// was made in another history, or `last_read`, the last entry that its relay had read, is not
    /// here. To be asked while the lease is held.
    async fn doubt(
        &mut self,
        cursor: &Cursor,
        last_read: Option<(EntryId, MessageId)>,
    ) -> Result<Option<String>, LogError>;

    /// Two entries that the relay has not passed were met under this id, as after a sequence was
    /// set back: gives the later ones new ids. Ends every lease of the log.
    ///
    /// # Errors
    ///
    /// A log whose ids are unique by its own key is corrupt then: the default.
    async fn renumber(&mut self, id: EntryId) -> Result<(), LogError> {
        Err(LogError::Corrupt { what: "log", problem: format!("two entries have the id {}", id.0) })
    }

    /// Gives the lease back, so that a standby takes over at once.
    async fn release(&mut self, epoch: i64) -> Result<Fenced, LogError>;
}
