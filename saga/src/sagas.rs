//! The handle to the tables of sagas.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;

use message::SteadyClock;
use migrations::{Identifier, Line, Migrator};
use outbox::{Bounded, Outbox};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::pool::PoolConnection;
use sqlx::{Pool, Transaction};
use tokio::sync::{Notify, Semaphore};

use crate::base::{Base, turns};
use crate::dialect::Dialect;
use crate::error::{Blocked, OpenError, StartError, StoreError};
use crate::in_transaction::{InTransaction, check_transaction};
use crate::key::SagaId;
use crate::options::WorkerOptions;
use crate::passes::Passes;
use crate::record::{SagaRecord, State};
use crate::registry::{Registry, SagaFunction};
use crate::tables::Tables;
use crate::telemetry;
use crate::worker::Finishing;

/// The handle to the sagas of one database: starts, runs and reads them. Cheap to clone.
pub struct Sagas<DB: Dialect>(pub(crate) Arc<Inner<DB>>);

/// The functions of sagas, and all that their runs share.
pub(crate) struct Inner<DB: Dialect> {
    pub(crate) registry: Registry<DB>,
    pub(crate) base: Arc<Base<DB>>,
}

impl<DB: Dialect> Deref for Inner<DB> {
    type Target = Base<DB>;

    fn deref(&self) -> &Base<DB> {
        &self.base
    }
}

/// A description of [`Sagas`], made by [`Sagas::builder`].
#[must_use = "call open"]
pub struct SagasBuilder<DB: Dialect> {
    pool: Pool<DB>,
    outbox: Outbox<DB>,
    schema: Option<Identifier>,
    registry: Registry<DB>,
    options: WorkerOptions,
    wrong: Option<OpenError>,
    #[cfg(feature = "testing")]
    hook: Option<crate::hook::Hook>,
}

/// The outcome of a start.
#[must_use = "a saga that is already there may have ended"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Started {
    /// The saga is started, if the transaction commits.
    Started,
    /// The same saga, with the same input, was started before and is still remembered.
    AlreadyThere(State),
}

impl<DB: Dialect> Sagas<DB> {
    /// Returns a builder for the sagas of a database. Steps enqueue through the outbox, whose
    /// tables are in the same database.
    pub fn builder(pool: Pool<DB>, outbox: Outbox<DB>) -> SagasBuilder<DB> {
        let (registry, options) = (Registry::new(), WorkerOptions::default());
        SagasBuilder {
            pool,
            outbox,
            schema: None,
            registry,
            options,
            wrong: None,
            #[cfg(feature = "testing")]
            hook: None,
        }
    }

    /// Starts a saga in the caller's transaction, with the latest version that is known here: it
    /// runs if and only if the transaction commits. `tx` is an
    /// [`OutboxTransaction`](outbox::OutboxTransaction) or a [`sqlx::Transaction`]; a connection
    /// [does not compile](InTransaction). In the handler of a consumer, `?` converts the error into
    /// a [`HandlerError`](inbox::HandlerError).
    ///
    /// A name that is still remembered starts nothing. Inputs are compared as JSON, up to a depth
    /// of 64; the order of members and white space do not matter. A saga that has ended is
    /// forgotten after [`WorkerOptions::retention`]; then its name is free.
    ///
    /// On SQLite it refuses a transaction of the caller's own on a connection with `PRAGMA
    /// synchronous` below FULL: a power loss could take back what was acknowledged.
    ///
    /// # Errors
    /// [`StartError`]: roll the transaction back; after an error an
    /// [`OutboxTransaction`](outbox::OutboxTransaction) refuses to commit.
    /// [`StartError::KeyReused`] if the name belongs to a saga with a different input. Not
    /// cancel-safe: drop the transaction with the call.
    pub async fn start<I: Serialize + Sync + ?Sized>(
        &self,
        tx: &mut impl InTransaction<DB>,
        saga_type: &str,
        id: &str,
        input: &I,
    ) -> Result<Started, StartError> {
        tx.begin_call().map_err(Blocked::Failed)?;
        let started = self.start_in(tx.connection(), saga_type, id, input).await;
        tx.end_call(started.as_ref().err().map(StartError::as_failed_call));
        started
    }

