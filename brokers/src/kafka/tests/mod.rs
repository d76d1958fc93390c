//! Tests the adapter against librdkafka's mock cluster over real sockets, and its decisions on a
//! model of librdkafka in `partitions.rs`.

mod beginning;
mod consume;
mod cut_off;
pub(super) mod damage;
mod listeners;
mod partitions;
mod publish;

use std::time::Duration;

use message::{
    Connector as _, EventType, Message, OrderingKey, Publisher, Receipt, Receipts, Submission, Ticket, Topic,
};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::sync::mpsc::UnboundedReceiver;

use super::mock::Mock;
use super::{Config, Connector};

/// Longer than anything here takes; a test that waits this long has failed.
const LONG: Duration = Duration::from_secs(60);
const TOPIC: &str = "orders";

fn cluster(partitions: u16) -> (Mock, Config) {
    let mock = Mock::start(1).unwrap();
    mock.create_topic(TOPIC, partitions).unwrap();
    let config = Config::new(mock.bootstrap_servers());
    (mock, config)
}

pub(super) fn keyed(topic: &str, key: &str, payload: impl Into<bytes::Bytes>) -> Message {
    Message::new(Topic::new(topic).unwrap(), EventType::new("order.placed").unwrap(), payload)
        .with_key(OrderingKey::new(key).unwrap())
}

fn batch(first: u64, messages: impl IntoIterator<Item = Message>) -> Vec<Submission> {
    let numbered = messages.into_iter().zip(first..);
    numbered.map(|(message, number)| Submission { ticket: Ticket(number), message: message.into() }).collect()
}

async fn session(connector: &Connector) -> (Box<dyn Publisher>, UnboundedReceiver<Receipt>) {
    let (receipts, received) = Receipts::channel();
    (connector.connect(receipts).await.unwrap(), received)
}

/// Receives the next `count` receipts.
async fn take(received: &mut UnboundedReceiver<Receipt>, count: usize) -> Vec<Receipt> {
    let mut taken = Vec::with_capacity(count);
    while taken.len() < count {
        let next = tokio::time::timeout(LONG, received.recv()).await;
        taken.push(next.expect("a receipt in time").expect("an open channel"));
    }
    taken
}

/// Publishes messages and waits until all of them are confirmed.
pub(super) async fn publish(config: &Config, messages: Vec<Message>) {
    let connector = Connector::new(config.clone()).unwrap();
    let (mut publisher, mut received) = session(&connector).await;
    let count = messages.len();
    publisher.submit(batch(0, messages)).await;
    assert!(take(&mut received, count).await.iter().all(|receipt| receipt.outcome.is_ok()));
    publisher.close(LONG).await;
}

/// Reads the committed offsets of the group that the tests join.
async fn committed(config: &Config, topic: &'static str, partitions: i32) -> Vec<Offset> {
    let servers = config.bootstrap_servers.join(",");
    let ask = move || {
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", servers).set("group.id", "billing");
        let consumer: BaseConsumer = client.create().unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition_range(topic, 0, partitions - 1);
        let found = consumer.committed_offsets(list, LONG).unwrap();
        found.elements().iter().map(rdkafka::topic_partition_list::TopicPartitionListElem::offset).collect()
    };
    tokio::task::spawn_blocking(ask).await.unwrap()
}
