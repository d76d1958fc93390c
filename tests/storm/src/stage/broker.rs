//! The broker, its topics and queues.

use std::sync::Arc;

use brokers::kafka::mock::Mock;
use proxy::AmqpProxy;

use crate::Failure;
use crate::faults::broker::{http, sqs};

/// The broker as the storm itself reaches it: directly, without a proxy.
pub struct Broker {
    /// Kafka: `host:port`; RabbitMQ: an AMQP URL; SQS and HTTP: the endpoint's URL.
    pub address: String,
    /// The topics of producers' messages.
    pub topics: Vec<Topic>,
    /// Kafka: the consumer groups.
    pub groups: Vec<String>,
    /// RabbitMQ: the exchange to which relays publish.
    pub exchange: Option<String>,
    /// RabbitMQ: the exchange to which the consumers' queues and the queue `topic_reader` are
    /// bound. It is bound to `exchange` by each topic's name. So one binding decides whether a
    /// message reaches all of these queues or none.
    pub inner_exchange: Option<String>,
    /// SQS: the gateway between the other proxies and the server. It can answer instead of the
    /// server.
    pub gateway: Option<Arc<sqs::Gateway>>,
    /// HTTP: the load balancer in front of the receivers.
    pub endpoint: Option<Arc<http::Gateway>>,
    /// RabbitMQ: the proxy between the relays' wire and the server. It can withhold confirms.
    pub confirms: Option<Arc<AmqpProxy>>,
    /// RabbitMQ: the queue that gets a copy of every message, for the check at the end. Faults do
    /// not affect it.
    pub topic_reader: Option<String>,
    /// The cluster inside this process, for a pair with mock Kafka.
    pub mock: Option<Arc<Mock>>,
}

impl Broker {
    /// Returns the cluster inside this process.
    ///
    /// # Errors
    /// This pair has no cluster in this process.
    pub fn mock(&self) -> Result<&Mock, Failure> {
        self.mock.as_deref().ok_or_else(|| "there is no mock cluster".into())
    }
}

/// A topic of Kafka, a routing key of RabbitMQ, or a queue of SQS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// The name of the topic in messages.
    pub name: String,
    /// RabbitMQ: the consumers' queues that are bound with this name.
    pub queues: Vec<String>,
}
