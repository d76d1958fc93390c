//! Messages that no queue takes: what the settings say about them, and the count of those that pass
//! as published.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use message::{PublishError, Topic, Unrouted};

use super::config::{Config, Unroutable};
use super::fault;

/// Maximum number of topics that are remembered as reported. When they are forgotten, each is
/// reported once more.
const TOLD_MAX: usize = 1_000;

/// The handling of messages that no queue takes, by topic.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    others: Unroutable,
    /// By name, or by the beginning of names and an asterisk.
    topics: BTreeMap<String, Unroutable>,
}

impl Rules {
    pub(super) fn of(config: &Config) -> Self {
        Self { others: config.unroutable, topics: config.unroutable_topics.clone() }
    }

    /// Returns the handling for a topic: by its name, or by the longest beginning that fits, or
    /// else the general one.
    pub(super) fn find(&self, topic: &str) -> Unroutable {
        if let Some(rule) = self.topics.get(topic) {
            return *rule;
        }
        let begins = |pattern: &str| pattern.strip_suffix('*').is_some_and(|begin| topic.starts_with(begin));
        let fitting = self.topics.iter().filter(|(pattern, _)| begins(pattern));
        fitting.max_by_key(|(pattern, _)| pattern.len()).map_or(self.others, |(_, rule)| *rule)
    }
}

/// Answers messages that no queue took. Shared by all sessions of a connector.
#[derive(Debug)]
pub(super) struct Unlistened {
    rules: Rules,
    exchange: String,
    passed: Mutex<Passed>,
}

#[derive(Debug, Default)]
struct Passed {
    /// Messages that have passed since they were last taken.
    counts: HashMap<Topic, u64>,
    told: HashSet<Topic>,
}

impl Unlistened {
    pub(super) fn new(config: &Config) -> Self {
        Self { rules: Rules::of(config), exchange: config.exchange.clone(), passed: Mutex::default() }
    }

    /// Returns the outcome of a message that the broker has confirmed although no queue took it.
    ///
    /// # Errors
    /// The topic waits, or the message is dead.
    pub(super) fn outcome(&self, topic: &Topic) -> Result<(), PublishError> {
        match self.rules.find(topic.as_str()) {
            Unroutable::Wait => Err(fault::unroutable(topic, &self.exchange)),
            Unroutable::Dead => Err(fault::unroutable_for_good(topic, &self.exchange)),
            Unroutable::Pass => {
                self.pass(topic);
                Ok(())
            }
        }
    }

    fn pass(&self, topic: &Topic) {
        let mut passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        *passed.counts.entry(topic.clone()).or_default() += 1;
        if passed.told.contains(topic) {
            return;
        }
        if passed.told.len() >= TOLD_MAX {
            passed.told.clear();
        }
        passed.told.insert(topic.clone());
        tracing::warn!(%topic, exchange = self.exchange.as_str(),
            "no queue is bound; messages of this topic are dropped by rabbitmq and count as published \
             (unroutable = pass): bind a queue if they have a consumer");
    }

    /// Returns the messages that have passed since the last call.
    pub(super) fn take(&self) -> Vec<Unrouted> {
        let counts = std::mem::take(&mut self.passed.lock().unwrap_or_else(PoisonError::into_inner).counts);
        counts.into_iter().map(|(topic, messages)| Unrouted { topic, messages }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use message::FaultScope;

    fn config() -> Config {
        let topics = [
            ("audit.*", Unroutable::Pass),
            ("audit.login.*", Unroutable::Dead),
            ("audit.login.failed", Unroutable::Wait),
        ];
        let topics = topics.map(|(topic, rule)| (topic.to_owned(), rule));
        Config::new("amqp://localhost").exchange("events").unroutable_topics(topics.into())
    }

    #[test]
    fn a_name_counts_more_than_its_beginning_and_a_long_beginning_more_than_a_short_one() {
        let rules = Rules::of(&config());
        for (topic, rule) in [
            ("orders", Unroutable::Wait),
            ("audit", Unroutable::Wait),
            ("audit.", Unroutable::Pass),
            ("audit.logout", Unroutable::Pass),
            ("audit.login.ok", Unroutable::Dead),
            ("audit.login.failed", Unroutable::Wait),
        ] {
            assert_eq!(rules.find(topic), rule, "{topic}");
        }
        let all = Rules::of(&config().unroutable(Unroutable::Pass));
        assert_eq!((all.find("orders"), all.find("audit.login.ok")), (Unroutable::Pass, Unroutable::Dead));
    }

    #[test]
    fn a_message_passes_only_where_the_settings_say_so_and_is_counted() {
        let unlistened = Unlistened::new(&config());
        let topic = |name: &str| Topic::new(name).unwrap();
        let waiting = unlistened.outcome(&topic("orders")).unwrap_err();
        assert_eq!((waiting.scope(), waiting.is_final()), (FaultScope::Topic, false));
        let dead = unlistened.outcome(&topic("audit.login.ok")).unwrap_err();
        assert_eq!((dead.scope(), dead.is_final()), (FaultScope::Message, true));
        assert_eq!(unlistened.take(), []);
        for _ in 0..3 {
            unlistened.outcome(&topic("audit.logout")).unwrap();
        }
        assert_eq!(unlistened.take(), [Unrouted { topic: topic("audit.logout"), messages: 3 }]);
        assert_eq!(unlistened.take(), []);
    }

    #[test]
    fn the_memory_of_what_was_told_is_bounded() {
        let unlistened = Unlistened::new(&config());
        for number in 0..=TOLD_MAX {
            unlistened.outcome(&Topic::new(format!("audit.{number}")).unwrap()).unwrap();
        }
        let told = unlistened.passed.lock().unwrap().told.len();
        assert_eq!(told, 1);
    }
}
