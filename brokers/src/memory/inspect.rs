//! The broker's answers about its topics.

use crate::inspect::{BrokerFacts, InspectError, Inspected};

use super::broker::Broker;

/// Facts about a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicFacts {
    /// Number of messages in its log.
    pub messages: usize,
}

/// Looks up topics by name.
#[must_use]
pub fn inspect(broker: &Broker, topics: &[String]) -> BrokerFacts<TopicFacts> {
    let known = broker.topics();
    let look = |name: &String| {
        let topic = known.iter().find(|topic| topic.as_str() == name);
        let missing = || InspectError::operator(format!("there is no topic {name:?}"));
        let facts = topic.map(|topic| TopicFacts { messages: broker.log(topic).len() }).ok_or_else(missing);
        Inspected { topic: name.clone(), facts }
    };
    BrokerFacts { version: None, nodes: Some(1), clock: None, topics: topics.iter().map(look).collect() }
}

#[cfg(test)]
mod tests {
    use message::Topic;

    use super::*;

    #[test]
    fn known_and_missing_topics_are_told_apart() {
        let broker = Broker::new();
        broker.create_topic(&Topic::new("orders").unwrap());
        let facts = inspect(&broker, &[String::from("orders"), String::from("bills")]);
        assert_eq!(facts.topics[0].facts, Ok(TopicFacts { messages: 0 }));
        assert!(facts.topics[1].facts.as_ref().unwrap_err().reason.contains("bills"));
    }
}
