//! A private database with a backlog.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::variable;
use crate::Failure;

/// A private database, dropped at the end.
#[derive(Clone)]
pub(crate) struct Database {
    admin_url: String,
    name: String,
    /// The URL of the database.
    pub(crate) url: String,
}

/// The shape of a backlog.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub(crate) struct Shape {
    /// Number of entries.
    pub(crate) messages: u32,
    /// Size of each payload, in bytes.
    pub(crate) payload_bytes: u32,
    /// Number of different ordering keys.
    pub(crate) keys: u32,
}

impl Database {
    /// Creates the database on the server, with the tables of outbox and inbox.
    pub(crate) async fn create() -> Result<Self, Failure> {
        let admin_url = &variable("OUTBOX_POSTGRES_URL")?;
        let name = format!("bench_{}", uuid::Uuid::now_v7().simple());
        let mut admin = PgConnection::connect(admin_url).await?;
        sqlx::query(AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&mut admin).await?;
        let (base, _) = admin_url.rsplit_once('/').ok_or("the database URL has no database name")?;
        let url = format!("{base}/{name}");
        let mut connection = PgConnection::connect(&url).await?;
        for line in [migrations::Line::Outbox, migrations::Line::Inbox] {
            migrations::Migrator::<sqlx::Postgres>::new(line).up(&mut connection).await?;
        }
        Ok(Self { admin_url: admin_url.clone(), name, url })
    }

    /// Keeps the server from learning how many rows the outbox has: it plans as for a new database.
    pub(crate) async fn never_analyse(&self) -> Result<(), Failure> {
        self.run(
            "DO $$ DECLARE part text; BEGIN FOR part IN SELECT c.oid::regclass FROM pg_class AS c WHERE c.relkind = 'r' \
             AND c.relname ~ '^outbox_(message|exception|parked)' LOOP \
             EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = false)', part); END LOOP; END $$",
        )
        .await
    }

    /// Appends a backlog for one topic; the ids of its messages are new.
    pub(crate) async fn fill(&self, topic: &str, shape: Shape) -> Result<(), Failure> {
        self.append(topic, shape).await?;
        // As on a server that has been running for a while: hint bits and statistics are set.
        self.run("VACUUM ANALYZE outbox_message").await
    }

    /// Appends a backlog like `fill`, and leaves the statistics as they are.
    pub(crate) async fn append(&self, topic: &str, shape: Shape) -> Result<(), Failure> {
        let mut connection = PgConnection::connect(&self.url).await?;
        sqlx::query(
            "INSERT INTO outbox_message (topic, key, kind, content_type, payload) \
             SELECT $1, 'key-' || (n * 7919 % $3), 'bench.filled', 'application/octet-stream', \
             convert_to(repeat('x', $2), 'UTF8') FROM generate_series(1, $4) AS n",
        )
        .bind(topic)
        .bind(i32::try_from(shape.payload_bytes)?)
        .bind(i64::from(shape.keys))
        .bind(i64::from(shape.messages))
        .execute(&mut connection)
        .await?;
        Ok(())
    }

    /// Opens a connection.
    pub(crate) async fn connect(&self) -> Result<PgConnection, Failure> {
        Ok(PgConnection::connect(&self.url).await?)
    }

    /// Runs SQL of the benchmark itself.
    pub(crate) async fn run(&self, sql: &'static str) -> Result<(), Failure> {
        sqlx::raw_sql(sql).execute(&mut self.connect().await?).await?;
        Ok(())
    }

    /// Queries one number.
    pub(crate) async fn number(&self, sql: &'static str) -> Result<i64, Failure> {
        Ok(sqlx::query_scalar(sql).fetch_one(&mut self.connect().await?).await?)
    }

    /// Makes every commit of new sessions wait for this long before it is synced.
    pub(crate) async fn commit_slowly(&self, by: Duration) -> Result<(), Failure> {
        let Self { name, .. } = self;
        // Commits of other databases on the server wait for the same lock.
        let statement = format!(
            "ALTER DATABASE {name} SET commit_delay = {}; ALTER DATABASE {name} SET commit_siblings = 0",
            by.as_micros()
        );
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut self.connect().await?).await?;
        Ok(())
    }

    /// Drops the database.
    pub(crate) async fn drop(self) -> Result<(), Failure> {
        let mut admin = PgConnection::connect(&self.admin_url).await?;
        let statement = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        sqlx::query(AssertSqlSafe(statement)).execute(&mut admin).await?;
        Ok(())
    }
}
