//! The handle to an inbox.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use message::{CHUNKED_BYTES_MAX, CHUNKED_BYTES_MAX_DEFAULT, SteadyClock};
use migrations::{Identifier, Line, Migrator};
use outbox::Outbox;
use sqlx::pool::PoolConnection;
use sqlx::{Pool, Transaction};

use crate::day::Day;
use crate::dialect::{Dialect, Reading};
use crate::error::OpenError;
use crate::store_error::StoreError;
use crate::tables::Tables;
use crate::window::{DAYS_AHEAD_DEFAULT, Window};
use crate::within::{CALL_TIMEOUT_DEFAULT, CALL_TIMEOUT_MAX, CALL_TIMEOUT_MIN, MAINTENANCE_MAX, within};

/// Default retention of ids.
pub const RETENTION_DEFAULT: Duration = Duration::from_secs(14 * 86_400);
/// Minimum retention.
pub const RETENTION_MIN: Duration = Duration::from_secs(86_400);
/// Maximum retention. There is one partition per day, and planning an insert gets slower with their
/// number.
pub const RETENTION_MAX: Duration = Duration::from_secs(366 * 86_400);
/// Default for how far ahead of the database's clock an id may be.
pub const SKEW_MAX_DEFAULT: Duration = Duration::from_secs(300);
/// Maximum clock skew that can be allowed.
pub const SKEW_MAX_MAX: Duration = Duration::from_secs(86_400);

/// Default time that the chunks of a message wait for the missing ones.
pub const INCOMPLETE_RETENTION_DEFAULT: Duration = Duration::from_secs(86_400);
/// Minimum time that they wait.
pub const INCOMPLETE_RETENTION_MIN: Duration = Duration::from_secs(60);

/// Default retention of operators' decisions: three years.
pub const AUDIT_RETENTION_DEFAULT: Duration = Duration::from_secs(1_096 * 86_400);
/// Minimum retention of operators' decisions.
pub const AUDIT_RETENTION_MIN: Duration = Duration::from_secs(31 * 86_400);
/// Maximum retention of operators' decisions: a century.
pub const AUDIT_RETENTION_MAX: Duration = Duration::from_secs(36_525 * 86_400);

/// Maximum number of days created ahead of time.
pub const DAYS_AHEAD_MAX: u32 = 360;

/// Rule for when two payloads with one id are the same message. A different payload is refused
/// ([`Refusal::KeyReused`](crate::Refusal::KeyReused)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PayloadComparison {
    /// Equal bytes. A relay sends exactly what was enqueued.
    #[default]
    Bytes,
    /// Equal bytes, or JSON with the same content. For producers that serialize a message again
    /// when they resend it, with members in another order or with other white space. Numbers are
    /// compared as they are written (`1.0` is not `1`). JSON with duplicate members or more than 64
    /// levels is compared byte by byte, and so are chunks of a message. Each message with a JSON
    /// content type is parsed once more.
    CanonicalJson,
}

/// Rule for whether the same id from another source is the same message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceComparison {
    /// It is another message, and is refused
    /// ([`Refusal::OtherSource`](crate::Refusal::OtherSource)). CloudEvents are identified by
    /// source and id, and producers that derive ids can make equal ones.
    #[default]
    Compared,
    /// It is the same message: for one outbox whose pipelines have different sources.
    Ignored,
}

/// Options of an inbox.
#[derive(Debug, Clone)]
pub struct InboxOptions {
    /// How long ids are remembered: [`RETENTION_MIN`] to [`RETENTION_MAX`], 14 days by default.
    /// Choose two to three times the longest time after which a duplicate can arrive (Kafka replay,
    /// redrive of a dead-letter queue, SQS's 14 days), and more than the longest outage of a
    /// consumer.
    pub retention: Duration,
    /// How far ahead of the database's clock an id may be: up to one day, 5 minutes by default.
    pub skew_max: Duration,
    /// How long resolved dead letters are kept: 30 days by default. Open ones are kept forever.
    pub dead_letter_retention: Duration,
    /// How long decisions of operators are kept: [`AUDIT_RETENTION_MIN`] to
    /// [`AUDIT_RETENTION_MAX`], [three years](AUDIT_RETENTION_DEFAULT) by default. A redrive that
    /// was not carried out yet is kept forever.
    pub audit_retention: Duration,
    /// How long the chunks of a message wait for the missing ones: 1 minute to [`RETENTION_MAX`],
    /// 24 hours by default. After that, the next maintenance dead-letters the message as
    /// incomplete. Choose more than the longest outage of a relay or of the consumer, because a
    /// message may be half sent or half received when the outage begins. A consumer does this for
    /// its own messages; those of another one it leaves for `retention`, if that is longer.
    pub incomplete_retention: Duration,
    /// Maximum payload that is assembled from chunks, in bytes: 64 MiB by default, at most
    /// [`CHUNKED_BYTES_MAX`]. It is held in memory while its handler runs. Leave room for three
    /// times as much: a message that fails is given up after some attempts, but not one whose
    /// assembly already ends the process.
    pub chunked_bytes_max: usize,
    /// How long a consumer waits for an answer of the database: [`CALL_TIMEOUT_MIN`] to
    /// [`CALL_TIMEOUT_MAX`], 120 s by default. Then it drops the connection and tries again. Choose
    /// more than the slowest handler takes, because a copy of its message waits for it.
    pub call_timeout: Duration,
    /// When two payloads with one id are the same message: [`PayloadComparison::Bytes`] by default.
    pub payloads: PayloadComparison,
    /// Whether the same id from another source is the same message: by default it is refused.
    pub sources: SourceComparison,
    /// Number of days (UTC) whose partitions are created ahead of time, on PostgreSQL: 1 to
    /// [`DAYS_AHEAD_MAX`], 2 by default. Use more when another system has to copy each new table
    /// first, as with logical replication.
    pub days_ahead: u32,
    /// The PostgreSQL schema of the tables; `None` uses the `search_path`. Set it when the pool's
    /// `after_connect` sets the `search_path`: a missing day is created over a connection of its
    /// own, without that hook. SQLite has no schemas.
    pub schema: Option<Identifier>,
}

