//! A migrated database of the test's own, and the one place where tests send SQL that is made from
//! strings.

use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};

use migrations::Line;
use sqlx::{AssertSqlSafe, PgConnection, Pool, Postgres, Sqlite, SqliteConnection};

use crate::backends::Backend;
use crate::copies;
use crate::roles::{self, Role};
use crate::stage::{Stage, random};
use crate::trial::{Failure, Outcome};

/// Maximum connections of each pool.
const CONNECTIONS: u32 = 24;

/// A database that the suites run on.
pub trait Dialect: outbox::Dialect + inbox::Dialect + idempotency::KeyStore + saga::Dialect {
    /// The backend of this dialect.
    const BACKEND: Backend;

    /// Creates an empty database, which is removed with the stage. Returns its administrator's URL.
    fn create(stage: &Stage) -> impl Future<Output = Result<String, Failure>> + Send;

    /// Creates a database with every table of the toolkit, with the rights that each role needs. It
    /// is removed with the stage. Returns its administrator's URL.
    fn create_migrated(stage: &Stage) -> impl Future<Output = Result<String, Failure>> + Send;

    /// Returns the URL of a role; the same for all where the database has no roles.
    ///
    /// # Errors
    /// The URL has no user.
    fn url_of(role: Role, admin: &str) -> Result<String, Failure>;

    /// Runs one or more statements. Returns the number of affected rows.
    fn execute(
        connection: &mut Self::Connection,
        sql: &str,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    /// Returns the first column of all rows, as numbers.
    fn integers(
        connection: &mut Self::Connection,
        sql: &str,
    ) -> impl Future<Output = Result<Vec<i64>, sqlx::Error>> + Send;

    /// Returns the first column of all rows, as texts.
    fn texts(
        connection: &mut Self::Connection,
        sql: &str,
    ) -> impl Future<Output = Result<Vec<String>, sqlx::Error>> + Send;

    /// Inserts an entry as a producer without the toolkit does. Returns its position in the log.
    fn append(
        connection: &mut Self::Connection,
        topic: &str,
        key: &str,
        payload: &str,
    ) -> impl Future<Output = Result<i64, sqlx::Error>> + Send;
}

/// Ends a transaction like a timeout that fires while a savepoint begins: sqlx rolls back all of
/// it, and the handle stays usable.
pub async fn drop_a_begin<C: sqlx::Connection>(connection: &mut C) {
    // A savepoint that begins at once is rolled back alone, so try until one is dropped while
    // pending.
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

/// Registers the removal of a PostgreSQL database with the stage.
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
    /// Creates a database without tables, with these options of `CREATE DATABASE`.
    ///
    /// # Errors
    /// The server refused or is unavailable.
    pub async fn empty_with(stage: &Stage, options: &str) -> Result<Self, Failure> {
        Self::at(stage, with_stage(stage, copies::postgres(options).await?))
    }

    /// Creates every table of the toolkit in the database of this administrator's URL.
    ///
    /// # Errors
    /// The server refused or is unavailable.
    pub async fn migrated_at(stage: &Stage, url: String) -> Result<Self, Failure> {
        let database = Self::at(stage, url)?;
        let mut connection = database.admin.acquire().await?;
        copies::migrate(&mut connection, &Line::ALL).await?;
        drop(connection);
        Ok(database)
    }

    /// Returns the same database with pools that follow the primary among these hosts, as in
    /// `127.0.0.1:5432,127.0.0.1:5433`. The URLs name all of them.
    ///
    /// # Errors
    /// No host is the primary, or refuses a role.
    pub async fn among(&self, stage: &Stage, hosts: &str) -> Result<Self, Failure> {
        let among = |url: &str| url.replace(message::host_list::hosts_of(url), hosts);
        let mut pools = Vec::new();
        for role in [None, Some(Role::Producer), Some(Role::Consumer), Some(Role::Service)] {
            let url = match role {
                Some(role) => Postgres::url_of(role, &self.url)?,
                None => self.url.clone(),
            };
            let pool =
                outbox::pool_with(&among(&url), |options| options.max_connections(CONNECTIONS)).await?;
            let closing = pool.clone();
            stage.afterwards(String::from("a pool that follows the primary"), async move {
                closing.close().await;
                Ok(())
            });
            pools.push(pool);
        }
        let [admin, producer, consumer, service] = <[_; 4]>::try_from(pools).map_err(|_| "four pools")?;
        Ok(Self { url: among(&self.url), admin, producer, consumer, service })
    }

    /// Makes this database refuse the functions of the write-ahead log, with the error of Aurora.
    /// PostgreSQL calls a built-in function by its oid. So the function is renamed, and one that
    /// refuses gets its name. Both changes stay within this database.
    ///
    /// # Errors
    /// The administrator is not a superuser.
    pub async fn refuse_wal_functions(&self) -> Outcome {
        for function in ["pg_current_wal_lsn", "pg_current_wal_insert_lsn"] {
            self.execute(&format!(
                "SET allow_system_table_mods = on;
                 ALTER FUNCTION pg_catalog.{function}() RENAME TO {function}_of_the_server;
                 CREATE FUNCTION pg_catalog.{function}() RETURNS pg_lsn LANGUAGE plpgsql AS $$
                 BEGIN
                    RAISE EXCEPTION 'wal_level must be set to ''logical''' USING ERRCODE = '55000';
                 END $$;
                 RESET allow_system_table_mods"
            ))
            .await?;
        }
        Ok(())
    }

    /// Gives this database to a new user that may create roles but is no superuser, as in a cloud.
    /// Returns it with that user as its administrator.
    ///
    /// # Errors
    /// A statement failed: only a superuser may do this.
    pub async fn given_to_an_owner(&self, stage: &Stage) -> Result<Self, Failure> {
        let owner = stage.unique("owner");
        let password = roles::PASSWORD;
        self.execute(&format!(
            "CREATE ROLE {owner} LOGIN NOSUPERUSER CREATEROLE PASSWORD '{password}';
             ALTER DATABASE {} OWNER TO {owner}",
            self.name()?
        ))
        .await?;
        let superuser = self.clone();
        let removal =
            format!("REASSIGN OWNED BY {owner} TO CURRENT_USER; DROP OWNED BY {owner}; DROP ROLE {owner}");
        stage.afterwards(format!("role {owner}"), async move { superuser.execute(&removal).await });
        Self::at(stage, roles::url_of(&owner, &self.url)?)
    }

    /// Returns its name.
    ///
    /// # Errors
    /// The URL names no database.
    pub fn name(&self) -> Result<&str, Failure> {
        Ok(self.url.rsplit_once('/').ok_or("a URL without a database")?.1)
    }
}

/// A database of the test's own. On PostgreSQL every pool connects as the role with the fewest
/// rights. Only a test's own queries and faults run as the administrator.
pub struct Database<DB: Dialect> {
    /// The administrator's URL.
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
    /// Creates a database with every table of the toolkit.
    ///
    /// # Errors
    /// The server refused or is unavailable.
    pub async fn migrated(stage: &Stage) -> Result<Self, Failure> {
        Self::at(stage, DB::create_migrated(stage).await?)
    }

