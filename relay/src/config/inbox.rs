//! Inboxes for `relay verify`.

use brokers::Secret;
use inbox::{ConsumerName, Tenant};
use migrations::{Dialect, Identifier};
use operate::{Database, InboxConfig};
use outbox::connect::InvalidUrl;
use outbox_log::LogOptions;
use secrecy::ExposeSecret as _;

use super::file::InboxSection;
use super::problems::Problems;
use crate::near;

/// Returns the checked section. Adds its problems to `problems`.
pub(super) fn check(
    section: InboxSection,
    path: &str,
    pipelines: &[String],
    problems: &mut Problems,
) -> Option<InboxConfig> {
    let consumer = ConsumerName::new(section.consumer)
        .map_err(|error| problems.add(format!("{path}.consumer"), error.to_string(), None))
        .ok();
    let scope = section.scope.map(Tenant::new).transpose();
    let scope = scope.map_err(|error| problems.add(format!("{path}.scope"), error.to_string(), None)).ok();
    let schema = section.schema.map(Identifier::new).transpose();
    let schema = schema.map_err(|error| problems.add(format!("{path}.schema"), error.to_string(), None)).ok();
    let url = Secret::from_pair("url", section.url, section.url_file)
        .map_err(|error| problems.add(path.to_owned(), error.to_string(), None))
        .ok();
    if let Some(Secret::Text(text)) = &url {
        let options = LogOptions::default().allow_plaintext(section.allow_plaintext);
        match Database::check(text.expose_secret(), &options) {
            Err(error @ InvalidUrl::Plaintext { .. }) => {
                let help = Some("to allow plaintext, set allow_plaintext = true");
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
        let meant = near::meant(name, pipelines.iter().map(String::as_str));
        let help = format!("{meant}configured pipelines: {}", pipelines.join(", "));
        problems.add(format!("{path}.pipelines"), format!("no pipeline is called {name:?}"), Some(&help));
    }
    if section.effects.is_none() && !section.effects_kinds.is_empty() {
        let help = Some("effects_kinds lists the event types that the statement in `effects` covers");
        problems.add(format!("{path}.effects_kinds"), "`effects` is missing", help);
    }
    Some(InboxConfig {
        consumer: consumer?,
        scope: scope?,
        url: url?,
        lent: None,
        schema: schema?,
        allow_plaintext: section.allow_plaintext,
        topics: section.topics,
        pipelines: section.pipelines,
        effects: section.effects,
        effects_kinds: section.effects_kinds,
        group: section.group,
    })
}
