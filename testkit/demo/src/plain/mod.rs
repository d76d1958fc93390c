//! Plain broker clients, independent of the toolkit's clients. They deliver copies on purpose, read
//! published messages, and move a consumer back to older offsets.

mod kafka;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "sqs")]
mod sqs;

use uuid::Uuid;

use crate::error::DemoError;
use crate::target::BrokerSpec;
use checker::Occurrence;
use harness::topic_reader;

pub(crate) use kafka::delete_group;

/// A copy to deliver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Copy {
    /// The id of the original.
    pub(crate) id: Uuid,
    /// The ordering key of the copy.
    pub(crate) key: String,
    /// The payload of the copy.
    pub(crate) payload: Vec<u8>,
}

/// The CloudEvents source of copies. It differs from the relay's, because the inbox identifies
/// messages by the id alone.
const SOURCE: &str = "/demo/again";

/// Delivers copies with the original ids. Returns when the broker has confirmed all of them.
///
/// # Errors
/// [`DemoError::Unavailable`] if the broker did not accept them.
pub(crate) async fn publish(broker: &BrokerSpec, copies: &[Copy]) -> Result<(), DemoError> {
    match broker {
        BrokerSpec::Kafka { servers, topic, .. } => kafka::publish(servers, topic, copies).await,
        #[cfg(feature = "rabbitmq")]
        BrokerSpec::Rabbitmq { url, exchange, topic, .. } => {
            rabbitmq::publish(url, exchange, topic, copies).await
        }
        #[cfg(feature = "sqs")]
        BrokerSpec::Sqs { .. } => sqs::publish(broker, copies).await,
    }
}

/// Reads all published messages, in the broker's order. Returns `None` if the broker keeps no log
/// and has no second queue.
///
/// # Errors
/// [`DemoError::Unavailable`] if the broker could not be read.
pub(crate) async fn read_log(broker: &BrokerSpec) -> Result<Option<Vec<Occurrence>>, DemoError> {
    let what = "read what was published";
    match broker {
        BrokerSpec::Kafka { servers, topic, partitions, .. } => {
            let read = topic_reader::kafka::read(servers.join(","), topic.clone(), *partitions).await;
            read.map(Some).map_err(DemoError::during(what))
        }
        #[cfg(feature = "rabbitmq")]
        BrokerSpec::Rabbitmq { url, topic_read, .. } => {
            topic_reader::rabbitmq::drain(url, topic_read).await.map(Some).map_err(DemoError::during(what))
        }
        #[cfg(feature = "sqs")]
        BrokerSpec::Sqs { .. } => Ok(None),
    }
}

/// Moves a stopped consumer back to older offsets. Returns how many messages it will receive again,
/// or 0 if the broker has no offsets.
///
/// # Errors
/// [`DemoError::Unavailable`] if the broker refused.
pub(crate) async fn rewind(broker: &BrokerSpec) -> Result<u64, DemoError> {
    match broker {
        BrokerSpec::Kafka { servers, topic, partitions, group } => {
            kafka::rewind(servers, topic, *partitions, group).await
        }
        #[cfg(any(feature = "rabbitmq", feature = "sqs"))]
        _ => Ok(0),
    }
}
