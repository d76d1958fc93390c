//! Arguments that the commands share: places and conditions.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use inbox::ConsumerName;
use migrations::Identifier;
use operate::dead::{DeadSource, Filter, MessageRef};
use operate::units::Time;
use operate::{Operator, Places, Role};

use super::super::config::{ConfigFile, find};
use super::super::database::read_url;
use super::super::failure::Failure;
use crate::config::Config;

/// The places to look at: the pipelines and inboxes of the configuration, or one inbox outside of
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
    /// Returns the places that may have one of these messages. If every id is a place in the log,
    /// only outboxes are opened, so an unreachable inbox does not matter.
    pub(crate) async fn open_for(&self, ids: &[MessageRef]) -> Result<Places, Failure> {
        let is_of_outbox = !ids.is_empty() && ids.iter().all(|id| id.uuid().is_none());
        match self.source {
            None if is_of_outbox => self.open_of(Some(DeadSource::Outbox)).await,
            source => self.open_of(source).await,
        }
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
            for inbox in config.verify.iter().filter(is_of) {
                places = places.inbox(inbox).await;
            }
        }
        Ok(places)
    }
}

/// The conditions that messages must meet.
#[derive(Debug, Clone, Args)]
pub(crate) struct Conditions {
    /// Only messages of this topic or queue.
    #[arg(long, value_name = "TOPIC")]
    topic: Option<String>,

    /// Only messages with this ordering key.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,

    /// Only messages of this event type.
    #[arg(long, value_name = "TYPE")]
    kind: Option<String>,

    /// Only messages with this cause: message, broker or operator in an outbox; poison, rejected,
    /// too_old, … in an inbox.
    #[arg(long, value_name = "CAUSE")]
    cause: Option<String>,

    /// Only messages whose error contains this text, with its numbers or with # instead of them.
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,

    /// Only messages whose error differs from this one only in numbers and ids.
    #[arg(long, value_name = "TEXT")]
    error_like: Option<String>,

    /// Only dead letters of this consumer.
    #[arg(long, value_name = "NAME")]
    consumer: Option<ConsumerName>,

    /// Only messages that have waited for longer than this, for example 1h.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    older_than: Option<Duration>,

    /// Only messages that have waited for at most this time.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    newer_than: Option<Duration>,
}

/// The names of the conditions, for groups of arguments.
pub(crate) const CONDITIONS: [&str; 9] =
    ["topic", "key", "kind", "cause", "error", "error_like", "consumer", "older_than", "newer_than"];

impl Conditions {
    /// Returns the filter of these conditions and ids at these places.
    pub(crate) fn filter(&self, ids: &[MessageRef], place: &Where) -> Filter {
        Filter {
            source: place.source,
            ids: ids.to_vec(),
            topic: self.topic.clone(),
            key: self.key.clone(),
            kind: self.kind.clone(),
            cause: self.cause.clone(),
            error: self.error.clone(),
            error_like: self.error_like.clone(),
            consumer: self.consumer.clone(),
            older_than: self.older_than,
            newer_than: self.newer_than,
        }
    }
}

/// Returns the operator for reads, which are not recorded.
pub(crate) fn viewer() -> Operator {
    Operator::new("the command line", Role::Viewer)
}

fn duration(text: &str) -> Result<Duration, String> {
    text.parse::<Time>().map(|time| time.0).map_err(|error| error.to_string())
}
