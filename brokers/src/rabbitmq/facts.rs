//! The broker's answers about topics and queues.

use std::time::Duration;

/// Facts about a topic.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopicFacts {
    /// The queues that receive its messages; unknown for an exchange without the management API.
    pub queues: Option<Vec<QueueFacts>>,
    /// Whether the exchange survives a restart; `None` for the default exchange, which does, and
    /// where it is unknown.
    pub exchange_durable: Option<bool>,
    /// Whether a message that no queue takes counts as published, by the settings.
    pub passes: bool,
}

/// Facts about a queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueFacts {
    /// Its name.
    pub queue: String,
    /// Its settings, which AMQP does not report.
    pub settings: Option<QueueSettings>,
}

/// The declaration of a queue, with the policy that is applied to it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueSettings {
    /// `classic`, `quorum` or `stream`.
    pub kind: String,
    /// Whether it survives a restart.
    pub durable: bool,
    /// Whether it is deleted with its last consumer or its connection.
    pub transient: bool,
    /// Whether the number or the bytes of its messages are bounded.
    pub bounded: bool,
    /// How full it is, if it has reached a bound: `9 of 9 messages`.
    pub full: Option<String>,
    /// `overflow`; without it, the broker uses `drop-head`.
    pub overflow: Option<String>,
    /// `delivery-limit` of a quorum queue; -1 for none.
    pub delivery_limit: Option<i64>,
    /// The exchange that receives messages which the queue discards.
    pub dead_letter_exchange: Option<String>,
    /// The reason why that exchange loses them, if it does. The broker itself does not report the
    /// loss.
    pub dead_letters_lost: Option<String>,
    /// `message-ttl`: a message that waits longer is discarded.
    pub message_ttl: Option<Duration>,
    /// `expires`: the queue is deleted after this time without use.
    pub expires: Option<Duration>,
    /// Number of servers that hold it.
    pub members: Option<usize>,
}
