//! A database for each test, with the tables of the inbox and one table of effects.

use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use inbox::{Dialect, Inbox, InboxOptions};
use message::Message;
use migrations::query::Query;
use migrations::{Identifier, Line, Migrator, Template};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{Pool, Postgres, Sqlite};
use tests::{Backend, Role, copies, roles};

static NUMBER: AtomicU32 = AtomicU32::new(0);

pub struct Database<DB: Dialect> {
    /// The administrator's pool.
    pub admin: Pool<DB>,
    /// A consumer's pool; on PostgreSQL, with the fewest rights.
    pub pool: Pool<DB>,
    pub schema: Option<Identifier>,
    _folder: Option<tempfile::TempDir>,
}

impl<DB: Dialect> Database<DB> {
    pub fn options(&self) -> InboxOptions {
        InboxOptions::default().schema(self.schema.clone())
    }

    pub async fn inbox(&self) -> Inbox<DB> {
        Inbox::open(self.pool.clone(), self.options()).await.unwrap()
    }
}

/// SQL that the tests need in addition to the inbox's own.
#[async_trait::async_trait]
pub trait TestDatabase: Dialect + Sized {
    /// Whether a commit can begin the next transaction.
    const CHAINS: bool;
    /// Creates a database.
    async fn create() -> Database<Self>;
    /// Creates the tables of an outbox, with the rights to enqueue.
    async fn add_outbox(database: &Database<Self>);
    /// Returns the topics of all messages in the outbox, sorted.
    async fn enqueued(database: &Database<Self>) -> Vec<String> {
        texts(&database.admin, query(ENQUEUED), "topic").await
    }
    /// Removes a database.
    async fn remove(database: Database<Self>);
    /// Writes an effect.
    async fn apply(
        connection: &mut Self::Connection,
        consumer: &str,
        message: &Message,
    ) -> Result<(), sqlx::Error> {
        query::<Self>(INSERT).bind(consumer).bind(&payload(message)).run(connection).await.map(drop)
    }
    /// Runs any statement, for misuse.
    async fn sql(connection: &mut Self::Connection, sql: &'static str) -> Result<(), sqlx::Error>;
    /// Returns the payloads of all effects of a consumer, in the order in which they were written.
    async fn effects(pool: &Pool<Self>, consumer: &str) -> Vec<String> {
        texts(pool, query(SELECT).bind(consumer), "payload").await
    }
    /// Returns a pool for another consumer, whose waits for a lock a test can observe.
    async fn rival(database: &Database<Self>) -> Pool<Self>;
    /// Returns the server's number of the session that runs a transaction, or 0 if it has none.
    async fn holder(connection: &mut Self::Connection) -> i32;
    /// Returns whether a rival waits, or has waited, for a lock of the `holder`. `refusals` counts
    /// the waits that timed out.
    async fn is_waited_for(database: &Database<Self>, holder: i32, refusals: &AtomicU32) -> bool;
}

const INSERT: &str = "INSERT INTO effect (consumer, payload) VALUES ($1, $2)";
const ENQUEUED: &str = "SELECT topic FROM outbox_message ORDER BY topic";
const SELECT: &str = "SELECT payload FROM effect WHERE consumer = $1 ORDER BY id";

fn payload(message: &Message) -> String {
    String::from_utf8(message.payload.to_vec()).unwrap()
}

fn query<DB: TestDatabase>(sql: &'static str) -> Query<DB> {
    Query::new(&Template::new(sql).render())
}

async fn texts<DB: TestDatabase>(pool: &Pool<DB>, query: Query<DB>, column: &str) -> Vec<String> {
    let mut connection = pool.acquire().await.unwrap();
    query.rows(&mut connection).await.unwrap().iter().map(|row| row.get(column).unwrap()).collect()
}

#[async_trait::async_trait]
impl TestDatabase for Sqlite {
    const CHAINS: bool = false;

