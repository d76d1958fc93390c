//! A database for each test. On PostgreSQL, producers and relays connect as the roles with the
//! fewest rights.
#![allow(clippy::unwrap_used, unreachable_pub, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use brokers::Secret;
use engine::EngineOptions;
use inbox::ConsumerName;
use message::Source;
use migrations::{Line, Migrator};
use operate::{Broker, InboxConfig, PipelineConfig, Retention};
use outbox::{NewMessage, Outbox};
use outbox_log::{
    Acquired, CheckpointStore, Cursor, Difference, Entry, EntryId, Lease, LogOptions, LogReader, LogStore,
    Mark, PageLimit, RelayName, RowLimit,
};
use sqlx::{Connection as _, PgConnection, Pool, Postgres, Sqlite};
use tests::{Role, Stage, copies, roles};

pub const TTL: Duration = Duration::from_secs(30);

/// A backend whose databases have the tables of the outbox alone.
pub trait TestDialect: tests::Dialect {
    /// Statements that end a transaction without the client's knowledge, after a row of `business`
    /// with the number 1.
    const ENDS_TRANSACTION: [&str; 2];

    /// Creates a database with the tables of the outbox.
    fn create() -> impl Future<Output = Database<Self>> + Send;
}

pub struct Database<DB: TestDialect> {
    /// The administrator's URL.
    pub url: String,
    /// The administrator's pool.
    pub admin: Pool<DB>,
    /// A producer's pool.
    pub pool: Pool<DB>,
    pub outbox: Outbox<DB>,
    pub log: Arc<dyn LogStore>,
    pub directory: Option<tempfile::TempDir>,
}

pub fn source() -> Source {
    Source::new("/test").unwrap()
}

pub fn relay() -> RelayName {
    RelayName::new("main").unwrap()
}

/// Returns the configuration of a pipeline for operators' commands. Its broker is never contacted.
pub fn pipeline(name: &RelayName, url: &str) -> PipelineConfig {
    let kafka = serde_json::json!({ "bootstrap_servers": ["127.0.0.1:1"] });
    PipelineConfig {
        name: name.clone(),
        source: Source::new(format!("/{}", name.as_str())).unwrap(),
        database: operate::Database::new(Secret::Text(url.into()), LogOptions::default()),
        retention: Retention::default(),
        audit_retention: Retention::default(),
        broker: Broker::Kafka(Box::new(serde_json::from_value(kafka).unwrap())),
        settings: EngineOptions::default(),
    }
}

/// Returns the configuration of a consumer's inbox for operators' commands.
pub fn inbox_config(url: &str, consumer: &str, pipelines: &[&str], topics: &[&str]) -> InboxConfig {
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<BTreeSet<_>>();
    InboxConfig {
        allow_plaintext: true,
        topics: texts(topics),
        pipelines: texts(pipelines),
        ..InboxConfig::new(ConsumerName::new(consumer).unwrap(), Secret::Text(url.to_owned().into()))
    }
}

impl<DB: TestDialect> Database<DB> {
    /// Opens the migrated database at a URL.
    async fn open(url: String, directory: Option<tempfile::TempDir>) -> Self {
        let admin = outbox::pool::<DB>(&url).await.unwrap();
        let pool = outbox::pool::<DB>(&DB::url_of(Role::Producer, &url).unwrap()).await.unwrap();
        let relay = DB::url_of(Role::Relay, &url).unwrap();
        let log = outbox_log::open(relay.as_str(), source(), LogOptions::default()).unwrap();
        Self { url, admin, pool, outbox: Outbox::new(), log, directory }
    }

    /// Returns the relay's URL.
    pub fn relay_url(&self) -> String {
        DB::url_of(Role::Relay, &self.url).unwrap()
    }

    pub async fn run(&self, sql: &str) -> u64 {
        let mut connection = self.admin.acquire().await.unwrap();
        DB::execute(&mut connection, sql).await.unwrap()
    }

    /// Runs SQL as a producer without the toolkit does. Returns the number of affected rows.
    pub async fn produce(&self, sql: &str) -> u64 {
        let mut connection = self.pool.acquire().await.unwrap();
        DB::execute(&mut connection, sql).await.unwrap()
    }

    pub async fn number(&self, sql: &str) -> i64 {
        let mut connection = self.admin.acquire().await.unwrap();
        DB::integers(&mut connection, sql).await.unwrap()[0]
    }

    pub async fn rows(&self) -> i64 {
        self.number("SELECT count(*) FROM outbox_message").await
    }

    pub async fn enqueue(&self, messages: impl IntoIterator<Item = NewMessage> + Send) {
        let mut tx = self.outbox.begin(&self.pool).await.unwrap();
        tx.enqueue_batch(messages).await.unwrap();
        tx.commit().await.unwrap();
    }

