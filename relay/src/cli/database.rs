//! Finds the database of a command: a pipeline's, or one that is named on the command line.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use brokers::Secret;
use clap::Args;
use migrations::Identifier;
use operate::PipelineConfig;
use outbox_log::admin::{self, LogAdmin};
use outbox_log::retention::{self, LogRetention};
use outbox_log::{CheckpointStore, LogError, LogOptions, LogReader, LogStore, RelayName};
use secrecy::SecretString;

use super::config::OnePipeline;
use super::exit::Exit;
use super::failure::Failure;
pub(crate) use operate::tables::Tables as Goal;

/// The URL of a database, from a flag, a variable or a file.
#[derive(Debug, Args)]
pub(crate) struct DatabaseUrl {
    /// The database: postgres://user@host/database or sqlite:file.db. A URL with a password is
    /// refused here: put it in the variable or in a file.
    #[arg(
        long,
        value_name = "URL",
        env = "RELAY_DATABASE_URL",
        hide_env_values = true,
        group = "named_database"
    )]
    database: Option<String>,

    /// A file that holds the URL of the database, such as a mounted secret.
    #[arg(long, value_name = "FILE", group = "named_database")]
    database_file: Option<PathBuf>,
}

impl DatabaseUrl {
    /// Returns the URL, if one is given. Reads the file.
    pub(crate) fn read(&self) -> Result<Option<SecretString>, Failure> {
        read_url("database", self.database.as_ref(), self.database_file.as_ref())
    }

    /// Returns the absolute path of the file, if one is given: the relay may start in another
    /// folder.
    pub(crate) fn file(&self) -> Result<Option<String>, Failure> {
        let Some(file) = &self.database_file else { return Ok(None) };
        let refused = |problem: &dyn std::fmt::Display| {
            Failure::new(Exit::Usage, format_args!("--database-file: {}: {problem}", file.display()))
        };
        let path = std::path::absolute(file).map_err(|error| refused(&error))?;
        let path = path.into_os_string().into_string();
        path.map(Some).map_err(|_| refused(&"the path is not UTF-8"))
    }
}

/// Returns the URL that a flag `--<name>` or the file of `--<name>-file` holds.
pub(crate) fn read_url(
    name: &str,
    url: Option<&String>,
    file: Option<&PathBuf>,
) -> Result<Option<SecretString>, Failure> {
    match (url, file) {
        (Some(url), _) => Ok(Some(SecretString::from(url.as_str()))),
        (None, Some(file)) => match Secret::File(file.clone()).load(name) {
            Ok(url) => Ok(Some(url)),
            Err(error) => Err(Failure::new(Exit::Usage, format_args!("--{name}-file: {}", error.problem))),
        },
        (None, None) => Ok(None),
    }
}

/// A database named on the command line, for commands that also have an argument `pipeline`.
#[derive(Debug, Args)]
pub(crate) struct NamedDatabase {
    /// The database to use instead of the configured ones: postgres://user@host/database or
    /// sqlite:file.db (?mode=rwc creates a missing file). A URL with a password is refused here:
    /// put it in the variable or in a file.
    #[arg(
        long,
        value_name = "URL",
        env = "RELAY_DATABASE_URL",
        hide_env_values = true,
        group = "named_database",
        conflicts_with = "pipeline"
    )]
    database: Option<String>,

    /// A file that holds the URL of the database, such as a mounted secret.
    #[arg(long, value_name = "FILE", group = "named_database", conflicts_with = "pipeline")]
    database_file: Option<PathBuf>,

    /// The PostgreSQL schema of the tables, which must exist. Default: the schema in the
    /// configuration, or the search_path.
    #[arg(long, value_name = "NAME")]
    pub(crate) schema: Option<Identifier>,

    /// Accept an unencrypted connection to another machine. Only with --database or
    /// --database-file.
    #[arg(long, requires = "named_database")]
    allow_plaintext: bool,
}

/// The database of tables other than the log: a named one, or a pipeline's.
#[derive(Debug, Args)]
pub(crate) struct TablesDatabase {
    #[command(flatten)]
    named: NamedDatabase,

    #[command(flatten)]
    pipeline: OnePipeline,
}

