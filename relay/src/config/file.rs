//! The sections of `relay.toml` as written in the file.

use std::collections::BTreeSet;
use std::path::PathBuf;

use schemars::JsonSchema;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use super::adopt::AdoptSection;
use super::engine_section::EngineSection;
use super::http::HttpSection;
use super::otlp::OtlpSection;
use super::page::PageSection;
use engine::Rule;
use operate::Retention;

/// The whole file.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileSection {
    /// The pipelines.
    #[serde(default)]
    pub(crate) pipeline: Vec<PipelineSection>,
    /// The log.
    #[serde(default)]
    pub(crate) log: Log,
    /// Metrics and health.
    #[serde(default)]
    pub(crate) http: HttpSection,
    /// The OpenTelemetry collector.
    pub(crate) otlp: Option<OtlpSection>,
    /// The page for operators.
    #[serde(default)]
    pub(crate) page: PageSection,
    /// The section `[verify]`.
    #[serde(default)]
    pub(crate) verify: VerifySection,
}

/// The inboxes that `relay verify` compares with.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct VerifySection {
    #[serde(default)]
    pub(crate) inbox: Vec<InboxSection>,
}

/// An inbox that `relay verify` compares.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct InboxSection {
    pub(crate) consumer: String,
    pub(crate) scope: Option<String>,
    #[schemars(with = "Option<String>")]
    pub(crate) url: Option<SecretString>,
    pub(crate) url_file: Option<PathBuf>,
    pub(crate) schema: Option<String>,
    #[serde(default)]
    pub(crate) allow_plaintext: bool,
    #[serde(default)]
    pub(crate) topics: BTreeSet<String>,
    #[serde(default)]
    pub(crate) pipelines: BTreeSet<String>,
    pub(crate) effects: Option<String>,
    #[serde(default)]
    pub(crate) effects_kinds: BTreeSet<String>,
    pub(crate) group: Option<String>,
}

#[cfg(feature = "kafka")]
pub(crate) type KafkaSection = brokers::kafka::Config;
#[cfg(not(feature = "kafka"))]
pub(crate) type KafkaSection = super::broker::NotBuilt;
#[cfg(feature = "rabbitmq")]
pub(crate) type RabbitmqSection = brokers::rabbitmq::Config;
#[cfg(not(feature = "rabbitmq"))]
pub(crate) type RabbitmqSection = super::broker::NotBuilt;
#[cfg(feature = "sqs")]
pub(crate) type SqsSection = brokers::sqs::Config;
#[cfg(not(feature = "sqs"))]
pub(crate) type SqsSection = super::broker::NotBuilt;
#[cfg(feature = "http")]
pub(crate) type EndpointsSection = brokers::http::Config;
#[cfg(not(feature = "http"))]
pub(crate) type EndpointsSection = super::broker::NotBuilt;

/// One pipeline: from one outbox to one broker.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PipelineSection {
    /// The relay's name, used for cursor, lease and metrics.
    pub(crate) name: String,
    /// The CloudEvents source; default `/<name>`.
    pub(crate) source: Option<String>,
    pub(crate) database: DatabaseSection,
    pub(crate) kafka: Option<KafkaSection>,
    pub(crate) rabbitmq: Option<RabbitmqSection>,
    pub(crate) sqs: Option<SqsSection>,
    pub(crate) http: Option<EndpointsSection>,
    #[serde(default)]
    pub(crate) engine: EngineSection,
    /// The messages that it publishes; all, without a rule.
    #[serde(default)]
    pub(crate) filter: Vec<Rule>,
    /// The foreign outbox table that `relay adopt` takes over.
    pub(crate) adopt: Option<AdoptSection>,
}

/// The location of the outbox.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DatabaseSection {
    #[schemars(with = "Option<String>")]
    pub(crate) url: Option<SecretString>,
    pub(crate) url_file: Option<PathBuf>,
    pub(crate) schema: Option<String>,
    #[serde(default)]
    pub(crate) allow_plaintext: bool,
    pub(crate) retention: Option<Retention>,
    pub(crate) audit_retention: Option<Retention>,
}

/// The log of the relay.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Log {
    /// The format: for people or for machines.
    pub(crate) format: LogFormat,
    /// A level (`error`, `warn`, `info`, `debug`, `trace`) or directives such as
    /// `info,relay=debug`.
    pub(crate) level: String,
}

/// The format of a line of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// One line for people.
    #[default]
    Text,
    /// One JSON object for machines.
    Json,
}

impl LogFormat {
    /// Returns the word in the file.
    #[must_use]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::Text, level: String::from("info") }
    }
}
