//! The inbox of a consumer that applies messages of pipelines.

use std::collections::BTreeSet;

use brokers::Secret;
use inbox::{ConsumerName, Tenant};
use migrations::Identifier;

/// An inbox for `relay verify`. `Debug` prints no secret.
#[derive(Debug, Clone)]
pub struct InboxConfig {
    /// The consumer's name in the inbox.
    pub consumer: ConsumerName,
    /// One scope; `None` means all.
    pub scope: Option<Tenant>,
    /// The URL of its database.
    pub url: Secret,
    /// The PostgreSQL schema of its tables.
    pub schema: Option<Identifier>,
    /// Accept an unencrypted connection to another machine.
    pub allow_plaintext: bool,
    /// The topics that the consumer applies; if empty, all.
    pub topics: BTreeSet<String>,
    /// The pipelines whose messages it applies; if empty, all.
    pub pipelines: BTreeSet<String>,
    /// A SELECT of the message ids of all effects, one row for each effect.
    pub effects: Option<String>,
    /// The event types that `effects` covers; if empty, all.
    pub effects_kinds: BTreeSet<String>,
    /// The consumer's Kafka group. A message that it has not reached yet is not missing.
    pub group: Option<String>,
}

impl InboxConfig {
    /// Returns whether it applies the messages of a pipeline.
    #[must_use]
    pub fn is_of(&self, pipeline: &str) -> bool {
        self.pipelines.is_empty() || self.pipelines.contains(pipeline)
    }
}
