//! The handle to an inbox.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
#[cfg(feature = "testing")]
use std::time::Duration;
use std::time::Instant;

use message::SteadyClock;
use migrations::{Line, Migrator};
use outbox::{Bounded, Outbox};
use sqlx::pool::PoolConnection;
use sqlx::{Pool, Transaction};

use crate::day::Day;
use crate::dialect::{Dialect, Reading};
use crate::error::OpenError;
use crate::options::InboxOptions;
use crate::store_error::StoreError;
use crate::tables::Tables;
use crate::window::Window;
use crate::within::{MAINTENANCE_MAX, within};

/// An inbox: the tables in one database that remember which messages took effect. Cheap to clone.
pub struct Inbox<DB: Dialect> {
    inner: Arc<Inner<DB>>,
    /// The outbox with which its transactions enqueue.
    outbox: Option<Outbox<DB>>,
}

struct Inner<DB: Dialect> {
    pool: Pool<DB>,
    tables: Tables<DB>,
    options: InboxOptions,
    memory: Mutex<PartitionCache>,
    steady: SteadyClock,
}

/// The database's clock and days, as last read by this process.
struct PartitionCache {
    measured: Instant,
    reading: Reading,
    days: BTreeSet<Day>,
    /// How far a test has moved the clock ahead of the database's clock.
    #[cfg(feature = "testing")]
    ahead: Duration,
}

impl<DB: Dialect> Inbox<DB> {
    /// Opens an inbox whose tables exist, reads the database's clock and makes sure that every
    /// accepted day can be stored.
    ///
    /// [`OpenError`]: an option is out of bounds, the schema does not match (the error names the
    /// command to run), days are missing and cannot be created, or the database is unavailable. On
    /// PostgreSQL behind a pool without `after_release` it is not cancel-safe; run it to its end.
    pub async fn open(pool: Pool<DB>, options: InboxOptions) -> Result<Self, OpenError> {
        let inbox = Self::open_as_it_is(pool, options).await?;
        let limit = inbox.options().call_timeout;
        within(limit, "store when the inbox's memory begins", Box::pin(inbox.begin_memory())).await?;
        within(MAINTENANCE_MAX, "create days", Box::pin(inbox.ensure_days())).await?;
        Ok(inbox)
    }

    /// Stores the time from which it remembers ids, unless one is stored, and reads the stored
    /// values.
    async fn begin_memory(&self) -> Result<(), StoreError> {
        if self.memory().reading.retained_from.is_none() {
            let mut connection = self.acquire("give a connection").await?;
            // With a clock that is ahead, it would begin too late permanently; beginning too early
            // is harmless.
            DB::begin_memory(&mut connection, self.tables(), self.settled_window().keep_from())
                .await
                .map_err(StoreError::during("store the time from which it remembers ids"))?;
        }
        self.refresh().await
    }

    /// Opens an inbox for operators: checks the schema and reads the stored values. Unlike
    /// [`open`](Self::open), neither decides where its memory begins nor creates days, because that
    /// depends on the options of its consumers.
    ///
    /// # Errors
    /// As for [`open`](Self::open), except for missing days.
    #[doc(hidden)]
    pub async fn open_for_operators(pool: Pool<DB>, options: InboxOptions) -> Result<Self, OpenError> {
        let inbox = Self::open_as_it_is(pool, options).await?;
        within(inbox.options().call_timeout, "read its partitions", Box::pin(inbox.read_partitions()))
            .await?;
        Ok(inbox)
    }

    async fn open_as_it_is(pool: Pool<DB>, options: InboxOptions) -> Result<Self, OpenError> {
        options.check()?;
        within(options.call_timeout, "open the inbox", Box::pin(Self::read_first(pool, options))).await
    }

    async fn read_first(pool: Pool<DB>, options: InboxOptions) -> Result<Self, OpenError> {
        let tables = Tables::new(options.schema.as_ref());
        let mut connection = pool.acquire().await.map_err(StoreError::during("give a connection"))?;
        Migrator::<DB>::new(Line::Inbox).schema(options.schema.clone()).check(&mut connection).await?;
        let reading = read_clock::<DB>(&mut connection, &tables).await?;
        let memory = PartitionCache {
            measured: Instant::now(),
            reading,
            days: BTreeSet::new(),
            #[cfg(feature = "testing")]
            ahead: Duration::ZERO,
        };
        let memory = Mutex::new(memory);
        let steady = SteadyClock::start();
        drop(connection);
        let inner = Arc::new(Inner { pool, tables, options, memory, steady });
        Ok(Self { inner, outbox: None })
    }

    /// Returns this inbox with an outbox, whose tables are in the same database: handlers, redrives
    /// and [`begin`](Self::begin) get transactions that enqueue with it. Without one, they refuse to
    /// enqueue ([`EnqueueError::NoOutbox`](outbox::EnqueueError::NoOutbox)), and the database needs
    /// no tables of an outbox.
    #[must_use]
    pub fn with_outbox(self, outbox: Outbox<DB>) -> Self {
        Self { outbox: Some(outbox), ..self }
    }

    pub(crate) fn outbox(&self) -> Option<&Outbox<DB>> {
        self.outbox.as_ref()
    }

    /// Returns the options with which it was opened.
    #[must_use]
    pub fn options(&self) -> &InboxOptions {
        &self.inner.options
    }

    /// Returns the pool of the database that has its tables.
    #[must_use]
    pub fn pool(&self) -> &Pool<DB> {
        &self.inner.pool
    }

