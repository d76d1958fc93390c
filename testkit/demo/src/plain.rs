//! The demo's own clients, independent of the toolkit's. They deliver copies on purpose, read
//! published messages, and move a consumer back to older offsets.

use checker::Occurrence;
use harness::plain::PlainRecord;
use harness::plain::kafka::Kafka;
#[cfg(feature = "rabbitmq")]
use harness::plain::rabbitmq::Rabbitmq;
#[cfg(feature = "sqs")]
use harness::plain::sqs::{Account, Outgoing, Sqs};
use harness::topic_reader;
use uuid::Uuid;

use crate::error::DemoError;
use crate::target::BrokerSpec;
use crate::{CONTENT_TYPE, KIND};

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
/// Number of messages in each partition by which a consumer is moved back.
const REWIND: i64 = 100;

impl Copy {
    /// Returns the copy in binary mode, with the broker's prefix of attributes and its name for the
    /// content type.
    fn record(&self, prefix: &str, content_type: &str) -> PlainRecord {
        let id = self.id.to_string();
        let attributes =
            [("specversion", "1.0"), ("id", &id), ("source", SOURCE), ("type", KIND), ("subject", &self.key)];
        let prefixed = attributes.map(|(name, value)| (format!("{prefix}{name}"), value.to_owned()));
        let mut headers = Vec::from(prefixed);
        headers.push((content_type.to_owned(), CONTENT_TYPE.to_owned()));
        PlainRecord {
            key: Some(self.key.clone()),
            message_id: Some(id),
            headers,
            payload: self.payload.clone(),
        }
    }

    /// Returns the copy as one JSON text.
    #[cfg(feature = "sqs")]
    fn structured(&self, is_fifo: bool) -> Outgoing {
        let Self { id, key, payload } = self;
        let data = String::from_utf8_lossy(payload);
        let body = format!(
            r#"{{"specversion":"1.0","id":"{id}","source":"{SOURCE}","type":"{KIND}","subject":"{key}","datacontenttype":"{CONTENT_TYPE}","data":{data}}}"#
        );
        // The deduplication id differs from the original's, because otherwise SQS itself would drop
        // the copy.
        let group = is_fifo.then(|| key.clone());
        Outgoing { body, group, deduplication: is_fifo.then(|| format!("{id}-again")) }
    }
}

/// Delivers copies with the original ids. Returns when the broker has confirmed all of them.
///
/// # Errors
/// [`DemoError::Unavailable`] if the broker did not accept them.
pub(crate) async fn publish(broker: &BrokerSpec, copies: &[Copy]) -> Result<(), DemoError> {
    let published = match broker {
        BrokerSpec::Kafka { servers, topic, .. } => {
            let records: Vec<_> = copies.iter().map(|copy| copy.record("ce_", "content-type")).collect();
            Kafka::new(servers.join(",")).put(topic, &records).await
        }
        #[cfg(feature = "rabbitmq")]
        BrokerSpec::Rabbitmq { url, exchange, topic, .. } => {
            let records: Vec<_> =
                copies.iter().map(|copy| copy.record("cloudEvents_", "content_type")).collect();
            Rabbitmq::new(url).put(exchange, topic, &records).await
        }
        #[cfg(feature = "sqs")]
        BrokerSpec::Sqs { endpoint, region, key, queue } => {
            let account = Account { endpoint: endpoint.clone(), region: region.clone(), key: key.clone() };
            let messages: Vec<_> = copies.iter().map(|copy| copy.structured(broker.is_ordered())).collect();
            Sqs::new(account).await.put(queue, &messages).await
        }
    };
    published.map_err(DemoError::during("publish messages again"))
}

/// Reads all published messages, in the broker's order. Returns `None` if the broker keeps no log
/// and has no second queue.
///
/// # Errors
/// [`DemoError::Unavailable`] if the broker could not be read.
pub(crate) async fn read_log(broker: &BrokerSpec) -> Result<Option<Vec<Occurrence>>, DemoError> {
    let read = match broker {
        BrokerSpec::Kafka { servers, topic, .. } => {
            topic_reader::kafka::read(Kafka::new(servers.join(",")), topic.clone()).await
        }
        #[cfg(feature = "rabbitmq")]
        BrokerSpec::Rabbitmq { url, topic_read, .. } => {
            topic_reader::rabbitmq::drain(&Rabbitmq::new(url), topic_read).await
        }
        #[cfg(feature = "sqs")]
        BrokerSpec::Sqs { .. } => return Ok(None),
    };
    read.map(Some).map_err(DemoError::during("read what was published"))
}

/// Moves a stopped consumer back to older offsets. Returns how many messages it will receive again,
/// or 0 if the broker has no offsets.
///
/// # Errors
/// [`DemoError::Unavailable`] if the broker refused.
pub(crate) async fn rewind(broker: &BrokerSpec) -> Result<u64, DemoError> {
    match broker {
        BrokerSpec::Kafka { servers, topic, group, .. } => {
            let moved = Kafka::new(servers.join(",")).rewind(group, topic, REWIND).await;
            moved.map_err(DemoError::during("move the consumer back to older offsets"))
        }
        #[cfg(any(feature = "rabbitmq", feature = "sqs"))]
        _ => Ok(0),
    }
}
