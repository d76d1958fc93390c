//! Inboxes for `relay verify`.

use std::collections::BTreeSet;

use brokers::Secret;
use inbox::{ConsumerName, Tenant};
use migrations::{Dialect, Identifier};
use outbox::connect::InvalidUrl;
use outbox::log::LogOptions;
use secrecy::ExposeSecret as _;

use super::check::Problems;
use super::database::Database;
use super::file::InboxSection;

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

    /// Returns the checked section. Adds its problems to `problems`.
    pub(super) fn check(
        section: InboxSection,
        path: &str,
        pipelines: &[String],
        problems: &mut Problems,
    ) -> Option<Self> {
        let consumer = ConsumerName::new(section.consumer)
            .map_err(|error| problems.add(format!("{path}.consumer"), error.to_string(), None))
            .ok();
        let scope = section.scope.map(Tenant::new).transpose();
        let scope =
            scope.map_err(|error| problems.add(format!("{path}.scope"), error.to_string(), None)).ok();
        let schema = section.schema.map(Identifier::new).transpose();
        let schema =
            schema.map_err(|error| problems.add(format!("{path}.schema"), error.to_string(), None)).ok();
        let url = Secret::from_pair("url", section.url, section.url_file)
            .map_err(|error| problems.add(path.to_owned(), error.to_string(), None))
            .ok();
        if let Some(Secret::Text(text)) = &url {
            let options = LogOptions::default().allow_plaintext(section.allow_plaintext);
            match Database::check(text.expose_secret(), &options) {
                Err(error @ InvalidUrl::Plaintext { .. }) => {
                    let help = Some("the setting is allow_plaintext = true");
                    problems.add(format!("{path}.url"), error.to_string(), help);
                }
                Err(error) => problems.add(format!("{path}.url"), error.to_string(), None),
                Ok(Dialect::Sqlite) if schema.as_ref().is_some_and(Option::is_some) => {
                    let help = Some("remove the setting");
                    problems.add(format!("{path}.schema"), "SQLite has no schemas", help);
                }
                Ok(_) => {}
            }
        }
        for name in section.pipelines.iter().filter(|name| !pipelines.contains(name)) {
            let help = format!("known here: {}", pipelines.join(", "));
            problems.add(format!("{path}.pipelines"), format!("no pipeline is called {name:?}"), Some(&help));
        }
        if section.effects.is_none() && !section.effects_kinds.is_empty() {
            let help = Some("they say which event types the statement in `effects` covers");
            problems.add(format!("{path}.effects_kinds"), "there is no `effects`", help);
        }
        Some(Self {
            consumer: consumer?,
            scope: scope?,
            url: url?,
            schema: schema?,
            allow_plaintext: section.allow_plaintext,
            topics: section.topics,
            pipelines: section.pipelines,
            effects: section.effects,
            effects_kinds: section.effects_kinds,
            group: section.group,
        })
    }
}
