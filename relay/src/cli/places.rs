//! The places that a command searches: outboxes and inboxes.

use std::path::PathBuf;

use clap::Args;
use migrations::Identifier;
use operate::dead::{DeadSource, MessageRef};
use operate::{NamedTables, Places, named_tables};

use super::config::{ConfigFile, find};
use super::database::read_url;
use super::failure::Failure;
use crate::config::Config;

/// The places to search: the pipelines and inboxes of the configuration, or one inbox outside of
/// it.
#[derive(Debug, Args)]
pub(crate) struct Where {
    #[command(flatten)]
    config: ConfigFile,

    /// Only this pipeline, and the inboxes that apply its messages.
    #[arg(long, value_name = "NAME")]
    pipeline: Option<String>,

    /// Only messages in outboxes (relays could not publish them), or only those in inboxes
    /// (consumers could not apply them).
    #[arg(long, value_name = "outbox|inbox")]
    source: Option<DeadSource>,

    /// Only the inboxes in this database: postgres://user@host/database or sqlite:file.db. Needs no
    /// configuration. A URL with a password is refused here: put it in the variable or in a file.
    #[arg(
        long,
        value_name = "URL",
        env = "RELAY_INBOX_URL",
        hide_env_values = true,
        group = "named_inbox",
        conflicts_with_all = ["pipeline", "source"]
    )]
    inbox: Option<String>,

    /// A file that holds the URL of that database, such as a mounted secret.
    #[arg(long, value_name = "FILE", group = "named_inbox", conflicts_with_all = ["pipeline", "source"])]
    inbox_file: Option<PathBuf>,

    /// The PostgreSQL schema of its tables. Only with --inbox or --inbox-file. Default: the
    /// search_path.
    #[arg(long, value_name = "NAME", requires = "named_inbox")]
    schema: Option<Identifier>,

    /// Accept an unencrypted connection to another machine. Only with --inbox or --inbox-file.
    #[arg(long, requires = "named_inbox")]
    allow_plaintext: bool,
}

impl Where {
    /// Returns whether only messages in outboxes, or only those in inboxes, are meant.
    pub(crate) fn source(&self) -> Option<DeadSource> {
        self.source
    }

    /// Returns the places that may have one of these messages. If every id is a place in the log,
    /// only outboxes are opened, so an unreachable inbox does not matter.
    pub(crate) async fn open_for(&self, ids: &[MessageRef]) -> Result<Places, Failure> {
        let is_of_outbox = !ids.is_empty() && ids.iter().all(|id| id.uuid().is_none());
        match self.source {
            None if is_of_outbox => self.open_of(Some(DeadSource::Outbox)).await,
            source => self.open_of(source).await,
        }
    }

    /// Returns the databases of keys and sagas; none if only a pipeline, a source or an inbox is
    /// meant. Does not connect.
    pub(crate) fn tables(&self) -> Result<Vec<NamedTables>, Failure> {
        let is_inbox = self.inbox.is_some() || self.inbox_file.is_some();
        if is_inbox || self.pipeline.is_some() || self.source.is_some() {
            return Ok(Vec::new());
        }
        let config = self.config.read()?;
        Ok(named_tables(&config.pipelines, &config.verify))
    }

    /// Returns whether messages in inboxes are meant, but none is configured or named.
    pub(crate) fn lacks_inboxes(&self) -> Result<bool, Failure> {
        let is_named = self.inbox.is_some() || self.inbox_file.is_some();
        if is_named || self.source == Some(DeadSource::Outbox) {
            return Ok(false);
        }
        Ok(self.config.read()?.verify.is_empty())
    }

    /// Returns the places, connected to the inboxes.
    pub(crate) async fn open(&self) -> Result<Places, Failure> {
        self.open_of(self.source).await
    }

    async fn open_of(&self, source: Option<DeadSource>) -> Result<Places, Failure> {
        if let Some(url) = read_url("inbox", self.inbox.as_ref(), self.inbox_file.as_ref())? {
            return Ok(Places::new().inbox_at(&url, self.schema.clone(), self.allow_plaintext).await);
        }
        let config: Config = self.config.read()?;
        let pipelines = match &self.pipeline {
            Some(name) => vec![find(&config, name)?],
            None => config.pipelines.iter().collect(),
        };
        let mut places = Places::new();
        if source != Some(DeadSource::Inbox) {
            places = pipelines.iter().fold(places, |places, pipeline| places.outbox(pipeline));
        }
        if source != Some(DeadSource::Outbox) {
            let is_of = |inbox: &&operate::InboxConfig| {
                self.pipeline.as_deref().is_none_or(|pipeline| inbox.is_of(pipeline))
            };
            places = places.inboxes(config.verify.iter().filter(is_of).collect()).await;
        }
        Ok(places)
    }
}
