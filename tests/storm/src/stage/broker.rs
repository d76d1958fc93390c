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
    /// Those that messages are published to.
    pub topics: Vec<Topic>,
    /// Kafka: the consumer groups.
    pub groups: Vec<String>,
    /// RabbitMQ: what relays publish to.
    pub exchange: Option<String>,
    /// RabbitMQ: what the queues and the topic_reader are bound to; it is bound to `exchange` by
    /// each topic's name. So one binding decides whether a message reaches all of them or none.
    pub inner_exchange: Option<String>,
    /// SQS: what stands between the proxies and the server, and can answer in its place.
    pub gateway: Option<Arc<Gateway>>,
    /// RabbitMQ: what stands between the relays' wire and the server, and can keep confirms back.
    pub confirms: Option<Arc<AmqpProxy>>,
    /// RabbitMQ: the queue that copies of everything go to, for the check at the end. Faults leave
    /// it alone.
    pub topic_reader: Option<String>,
    /// The cluster inside this process, for a pair with mock Kafka.
    pub mock: Option<Arc<Mock>>,
}

impl Broker {
    /// The cluster inside this process.
    ///
    /// # Errors
    /// There is none.
    pub fn mock(&self) -> Result<&Mock, Failure> {
        self.mock.as_deref().ok_or_else(|| "there is no mock cluster".into())
    }
}

/// A topic: of Kafka, a routing key of RabbitMQ, a queue of SQS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// As messages name it.
    pub name: String,
    /// RabbitMQ: the consumers' queues that are bound by this name.
    pub queues: Vec<String>,
}
