//! A migrated database of the test's own, and the one place where tests send SQL made of texts.

use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};

use migrations::Line;
use sqlx::{AssertSqlSafe, PgConnection, Pool, Postgres, Sqlite, SqliteConnection};

use crate::backends::Backend;
use crate::copies;
use crate::roles::Role;
use crate::stage::{Stage, random};
use crate::trial::{Failure, Outcome};

/// Connections of one test's pool.
const CONNECTIONS: u32 = 24;

/// A database that the suites run on.
pub trait Dialect: outbox::Dialect + inbox::dialect::Dialect + inbox::keys::KeyStore + saga::Dialect {
    /// Which one.
    const BACKEND: Backend;

    /// Creates an empty database, which is removed with the stage; returns its administrator's URL.
    fn create(stage: &Stage) -> impl Future<Output = Result<String, Failure>> + Send;

    /// Creates a database with every table of the toolkit, of which each role may use what it
    /// needs; it is removed with the stage. Returns its administrator's URL.
    fn create_migrated(stage: &Stage) -> impl Future<Output = Result<String, Failure>> + Send;

    /// The URL of a role; the same for all where the database has no roles.
    ///
    /// # Errors
    /// The URL has no user.
    fn url_of(role: Role, admin: &str) -> Result<String, Failure>;

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

/// Ends a transaction as a timeout does that fires while a savepoint begins: sqlx rolls back the
/// whole of it, and the handle stays usable.
pub async fn drop_a_begin<C: sqlx::Connection>(connection: &mut C) {
    // One that is begun at once is rolled back alone.
    while futures_util::poll!(std::pin::pin!(connection.begin())).is_ready() {}
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
        Ok(with_stage(stage, copies::postgres("").await?))
    }

    async fn create_migrated(stage: &Stage) -> Result<String, Failure> {
        Ok(with_stage(stage, copies::migrated_postgres(&Line::ALL).await?))
    }

