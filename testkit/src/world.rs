//! Database, relay and broker of a test.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use brokers::memory::Broker;
use engine::{EngineOptions, Pipeline};
use inbox::{Inbox, InboxOptions};
use message::token::DriftWindow;
use message::{MaxInFlightPerKey, Source};
use migrations::Line;
use outbox::{Enqueued, NewMessage, Outbox};
use outbox_log::entries::LogEntries;
use outbox_log::{LogOptions, LogStore, RelayName};
use sqlx::{Pool, Sqlite};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::consuming::Crash;
use crate::database::Database;
use crate::failure::Failure;
use crate::home::{self, Home, Open, connection};
use crate::observed::Watched;

/// The relay's name in the database.
pub(crate) const RELAY: &str = "testkit";

/// Maximum time for which [`World::quiet`] waits. Only a failing test waits that long.
const PATIENCE: Duration = Duration::from_secs(20);

/// A producer's database, a relay, a broker and consumers in one process, isolated from all other
/// worlds. Dropping it ends and removes everything.
///
/// `World` is on SQLite, `World<Postgres>` on PostgreSQL.
pub struct World<DB: Database = Sqlite> {
    pub(crate) pool: Pool<DB>,
    pub(crate) outbox: Outbox<DB>,
    pub(crate) inbox: Inbox<DB>,
    pub(crate) broker: Broker,
    pub(crate) patience: Duration,
    pub(crate) watched: Mutex<Watched>,
    pub(crate) tasks: Mutex<JoinSet<()>>,
    /// Shared with every consumer, to crash it on demand.
    pub(crate) crash: Arc<Crash>,
    pub(crate) entries: Arc<dyn LogEntries>,
    relay: Mutex<Option<AbortHandle>>,
    store: Arc<dyn LogStore>,
    settings: EngineOptions,
    stop: CancellationToken,
    /// The last field, because it is removed when everything else has ended.
    _home: Home<DB>,
}

/// The builder of a [`World`], returned by [`World::builder`].
#[derive(Clone)]
pub struct WorldBuilder<DB: Database = Sqlite> {
    pub(crate) open: Open<DB>,
    pub(crate) settings: EngineOptions,
    pub(crate) inbox: InboxOptions,
    pub(crate) patience: Duration,
}

impl<DB: Database> WorldBuilder<DB> {
    /// Changes the options of the relay. The defaults are those of production, but with short
    /// pauses and a short lease.
    #[must_use]
    pub fn relay(mut self, change: impl FnOnce(&mut EngineOptions)) -> Self {
        change(&mut self.settings);
        self
    }

    message::setters! {
        /// Sets the options of the inbox: the ids that it accepts, and how long it remembers them.
        inbox: InboxOptions,
        /// Sets the maximum time that [`World::quiet`] waits. The default is 20 s.
        patience: Duration,
    }

    /// Creates the database with its tables, and starts the relay.
    ///
    /// # Errors
    /// The database could not be created. On PostgreSQL the text names the remedy.
    pub async fn build(self) -> Result<World<DB>, Failure> {
        let home = (self.open)().await?;
        home.migrate(&Line::ALL).await?;
        home.run(DB::RECORDS, "create the tables of records").await?;
        let source = Source::new("/testkit").map_err(Failure::during("name the source"))?;
        let options = LogOptions::default();
        let store = outbox_log::open(home.address.clone(), source.clone(), options.clone())
            .map_err(Failure::during("open the outbox"))?;
        let (_, entries) = outbox_log::entries::open(home.address.clone(), source, options)
            .map_err(Failure::during("open the outbox"))?;
        // Tests create old ids, to see how consumers handle them.
        let outbox = Outbox::builder().ids_accepted(DriftWindow::WIDEST).build();
        let inbox =
            Inbox::open(home.pool.clone(), self.inbox).await.map_err(Failure::during("open the inbox"))?;
        let world = World {
            pool: home.pool.clone(),
            inbox: inbox.with_outbox(outbox.clone()),
            outbox,
            broker: Broker::new(),
            patience: self.patience,
            watched: Mutex::default(),
            tasks: Mutex::default(),
            crash: Arc::default(),
            entries,
            relay: Mutex::default(),
            store,
            settings: self.settings,
            stop: CancellationToken::new(),
            _home: home,
        };
        world.start_relay()?;
        Ok(world)
    }
}

impl<DB: Database> std::fmt::Debug for WorldBuilder<DB> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorldBuilder")
            .field("database", &DB::DIALECT)
            .field("settings", &self.settings)
            .field("inbox", &self.inbox)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

