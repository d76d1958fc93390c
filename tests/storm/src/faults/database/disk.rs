//! A full disk: files cannot grow.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use rand::Rng as _;
use rand::rngs::StdRng;
use sqlx::postgres::PgConnection;
use sqlx::sqlite::SqliteConnection;
use tokio::process::Command;
use tokio::task::JoinSet;

use super::session;
use crate::Failure;
use crate::faults::{Fault, FaultKind, Injected, millis, seconds};
use crate::stage::Stage;

/// A fault of PostgreSQL: the outbox, or the inbox, cannot grow by a page. The fault limits the
/// size of files that the sessions of that database may write (`RLIMIT_FSIZE`). The limit is the
/// size of the largest part of the growing table, plus half a page. A write beyond it is cut short,
/// which the server reports as 53100, "disk full".
///
/// The files of the server's WAL must be smaller than that limit:
/// `OUTBOX_POSTGRES_WAL_SEGMENT_MB=1`. Otherwise the WAL could not grow, which crashes the server.
/// The server must run on this machine.
#[derive(Debug, Default)]
pub struct PostgresFull {
    limiting: JoinSet<()>,
    url: Option<String>,
}

/// Interval at which the fault searches for sessions that are not limited yet.
const LOOK: Duration = Duration::from_millis(100);
const PAGE_BYTES: u64 = 8_192;

#[async_trait]
impl Fault<Stage> for PostgresFull {
    fn kind(&self) -> FaultKind {
        FaultKind::new("disk-full").lasts(seconds(1)..=seconds(6))
    }

    async fn inject(&mut self, stage: &Stage, rng: &mut StdRng) -> Result<Injected, Failure> {
        let (url, table) = if rng.random() {
            (&stage.database.producers, "outbox_message")
        } else {
            (&stage.database.consumers, "inbox_message")
        };
        let mut session = session::connect(url).await?;
        let limit = limit(&mut session, table).await?;
        self.url = Some(url.clone());
        restrict(&mut session, Some(limit)).await?;
        self.limiting.spawn(async move {
            loop {
                tokio::time::sleep(LOOK).await;
                // This session ends when the server crashes, and all limited sessions end with it.
                if restrict(&mut session, Some(limit)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Injected::new(table, format!("files end at {limit} bytes")))
    }

    async fn heal(&mut self, _stage: &Stage) -> Result<(), Failure> {
        self.limiting.shutdown().await;
        let Some(url) = &self.url else { return Ok(()) };
        let mut session = session::connect(url).await?;
        restrict(&mut session, None).await?;
        session::end(session).await;
        self.url = None;
        Ok(())
    }
}

/// Returns the maximum size of a file in bytes: the size of the table's largest part, or of a WAL
/// segment if that is larger, plus half a page.
async fn limit(session: &mut PgConnection, table: &str) -> Result<u64, Failure> {
    let largest: i64 = sqlx::query_scalar(
        // A table without partitions is not a leaf of its own tree.
        "SELECT greatest(pg_relation_size($1::regclass), (SELECT max(pg_relation_size(relid)) \
         FROM pg_partition_tree($1::regclass) WHERE isleaf))::bigint",
    )
    .bind(table)
    .fetch_one(&mut *session)
    .await?;
    let segment: i64 = sqlx::query_scalar("SELECT pg_size_bytes(current_setting('wal_segment_size'))")
        .fetch_one(&mut *session)
        .await?;
    let (largest, segment) = (u64::try_from(largest)?, u64::try_from(segment)?);
    Ok(largest.max(segment) + PAGE_BYTES / 2)
}

/// Limits the files of this database's sessions, except those of faults, or lifts the limit.
async fn restrict(session: &mut PgConnection, limit: Option<u64>) -> Result<(), Failure> {
    let pids: Vec<i32> = sqlx::query_scalar(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' \
         AND application_name <> $1",
    )
    .bind(session::APPLICATION)
    .fetch_all(session)
    .await?;
    for pid in pids {
        limit_files(pid, limit).await?;
    }
    Ok(())
}

/// Limits the files of a process. The command runs as the process's user, because in a container
/// root may lack the right.
async fn limit_files(pid: i32, limit: Option<u64>) -> Result<(), Failure> {
    // The process has just ended.
    let Ok(owner) = std::fs::metadata(format!("/proc/{pid}")) else { return Ok(()) };
    let text = limit.map_or_else(|| "unlimited".to_owned(), |bytes| bytes.to_string());
    let mut command = Command::new("prlimit");
    command.arg(format!("--pid={pid}")).arg(format!("--fsize={text}:unlimited")).stdin(Stdio::null());
    // A command that outlived its fault would limit a session that is already healed.
    command.kill_on_drop(true);
    if owner.uid() != rustix::process::geteuid().as_raw() {
        command.uid(owner.uid()).gid(owner.gid());
    }
    let done = command.output().await?;
    if done.status.success() || !Path::new(&format!("/proc/{pid}")).exists() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&done.stderr);
    Err(format!("the files of process {pid} cannot be limited: {}", why.trim()).into())
}

/// A fault of SQLite: the file cannot grow by a page. A limit from outside would also affect the
/// process's other files, so producers apply `PRAGMA max_page_count` to their own connections.
#[derive(Debug)]
pub struct SqliteFull;

impl SqliteFull {
    /// Returns the path of the file whose presence means that the disk is full.
    fn order(folder: &Path) -> PathBuf {
        folder.join("sqlite-full")
    }

    /// Applies the state of the fault to a connection. A producer calls this before each of its
    /// transactions.
    ///
    /// # Errors
    /// The pragma fails.
    pub async fn obey(connection: &mut SqliteConnection, folder: &Path) -> Result<(), sqlx::Error> {
        // A maximum of one page keeps the file at its size. The other number is SQLite's default.
        let limit = if Self::order(folder).exists() {
            "PRAGMA max_page_count = 1"
        } else {
            "PRAGMA max_page_count = 4294967294"
        };
        sqlx::query(limit).execute(connection).await?;
        Ok(())
    }
}

#[async_trait]
impl Fault<Stage> for SqliteFull {
    fn kind(&self) -> FaultKind {
        FaultKind::new("disk-full").lasts(millis(500)..=seconds(4))
    }

    async fn inject(&mut self, stage: &Stage, _rng: &mut StdRng) -> Result<Injected, Failure> {
        tokio::fs::write(Self::order(&stage.folder), "").await?;
        Ok(Injected::new("producers' file", "no page more"))
    }

    async fn heal(&mut self, stage: &Stage) -> Result<(), Failure> {
        match tokio::fs::remove_file(Self::order(&stage.folder)).await {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}