    fn url_of(role: Role, admin: &str) -> Result<String, Failure> {
        role.url(admin)
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

/// Has a database of PostgreSQL removed with the stage.
fn with_stage(stage: &Stage, url: String) -> String {
    let ended = url.clone();
    stage.afterwards("a database", async move {
        copies::remove_postgres(&ended);
        Ok(())
    });
    url
}

fn sqlite_file(stage: &Stage) -> PathBuf {
    stage.folder().join(format!("t_{}.db", random()))
}

fn sqlite_url(file: &Path) -> String {
    format!("sqlite://{}?mode=rwc", file.display())
}

impl Dialect for Sqlite {
    const BACKEND: Backend = Backend::Sqlite;

    async fn create(stage: &Stage) -> Result<String, Failure> {
        Ok(sqlite_url(&sqlite_file(stage)))
    }

    async fn create_migrated(stage: &Stage) -> Result<String, Failure> {
        let file = sqlite_file(stage);
        copies::migrated_sqlite(&Line::ALL, &file).await?;
        Ok(sqlite_url(&file))
    }

    fn url_of(_: Role, admin: &str) -> Result<String, Failure> {
        Ok(admin.to_owned())
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

impl Database<Postgres> {
    /// A database without tables, made with these options of `CREATE DATABASE`.
    ///
    /// # Errors
    /// The server refused or is away.
    pub async fn empty_with(stage: &Stage, options: &str) -> Result<Self, Failure> {
        Self::at(stage, with_stage(stage, copies::postgres(options).await?))
    }

    /// The database of this administrator's URL, with every table of the toolkit.
    ///
    /// # Errors
    /// The server refused or is away.
    pub async fn migrated_at(stage: &Stage, url: String) -> Result<Self, Failure> {
        let database = Self::at(stage, url)?;
        let mut connection = database.admin.acquire().await?;
        copies::migrate(&mut connection, &Line::ALL).await?;
        drop(connection);
        Ok(database)
    }

    /// Makes this database one of a cloud that refuses the functions of the write-ahead log, with
    /// the words of Aurora. A builtin function is called by its oid, so it gets another name, and
    /// one that refuses gets its own; both stay within this database.
    ///
    /// # Errors
    /// The administrator is no superuser.
    pub async fn refuse_wal_functions(&self) -> Outcome {
        self.execute(
            "SET allow_system_table_mods = on;
             ALTER FUNCTION pg_catalog.pg_current_wal_lsn() RENAME TO pg_current_wal_lsn_of_the_server;
             CREATE FUNCTION pg_catalog.pg_current_wal_lsn() RETURNS pg_lsn LANGUAGE plpgsql AS $$
             BEGIN
                RAISE EXCEPTION 'wal_level must be set to ''logical''' USING ERRCODE = '55000';
             END $$;
             RESET allow_system_table_mods",
        )
        .await
    }

    /// Its name.
    ///
    /// # Errors
    /// The URL names no database.
    pub fn name(&self) -> Result<&str, Failure> {
        Ok(self.url.rsplit_once('/').ok_or("a URL without a database")?.1)
    }
}

/// A database of the test's own. On PostgreSQL everybody connects as the role that has the fewest
/// rights; only what a test itself looks at and breaks is done as the administrator.
pub struct Database<DB: Dialect> {
    /// Where it is, for its administrator.
    pub url: String,
    /// Connections of the administrator.
    pub admin: Pool<DB>,
    /// Connections of a producer, as the toolkit recommends them.
    pub producer: Pool<DB>,
    /// Connections of a consumer, as the toolkit recommends them.
    pub consumer: Pool<DB>,
    /// Connections of a service that takes idempotency keys, as the toolkit recommends them.
    pub service: Pool<DB>,
}

impl<DB: Dialect> Database<DB> {
    /// A database with every table of the toolkit.
    ///
    /// # Errors
    /// The server refused or is away.
    pub async fn migrated(stage: &Stage) -> Result<Self, Failure> {
        Self::at(stage, DB::create_migrated(stage).await?)
    }

    /// A database without tables.
    ///
    /// # Errors
    /// The server refused or is away.
    pub async fn empty(stage: &Stage) -> Result<Self, Failure> {
        Self::at(stage, <DB as Dialect>::create(stage).await?)
    }

    /// The same database with pools of its own, whose sessions begin anew.
    ///
    /// # Errors
    /// The URL has no user.
    pub fn reopened(&self, stage: &Stage) -> Result<Self, Failure> {
        Self::at(stage, self.url.clone())
    }

    /// The same database at another address, such as that of a pooler.
    ///
    /// # Errors
    /// The URL has no user.
    pub fn reached_at(&self, stage: &Stage, url: String) -> Result<Self, Failure> {
        Self::at(stage, url)
    }

    fn at(stage: &Stage, url: String) -> Result<Self, Failure> {
        let pool = |url: &str| {
            let options = <DB as outbox::Dialect>::options(url, false)?;
            // The roles may not exist yet.
            let pool = outbox::pool_options::<DB>().max_connections(CONNECTIONS).connect_lazy_with(options);
            let closing = pool.clone();
            stage.afterwards(format!("pool of {}", DB::DIALECT), async move {
                closing.close().await;
                Ok(())
            });
            Ok::<_, Failure>(pool)
        };
        Ok(Self {
            admin: pool(&url)?,
            producer: pool(&DB::url_of(Role::Producer, &url)?)?,
            consumer: pool(&DB::url_of(Role::Consumer, &url)?)?,
            service: pool(&DB::url_of(Role::Service, &url)?)?,
            url,
        })
    }

    /// Where the relay finds it.
    ///
    /// # Errors
    /// The URL has no user.
    pub fn relay_url(&self) -> Result<String, Failure> {
        DB::url_of(Role::Relay, &self.url)
    }

    /// Lets a role use tables of the service, with the numbers of their rows, in every way but to
    /// remove or change their definition.
    ///
    /// # Errors
    /// The database's.
    pub async fn let_use(&self, role: Role, tables: &str) -> Outcome {
        if DB::BACKEND == Backend::Sqlite {
            return Ok(());
        }
        let user = role.user();
        self.execute(&format!(
            "GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {user};
             GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {user}"
        ))
        .await
    }

    /// Runs one or more statements, each committed by itself.
    ///
    /// # Errors
    /// The database's.
    pub async fn execute(&self, sql: &str) -> Outcome {
        let mut connection = self.admin.acquire().await?;
        <DB as Dialect>::execute(&mut connection, sql).await?;
        Ok(())
    }

    /// One number.
    ///
    /// # Errors
    /// The database's, or there is no row.
    pub async fn integer(&self, sql: &str) -> Result<i64, Failure> {
        let mut connection = self.admin.acquire().await?;
        let first = <DB as Dialect>::integers(&mut connection, sql).await?.first().copied();
        first.ok_or_else(|| format!("no row: {sql}").into())
    }

    /// The first column of all rows, as texts.
    ///
    /// # Errors
    /// The database's.
    pub async fn texts(&self, sql: &str) -> Result<Vec<String>, Failure> {
        let mut connection = self.admin.acquire().await?;
        Ok(<DB as Dialect>::texts(&mut connection, sql).await?)
    }

    /// Appends an entry in a transaction of its own; returns its place.
    ///
    /// # Errors
    /// The database's.
    pub async fn append(&self, topic: &str, key: &str, payload: &str) -> Result<i64, Failure> {
        let mut connection = self.producer.acquire().await?;
        Ok(DB::append(&mut connection, topic, key, payload).await?)
    }
}

impl<DB: Dialect> Clone for Database<DB> {
    fn clone(&self) -> Self {
        Self {
            url: self.url.clone(),
            admin: self.admin.clone(),
            producer: self.producer.clone(),
            consumer: self.consumer.clone(),
            service: self.service.clone(),
        }
    }
}

impl<DB: Dialect> fmt::Debug for Database<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} database", DB::DIALECT)
    }
}
