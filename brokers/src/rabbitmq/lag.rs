//! Counts the messages that wait in consumed queues.

use lapin::Channel;
use lapin::options::QueueDeclareOptions;
use lapin::types::{FieldTable, ShortString};
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
                let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
                let found = channel.queue_declare(queue.clone(), passive, FieldTable::default()).await;
                let waiting = found.map_err(|error| error.to_string())?.message_count();
                lags.push(Lag::new(queue.as_str(), waiting.into()));
            }
            Ok(lags)
        }
    }))
}