impl TablesDatabase {
    /// Returns the database, checked.
    pub(crate) fn goal(&self) -> Result<Goal, Failure> {
        match self.named.goal()? {
            Some(goal) => Ok(goal),
            None => self.named.of(&self.pipeline.read()?),
        }
    }
}

impl NamedDatabase {
    /// Returns the database, if one is named.
    pub(crate) fn goal(&self) -> Result<Option<Goal>, Failure> {
        let url = read_url("database", self.database.as_ref(), self.database_file.as_ref())?;
        let options = LogOptions::default().schema(self.schema.clone()).allow_plaintext(self.allow_plaintext);
        Ok(url.map(|url| Goal::new(url, options)))
    }

    /// Returns a pipeline's database. A schema on the command line overrides the configured one.
    pub(crate) fn of(&self, pipeline: &PipelineConfig) -> Result<Goal, Failure> {
        let schema = self.schema.clone().or_else(|| pipeline.database.schema().cloned());
        let options = pipeline.database.options().clone().schema(schema);
        Ok(Goal::new(pipeline.database.url()?, options))
    }
}

/// Returns the error for PostgreSQL in a program that was built without it.
#[cfg(not(feature = "postgres"))]
pub(crate) fn without_postgres() -> Failure {
    operate::tables::without_postgres().into()
}

/// Returns the pipeline's log. Does not connect yet.
pub(crate) fn store(pipeline: &PipelineConfig) -> Result<Arc<dyn LogStore>, Failure> {
    let options = pipeline.database.options().clone();
    Ok(outbox_log::open(pipeline.database.address(), pipeline.source.clone(), options)?)
}

/// Returns the pipeline's log for a program that waits. Where the file with the URL cannot be used,
/// each connection attempt reads it again. Does not connect yet.
///
/// # Errors
/// [`Failure`] for an unusable URL in the configuration itself.
pub(crate) fn patient_store(pipeline: &PipelineConfig) -> Result<Arc<dyn LogStore>, Failure> {
    match (store(pipeline), pipeline.database.url_file()) {
        (Err(_), Some(file)) => {
            let origin = format!("the database at the URL in {}", file.display());
            Ok(Arc::new(Late { pipeline: pipeline.clone(), origin }))
        }
        (opened, _) => opened,
    }
}

/// A log whose URL is not known yet.
struct Late {
    pipeline: PipelineConfig,
    origin: String,
}

impl Late {
    fn open(&self) -> Result<Arc<dyn LogStore>, LogError> {
        let PipelineConfig { database, source, .. } = &self.pipeline;
        outbox_log::open(database.address(), source.clone(), database.options().clone())
    }
}

#[async_trait]
impl LogStore for Late {
    fn origin(&self) -> &str {
        &self.origin
    }

    async fn reader(&self, relay: &RelayName) -> Result<Box<dyn LogReader>, LogError> {
        self.open()?.reader(relay).await
    }

    async fn checkpoint_store(
        &self,
        relay: &RelayName,
        holder: &str,
    ) -> Result<Box<dyn CheckpointStore>, LogError> {
        self.open()?.checkpoint_store(relay, holder).await
    }

    async fn cause_of(&self, error: &LogError) -> Option<String> {
        self.open().ok()?.cause_of(error).await
    }
}

/// Pause after the URL could not be read. The pipeline itself reports that.
const REOPEN_INTERVAL: Duration = Duration::from_secs(2);

/// Repeats `open` until it succeeds, for a task beside a pipeline whose URL may not be readable
/// yet. Cancel-safe.
pub(crate) async fn when_open<T>(open: impl Fn() -> Result<T, Failure>) -> T {
    loop {
        if let Ok(opened) = open() {
            return opened;
        }
        tokio::time::sleep(REOPEN_INTERVAL).await;
    }
}

/// Returns the administration of the pipeline's log. Does not connect yet.
pub(crate) fn administration(pipeline: &PipelineConfig) -> Result<Arc<dyn LogAdmin>, Failure> {
    let options = pipeline.database.options().clone();
    Ok(admin::open(pipeline.database.address(), pipeline.source.clone(), options)?)
}

/// Returns the retention of the pipeline's log. Does not connect yet.
pub(crate) fn retention(pipeline: &PipelineConfig) -> Result<Arc<dyn LogRetention>, Failure> {
    let options = pipeline.database.options().clone();
    Ok(retention::open(pipeline.database.address(), pipeline.source.clone(), options)?)
}
