//! Tracks topics of a subscription that cannot be read while others can. Pure.
//!
//! librdkafka reports once that a topic is missing or forbidden, continues with the others, and
//! checks again at every metadata refresh.

use std::collections::BTreeSet;

/// The topics of one subscription.
#[derive(Debug, Default)]
pub(super) struct Availability {
    topics: BTreeSet<String>,
    unavailable: BTreeSet<String>,
}

impl Availability {
    /// Creates the state in which all of these topics count as readable.
    pub(super) fn new<'t>(topics: impl IntoIterator<Item = &'t str>) -> Self {
        let topics = topics.into_iter().map(str::to_owned).collect();
        Self { topics, unavailable: BTreeSet::new() }
    }

    /// Records librdkafka's report that a topic cannot be read. Returns the topic, if it can be
    /// determined.
    pub(super) fn lost(&mut self, reason: &str) -> Option<String> {
        let named = |topic: &&String| reason.split(": ").any(|part| part == topic.as_str());
        let is_only = |_: &&String| self.topics.len() == 1;
        let topic = self.topics.iter().find(named).or_else(|| self.topics.iter().find(is_only))?.clone();
        self.unavailable.insert(topic.clone());
        Some(topic)
    }

    /// Records that a topic is being read.
    pub(super) fn found(&mut self, topic: &str) {
        self.unavailable.remove(topic);
    }

    /// Returns whether none of the topics can be read.
    pub(super) fn is_none_left(&self) -> bool {
        self.unavailable.len() == self.topics.len()
    }

    /// Returns the topics that cannot be read.
    pub(super) fn unavailable(&self) -> impl Iterator<Item = &str> {
        self.unavailable.iter().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MISSING: &str = "Subscribed topic not available: orders: Broker: Unknown topic or partition";

    #[test]
    fn a_subscription_is_over_when_none_of_its_topics_can_be_read() {
        let mut both = Availability::new(["orders", "invoices"]);
        assert_eq!(both.lost("Fetch from broker 1 failed: Broker: Topic authorization failed"), None);
        assert_eq!(both.lost(MISSING).as_deref(), Some("orders"));
        assert!(!both.is_none_left() && both.unavailable().eq(["orders"]));
        assert!(both.lost(&MISSING.replace("orders", "invoices")).is_some() && both.is_none_left());
        both.found("orders");
        assert!(!both.is_none_left() && both.unavailable().eq(["invoices"]));
        let mut one = Availability::new(["orders"]);
        assert!(one.lost("Fetch from broker 1 failed").is_some() && one.is_none_left());
    }
}