    pub async fn reader(&self) -> Box<dyn LogReader> {
        self.log.reader(&relay()).await.unwrap()
    }

    pub async fn checkpoint_store(&self, holder: &str) -> Box<dyn CheckpointStore> {
        self.log.checkpoint_store(&relay(), holder).await.unwrap()
    }

    pub async fn close(self) {
        self.pool.close().await;
        self.admin.close().await;
        if self.directory.is_none() {
            copies::remove_postgres(&self.url);
        }
    }
}

impl Database<Postgres> {
    /// Opens the database at a URL and creates the tables of the outbox.
    pub async fn at(url: String) -> Self {
        let mut admin = PgConnection::connect(&url).await.unwrap();
        Migrator::<Postgres>::new(Line::Outbox).up(&mut admin).await.unwrap();
        roles::grant(&mut admin, &[Line::Outbox], None).await.unwrap();
        admin.close().await.unwrap();
        Self::of_services(url).await
    }

    /// Opens the migrated database at a URL. The producer may use tables that tests create in it.
    async fn of_services(url: String) -> Self {
        let database = Self::open(url, None).await;
        let producer = Role::Producer.user();
        let own =
            format!("ALTER DEFAULT PRIVILEGES GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {producer}");
        database.run(&own).await;
        database
    }
}

impl TestDialect for Sqlite {
    const ENDS_TRANSACTION: [&str; 2] = ["ROLLBACK", "INSERT OR ROLLBACK INTO business VALUES (1)"];

    async fn create() -> Database<Self> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("outbox.db");
        copies::migrated_sqlite(&[Line::Outbox], &file).await.unwrap();
        Database::open(format!("sqlite:{}?mode=rwc", file.display()), Some(directory)).await
    }
}

impl TestDialect for Postgres {
    const ENDS_TRANSACTION: [&str; 2] = ["ROLLBACK", "ROLLBACK AND CHAIN"];

    async fn create() -> Database<Self> {
        Database::of_services(copies::migrated_postgres(&[Line::Outbox]).await.unwrap()).await
    }
}

/// Runs a case on its own database, and removes the database.
pub(crate) async fn each<DB: TestDialect>(_: Stage, case: impl AsyncFnOnce(&Database<DB>)) {
    let database = <DB as TestDialect>::create().await;
    case(&database).await;
    database.close().await;
}

pub async fn granted(checkpoint_store: &mut Box<dyn CheckpointStore>) -> (Lease, Cursor) {
    match checkpoint_store.acquire(TTL).await.unwrap() {
        Acquired::Granted { lease, cursor, .. } => (lease, cursor),
        Acquired::Busy { holder, .. } => panic!("busy: {holder}"),
    }
}

pub const SMALL: PageLimit =
    PageLimit { entries_max: 7, bytes_max: 1 << 20, row: RowLimit::of(message::SizeLimit::CHUNKED) };

/// Moves a cursor as the relay does: difference by difference, page by page.
pub struct Follower {
    pub reader: Box<dyn LogReader>,
    pub base: Mark,
    pub open: Option<(Difference, EntryId)>,
    pub limit: PageLimit,
}

impl Follower {
    pub fn new(reader: Box<dyn LogReader>, cursor: Cursor) -> Self {
        Self { reader, open: cursor.open(), base: cursor.base, limit: SMALL }
    }

    /// Reads the next page, or returns `None` when nothing has committed.
    pub async fn next(&mut self) -> Option<Vec<Entry>> {
        if self.open.is_none() {
            let difference = self.reader.next_difference(&self.base).await.unwrap()?;
            self.open = Some((difference, EntryId::default()));
        }
        let (difference, after) = self.open.clone().unwrap();
        let page = self.reader.read_page(&difference, after, self.limit).await.unwrap();
        let last = page.entries.last().map_or(after, |entry| entry.id);
        if page.exhausted {
            self.base = difference.head;
            self.open = None;
        } else {
            assert!(last > after, "a page that is not the last one moves on");
            self.open = Some((difference, last));
        }
        Some(page.entries)
    }

    /// Reads everything that is committed by now.
    pub async fn all(&mut self) -> Vec<Entry> {
        let mut entries = Vec::new();
        while let Some(page) = self.next().await {
            entries.extend(page);
        }
        entries
    }

    pub fn cursor(&self) -> Cursor {
        match &self.open {
            Some((difference, after)) => Cursor::inside(difference, *after),
            None => Cursor::at(self.base.clone()),
        }
    }
}

pub fn ids(entries: &[Entry]) -> Vec<i64> {
    entries.iter().map(|entry| entry.id.0).collect()
}
