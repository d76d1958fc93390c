//! A pipeline over an outbox of its own, for tests.

use std::sync::Arc;

use brokers::Secret;
use engine::{EngineOptions, Publishing};
use message::testing::{BrokerScript, ScriptedBroker};
use message::{SizeLimit, Source};
use migrations::{Line, Migrator};
use outbox_log::{LogOptions, RelayName};
use sqlx::{AssertSqlSafe, Sqlite, SqlitePool};

use crate::settings::{Broker, Database, PipelineConfig, Retention};

/// An empty outbox in a file of SQLite, which is deleted with it.
pub(crate) struct Sample {
    pub(crate) pipeline: PipelineConfig,
    pool: SqlitePool,
    folder: tempfile::TempDir,
}

struct Confirms;

impl BrokerScript for Confirms {}

impl Sample {
    /// Creates the outbox of the pipeline `orders`.
    pub(crate) async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("orders.db").display());
        let pool = outbox::pool::<Sqlite>(&format!("{url}?mode=rwc")).await.unwrap();
        let mut connection = pool.acquire().await.unwrap();
        Migrator::<Sqlite>::new(Line::Outbox).up(&mut connection).await.unwrap();
        drop(connection);
        let connector = Arc::new(ScriptedBroker(Arc::new(Confirms)));
        let pipeline = PipelineConfig {
            name: RelayName::new("orders").unwrap(),
            source: Source::new("/orders").unwrap(),
            database: Database::new(Secret::Text(url.into()), LogOptions::default()),
            retention: Retention::default(),
            audit_retention: Retention::Off,
            broker: Broker::Given {
                publishing: Publishing::Plain(connector),
                size_limit: SizeLimit::PORTABLE,
            },
            settings: EngineOptions::default(),
        };
        Self { pipeline, pool, folder }
    }

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> String {
        self.folder.path().join("orders.db").display().to_string()
    }

    /// Executes SQL.
    pub(crate) async fn run(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&self.pool).await.unwrap();
    }
}
