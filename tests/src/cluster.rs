//! PostgreSQL servers of a test's own: to crash, copy, promote and restore. The task runner starts
//! them like the shared one, with their own folders and ports.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};

use sqlx::{Connection as _, PgConnection};
use tempfile::TempDir;
use tokio::process::Command;

use crate::backends::Backend;
use crate::roles;
use crate::stage::Stage;
use crate::trial::{Failure, Outcome};

/// The backends that a test with its own servers needs. The shared server is one of them: the roles
/// are made there as well.
pub const NEEDS: [Backend; 2] = [Backend::Postgres, Backend::Xtask];

/// The setting that chooses a major version of PostgreSQL other than the installed one.
pub const MAJOR: &str = "OUTBOX_POSTGRES_MAJOR";

/// The names of the superuser and its database, and its password.
const WHO: &str = "outbox";

/// A PostgreSQL server, and the pooler before it once it is started. Both are stopped and removed
/// with the stage.
#[derive(Debug, Clone)]
pub struct Cluster {
    folder: PathBuf,
    port: u16,
    pooler_port: u16,
    /// Variables that the task runner reads.
    settings: Vec<(&'static str, String)>,
}

impl Cluster {
    /// Starts a server with the roles of the tests and without tables.
    ///
    /// # Errors
    /// The task runner failed; the error holds its output.
    pub async fn start(stage: &Stage, settings: &[(&'static str, &str)]) -> Result<Self, Failure> {
        Self::place(stage, settings)?.begin().await
    }

    /// As [`Cluster::start`], with a wall clock that [`Cluster::set_clock`] moves. It begins
    /// correct.
    ///
    /// # Errors
    /// The task runner failed; the error holds its output.
    pub async fn start_with_clock(stage: &Stage) -> Result<Self, Failure> {
        let mut cluster = Self::place(stage, &[])?;
        cluster.set_clock(0)?;
        cluster.settings.push(("OUTBOX_POSTGRES_CLOCK", cluster.clock().display().to_string()));
        cluster.begin().await
    }

    async fn begin(self) -> Result<Self, Failure> {
        self.resume().await?;
        roles::make_at(&self.url()).await?;
        Ok(self)
    }

    /// Sets the server's wall clock this many seconds ahead of the machine's; a negative number
    /// sets it behind. The server notices within two seconds.
    ///
    /// # Errors
    /// The file could not be written.
    pub fn set_clock(&self, seconds: i64) -> Outcome {
        // Renamed, so that the server never reads half of it.
        let aside = self.folder.join("clock.new");
        std::fs::write(&aside, format!("{seconds:+}\n"))?;
        Ok(std::fs::rename(aside, self.clock())?)
    }

    fn clock(&self) -> PathBuf {
        self.folder.join("clock")
    }

    /// Prepares a folder that the server's user may enter, and picks ports that are free.
    fn place(stage: &Stage, settings: &[(&'static str, &str)]) -> Result<Self, Failure> {
        let folder =
            tempfile::Builder::new().permissions(std::fs::Permissions::from_mode(0o755)).tempdir()?;
        let (port, pooler_port) = (free_port()?, free_port()?);
        let settings = settings.iter().map(|(name, value)| (*name, String::from(*value))).collect();
        let cluster = Self { folder: folder.path().to_owned(), port, pooler_port, settings };
        stage.show_on_failure(cluster.folder.join("postgres/logs/server.log"));
        stage.show_on_failure(cluster.folder.join("pgbouncer/logs/server.log"));
        stage.afterwards(format!("the cluster on port {port}"), remove(cluster.clone(), folder));
        Ok(cluster)
    }

    /// Starts a standby that follows this server.
    ///
    /// # Errors
    /// `pg_basebackup`, `chown` or the task runner failed; the error holds its output.
    pub async fn standby(&self, stage: &Stage) -> Result<Self, Failure> {
        let standby = self.copied(stage, true).await?;
        standby.resume().await?;
        Ok(standby)
    }

    /// Starts this server, which has stopped, as a standby of another one, at the same address. Its
    /// files are replaced by those of the other one.
    ///
    /// # Errors
    /// `pg_basebackup`, `chown` or the task runner failed; the error holds its output.
    pub async fn rejoin(&self, primary: &Self) -> Outcome {
        std::fs::remove_dir_all(self.data())?;
        primary.copy_to(self, true).await?;
        self.resume().await
    }

    /// Makes commits of this server wait for its standby, which must be connected.
    ///
    /// # Errors
    /// A statement failed, or the standby does not answer in time.
    pub async fn wait_for_its_standby(&self) -> Outcome {
        self.execute("ALTER SYSTEM SET synchronous_standby_names = '*'").await?;
        self.execute("SELECT pg_reload_conf()").await?;
        crate::eventually::eventually("the standby is synchronous", || async {
            let state = "SELECT coalesce(max(sync_state), '') FROM pg_stat_replication";
            Ok(crate::eventually::when(self.text(state).await? == "sync"))
        })
        .await
    }

    /// Promotes this standby.
    ///
    /// # Errors
    /// The server refused, or is not the primary in time.
    pub async fn promote(&self) -> Outcome {
        self.execute("SELECT pg_promote()").await
    }

    /// Makes a base backup while the server runs. Nothing runs on it before [`Cluster::recover`].
    ///
    /// # Errors
    /// `pg_basebackup` or `chown` failed; the error holds its output.
    pub async fn backup(&self, stage: &Stage) -> Result<Self, Failure> {
        self.copied(stage, false).await
    }

    async fn copied(&self, stage: &Stage, follow: bool) -> Result<Self, Failure> {
        let copy = Self::place(stage, &[])?;
        std::fs::create_dir_all(copy.folder.join("postgres"))?;
        self.copy_to(&copy, follow).await?;
        Ok(copy)
    }

    async fn copy_to(&self, copy: &Self, follow: bool) -> Outcome {
        let mut backup = Command::new("pg_basebackup");
        backup.args(["--checkpoint=fast", "--wal-method=stream", "--no-sync", "--dbname"]).arg(self.url());
        if follow {
            backup.arg("--write-recovery-conf");
        }
        run(backup.arg("--pgdata").arg(copy.data())).await?;
        copy.hand_over_like(&self.data()).await
    }

    /// Starts the server on a backup, with the recovery target that these lines of configuration
    /// name. Returns when it answers, which may be before it has recovered.
    ///
    /// # Errors
    /// The files could not be written, or `chown` or the task runner failed.
    pub async fn recover(&self, target: &str) -> Outcome {
        let file = self.data().join("postgresql.auto.conf");
        let before = std::fs::read_to_string(&file)?;
        std::fs::write(&file, format!("{before}{target}\n"))?;
        std::fs::write(self.data().join("recovery.signal"), "")?;
        self.hand_over_like(&self.data()).await?;
        self.resume().await
    }

    /// Gives the files to the owner of another folder: the server refuses files of any other owner.
    async fn hand_over_like(&self, model: &Path) -> Outcome {
        let mut reference = std::ffi::OsString::from("--reference=");
        reference.push(model);
        run(Command::new("chown").arg("--recursive").arg(reference).arg(self.data())).await
    }

    /// Returns where it listens, as `host:port`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns the administrator's URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://{WHO}:{WHO}@{}/{WHO}", self.address())
    }

    /// Returns the URL of the same database behind the pooler.
    #[must_use]
    pub fn pooler_url(&self) -> String {
        format!("postgres://{WHO}:{WHO}@127.0.0.1:{}/{WHO}", self.pooler_port)
    }

    /// Returns the folder of the server's files.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.folder.join("postgres/data")
    }

    /// Starts a pooler before the server, in the mode `transaction` or `session`.
    ///
    /// # Errors
    /// The task runner failed; the error holds its output.
    pub async fn start_pooler(&self, mode: &str) -> Outcome {
        self.start_pooler_with(&[("OUTBOX_PGBOUNCER_MODE", mode)]).await
    }

    /// Starts a pooler before the server, in transaction mode, that keeps `statements` prepared
    /// statements for each connection.
    ///
    /// # Errors
    /// The task runner failed, for example because the installed pooler is older than 1.21.
    pub async fn start_pooler_that_prepares(&self, statements: u16) -> Outcome {
        self.start_pooler_with(&[("OUTBOX_PGBOUNCER_PREPARED", &statements.to_string())]).await
    }

    async fn start_pooler_with(&self, settings: &[(&str, &str)]) -> Outcome {
        let mut start = self.services()?;
        start.args(["start", "pgbouncer"]).envs(settings.iter().copied());
        run(&mut start).await
    }

    /// Stops the pooler.
    ///
    /// # Errors
    /// The task runner failed; the error holds its output.
    pub async fn stop_pooler(&self) -> Outcome {
        run(self.services()?.args(["stop", "pgbouncer", "--immediate"])).await
    }

    /// Starts the server. Returns when it answers.
    ///
    /// # Errors
    /// The task runner failed; the error holds its output.
    pub async fn resume(&self) -> Outcome {
        run(self.services()?.args(["start", "postgres"])).await
    }

    /// Stops the server as a crash does.
    ///
    /// # Errors
    /// The task runner failed; the error holds its output.
    pub async fn crash(&self) -> Outcome {
        run(self.services()?.args(["stop", "postgres", "--immediate"])).await
    }

    /// Runs the cases of this suite whose names contain `filter` on this server, in a separate
    /// process. Cases that start servers, and those on SQLite, are left out.
    ///
    /// # Errors
    /// A case fails, or no case runs; the error holds their whole output.
    pub async fn passes(&self, filter: &str) -> Outcome {
        let mut suite = Command::new(std::env::current_exe()?);
        suite.args([filter, "--skip", "sqlite"]).env("OUTBOX_POSTGRES_URL", self.url());
        for variable in ["OUTBOX_CASES", "OUTBOX_REQUIRE", "OUTBOX_XTASK"] {
            suite.env_remove(variable);
        }
        suite.env_remove("OUTBOX_PGBOUNCER_URL").env_remove("OUTBOX_POSTGRES_TLS_URL");
        suite.envs(self.settings.iter().map(|(name, value)| (*name, value))).kill_on_drop(true);
        let output = suite.output().await?;
        let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        if !output.status.success() || told.contains(" ok. 0 passed") {
            return Err(format!("{filter} on {}:\n{}", self.url(), set_off(&told)).into());
        }
        let result = told.lines().find(|line| line.starts_with("test result")).unwrap_or_default();
        eprintln!("{}", set_off(result));
        Ok(())
    }

    /// Returns the server's log.
    ///
    /// # Errors
    /// The log could not be read.
    pub fn log(&self) -> Result<String, Failure> {
        Ok(String::from_utf8_lossy(&std::fs::read(self.folder.join("postgres/logs/server.log"))?)
            .into_owned())
    }

    /// Runs one or more statements as the administrator.
    ///
    /// # Errors
    /// The connection or a statement failed.
    pub async fn execute(&self, sql: &str) -> Outcome {
        let mut admin = PgConnection::connect(&self.url()).await?;
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut admin).await?;
        admin.close().await?;
        Ok(())
    }

    /// Returns the first column of the first row as a text.
    ///
    /// # Errors
    /// The connection or the statement failed, or there is no row.
    pub async fn text(&self, sql: &str) -> Result<String, Failure> {
        let mut admin = PgConnection::connect(&self.url()).await?;
        let text = sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&mut admin).await?;
        admin.close().await?;
        Ok(text)
    }

