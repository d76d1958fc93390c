//! Which inboxes are compared, from the configuration and from flags.

use std::collections::BTreeSet;
use std::str::FromStr;

use inbox::ConsumerName;
use secrecy::SecretString;

use crate::config::InboxConfig;

/// An inbox on the command line: `CONSUMER=URL`.
#[derive(Debug, Clone)]
pub(crate) struct InboxFlag {
    consumer: ConsumerName,
    url: SecretString,
}

impl FromStr for InboxFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // The value may hold a password, so it is not repeated.
        let (consumer, url) =
            text.split_once('=').ok_or("write CONSUMER=URL, for example billing=sqlite:billing.db")?;
        let consumer = ConsumerName::new(consumer).map_err(|error| error.to_string())?;
        outbox::connect::dialect_of(url).map_err(|error| error.to_string())?;
        Ok(Self { consumer, url: url.to_owned().into() })
    }
}

impl InboxFlag {
    /// The same as in a configuration, with everything else left to its default.
    pub(super) fn config(&self) -> InboxConfig {
        InboxConfig {
            consumer: self.consumer.clone(),
            scope: None,
            url: brokers::Secret::Text(self.url.clone()),
            schema: None,
            allow_plaintext: false,
            topics: BTreeSet::new(),
            pipelines: BTreeSet::new(),
            effects: None,
            effects_kinds: BTreeSet::new(),
            group: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inbox_is_a_consumer_and_a_url() {
        let flag: InboxFlag = "billing=postgres://u:secret@db/orders?a=b".parse().unwrap();
        assert_eq!(flag.config().consumer.as_str(), "billing");
        for wrong in ["billing", "=sqlite:a.db", "billing=mysql://u:secret@db/a"] {
            let error = wrong.parse::<InboxFlag>().unwrap_err();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