impl World {
    /// Creates a world on SQLite with the defaults.
    ///
    /// # Errors
    /// Those of [`WorldBuilder::build`].
    pub async fn new() -> Result<Self, Failure> {
        Self::builder().build().await
    }

    /// Returns a builder for a world, which is on SQLite unless
    /// [`WorldBuilder::postgres`](crate::WorldBuilder) changes it.
    #[must_use]
    pub fn builder() -> WorldBuilder {
        let settings = EngineOptions::default()
            // Another relay takes over from a killed one after this time.
            .lease_ttl(Duration::from_millis(600))
            .checkpoint_interval(Duration::from_millis(20))
            .poll_max(Duration::from_millis(5))
            .retry_initial(Duration::from_millis(5))
            .retry_max(Duration::from_millis(50))
            .outage_delay_max(Duration::from_millis(50));
        WorldBuilder { open: home::sqlite(), settings, inbox: InboxOptions::default(), patience: PATIENCE }
    }
}

impl<DB: Database> World<DB> {
    /// Returns the database, for the tables of the service under test. It also holds the tables of
    /// outbox, inbox, idempotency keys and sagas.
    #[must_use]
    pub fn pool(&self) -> &Pool<DB> {
        &self.pool
    }

    /// Returns the outbox with which a producer under test enqueues.
    #[must_use]
    pub fn outbox(&self) -> &Outbox<DB> {
        &self.outbox
    }

    /// Returns the inbox with which a consumer under test admits messages. Its handlers enqueue
    /// with [`outbox`](Self::outbox).
    #[must_use]
    pub fn inbox(&self) -> &Inbox<DB> {
        &self.inbox
    }

    /// Returns the broker, for its logs and its faults.
    #[must_use]
    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    /// Enqueues messages in a separate transaction.
    ///
    /// # Errors
    /// The outbox or the database refuses.
    pub async fn enqueue(
        &self,
        messages: impl IntoIterator<Item = NewMessage> + Send,
    ) -> Result<Vec<Enqueued>, Failure> {
        let what = "enqueue";
        let mut tx = self.pool.begin().await.map_err(Failure::during(what))?;
        let enqueued = self.outbox.enqueue_batch(&mut tx, messages).await.map_err(Failure::during(what))?;
        tx.commit().await.map_err(Failure::during(what))?;
        self.outbox.wake_up().wake();
        Ok(enqueued)
    }

    /// Runs statements of the test, such as the creation of a table or the insertion of a row.
    ///
    /// # Errors
    /// The database refuses or is unreachable.
    pub async fn execute(&self, sql: &'static str) -> Result<(), Failure> {
        let mut connection = connection(&self.pool).await?;
        DB::run_script(&mut connection, sql).await.map_err(Failure::during("run the test's statement"))
    }

    /// Returns the single number that a query of the test yields: an integer of any size. Cast
    /// other numbers, such as a `sum` on PostgreSQL, to `bigint`.
    ///
    /// # Errors
    /// The database refuses or is unreachable, or the answer is not an integer.
    pub async fn number(&self, sql: &'static str) -> Result<i64, Failure> {
        let mut connection = connection(&self.pool).await?;
        DB::query_number(&mut connection, sql).await.map_err(Failure::during("run the test's query"))
    }

    /// Kills the relay at any point of its work, as `kill -9` does, and starts another. Messages
    /// that were published but not recorded yet are published again, once the old lease has
    /// expired.
    ///
    /// # Errors
    /// The new relay could not be started.
    pub fn crash_relay(&self) -> Result<(), Failure> {
        if let Some(relay) = lock(&self.relay).take() {
            relay.abort();
        }
        self.start_relay()
    }

    fn start_relay(&self) -> Result<(), Failure> {
        let name = RelayName::new(RELAY).map_err(Failure::during("name the relay"))?;
        let connector = Arc::new(self.broker.connector(MaxInFlightPerKey::Pipelined));
        let hint: Arc<Notify> = self.outbox.wake_up().notify();
        let pipeline =
            Pipeline::new(name, Arc::clone(&self.store), connector, self.settings.clone()).with_notify(hint);
        let stop = self.stop.clone();
        let running = lock(&self.tasks).spawn(async move { pipeline.run(stop).await });
        *lock(&self.relay) = Some(running);
        Ok(())
    }
}

impl<DB: Database> std::fmt::Debug for World<DB> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World")
            .field("database", &DB::DIALECT)
            .field("broker", &self.broker)
            .finish_non_exhaustive()
    }
}

/// Locks a mutex. A test that panicked while it held the mutex has already failed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