    async fn start_in<I: Serialize + Sync + ?Sized>(
        &self,
        connection: &mut DB::Connection,
        saga_type: &str,
        id: &str,
        input: &I,
    ) -> Result<Started, StartError> {
        let id = SagaId::new(saga_type, id)?;
        let Some((version, function)) = self.0.registry.latest(saga_type) else {
            return Err(StartError::UnknownType { saga_type: saga_type.to_owned() });
        };
        let refused = |problem| StartError::Input { saga_type: saga_type.to_owned(), problem };
        let input = serde_json::to_string(input).map_err(|error| refused(error.to_string()))?;
        if let Some(function) = function {
            function.check(&input).map_err(refused)?;
        }
        check_transaction::<DB>(&mut *connection).await?;
        let tables = &self.0.tables;
        let is_new = tables.insert(&mut *connection, &id, version, &input).await;
        let is_new = is_new.map_err(StoreError::during("start a saga"))?;
        if is_new {
            telemetry::started(saga_type);
            return Ok(Started::Started);
        }
        let found = tables.find(connection, &id).await;
        let found = found.map_err(StoreError::during("find a saga that was already started"))?;
        // A transaction that this one cannot see has started it, or it was forgotten just now.
        let found = found.ok_or(sqlx::Error::RowNotFound);
        let found = found.map_err(StoreError::during("read the saga that was already started"))?;
        if is_same(&found.input, &input) {
            Ok(Started::AlreadyThere(found.outline.state))
        } else {
            Err(StartError::KeyReused { id })
        }
    }

    /// Wakes the worker of this process. Call it after the commit of a start. Without it, the
    /// worker finds the saga at its next poll ([`WorkerOptions::poll_max`]).
    pub fn wake(&self) {
        self.0.notify.notify_one();
    }

    /// Returns the pool of the database that has the tables.
    #[must_use]
    pub fn pool(&self) -> &Pool<DB> {
        self.0.db.pool()
    }

    pub(crate) async fn acquire(&self) -> Result<PoolConnection<DB>, StoreError> {
        self.0.acquire().await
    }

    /// Waits for a call to the database, limited by the call timeout.
    pub(crate) async fn call<T>(
        &self,
        what: &'static str,
        call: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, StoreError> {
        self.0.db.call(call).await.map_err(StoreError::during(what))
    }

    /// Begins a transaction. Cancel-safe.
    pub(crate) async fn begin<F>(
        &self,
        what: &'static str,
        begin: impl FnOnce(PoolConnection<DB>) -> F,
    ) -> Result<Transaction<'static, DB>, StoreError>
    where
        F: Future<Output = Result<Transaction<'static, DB>, sqlx::Error>> + Send + 'static,
    {
        self.0.db.begin(begin).await.map_err(StoreError::during(what))
    }

    pub(crate) async fn find(&self, id: &SagaId) -> Result<Option<SagaRecord>, StoreError> {
        let mut connection = self.acquire().await?;
        self.call("find a saga", self.0.tables.find(&mut connection, id)).await
    }
}

/// Returns whether two texts are the same JSON. Numbers are compared as texts: a
/// [`serde_json::Value`] would round long ones and treat different amounts as equal.
fn is_same(one: &str, other: &str) -> bool {
    let content = |text: &str| message::canonical_json::canonical(text.as_bytes());
    one == other || content(one).is_some_and(|one| Some(one) == content(other))
}

impl<DB: Dialect> SagasBuilder<DB> {
    /// Registers the function of a version of a type. Sagas keep the version they were started
    /// with: keep an old version until none of its sagas is left.
    ///
    /// Each run gets its own clone of the values that a closure has captured by move, so what it
    /// changes in them is lost after the run. Capture handles, as here a client, and keep the
    /// state of a saga in the results of its steps:
    ///
    /// ```no_run
    /// # use saga::{Run, StepKey, Stop};
    /// # #[derive(Clone)]
    /// # struct Bank;
    /// # impl Bank { async fn charge(&self, _: &StepKey, _: i64) -> Result<String, std::io::Error> { Ok(String::new()) } }
    /// # async fn example(pool: sqlx::PgPool, outbox: outbox::Outbox<sqlx::Postgres>, bank: Bank) -> Result<(), saga::OpenError> {
    /// let sagas = saga::Sagas::builder(pool, outbox)
    ///     .saga("payment", 1, async move |saga: &mut Run<sqlx::Postgres>, cents: i64| {
    ///         let charge: String =
    ///             saga.call("charge", async |key: &StepKey| bank.charge(key, cents).await).await?;
    ///         Ok::<_, Stop>(charge)
    ///     })
    ///     .open()
    ///     .await?;
    /// # drop(sagas); Ok(()) }
    /// ```
    pub fn saga<F, I, O>(mut self, saga_type: impl Into<String>, version: u16, function: F) -> Self
    where
        F: for<'r> SagaFunction<'r, DB, I, O> + Clone + Send + Sync + 'static,
        I: DeserializeOwned + Send + 'static,
        O: Serialize + 'static,
    {
        let added = self.registry.add(saga_type.into(), version, function);
        self.wrong = self.wrong.or(added.err());
        self
    }

