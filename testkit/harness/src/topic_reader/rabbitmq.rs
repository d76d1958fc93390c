//! An additional RabbitMQ queue beside the consumers' queues, drained at the end.

use std::sync::Arc;
use std::time::Duration;

use checker::Occurrence;
use futures_util::StreamExt as _;
use lapin::message::Delivery;
use lapin::options::{BasicConsumeOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Connection, ConnectionProperties};
use uuid::Uuid;

use super::whole::{Record, Wholes};
use crate::Failure;

/// Timeout for the next message of a queue that is not empty.
const SILENCE: Duration = Duration::from_secs(30);

/// Removes all messages from a queue, in order, and returns them.
///
/// # Errors
/// The broker does not answer, or ends the session.
pub async fn drain(url: &str, queue: &str) -> Result<Vec<Occurrence>, Failure> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let name = ShortString::try_new(queue)?;
    let passive = QueueDeclareOptions { passive: true, durable: true, ..QueueDeclareOptions::default() };
    let count = channel.queue_declare(name.clone(), passive, FieldTable::default()).await?.message_count();
    let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    let mut deliveries =
        channel.basic_consume(name, ShortString::default(), options, FieldTable::default()).await?;
    let place: Arc<str> = queue.into();
    let (mut wholes, mut occurrences) = (Wholes::default(), Vec::new());
    for _ in 0..count {
        let next = tokio::time::timeout(SILENCE, deliveries.next()).await?;
        let delivery = next.ok_or("the broker ended the session")??;
        occurrences.extend(wholes.take(plain(&delivery, &place), "cloudEvents_"));
    }
    connection.close(200, ShortString::default()).await?;
    Ok(occurrences)
}

fn plain<'a>(delivery: &'a Delivery, place: &Arc<str>) -> Record<'a> {
    let id = delivery.properties.message_id().as_ref().and_then(|id| Uuid::parse_str(id.as_str()).ok());
    let headers: Vec<(&str, &str)> = delivery
        .properties
        .headers()
        .iter()
        .flat_map(|headers| headers.inner())
        .filter_map(|(name, value)| match value {
            AMQPValue::LongString(text) => Some((name.as_str(), std::str::from_utf8(text.as_bytes()).ok()?)),
            _ => None,
        })
        .collect();
    let key = headers.iter().find(|(name, _)| *name == "cloudEvents_subject").map(|(_, key)| *key);
    Record { id, place: Arc::clone(place), key, headers, payload: &delivery.data }
}
