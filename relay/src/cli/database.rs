//! Finds the database of a command: a pipeline's, or one that is named on the command line.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use brokers::Secret;
use clap::Args;
use migrations::Identifier;
use outbox::admin::{self, LogAdmin};
use outbox::log::{self, CheckpointStore, LogError, LogOptions, LogReader, LogStore, RelayName};
use outbox::retention::{self, LogRetention};
use secrecy::SecretString;

use super::config::OnePipeline;
use super::exit::Exit;
use super::failure::Failure;
use crate::config::PipelineConfig;
pub(crate) use crate::operate::tables::Tables as Goal;

/// The URL of a database, by flag, variable or file.
#[derive(Debug, Args)]
pub(crate) struct DatabaseUrl {
    /// The database: postgres://user@host/database or sqlite:file.db. A URL with a password is
    /// refused here: it belongs in the variable or in a file.
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

/// A database that is named on the command line; the command has an argument `pipeline`, too.
#[derive(Debug, Args)]
pub(crate) struct NamedDatabase {
    /// The database, instead of the configuration's: postgres://user@host/database or
    /// sqlite:file.db (?mode=rwc makes a missing file). A URL with a password is refused here: it
    /// belongs in the variable or in a file.
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

    /// The PostgreSQL schema of the tables; it must exist. Default: the configuration's, or the
    /// search_path's.
    #[arg(long, value_name = "NAME")]
    pub(crate) schema: Option<Identifier>,

    /// Accept an unencrypted connection to another machine (with a database that is named here).
    #[arg(long, requires = "named_database")]
    allow_plaintext: bool,
}

/// The database of tables besides the log: one that is named, or that of a pipeline.
#[derive(Debug, Args)]
pub(crate) struct TablesDatabase {
    #[command(flatten)]
    named: NamedDatabase,

    #[command(flatten)]
    pipeline: OnePipeline,
}

impl TablesDatabase {
    /// The database, checked.
    pub(crate) fn goal(&self) -> Result<Goal, Failure> {
        match self.named.goal()? {
            Some(goal) => Ok(goal),
            None => self.named.of(&self.pipeline.read()?),
        }
    }
}

impl NamedDatabase {
    /// The database, if one is named.
    pub(crate) fn goal(&self) -> Result<Option<Goal>, Failure> {
        let url = read_url("database", self.database.as_ref(), self.database_file.as_ref())?;
        let options = LogOptions::default().schema(self.schema.clone()).allow_plaintext(self.allow_plaintext);
        Ok(url.map(|url| Goal::new(url, options)))
    }

    /// A pipeline's database. The schema of the command line goes before the configuration's.
    pub(crate) fn of(&self, pipeline: &PipelineConfig) -> Result<Goal, Failure> {
        let schema = self.schema.clone().or_else(|| pipeline.database.schema().cloned());
        let options = pipeline.database.options().clone().schema(schema);
        Ok(Goal::new(pipeline.database.url()?, options))
    }
}

/// PostgreSQL is asked for, and this program was built without it.
#[cfg(not(feature = "postgres"))]
pub(crate) fn without_postgres() -> Failure {
    crate::operate::tables::without_postgres().into()
}

/// The pipeline's log. Connects to nothing yet.
pub(crate) fn store(pipeline: &PipelineConfig) -> Result<Arc<dyn LogStore>, Failure> {
    let options = pipeline.database.options().clone();
    Ok(log::open(pipeline.database.address(), pipeline.source.clone(), options)?)
}

/// The pipeline's log, for a program that waits: where the file that holds the URL cannot be used,
/// each connection is another try. Connects to nothing yet.
///
/// # Errors
/// [`Failure`] for a URL of the configuration itself that cannot be used.
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
        log::open(database.address(), source.clone(), database.options().clone())
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
}

/// After a URL could not be had: the pipeline itself reports that.
const REOPEN_INTERVAL: Duration = Duration::from_secs(2);

/// Opens what a task beside a pipeline needs, as soon as the pipeline's URL can be had.
/// Cancel-safe.
pub(crate) async fn when_open<T>(open: impl Fn() -> Result<T, Failure>) -> T {
    loop {
        if let Ok(opened) = open() {
            return opened;
        }
        tokio::time::sleep(REOPEN_INTERVAL).await;
    }
}

/// The administration of the pipeline's log. Connects to nothing yet.
pub(crate) fn administration(pipeline: &PipelineConfig) -> Result<Arc<dyn LogAdmin>, Failure> {
    let options = pipeline.database.options().clone();
    Ok(admin::open(pipeline.database.address(), pipeline.source.clone(), options)?)
}

/// The retention of the pipeline's log. Connects to nothing yet.
pub(crate) fn retention(pipeline: &PipelineConfig) -> Result<Arc<dyn LogRetention>, Failure> {
    let options = pipeline.database.options().clone();
    Ok(retention::open(pipeline.database.address(), pipeline.source.clone(), options)?)
}
