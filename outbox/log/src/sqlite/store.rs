//! Opens connections that are fit for reading and writing the log.

use std::sync::Arc;

use async_trait::async_trait;
use message::Source;
use migrations::{Line, Migrator};
use outbox::connect::opened_when_free;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Sqlite, SqliteConnection};

use crate::address::Address;
use crate::failure::within;
use crate::sqlite::checkpoint_store::SqliteCheckpointStore;
use crate::sqlite::file::OpenedFile;
use crate::sqlite::options::in_memory;
use crate::sqlite::reader::SqliteReader;
use crate::sqlite::rest::Rest;
use crate::sqlite::tables;
use crate::tables::Tables;
use crate::watch::Watch;
use crate::{CheckpointStore, LogError, LogOptions, LogReader, LogStore, RelayName};

/// Maximum rows that the client library reads ahead: each may be as large as a message.
pub(crate) const ROWS_AHEAD: usize = 2;

/// The log of a SQLite file. Cheap: connects only when a reader or checkpoint store is requested.
#[derive(Debug, Clone)]
pub(crate) struct SqliteLog {
    connect: SqliteConnectOptions,
    pub(super) options: LogOptions,
    pub(super) source: Source,
    origin: String,
    pub(super) tables: Arc<Tables<Sqlite>>,
}

impl SqliteLog {
    /// Makes a log at a URL such as `sqlite:orders.db`. Messages carry `source` as their
    /// CloudEvents source.
    ///
    /// # Errors
    /// [`LogError::Operator`] when the URL cannot be used or names a database in memory, which a
    /// relay on other connections would not see.
    pub(crate) fn new(
        address: impl Into<Address>,
        source: Source,
        options: LogOptions,
    ) -> Result<Self, LogError> {
        let connect = address.into().sqlite()?.row_buffer_size(ROWS_AHEAD);
        let file = connect.get_filename().to_string_lossy();
        if file.contains(":memory:") || file.starts_with("file:sqlx-in-memory") {
            return Err(in_memory());
        }
        let origin = format!("sqlite {}", connect.get_filename().display());
        let tables = Arc::new(Tables::new(tables::texts(None)));
        Ok(Self { connect, options, source, origin, tables })
    }

    pub(super) async fn connect(&self) -> Result<SqliteConnection, LogError> {
        let connection = async {
            let opened = opened_when_free(|| self.connect.connect()).await;
            let mut connection = opened.map_err(LogError::during("open the file"))?;
            check_file(&mut connection).await?;
            Migrator::<Sqlite>::new(Line::Outbox).check(&mut connection).await?;
            Ok(connection)
        };
        within(self.options.connect_timeout, connection).await
    }
}

pub(super) const FILE: &str = "SELECT file FROM pragma_database_list WHERE name = 'main'";

/// Refuses a database in memory. For a pool, only the connection shows whether it is one.
async fn check_file(connection: &mut SqliteConnection) -> Result<(), LogError> {
    let file: Option<String> =
        sqlx::query_scalar(FILE).fetch_one(connection).await.map_err(LogError::during("report its file"))?;
    if file.is_none_or(|file| file.is_empty()) { Err(in_memory()) } else { Ok(()) }
}

#[async_trait]
impl LogStore for SqliteLog {
    fn origin(&self) -> &str {
        &self.origin
    }

    async fn reader(&self, relay: &RelayName) -> Result<Box<dyn LogReader>, LogError> {
        let connection = self.connect().await?;
        Ok(Box::new(SqliteReader {
            connection,
            relay: relay.clone(),
            source: self.source.clone(),
            tables: Arc::clone(&self.tables),
        }))
    }

    async fn checkpoint_store(
        &self,
        relay: &RelayName,
        holder: &str,
    ) -> Result<Box<dyn CheckpointStore>, LogError> {
        let file = OpenedFile::about_to_open(self.connect.get_filename());
        let connection = self.connect().await?;
        Ok(Box::new(SqliteCheckpointStore {
            connection,
            file,
            relay: relay.clone(),
            holder: holder.to_owned(),
            watch: Watch::default(),
            trouble: None,
            rest: Rest::default(),
        }))
    }
}
