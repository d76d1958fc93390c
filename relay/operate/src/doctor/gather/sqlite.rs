//! Queries a SQLite file.

use std::path::Path;

use outbox_log::LogError;
use outbox_log::read_only::ReadOnly;
use sqlx::{Sqlite, SqliteConnection};

use super::Unreachable;
use super::lines::lines;
use crate::doctor::facts::SqliteFacts;

/// The facts of the file, and the topics of its latest messages.
pub(in crate::doctor) struct Gathered {
    pub(in crate::doctor) facts: SqliteFacts,
    pub(in crate::doctor) topics: Vec<String>,
}

/// Gathers everything, in a session that cannot write.
pub(in crate::doctor) async fn gather(url: &str) -> Result<Gathered, Unreachable> {
    let options = outbox::connect::sqlite_options(url).map_err(LogError::from)?;
    let file = options.get_filename().to_owned();
    let mut connection = open(url).await?;
    let version = text(&mut connection, "SELECT sqlite_version()").await?;
    let journal_mode = text(&mut connection, "PRAGMA journal_mode").await?;
    let lines = lines::<Sqlite>(&mut connection, None).await?;
    let topics = if lines.iter().any(|line| line.line == "outbox" && line.version > 0) {
        sqlx::query_scalar(
            // Excludes names that no topic can have, which may not even be text.
            "SELECT DISTINCT topic FROM (SELECT topic FROM outbox_message ORDER BY id DESC LIMIT 10000) \
             WHERE topic NOT GLOB '*[^A-Za-z0-9._/:#-]*' ORDER BY topic LIMIT 100",
        )
        .fetch_all(&mut connection)
        .await
        .map_err(Unreachable::asking)?
    } else {
        Vec::new()
    };
    let facts = SqliteFacts {
        version,
        journal_mode,
        refused: None,
        lines,
        free_bytes: free_bytes(&file),
        database_bytes: std::fs::metadata(&file).map_or(0, |metadata| metadata.len()),
        file: file.display().to_string(),
    };
    Ok(Gathered { facts, topics })
}

pub(super) async fn open(url: &str) -> Result<SqliteConnection, Unreachable> {
    match ReadOnly::open(url, false, "relay doctor").await? {
        ReadOnly::Sqlite(connection) => Ok(connection),
        #[cfg(feature = "postgres")]
        ReadOnly::Postgres(_) => Err(Unreachable::operator("the URL is not one of SQLite")),
    }
}

async fn text(connection: &mut SqliteConnection, question: &'static str) -> Result<String, Unreachable> {
    sqlx::query_scalar(question).fetch_one(connection).await.map_err(Unreachable::asking)
}

/// Returns the number of bytes that an unprivileged process may still write to the file's disk.
fn free_bytes(file: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(file).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}