    async fn create() -> Database<Self> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("inbox.sqlite");
        copies::migrated_sqlite(&[Line::Inbox], &file).await.unwrap();
        let options = SqliteConnectOptions::new()
            .filename(file)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(30));
        let pool = outbox::pool_options::<Self>().max_connections(8).connect_with(options).await.unwrap();
        let table = "CREATE TABLE effect (id INTEGER PRIMARY KEY, consumer TEXT, payload TEXT)";
        sqlx::query(table).execute(&pool).await.unwrap();
        Database { admin: pool.clone(), pool, schema: None, _folder: Some(folder) }
    }

    async fn add_outbox(database: &Database<Self>) {
        let mut connection = database.pool.acquire().await.unwrap();
        Migrator::<Self>::new(Line::Outbox).up(&mut connection).await.unwrap();
    }

    async fn remove(database: Database<Self>) {
        database.pool.close().await;
    }

    async fn sql(connection: &mut Self::Connection, sql: &'static str) -> Result<(), sqlx::Error> {
        sqlx::query(sql).execute(&mut *connection).await.map(drop)
    }

    /// SQLite does not report which connections wait. These connections time out soon, so that the
    /// test sees each wait when it ends.
    async fn rival(database: &Database<Self>) -> Pool<Self> {
        let options = (*database.pool.connect_options()).clone().busy_timeout(Duration::from_millis(50));
        SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap()
    }

    async fn holder(_: &mut Self::Connection) -> i32 {
        0
    }

    async fn is_waited_for(_: &Database<Self>, _: i32, refusals: &AtomicU32) -> bool {
        refusals.load(Ordering::SeqCst) > 0
    }
}

#[async_trait::async_trait]
impl TestDatabase for Postgres {
    const CHAINS: bool = true;

    /// Creates a schema for this test, separate from those of other tests and earlier runs.
    async fn create() -> Database<Self> {
        let url = Backend::Postgres.address().unwrap();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("inbox_test_{}_{number}_{:08x}", std::process::id(), rand::random::<u32>());
        let schema = Identifier::new(name).unwrap();
        let pool_of = async |url: &str| {
            let options =
                PgConnectOptions::from_str(url).unwrap().options([("search_path", schema.as_str())]);
            PgPoolOptions::new().max_connections(8).connect_with(options).await.unwrap()
        };
        let admin = pool_of(&url).await;
        let create = Template::new("CREATE SCHEMA {name}").identifier("name", &schema).render();
        sqlx::query(&create).execute(&admin).await.unwrap();
        let migrator = Migrator::<Self>::new(Line::Inbox).schema(Some(schema.clone()));
        let mut connection = admin.acquire().await.unwrap();
        migrator.up(&mut connection).await.unwrap();
        roles::grant(&mut connection, &[Line::Inbox], Some(&schema)).await.unwrap();
        let consumer = Identifier::new(Role::Consumer.user()).unwrap();
        for statement in [
            "CREATE TABLE effect (id bigint GENERATED ALWAYS AS IDENTITY, consumer text, payload text)",
            "GRANT SELECT, INSERT, DELETE ON effect TO {consumer}",
        ] {
            let statement = Template::new(statement).identifier("consumer", &consumer).render();
            sqlx::query(&statement).execute(&mut *connection).await.unwrap();
        }
        drop(connection);
        let pool = pool_of(&Role::Consumer.url(&url).unwrap()).await;
        Database { admin, pool, schema: Some(schema), _folder: None }
    }

    async fn add_outbox(database: &Database<Self>) {
        let mut connection = database.admin.acquire().await.unwrap();
        let migrator = Migrator::<Self>::new(Line::Outbox).schema(database.schema.clone());
        migrator.up(&mut connection).await.unwrap();
        let schema = database.schema.as_ref();
        roles::grant_outbox_to(&mut connection, Role::Consumer, schema).await.unwrap();
    }

    async fn remove(database: Database<Self>) {
        let Some(schema) = &database.schema else { return };
        let drop = Template::new("DROP SCHEMA {name} CASCADE").identifier("name", schema).render();
        database.pool.close().await;
        sqlx::query(&drop).execute(&database.admin).await.unwrap();
        database.admin.close().await;
    }

    async fn sql(connection: &mut Self::Connection, sql: &'static str) -> Result<(), sqlx::Error> {
        sqlx::query(sql).execute(&mut *connection).await.map(drop)
    }

    async fn rival(database: &Database<Self>) -> Pool<Self> {
        database.pool.clone()
    }

    async fn holder(connection: &mut Self::Connection) -> i32 {
        sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *connection).await.unwrap()
    }

    async fn is_waited_for(database: &Database<Self>, holder: i32, _: &AtomicU32) -> bool {
        sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND $1 = ANY (pg_blocking_pids(pid)))",
        )
        .bind(holder)
        .fetch_one(&database.admin)
        .await
        .unwrap()
    }
}
