//! The producer's database and the consumer's database: two SQLite files, or two schemas on a
//! PostgreSQL server.

use std::path::Path;

use harness::workload::Workload;
#[cfg(feature = "postgres")]
use migrations::Template;
use migrations::{Dialect, Identifier, Line, Migrator};
#[cfg(feature = "postgres")]
use sqlx::postgres::PgConnectOptions;
#[cfg(feature = "postgres")]
use sqlx::{Connection, PgConnection, PgPool, Postgres};
use sqlx::{Sqlite, SqlitePool};

use crate::error::DemoError;

/// The connection data of a database for a child process. Has no `Debug`: the URL may hold a
/// password.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
pub(crate) struct DatabaseSpec {
    /// The URL of the database.
    pub(crate) url: String,
    /// The schema of its tables; PostgreSQL only.
    pub(crate) schema: Option<String>,
}

/// Connections of the demo itself, for plain SQL. Every name is found through the search path.
#[derive(Clone)]
pub(crate) enum Pool {
    /// PostgreSQL.
    #[cfg(feature = "postgres")]
    Postgres(PgPool),
    /// SQLite.
    Sqlite(SqlitePool),
}

/// Runs the same statements on either pool.
macro_rules! on {
    ($pool:expr, $name:pat => $body:expr) => {
        match $pool {
            #[cfg(feature = "postgres")]
            $crate::target::Pool::Postgres($name) => $body,
            $crate::target::Pool::Sqlite($name) => $body,
        }
    };
}
pub(crate) use on;

/// Both databases, with their tables.
pub(crate) struct Databases {
    /// The database in which orders are placed.
    pub(crate) producer: DatabaseSpec,
    /// The database in which effects are applied.
    pub(crate) consumer: DatabaseSpec,
    /// Connections to the producer's database.
    pub(crate) producer_pool: Pool,
    /// Connections to the consumer's database.
    pub(crate) consumer_pool: Pool,
    /// The name for people, without secrets.
    pub(crate) name: String,
}

impl DatabaseSpec {
    /// Returns the dialect of the database.
    pub(crate) fn dialect(&self) -> Result<Dialect, DemoError> {
        outbox::connect::dialect_of(&self.url)
            .map_err(|error| DemoError::Usage(format!("--database: {error}")))
    }

    /// Returns the schema.
    pub(crate) fn schema(&self) -> Result<Option<Identifier>, DemoError> {
        let schema = self.schema.as_deref().map(Identifier::new).transpose();
        schema.map_err(|error| DemoError::Usage(error.to_string()))
    }

    /// Returns options for PostgreSQL connections that find their tables through the search path.
    #[cfg(feature = "postgres")]
    pub(crate) fn postgres(&self) -> Result<PgConnectOptions, DemoError> {
        let options = outbox::connect::postgres_options(&self.url, false)
            .map_err(|error| DemoError::Usage(format!("--database: {error}")))?;
        Ok(match &self.schema {
            Some(schema) => options.options([("search_path", schema)]),
            None => options,
        })
    }

    /// Opens a pool for PostgreSQL.
    #[cfg(feature = "postgres")]
    pub(crate) async fn postgres_pool(&self, connections: u32) -> Result<PgPool, DemoError> {
        let options = outbox::pool_options::<Postgres>().max_connections(connections);
        let opened = options.connect_with(self.postgres()?).await;
        opened.map_err(DemoError::during("connect to PostgreSQL"))
    }

    /// Opens a pool.
    pub(crate) async fn pool(&self, connections: u32) -> Result<Pool, DemoError> {
        Ok(match self.dialect()? {
            #[cfg(feature = "postgres")]
            Dialect::Postgres => Pool::Postgres(self.postgres_pool(connections).await?),
            #[cfg(not(feature = "postgres"))]
            Dialect::Postgres => return Err(DemoError::not_built("--database", "PostgreSQL")),
            Dialect::Sqlite => Pool::Sqlite(self.sqlite_pool(connections).await?),
        })
    }

    /// Returns a URL that resolves every name through the search path.
    pub(crate) fn plain_url(&self) -> Result<String, DemoError> {
        let Some(schema) = &self.schema else { return Ok(self.url.clone()) };
        let mut url = url::Url::parse(&self.url).map_err(DemoError::during("read the database's URL"))?;
        url.query_pairs_mut().append_pair("options[search_path]", schema);
        Ok(url.into())
    }

    /// Opens a pool for SQLite.
    pub(crate) async fn sqlite_pool(&self, connections: u32) -> Result<SqlitePool, DemoError> {
        let options = outbox::connect::sqlite_options(&self.url)
            .map_err(|error| DemoError::Usage(format!("--database: {error}")))?;
        let pool = outbox::pool_options::<Sqlite>().max_connections(connections);
        pool.connect_with(options).await.map_err(DemoError::during("open a SQLite file"))
    }
}

impl Databases {
    /// Creates both databases: files in `directory`, or schemas with `run` in their names on the
    /// server at `url`.
    ///
    /// # Errors
    /// [`DemoError`]: the URL cannot be used, the server is unreachable, or the role may not create
    /// schemas.
    pub(crate) async fn create(url: Option<&str>, directory: &Path, run: &str) -> Result<Self, DemoError> {
        match url {
            None => Self::create_files(directory).await,
            #[cfg(feature = "postgres")]
            Some(url) => Self::create_schemas(url, run).await,
            #[cfg(not(feature = "postgres"))]
            Some(_) => {
                let _ = run;
                Err(DemoError::not_built("--database", "PostgreSQL"))
            }
        }
    }

