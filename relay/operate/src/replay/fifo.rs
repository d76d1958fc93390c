//! Queues that drop copies.

use std::collections::BTreeMap;

use crate::settings::Broker;

/// Returns the topics whose queues drop copies: FIFO queues of SQS. They remember a message for
/// five minutes from the time at which it was last sent, which the log does not know: that may be
/// long after it was enqueued, or during an earlier replay.
#[cfg(feature = "sqs")]
#[must_use]
pub fn deduplicated<'a>(broker: &Broker, topics: &'a BTreeMap<String, u64>) -> Vec<&'a str> {
    let Broker::Sqs(config) = broker else { return Vec::new() };
    let queue = |topic: &String| config.queues.get(topic).unwrap_or(topic).ends_with(".fifo");
    topics.keys().filter(|topic| queue(topic)).map(String::as_str).collect()
}

/// Returns no topic: only queues of SQS drop copies.
#[cfg(not(feature = "sqs"))]
#[must_use]
pub fn deduplicated<'a>(_: &Broker, _: &'a BTreeMap<String, u64>) -> Vec<&'a str> {
    Vec::new()
}

#[cfg(all(test, feature = "sqs"))]
mod tests {
    use super::*;

    #[test]
    fn every_topic_of_a_fifo_queue_is_warned_about() {
        let queues = [("order.paid", "paid.fifo"), ("order.placed", "placed")];
        let queues = queues.map(|(topic, queue)| (topic.to_owned(), queue.to_owned()));
        let config = brokers::sqs::Config::default().queues(queues.into());
        let topics = ["audit", "bills.fifo", "order.paid", "order.placed"];
        let topics = topics.map(|topic| (topic.to_owned(), 1)).into();
        assert_eq!(deduplicated(&Broker::Sqs(Box::new(config)), &topics), ["bills.fifo", "order.paid"]);
    }
}