    /// Creates a database without tables.
    ///
    /// # Errors
    /// The server refused or is unavailable.
    pub async fn empty(stage: &Stage) -> Result<Self, Failure> {
        Self::at(stage, <DB as Dialect>::create(stage).await?)
    }

    /// Returns the same database with its own pools and new sessions.
    ///
    /// # Errors
    /// The URL has no user.
    pub fn reopened(&self, stage: &Stage) -> Result<Self, Failure> {
        Self::at(stage, self.url.clone())
    }

    /// Returns the same database at another address, such as that of a pooler.
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

    /// Returns the relay's URL.
    ///
    /// # Errors
    /// The URL has no user.
    pub fn relay_url(&self) -> Result<String, Failure> {
        DB::url_of(Role::Relay, &self.url)
    }

    /// Grants a role the right to read, insert, update and delete rows of a service's tables, and
    /// to use their sequences.
    ///
    /// # Errors
    /// The connection or a statement failed.
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

    /// Runs one or more statements, each committed separately.
    ///
    /// # Errors
    /// The connection or a statement failed.
    pub async fn execute(&self, sql: &str) -> Outcome {
        let mut connection = self.admin.acquire().await?;
        <DB as Dialect>::execute(&mut connection, sql).await?;
        Ok(())
    }

    /// Returns the first column of the first row as a number.
    ///
    /// # Errors
    /// The connection or the statement failed, or there is no row.
    pub async fn integer(&self, sql: &str) -> Result<i64, Failure> {
        let mut connection = self.admin.acquire().await?;
        let first = <DB as Dialect>::integers(&mut connection, sql).await?.first().copied();
        first.ok_or_else(|| format!("no row: {sql}").into())
    }

    /// Returns the first column of all rows as texts.
    ///
    /// # Errors
    /// The connection or a statement failed.
    pub async fn texts(&self, sql: &str) -> Result<Vec<String>, Failure> {
        let mut connection = self.admin.acquire().await?;
        Ok(<DB as Dialect>::texts(&mut connection, sql).await?)
    }

    /// Appends an entry in a separate transaction. Returns its position in the log.
    ///
    /// # Errors
    /// The connection or a statement failed.
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
