//! An additional RabbitMQ queue beside the consumers' queues, emptied at the end.

use std::sync::Arc;

use checker::Occurrence;

use super::whole::Wholes;
use crate::Failure;
use crate::plain::PlainRecord;
use crate::plain::rabbitmq::Rabbitmq;

/// Removes all messages from a queue, in order, and returns them.
///
/// # Errors
/// The broker does not answer, or ends the session.
pub async fn drain(server: &Rabbitmq, queue: &str) -> Result<Vec<Occurrence>, Failure> {
    let place: Arc<str> = queue.into();
    let mut wholes = Wholes::default();
    let occurrence = |delivery: &_| {
        let record = PlainRecord::from(delivery);
        let key = record.header("cloudEvents_subject").map(str::to_owned);
        wholes.take(&PlainRecord { key, ..record }, &place, "cloudEvents_")
    };
    Ok(server.take_all(queue, 0).await?.iter().filter_map(occurrence).collect())
}