    /// Registers a version of a type that this process only starts and another process runs.
    pub fn starts(mut self, saga_type: impl Into<String>, version: u16) -> Self {
        let added = self.registry.insert(saga_type.into(), version, None);
        self.wrong = self.wrong.or(added.err());
        self
    }

    /// Sets the PostgreSQL schema of the tables. Default: found by the `search_path`.
    pub fn schema(mut self, schema: Option<Identifier>) -> Self {
        self.schema = schema;
        self
    }

    /// Sets the hook for crash points.
    #[cfg(feature = "testing")]
    pub fn hook(mut self, hook: crate::hook::Hook) -> Self {
        self.hook = Some(hook);
        self
    }

    /// Sets the options of the worker. Their bounds are checked on opening.
    pub fn options(mut self, options: WorkerOptions) -> Self {
        self.options = options;
        self
    }

    /// Opens the tables, which must exist.
    ///
    /// # Errors
    /// [`OpenError`]: a type or version that cannot be registered, an option out of bounds, a
    /// schema that does not fit (the text names the command to run), or an unavailable database.
    pub async fn open(self) -> Result<Sagas<DB>, OpenError> {
        let Self { pool, outbox, schema, registry, options, .. } = self;
        if let Some(wrong) = self.wrong {
            return Err(wrong);
        }
        let options = options.checked()?;
        let turns = turns(pool.options().get_max_connections());
        let db = Bounded::new(pool, options.call_timeout);
        let mut connection = db.acquire().await.map_err(StoreError::during("give a connection"))?;
        let lines = Migrator::<DB>::new(Line::Saga).schema(schema.clone());
        db.any(Box::pin(lines.check(&mut connection)))
            .await
            .map_err(StoreError::during("check its tables"))??;
        drop(connection);
        let tables = Tables::new(schema.as_ref());
        let notify = Notify::new();
        let base = Base {
            db,
            clock: SteadyClock::start(),
            turns: Semaphore::new(turns),
            outbox,
            tables,
            options,
            notify,
            finishing: Finishing::default(),
            passes: Passes::default(),
            #[cfg(feature = "testing")]
            hook: self.hook,
        };
        Ok(Sagas(Arc::new(Inner { registry, base: Arc::new(base) })))
    }
}

impl<DB: Dialect> Clone for Sagas<DB> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<DB: Dialect> fmt::Debug for Sagas<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sagas").field("runnable", &self.0.registry.runnable()).finish_non_exhaustive()
    }
}

impl<DB: Dialect> fmt::Debug for SagasBuilder<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SagasBuilder").field("options", &self.options).finish_non_exhaustive()
    }
}
