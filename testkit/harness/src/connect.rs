//! Kafka Connect with Debezium's connector for PostgreSQL and its outbox router, in a separate
//! process.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use url::Url;

use crate::Failure;

/// Variable with the folder of the jars. `cargo xtask` sets it.
pub const JARS_VARIABLE: &str = "OUTBOX_DEBEZIUM_JARS";

/// Returns the folder of the jars, if they are available in this run.
#[must_use]
pub fn jars() -> Option<PathBuf> {
    std::env::var_os(JARS_VARIABLE).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// The options of one connector and its worker. Later lines of configuration override earlier ones.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// The folder for configuration, offsets and log. A second start with the same folder continues
    /// where the first one stopped.
    pub folder: PathBuf,
    /// The Kafka servers.
    pub servers: String,
    /// The URL of the database, with a user that may read the slot and owns the table.
    pub database: String,
    /// The table that is captured, with its schema.
    pub table: String,
    /// The replication slot.
    pub slot: String,
    /// The publication.
    pub publication: String,
    /// Options of the virtual machine, separated by blanks, such as `-Xmx1g`.
    pub java: String,
    /// Additional lines for the worker.
    pub worker: String,
    /// Additional lines for the connector.
    pub connector: String,
}

/// A running worker. Dropping it kills the process.
#[derive(Debug)]
pub struct Connect {
    child: Child,
    log: PathBuf,
}

impl ConnectOptions {
    /// Starts the worker, which is ready some seconds later.
    ///
    /// # Errors
    /// There are no jars or no Java, or the folder cannot be written.
    pub fn start(&self) -> Result<Connect, Failure> {
        let jars = jars().ok_or_else(|| format!("{JARS_VARIABLE} is not set"))?;
        std::fs::create_dir_all(&self.folder)?;
        let worker = self.write("worker.properties", &self.worker_lines())?;
        let connector = self.write("connector.properties", &self.connector_lines()?)?;
        let log = self.log();
        let file = File::options().create(true).append(true).open(&log)?;
        let child = Command::new("java")
            .args(self.java.split_whitespace())
            .args([String::from("-cp"), format!("{}/*", jars.display())])
            .arg("org.apache.kafka.connect.cli.ConnectStandalone")
            .args([worker, connector])
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("java cannot be run: {error}"))?;
        Ok(Connect { child, log })
    }

    /// Returns the path of the worker's log.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.folder.join("connect.log")
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf, Failure> {
        let path = self.folder.join(name);
        std::fs::write(&path, text)?;
        Ok(path)
    }

    fn worker_lines(&self) -> String {
        format!(
            "bootstrap.servers={}\n\
             key.converter=org.apache.kafka.connect.storage.StringConverter\n\
             value.converter=org.apache.kafka.connect.converters.ByteArrayConverter\n\
             offset.storage.file.filename={}\n\
             listeners=http://127.0.0.1:0\n\
             plugin.discovery=service_load\n\
             {}",
            self.servers,
            self.folder.join("offsets").display(),
            self.worker
        )
    }

    fn connector_lines(&self) -> Result<String, Failure> {
        let url: Url = self.database.parse()?;
        Ok(format!(
            "name=outbox\n\
             connector.class=io.debezium.connector.postgresql.PostgresConnector\n\
             database.hostname={}\n\
             database.port={}\n\
             database.user={}\n\
             database.password={}\n\
             database.dbname={}\n\
             topic.prefix={slot}\n\
             plugin.name=pgoutput\n\
             slot.name={slot}\n\
             publication.name={}\n\
             publication.autocreate.mode=filtered\n\
             table.include.list={}\n\
             snapshot.mode=no_data\n\
             transforms=outbox\n\
             transforms.outbox.type=io.debezium.transforms.outbox.EventRouter\n\
             {}",
            url.host_str().ok_or("the database URL has no host")?,
            url.port().unwrap_or(5432),
            url.username(),
            url.password().unwrap_or_default(),
            url.path().trim_start_matches('/'),
            self.publication,
            self.table,
            self.connector,
            slot = self.slot,
        ))
    }
}

impl Connect {
    /// Fails if the worker has ended.
    ///
    /// # Errors
    /// The worker has ended. The text has the end of its log.
    pub fn check(&mut self) -> Result<(), Failure> {
        match self.child.try_wait()? {
            Some(status) => Err(self.failure(&format!("Kafka Connect has ended ({status})"))),
            None => Ok(()),
        }
    }

    /// Returns an error with the last lines of the log.
    #[must_use]
    pub fn failure(&self, what: &str) -> Failure {
        format!("{what}:\n{}", tail(&self.log)).into()
    }

    /// Stops the worker in an orderly way. It stores its position, and confirms that position to
    /// the slot.
    ///
    /// # Errors
    /// The signal cannot be sent, or waiting fails.
    pub async fn stop(mut self) -> Result<(), Failure> {
        self.signal(Signal::TERM)?;
        self.child.wait().await?;
        Ok(())
    }

    /// Suspends the worker, with its connections open.
    ///
    /// # Errors
    /// The worker has ended.
    pub fn pause(&self) -> Result<(), Failure> {
        self.signal(Signal::STOP)
    }

    /// Resumes the worker.
    ///
    /// # Errors
    /// The worker has ended.
    pub fn resume(&self) -> Result<(), Failure> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<(), Failure> {
        let process = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        kill_process(process.ok_or_else(|| self.failure("Kafka Connect has ended"))?, signal)?;
        Ok(())
    }

    /// Kills the worker.
    ///
    /// # Errors
    /// The process cannot be killed.
    pub async fn kill(mut self) -> Result<(), Failure> {
        self.child.kill().await?;
        Ok(())
    }
}

/// Returns the last lines of a log.
fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let last: Vec<&str> = text.lines().rev().take(20).collect();
    last.into_iter().rev().collect::<Vec<_>>().join("\n")
}
