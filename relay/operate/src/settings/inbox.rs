//! The inbox of a consumer that applies messages of pipelines.

use std::collections::BTreeSet;

use brokers::{InvalidSetting, Secret};
use inbox::{ConsumerName, Tenant};
use migrations::Identifier;
use outbox_log::{Address, LogOptions};
use secrecy::SecretString;

use crate::tables::Tables;

/// An inbox for `relay verify`. `Debug` prints no secret.
#[derive(Debug, Clone)]
pub struct InboxConfig {
    /// The consumer's name in the inbox.
    pub consumer: ConsumerName,
    /// One scope; `None` means all.
    pub scope: Option<Tenant>,
    /// The URL of its database.
    pub url: Secret,
    /// The database that a service lent instead; then the URL is not used.
    pub lent: Option<Address>,
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
    /// Creates an inbox at a URL, with all topics and pipelines of its consumer.
    #[must_use]
    pub fn new(consumer: ConsumerName, url: Secret) -> Self {
        Self {
            consumer,
            scope: None,
            url,
            lent: None,
            schema: None,
            allow_plaintext: false,
            topics: BTreeSet::new(),
            pipelines: BTreeSet::new(),
            effects: None,
            effects_kinds: BTreeSet::new(),
            group: None,
        }
    }

    /// Creates an inbox in a database that a service lends, such as a pool. Of the options, the
    /// schema and `allow_plaintext` apply. Commands that need a URL cannot reach it.
    #[must_use]
    pub fn lent(consumer: ConsumerName, address: Address, options: LogOptions) -> Self {
        Self {
            lent: Some(address),
            schema: options.schema,
            allow_plaintext: options.allow_plaintext,
            ..Self::new(consumer, Secret::Text(SecretString::from("")))
        }
    }

    /// Returns its database. Reads the file with the URL, if there is one.
    ///
    /// # Errors
    /// [`InvalidSetting`] names the file.
    pub fn tables(&self) -> Result<Tables, InvalidSetting> {
        let options = LogOptions::default().schema(self.schema.clone()).allow_plaintext(self.allow_plaintext);
        Ok(match &self.lent {
            Some(address) => Tables::lent(address.clone(), options),
            None => Tables::new(self.url.load("verify.inbox.url")?, options),
        })
    }

    /// Returns whether it applies the messages of a pipeline.
    #[must_use]
    pub fn is_of(&self, pipeline: &str) -> bool {
        self.pipelines.is_empty() || self.pipelines.contains(pipeline)
    }
}