impl Default for InboxOptions {
    fn default() -> Self {
        Self {
            retention: RETENTION_DEFAULT,
            skew_max: SKEW_MAX_DEFAULT,
            dead_letter_retention: Duration::from_secs(30 * 86_400),
            audit_retention: AUDIT_RETENTION_DEFAULT,
            incomplete_retention: INCOMPLETE_RETENTION_DEFAULT,
            chunked_bytes_max: CHUNKED_BYTES_MAX_DEFAULT,
            call_timeout: CALL_TIMEOUT_DEFAULT,
            payloads: PayloadComparison::Bytes,
            sources: SourceComparison::Compared,
            days_ahead: DAYS_AHEAD_DEFAULT,
            schema: None,
        }
    }
}

impl InboxOptions {
    fn check(&self) -> Result<(), OpenError> {
        let bounded = |what, value, min, max| {
            if (min..=max).contains(&value) {
                Ok(())
            } else {
                Err(OpenError::OutOfBounds { what, value, min, max })
            }
        };
        bounded("audit retention", self.audit_retention, AUDIT_RETENTION_MIN, AUDIT_RETENTION_MAX)?;
        bounded("retention", self.retention, RETENTION_MIN, RETENTION_MAX)?;
        bounded("call timeout", self.call_timeout, CALL_TIMEOUT_MIN, CALL_TIMEOUT_MAX)?;
        bounded("allowed clock skew", self.skew_max, Duration::ZERO, SKEW_MAX_MAX)?;
        let min = INCOMPLETE_RETENTION_MIN;
        let max = RETENTION_MAX;
        bounded("retention of incomplete messages", self.incomplete_retention, min, max)?;
        if !(1..=DAYS_AHEAD_MAX).contains(&self.days_ahead) {
            return Err(OpenError::DaysAhead { days: self.days_ahead });
        }
        if self.chunked_bytes_max > CHUNKED_BYTES_MAX {
            return Err(OpenError::ChunksTooLarge { bytes_max: self.chunked_bytes_max });
        }
        Ok(())
    }
}

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
        within(limit, "begin the inbox's memory", Box::pin(inbox.begin_memory())).await?;
        within(MAINTENANCE_MAX, "create days", Box::pin(inbox.ensure_days())).await?;
        Ok(inbox)
    }

    /// Stores from when it remembers ids, unless that is stored, and reads what is there.
    async fn begin_memory(&self) -> Result<(), StoreError> {
        if self.memory().reading.retained_from.is_none() {
            let mut connection = self.acquire("give a connection").await?;
            DB::begin_memory(&mut connection, self.tables(), self.window().keep_from())
                .await
                .map_err(StoreError::during("store from when it remembers ids"))?;
        }
        self.refresh().await
    }

    /// Opens an inbox for operators: checks the schema and reads what is there. Unlike
    /// [`open`](Self::open), neither decides where its memory begins nor creates days, because that
    /// depends on the options of its consumers.
    ///
    /// # Errors
    /// As for [`open`](Self::open), except for missing days.
    #[doc(hidden)]
    pub async fn open_for_operators(pool: Pool<DB>, options: InboxOptions) -> Result<Self, OpenError> {
        let inbox = Self::open_as_it_is(pool, options).await?;
        within(inbox.options().call_timeout, "read the days", Box::pin(inbox.read_partitions())).await?;
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

    /// Returns the window for forgetting something for good. It has passed only what is old enough
    /// by the database's clock and by this process's clock, which ignores forward jumps for a day.
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

    /// Begins a transaction. Call it only in a spawned task: a `begin` that is dropped half-way
    /// leaves the pooled session inside a transaction (sqlx 0.9).
    pub(crate) async fn begin_raw(&self, what: &'static str) -> Result<Transaction<'static, DB>, StoreError> {
        DB::begin_writing(self.pool()).await.map_err(StoreError::during(what))
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
