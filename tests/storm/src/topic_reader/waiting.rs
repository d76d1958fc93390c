//! Messages that wait at the broker for their readers, in partitions of a group or in queues. They
//! are read with plain clients.

use brokers::rabbitmq;
use harness::plain::kafka::Kafka;
use harness::plain::sqs::Sqs;

use crate::Failure;
use crate::pair::BrokerKind;
use crate::setup::Plot;
use crate::stage::Stage;

/// A partition or a queue that a reader has not read to the end.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Waiting {
    /// The partition with its group, or the queue.
    pub place: String,
    /// Deliveries that wait there.
    pub count: u64,
}

/// Counts the waiting messages. Empty places are left out.
///
/// # Errors
/// The broker does not answer.
pub async fn waiting(plot: &Plot, stage: &Stage) -> Result<Vec<Waiting>, Failure> {
    let (broker, topic) = (&stage.broker, plot.topics().main);
    let all = match plot.pair.broker {
        BrokerKind::Kafka | BrokerKind::MockKafka => {
            let cluster = Kafka::new(&broker.address);
            let mut all = Vec::new();
            for consumer in plot.consumers() {
                let group = plot.group(consumer);
                let counts = cluster.behind(&group, &topic).await?;
                all.extend(counts.into_iter().enumerate().map(|(partition, count)| {
                    let place = format!("partition {topic}[{partition}] of group {group}");
                    Waiting { place, count }
                }));
            }
            all
        }
        BrokerKind::Rabbitmq => {
            let admin = rabbitmq::Admin::connect(&rabbitmq::Config::new(&broker.address)).await?;
            let mut all = Vec::new();
            for queue in broker.topics.iter().flat_map(|topic| &topic.queues) {
                let count = u64::from(admin.count(queue).await?);
                all.push(Waiting { place: format!("queue {queue}"), count });
            }
            admin.close().await;
            all
        }
        // Unconfirmed messages wait at the relay.
        BrokerKind::Http => Vec::new(),
        BrokerKind::Sqs | BrokerKind::SqsFifo => {
            let counts = Sqs::elasticmq(&broker.address).await.counts(&topic).await?;
            let words =
                [("visible", counts.visible), ("in flight", counts.in_flight), ("delayed", counts.delayed)];
            let waiting = |(word, count)| Waiting { place: format!("queue {topic}, {word}"), count };
            words.into_iter().map(waiting).collect()
        }
    };
    Ok(all.into_iter().filter(|place| place.count > 0).collect())
}
