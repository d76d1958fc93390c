//! Counts the messages that wait in consumed queues.

use lapin::options::QueueDeclareOptions;
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Error, Queue};
use message::Lag;

use crate::lag::LagWatch;

/// Checks the queues by passive declarations, on a separate channel. A refused declaration closes
/// the channel, and then the lag is unknown for the rest of the session.
pub(super) fn watch(channel: Option<Channel>, queues: &[ShortString], origin: &str) -> Option<LagWatch> {
    let (channel, queues) = (channel?, queues.to_vec());
    Some(LagWatch::new(origin.to_owned(), move || {
        let (channel, queues) = (channel.clone(), queues.clone());
        async move {
            let mut lags = Vec::with_capacity(queues.len());
            for queue in queues {
                let found = look(&channel, &queue).await.map_err(|error| error.to_string())?;
                lags.push(Lag::new(queue.as_str(), found.message_count().into()));
            }
            Ok(lags)
        }
    }))
}

/// Returns how many messages and consumers a queue has. A quorum queue with
/// `x-single-active-consumer` counts only the active one.
pub(super) async fn look(channel: &Channel, queue: &ShortString) -> Result<Queue, Error> {
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.clone(), passive, FieldTable::default()).await
}
