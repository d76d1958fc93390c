//! A migrated database of the test's own, and the one place where tests send SQL made of texts.

use std::fmt;
use std::future::Future;

use migrations::{Line, Migrator};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Pool, Postgres, Sqlite, SqliteConnection};

use crate::backends::Backend;
use crate::stage::Stage;
use crate::trial::{Failure, Outcome};

/// Connections of one test's pool.
const CONNECTIONS: u32 = 24;

/// A database that the suites run on.
pub trait Dialect: outbox::Dialect + inbox::dialect::Dialect {
    /// Which one.
    const BACKEND: Backend;

    /// Creates an empty database, which is removed with the stage; returns its URL.
    fn create(stage: &Stage) -> impl Future<Output = Result<String, Failure>> + Send;

    /// Runs one or more statements; returns the affected rows.
    fn execute(
        connection: &mut Self::Connection,
        sql: &str,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    /// The first column of all rows, as numbers.
    fn integers(
        connection: &mut Self::Connection,
        sql: &str,
    ) -> impl Future<Output = Result<Vec<i64>, sqlx::Error>> + Send;

    /// The first column of all rows, as texts.
    fn texts(
        connection: &mut Self::Connection,
        sql: &str,
    ) -> impl Future<Output = Result<Vec<String>, sqlx::Error>> + Send;

    /// Inserts an entry as a producer without the toolkit does; returns its place.
    fn append(
        connection: &mut Self::Connection,
        topic: &str,
        key: &str,
        payload: &str,
    ) -> impl Future<Output = Result<i64, sqlx::Error>> + Send;
}

macro_rules! queries {
    ($connection:ty) => {
        async fn execute(connection: &mut $connection, sql: &str) -> Result<u64, sqlx::Error> {
            Ok(sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await?.rows_affected())
        }

        async fn integers(connection: &mut $connection, sql: &str) -> Result<Vec<i64>, sqlx::Error> {
            sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(connection).await
        }

        async fn texts(connection: &mut $connection, sql: &str) -> Result<Vec<String>, sqlx::Error> {
            sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(connection).await
        }
    };
}

impl Dialect for Postgres {
    const BACKEND: Backend = Backend::Postgres;

    async fn create(stage: &Stage) -> Result<String, Failure> {
        let server = Backend::Postgres.address()?;
        let name = stage.unique("t");
        let mut admin = PgConnection::connect(&server).await?;
        Self::execute(&mut admin, &format!("CREATE DATABASE {name}")).await?;
        admin.close().await?;
        let (base, _) = server.rsplit_once('/').ok_or("OUTBOX_POSTGRES_URL names no database")?;
        let url = format!("{base}/{name}");
        stage.afterwards(format!("database {name}"), async move {
            let mut admin = PgConnection::connect(&server).await?;
            Self::execute(&mut admin, &format!("DROP DATABASE {name} WITH (FORCE)")).await?;
            admin.close().await?;
            Ok(())
        });
        Ok(url)
    }

    queries!(PgConnection);

    async fn append(
        connection: &mut PgConnection,
        topic: &str,
        key: &str,
        payload: &str,
    ) -> Result<i64, sqlx::Error> {
        sqlx::query_scalar(
            "INSERT INTO outbox_message (topic, key, payload) VALUES ($1, $2, convert_to($3, 'UTF8')) RETURNING id",
        )
        .bind(topic)
        .bind(key)
        .bind(payload)
        .fetch_one(connection)
        .await
    }
}

impl Dialect for Sqlite {
    const BACKEND: Backend = Backend::Sqlite;

    async fn create(stage: &Stage) -> Result<String, Failure> {
        let file = stage.folder().join(format!("{}.db", stage.unique("t")));
        Ok(format!("sqlite://{}?mode=rwc", file.display()))
    }

    queries!(SqliteConnection);

    async fn append(
        connection: &mut SqliteConnection,
        topic: &str,
        key: &str,
        payload: &str,
    ) -> Result<i64, sqlx::Error> {
        sqlx::query_scalar(
            "INSERT INTO outbox_message (topic, key, payload) VALUES (?1, ?2, CAST(?3 AS BLOB)) RETURNING id",
        )
        .bind(topic)
        .bind(key)
        .bind(payload)
        .fetch_one(connection)
        .await
    }
}

/// A database of the test's own.
pub struct Database<DB: Dialect> {
    /// Where it is.
    pub url: String,
    /// Connections to it, as the toolkit recommends them.
    pub pool: Pool<DB>,
}

impl<DB: Dialect> Database<DB> {
    /// A database with the tables of outbox and inbox.
    ///
    /// # Errors
    /// The server refused or is away.
    pub async fn migrated(stage: &Stage) -> Result<Self, Failure> {
        let database = Self::empty(stage).await?;
        let mut connection = database.pool.acquire().await?;
        for line in Line::ALL {
            Migrator::<DB>::new(line).up(&mut connection).await?;
        }
        drop(connection);
        Ok(database)
    }

    /// A database without tables.
    ///
    /// # Errors
    /// The server refused or is away.
    pub async fn empty(stage: &Stage) -> Result<Self, Failure> {
        let url = <DB as Dialect>::create(stage).await?;
        let options = <DB as outbox::Dialect>::options(&url, false)?;
        let pool = outbox::pool_options::<DB>().max_connections(CONNECTIONS).connect_with(options).await?;
        let closing = pool.clone();
        stage.afterwards(format!("pool of {}", DB::DIALECT), async move {
            closing.close().await;
            Ok(())
        });
        Ok(Self { url, pool })
    }

    /// Runs one or more statements, each committed by itself.
    ///
    /// # Errors
    /// The database's.
    pub async fn execute(&self, sql: &str) -> Outcome {
        let mut connection = self.pool.acquire().await?;
        <DB as Dialect>::execute(&mut connection, sql).await?;
        Ok(())
    }

    /// One number.
    ///
    /// # Errors
    /// The database's, or there is no row.
    pub async fn integer(&self, sql: &str) -> Result<i64, Failure> {
        let mut connection = self.pool.acquire().await?;
        let first = <DB as Dialect>::integers(&mut connection, sql).await?.first().copied();
        first.ok_or_else(|| format!("no row: {sql}").into())
    }

    /// The first column of all rows, as texts.
    ///
    /// # Errors
    /// The database's.
    pub async fn texts(&self, sql: &str) -> Result<Vec<String>, Failure> {
        let mut connection = self.pool.acquire().await?;
        Ok(<DB as Dialect>::texts(&mut connection, sql).await?)
    }

    /// Appends an entry in a transaction of its own; returns its place.
    ///
    /// # Errors
    /// The database's.
    pub async fn append(&self, topic: &str, key: &str, payload: &str) -> Result<i64, Failure> {
        let mut connection = self.pool.acquire().await?;
        Ok(DB::append(&mut connection, topic, key, payload).await?)
    }
}

impl<DB: Dialect> Clone for Database<DB> {
    fn clone(&self) -> Self {
        Self { url: self.url.clone(), pool: self.pool.clone() }
    }
}

impl<DB: Dialect> fmt::Debug for Database<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} database", DB::DIALECT)
    }
}
