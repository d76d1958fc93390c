//! Reads an inbox to compare it with other records: one consumer, in the order of message ids, in
//! batches.

mod record;

use std::time::Duration;

use async_trait::async_trait;
use migrations::query::{Query, Row};
use migrations::{Identifier, Line, MigrateError, Migrator, Statement};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::dialect::Dialect;
use crate::ids::{ConsumerName, Tenant};
use crate::rows;
use crate::statements::Shared;
use crate::store_error::StoreError;
use crate::tables::Tables;
pub use record::{Remembered, Unfinished};

/// A reader of the inbox of one consumer, for one tenant or all of them. Every call is one short
/// statement, on PostgreSQL in a read-only transaction. Not cancel-safe: after a dropped call, open
/// a new reader.
#[async_trait]
pub trait AppliedIds: Send {
    /// Returns the remembered messages whose message id and tenant are above `after` and
    /// `after_tenant`, and whose id is at most `until`, ascending, at most `rows_max`.
    async fn page(
        &mut self,
        after: Uuid,
        after_tenant: &str,
        until: Uuid,
        rows_max: u32,
    ) -> Result<Vec<Remembered>, StoreError>;

    /// Returns those of the given messages that are remembered.
    async fn find(&mut self, ids: &[Uuid]) -> Result<Vec<Remembered>, StoreError>;

    /// Returns those of the given messages that are known and unfinished. One id may appear several
    /// times.
    async fn unfinished(&mut self, ids: &[Uuid]) -> Result<Vec<(Uuid, Unfinished)>, StoreError>;

    /// Returns where memory begins. Messages generated before are not remembered.
    async fn retained_from(&mut self) -> Result<Option<OffsetDateTime>, StoreError>;
}

/// The consumer and tenant whose messages are read.
#[derive(Debug, Clone)]
pub struct Whose {
    /// The consumer.
    pub consumer: ConsumerName,
    /// One tenant, or all of them.
    pub tenant: Option<Tenant>,
}

/// Opens an inbox in PostgreSQL. No statement takes longer than `statement_timeout`; zero sets no
/// limit.
///
/// # Errors
/// The schema does not match this build, or could not be read.
#[cfg(feature = "postgres")]
pub async fn postgres(
    connection: sqlx::PgConnection,
    schema: Option<&Identifier>,
    whose: Whose,
    statement_timeout: Duration,
) -> Result<Box<dyn AppliedIds>, MigrateError> {
    let memory = Memory::<sqlx::Postgres>::open(connection, schema, whose, statement_timeout);
    Ok(Box::new(memory.await?))
}

/// Opens an inbox in SQLite.
///
/// # Errors
/// The schema does not match this build, or could not be read.
#[cfg(feature = "sqlite")]
pub async fn sqlite(
    connection: sqlx::SqliteConnection,
    whose: Whose,
) -> Result<Box<dyn AppliedIds>, MigrateError> {
    Ok(Box::new(Memory::<sqlx::Sqlite>::open(connection, None, whose, Duration::ZERO).await?))
}

/// See [`AppliedIds`].
struct Memory<DB: Dialect> {
    connection: DB::Connection,
    tables: Tables<DB>,
    whose: Whose,
    statement_timeout: Duration,
}

impl<DB: Dialect> Memory<DB> {
    async fn open(
        mut connection: DB::Connection,
        schema: Option<&Identifier>,
        whose: Whose,
        statement_timeout: Duration,
    ) -> Result<Self, MigrateError> {
        Migrator::<DB>::new(Line::Inbox).schema(schema.cloned()).check(&mut connection).await?;
        Ok(Self { connection, tables: Tables::new(schema), whose, statement_timeout })
    }

    /// Begins a statement about the consumer and its tenant.
    fn query(&self, statement: impl FnOnce(&Shared) -> &Statement) -> Query<DB> {
        let tenant = self.whose.tenant.as_ref().map(Tenant::as_str);
        Query::new(statement(&self.tables.shared)).bind(self.whose.consumer.as_str()).bind(tenant)
    }

    async fn read(&mut self, query: Query<DB>) -> Result<Vec<Row<DB>>, sqlx::Error> {
        DB::read_within(&mut self.connection, query, self.statement_timeout).await
    }

    async fn remembered(&mut self, query: Query<DB>) -> Result<Vec<Remembered>, sqlx::Error> {
        self.read(query).await?.iter().map(rows::remembered).collect()
    }
}

#[async_trait]
impl<DB: Dialect> AppliedIds for Memory<DB> {
    async fn page(
        &mut self,
        after: Uuid,
        after_tenant: &str,
        until: Uuid,
        rows_max: u32,
    ) -> Result<Vec<Remembered>, StoreError> {
        let page = self.query(|sql| &sql.remembered_page).bind(after).bind(after_tenant);
        let page = page.bind(until).bind(rows_max);
        self.remembered(page).await.map_err(StoreError::during("read the inbox"))
    }

    async fn find(&mut self, ids: &[Uuid]) -> Result<Vec<Remembered>, StoreError> {
        let find = self.query(|sql| &sql.remembered).bind(ids);
        self.remembered(find).await.map_err(StoreError::during("look up messages in the inbox"))
    }

    async fn unfinished(&mut self, ids: &[Uuid]) -> Result<Vec<(Uuid, Unfinished)>, StoreError> {
        let failed = || StoreError::during("find attempts and dead letters");
        let query = self.query(|sql| &sql.unfinished).bind(ids);
        let found = self.read(query).await.map_err(failed())?;
        found.iter().map(rows::unfinished).collect::<Result<_, _>>().map_err(failed())
    }

    async fn retained_from(&mut self) -> Result<Option<OffsetDateTime>, StoreError> {
        let failed = || StoreError::during("read the time from which the inbox remembers ids");
        let query = Query::new(&self.tables.shared.retained_from);
        let found = self.read(query).await.map_err(failed())?;
        found.first().map(|row| row.get("retained_from")).transpose().map_err(failed())
    }
}
