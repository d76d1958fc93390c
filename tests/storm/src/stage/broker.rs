//! The broker, its topics and queues.

use std::sync::Arc;

use brokers::kafka::mock::Mock;
use proxy::AmqpProxy;

use crate::Failure;
use crate::faults::broker::sqs::Gateway;

/// The broker as the storm itself reaches it: directly, past every proxy.
pub struct Broker {
    /// Kafka: `host:port`; RabbitMQ: an AMQP URL; SQS: the endpoint's URL.
    pub address: String,
    /// The topics of producers' messages.
    pub topics: Vec<Topic>,
    /// Kafka: the consumer groups.
    pub groups: Vec<String>,
    /// RabbitMQ: the exchange to which relays publish.
    pub exchange: Option<String>,
    /// RabbitMQ: the exchange to which the consumers' queues and the queue `topic_reader` are
    /// bound. It is bound to `exchange` by each topic's name. So one binding decides whether a
    /// message reaches all of them or none.
    pub inner_exchange: Option<String>,
    /// SQS: the proxy between the other proxies and the server, which can answer in the server's
    /// place.
    pub gateway: Option<Arc<Gateway>>,
    /// RabbitMQ: the proxy between the relays' wire and the server, which can keep confirms back.
    pub confirms: Option<Arc<AmqpProxy>>,
    /// RabbitMQ: the queue that gets a copy of every message, for the check at the end. Faults
    /// leave it alone.
    pub topic_reader: Option<String>,
    /// The cluster inside this process, for a pair with mock Kafka.
    pub mock: Option<Arc<Mock>>,
}

impl Broker {
    /// Returns the cluster inside this process.
    ///
    /// # Errors
    /// This pair has none.
    pub fn mock(&self) -> Result<&Mock, Failure> {
        self.mock.as_deref().ok_or_else(|| "there is no mock cluster".into())
    }
}

/// A topic of Kafka, a routing key of RabbitMQ, or a queue of SQS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// Its name in messages.
    pub name: String,
    /// RabbitMQ: the consumers' queues that are bound with this name.
    pub queues: Vec<String>,
}
