//! Reads the broker's content with plain clients that share no code with the toolkit.
//!
//! | module | contents |
//! |---|---|
//! | `waiting` | counts messages that wait for their readers |

mod waiting;

use std::path::PathBuf;

use checker::{Digest, Occurrence, TopicRead};

use crate::Failure;
use crate::journal::{self, Part, Received};
use crate::pair::BrokerKind;
use crate::setup::Plot;
use crate::stage::Stage;
use harness::plain::kafka::Kafka;
use harness::plain::rabbitmq::Rabbitmq;
use harness::topic_reader::whole::Wholes;
use harness::topic_reader::{kafka, rabbitmq};

pub use harness::topic_reader::kafka::Follower;
pub use waiting::{Waiting, waiting};

/// Starts to follow a log that drops its old records. Returns `None` for other brokers, which are
/// read at the end.
#[must_use]
pub fn follow(plot: &Plot, stage: &Stage) -> Option<Follower> {
    let follow = || Follower::start(Kafka::new(&stage.broker.address), plot.topics().main);
    (plot.pair.broker == BrokerKind::MockKafka).then(follow)
}

/// Reads all messages. `waiting` was counted after consumers had stopped. An SQS queue keeps no
/// log, and the consumers' journals are complete only if nothing is left in the queue.
///
/// # Errors
/// The broker does not answer.
pub async fn read(
    plot: &Plot,
    stage: &Stage,
    follower: Option<Follower>,
    waiting: &[Waiting],
) -> Result<TopicRead, Failure> {
    let (broker, topic) = (&stage.broker, plot.topics().main);
    let occurrences = match plot.pair.broker {
        BrokerKind::MockKafka => match follower {
            Some(follower) => follower.finish().await?,
            None => Vec::new(),
        },
        BrokerKind::Kafka => kafka::read(Kafka::new(&broker.address), topic).await?,
        BrokerKind::Rabbitmq => {
            let queue = broker.topic_reader.as_deref().unwrap_or_default();
            rabbitmq::drain(&Rabbitmq::new(&broker.address), queue).await?
        }
        BrokerKind::Sqs | BrokerKind::SqsFifo | BrokerKind::Http => deliveries(plot, stage)?,
    };
    let complete = is_complete(plot.pair.broker, waiting);
    Ok(TopicRead { ordered: plot.pair.broker.keeps_order(), complete, occurrences })
}

/// Returns whether everything was read.
fn is_complete(broker: BrokerKind, waiting: &[Waiting]) -> bool {
    !broker.is_sqs() || waiting.is_empty()
}

/// Returns the journals of all consumers.
#[must_use]
pub fn journals(plot: &Plot, stage: &Stage) -> Vec<PathBuf> {
    let names = stage.processes.of(crate::stage::Role::Consumer);
    names.iter().map(|name| plot.file(&format!("{name}.journal"))).collect()
}

/// Returns the messages that consumers received from SQS, or over HTTP. These replace a log,
/// because SQS keeps none and cannot copy messages to another queue, and neither does an endpoint.
fn deliveries(plot: &Plot, stage: &Stage) -> Result<Vec<Occurrence>, Failure> {
    let mut received: Vec<Received> = Vec::new();
    for path in journals(plot, stage) {
        journal::read(&path, |entry| received.push(entry))?;
    }
    received.sort_by_key(|entry| entry.at);
    let mut wholes = Wholes::default();
    let occurrence = |entry: Received| {
        let mut content = entry.content;
        if let (Some(id), Some(Part { index, count, payload })) = (entry.id, entry.part) {
            content.payload = Some(Digest::of(&wholes.put(id, (index, count), payload.into_bytes())?));
        }
        Some(Occurrence { id: entry.id, place: content.key.clone().unwrap_or_default(), content })
    };
    Ok(received.into_iter().filter_map(occurrence).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journals_stand_for_a_queue_only_when_it_is_empty() {
        let waiting = [Waiting { place: "queue q, visible".to_owned(), count: 1 }];
        assert!(is_complete(BrokerKind::SqsFifo, &[]) && !is_complete(BrokerKind::Sqs, &waiting));
        // A log is read regardless of its consumers.
        assert!(is_complete(BrokerKind::Kafka, &waiting));
    }
}