    fn services(&self) -> Result<Command, Failure> {
        let mut command = Command::new(Backend::Xtask.address()?);
        command
            .arg("services")
            .env("OUTBOX_SERVICES_DIR", &self.folder)
            .env("OUTBOX_POSTGRES_PORT", self.port.to_string())
            .env("OUTBOX_PGBOUNCER_PORT", self.pooler_port.to_string())
            .env("OUTBOX_DOWNLOADS_DIR", downloads()?)
            .env_remove("OUTBOX_PGBOUNCER_SERVER")
            // Only the settings of this server choose the version.
            .env_remove(MAJOR)
            .envs(self.settings.iter().map(|(name, value)| (*name, value)));
        // With the address of a running service, the task runner would mistake it for an external
        // one and leave it alone.
        for variable in ["OUTBOX_POSTGRES_URL", "OUTBOX_PGBOUNCER_URL"] {
            command.env_remove(variable);
        }
        Ok(command)
    }
}

/// Returns the folder where the services of this run keep their downloads. It is beside their data
/// unless a variable names another.
pub(crate) fn downloads() -> Result<PathBuf, Failure> {
    for variable in ["OUTBOX_DOWNLOADS_DIR", "OUTBOX_SERVICES_DIR"] {
        if let Some(folder) = std::env::var_os(variable).filter(|value| !value.is_empty()) {
            return Ok(std::path::absolute(folder)?);
        }
    }
    let xtask = PathBuf::from(Backend::Xtask.address()?);
    let target = xtask.ancestors().nth(2).ok_or("the task runner is in no build folder")?;
    Ok(target.join("services"))
}

async fn remove(cluster: Cluster, folder: TempDir) -> Outcome {
    for service in ["pgbouncer", "postgres"] {
        run(cluster.services()?.args(["stop", service, "--immediate"])).await?;
    }
    run(cluster.services()?.args(["down", "--purge", "--only", "postgres,pgbouncer"])).await?;
    folder.close()?;
    Ok(())
}

/// Below the range from which the kernel assigns ports: it could assign one of those to another
/// process before the server starts.
const PORTS: std::ops::Range<u16> = 30_000..32_000;

/// Returns a port that nothing listens on and that no other server of this process has.
///
/// # Errors
/// No port is free.
pub fn free_port() -> Result<u16, Failure> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let len = PORTS.end - PORTS.start;
    // Another run of the tests begins at another port.
    let first = u16::try_from(std::process::id() % u32::from(len))?;
    let ports =
        (0..len).map(|_| NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add(first) % len + PORTS.start);
    let mut free = ports.filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    Ok(free.next().ok_or("no port is free")?)
}

/// Puts a mark before each line of the output of another run of tests. Without it, the task runner
/// would count that run's results as those of this one, and mistake its report for this one's.
fn set_off(output: &str) -> String {
    output.lines().map(|line| format!("    | {line}\n")).collect()
}

/// Runs a program to its end.
///
/// # Errors
/// The program could not be started or failed; the error holds its whole output.
pub async fn run(command: &mut Command) -> Outcome {
    let output = command.output().await?;
    if output.status.success() {
        return Ok(());
    }
    let words = [output.stdout, output.stderr].concat();
    Err(format!("{command:?} failed ({}): {}", output.status, String::from_utf8_lossy(&words)).into())
}