    async fn create_files(directory: &Path) -> Result<Self, DemoError> {
        let file = |name: &str| DatabaseSpec {
            url: format!("sqlite://{}?mode=rwc", directory.join(name).display()),
            schema: None,
        };
        let (producer, consumer) = (file("orders.db"), file("charges.db"));
        let pools = (producer.sqlite_pool(CONNECTIONS).await?, consumer.sqlite_pool(CONNECTIONS).await?);
        make_tables::<Sqlite>(&pools, (None, None)).await?;
        let (producer_pool, consumer_pool) = (Pool::Sqlite(pools.0), Pool::Sqlite(pools.1));
        Ok(Self { producer, consumer, producer_pool, consumer_pool, name: String::from("sqlite files") })
    }

    #[cfg(feature = "postgres")]
    async fn create_schemas(url: &str, run: &str) -> Result<Self, DemoError> {
        let schema =
            |part: &str| DatabaseSpec { url: url.to_owned(), schema: Some(format!("demo_{run}_{part}")) };
        let (producer, consumer) = (schema("orders"), schema("charges"));
        if producer.dialect()? != Dialect::Postgres {
            let problem = "--database: give a postgres:// URL; without the option, the demo creates its own \
                           SQLite files";
            return Err(DemoError::Usage(problem.to_owned()));
        }
        let options = producer.postgres()?;
        let name = format!("postgresql {}:{}", options.get_host(), options.get_port());
        for spec in [&producer, &consumer] {
            run_schema_statement(spec, "CREATE SCHEMA {name}", "create a schema in PostgreSQL").await?;
        }
        let pools = (producer.postgres_pool(CONNECTIONS).await?, consumer.postgres_pool(CONNECTIONS).await?);
        make_tables::<Postgres>(&pools, (producer.schema()?, consumer.schema()?)).await?;
        let (producer_pool, consumer_pool) = (Pool::Postgres(pools.0), Pool::Postgres(pools.1));
        Ok(Self { producer, consumer, producer_pool, consumer_pool, name })
    }

    /// Removes everything that was created on a server. Files are removed with their directory.
    pub(crate) async fn remove(&self) -> Result<(), DemoError> {
        for (spec, pool) in [(&self.producer, &self.producer_pool), (&self.consumer, &self.consumer_pool)] {
            pool.close().await;
            #[cfg(not(feature = "postgres"))]
            let _ = spec;
            #[cfg(feature = "postgres")]
            if spec.schema.is_some() {
                run_schema_statement(spec, "DROP SCHEMA {name} CASCADE", "remove a schema from PostgreSQL")
                    .await?;
            }
        }
        Ok(())
    }
}

/// Number of connections in one pool: for the producers, and a few for queries.
const CONNECTIONS: u32 = 8;

impl Pool {
    /// Returns the count that a query selects.
    pub(crate) async fn count(&self, sql: &'static str) -> sqlx::Result<u64> {
        let count: i64 = on!(self, pool => sqlx::query_scalar(sql).fetch_one(pool).await?);
        Ok(count.unsigned_abs())
    }

    async fn close(&self) {
        on!(self, pool => pool.close().await);
    }
}

/// Creates the tables of the toolkit and of the business in both databases.
async fn make_tables<DB: Workload>(
    pools: &(sqlx::Pool<DB>, sqlx::Pool<DB>),
    schemas: (Option<Identifier>, Option<Identifier>),
) -> Result<(), DemoError> {
    let connect = "get a database connection";
    let toolkit = "create the tables of outbox and inbox";
    let business = "create the demo's business tables";
    let mut producer = pools.0.acquire().await.map_err(DemoError::during(connect))?;
    let migrated = Migrator::<DB>::new(Line::Outbox).schema(schemas.0).up(&mut producer).await;
    migrated.map_err(DemoError::during(toolkit))?;
    DB::create_business(&mut producer).await.map_err(DemoError::during(business))?;
    let mut consumer = pools.1.acquire().await.map_err(DemoError::during(connect))?;
    let migrated = Migrator::<DB>::new(Line::Inbox).schema(schemas.1).up(&mut consumer).await;
    migrated.map_err(DemoError::during(toolkit))?;
    DB::create_effects(&mut consumer).await.map_err(DemoError::during(business))
}

#[cfg(feature = "postgres")]
async fn run_schema_statement(
    spec: &DatabaseSpec,
    template: &'static str,
    what: &'static str,
) -> Result<(), DemoError> {
    let Some(schema) = spec.schema()? else { return Ok(()) };
    let connected = PgConnection::connect_with(&spec.postgres()?).await;
    let mut connection = connected.map_err(DemoError::during(what))?;
    let statement = Template::new(template).identifier("name", &schema).render();
    sqlx::query(&statement).execute(&mut connection).await.map_err(DemoError::during(what))?;
    connection.close().await.map_err(DemoError::during(what))
}