    /// Returns whether it has been opened for a consumer, or for another use that stores messages.
    /// Before that it is empty.
    #[doc(hidden)]
    #[must_use]
    pub fn has_memory(&self) -> bool {
        self.memory().reading.retained_from.is_some()
    }

    /// Returns the window of ids that it accepts now, by the database's clock as last read.
    #[must_use]
    pub fn window(&self) -> Window {
        let memory = self.memory();
        let now = memory.reading.now + memory.measured.elapsed();
        #[cfg(feature = "testing")]
        let now = now + memory.ahead;
        let retained_from = memory.reading.retained_from.unwrap_or(time::OffsetDateTime::UNIX_EPOCH);
        let InboxOptions { retention, skew_max, .. } = self.inner.options;
        Window { now, retention, skew_max, retained_from }
    }

    /// Returns the window for permanent deletion. It has passed only records that are old enough by
    /// the database's clock and by this process's clock, which ignores forward jumps for a day.
    pub(crate) fn settled_window(&self) -> Window {
        let steady = self.inner.steady.now();
        #[cfg(feature = "testing")]
        let steady = steady + self.memory().ahead;
        let window = self.window();
        Window { now: window.now.min(steady), ..window }
    }

    /// Moves the clock that this handle and its clones use to validate ids and to forget days
    /// further ahead of the database's clock. For tests: production uses only the database's clock.
    #[cfg(feature = "testing")]
    pub fn advance(&self, by: Duration) {
        let mut memory = self.memory();
        memory.ahead = memory.ahead.saturating_add(by);
    }

    /// Reads the database's clock again.
    pub(crate) async fn refresh(&self) -> Result<(), StoreError> {
        let mut connection = self.acquire("give a connection").await?;
        self.refresh_on(&mut connection).await
    }

    /// Does the same as [`refresh`](Self::refresh), over a given connection.
    pub(crate) async fn refresh_on(&self, connection: &mut DB::Connection) -> Result<(), StoreError> {
        let reading = read_clock(connection, self.tables()).await?;
        let mut memory = self.memory();
        memory.measured = Instant::now();
        memory.reading = reading;
        if let Some(from) = reading.retained_from {
            memory.days.retain(|day| day.start() >= from);
        }
        Ok(())
    }

    pub(crate) fn tables(&self) -> &Tables<DB> {
        &self.inner.tables
    }

    pub(crate) fn knows_day(&self, day: Day) -> bool {
        self.memory().days.contains(&day)
    }

    pub(crate) fn learn_partitions(&self, days: impl IntoIterator<Item = Day>) {
        self.memory().days.extend(days);
    }

    pub(crate) fn unlearn_day(&self, day: Day) {
        self.memory().days.remove(&day);
    }

    pub(crate) async fn acquire(&self, what: &'static str) -> Result<PoolConnection<DB>, StoreError> {
        self.pool().acquire().await.map_err(StoreError::during(what))
    }

    /// Waits for a call up to the inbox's [call timeout](crate::InboxOptions::call_timeout), then
    /// drops it. The call must own its connection, and must not commit.
    pub(crate) async fn in_time<T, E: From<StoreError>>(
        &self,
        what: &'static str,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        within(self.options().call_timeout, what, call).await
    }

    /// Begins a transaction. Cancel-safe.
    pub(crate) async fn begin_raw(&self, what: &'static str) -> Result<Transaction<'static, DB>, StoreError> {
        self.bounded().begin(DB::begin_writing).await.map_err(StoreError::during(what))
    }

    /// Does the same for a transaction whose commit waits for the disk.
    pub(crate) async fn begin_durable(
        &self,
        what: &'static str,
    ) -> Result<Transaction<'static, DB>, StoreError> {
        self.bounded().begin(DB::begin_durable).await.map_err(StoreError::during(what))
    }

    fn bounded(&self) -> Bounded<DB> {
        Bounded::new(self.pool().clone(), self.options().call_timeout)
    }

    fn memory(&self) -> MutexGuard<'_, PartitionCache> {
        self.inner.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn read_clock<DB: Dialect>(
    connection: &mut DB::Connection,
    tables: &Tables<DB>,
) -> Result<Reading, StoreError> {
    tables.read_clock(connection).await.map_err(StoreError::during("read its clock"))
}

impl<DB: Dialect> Clone for Inbox<DB> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), outbox: self.outbox.clone() }
    }
}

impl<DB: Dialect> fmt::Debug for Inbox<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").field("options", &self.inner.options).finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;
    use sqlx::Sqlite;
    use sqlx::sqlite::SqlitePoolOptions;

    /// Goal: an inbox that is opened for the first time while its database's clock is ahead refuses
    /// nothing for that reason later. Oracle: the window once the clock is right. PostgreSQL:
    /// `a_first_opening_by_a_clock_that_is_ahead_refuses_nothing_on_postgres`.
    #[tokio::test]
    async fn memory_does_not_begin_by_a_clock_that_is_ahead() {
        const AHEAD: time::Duration = time::Duration::days(30);
        let pool = SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await.unwrap();
        let mut connection = pool.acquire().await.unwrap();
        Migrator::<Sqlite>::new(Line::Inbox).up(&mut connection).await.unwrap();
        drop(connection);
        let inbox = Inbox::open_as_it_is(pool.clone(), InboxOptions::default()).await.unwrap();
        inbox.memory().reading.now += AHEAD;
        inbox.begin_memory().await.unwrap();
        let window = Inbox::open(pool.clone(), InboxOptions::default()).await.unwrap().window();
        assert_eq!(window.oldest_accepted_at(), window.now - window.retention, "{window:?}");
    }
}
