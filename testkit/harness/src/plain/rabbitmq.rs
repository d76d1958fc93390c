//! A plain RabbitMQ client.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};

use super::PlainRecord;
use crate::Failure;

/// Maximum time without a message while one is awaited.
const SILENCE: Duration = Duration::from_secs(240);
/// Time without a message after which the queue is counted again.
const QUIET: Duration = Duration::from_secs(1);
/// Pause before an empty queue is counted again.
const PAUSE: Duration = Duration::from_millis(20);
/// The reply code of an orderly end (AMQP 0-9-1 specification, section 1.2).
const SUCCESS: u16 = 200;
/// Properties that a [`PlainRecord`] has among its headers.
const CONTENT_TYPE: &str = "content_type";
const DELIVERY_MODE: &str = "delivery_mode";

/// A server.
#[derive(Clone)]
pub struct Rabbitmq {
    url: String,
}

/// A connection with one channel. Dropping it ends it.
pub struct Session {
    /// The connection.
    pub connection: Connection,
    /// The channel.
    pub channel: Channel,
}

impl Session {
    /// Closes the connection.
    ///
    /// # Errors
    /// The broker does not answer.
    pub async fn close(self) -> Result<(), Failure> {
        Ok(self.connection.close(SUCCESS, ShortString::default()).await?)
    }
}

impl Rabbitmq {
    /// Takes the server at `amqp://…`.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into() }
    }

    /// Connects.
    ///
    /// # Errors
    /// The broker does not answer, or refuses.
    pub async fn open(&self) -> Result<Session, Failure> {
        let connection = Connection::connect(&self.url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        Ok(Session { connection, channel })
    }

    /// Removes all messages from a queue, in order, and returns them. Waits for at least this many.
    /// Not cancel-safe: messages that were removed are lost.
    ///
    /// # Errors
    /// The broker does not answer, or nothing came for four minutes.
    pub async fn take_all(&self, queue: &str, at_least: usize) -> Result<Vec<Delivery>, Failure> {
        let session = self.open().await?;
        let mut taken = Vec::new();
        let mut heard_at = Instant::now();
        loop {
            let before = taken.len();
            take_ready(&session.connection, queue, &mut taken).await?;
            if taken.len() > before {
                heard_at = Instant::now();
            } else if taken.len() >= at_least {
                break;
            } else if heard_at.elapsed() > SILENCE {
                return Err(format!("{queue}: {} messages of at least {at_least}", taken.len()).into());
            } else {
                tokio::time::sleep(PAUSE).await;
            }
        }
        session.close().await?;
        Ok(taken)
    }

    /// Publishes messages and waits for their confirmations.
    ///
    /// # Errors
    /// The broker does not answer, or rejects a message.
    pub async fn publish(
        &self,
        exchange: &str,
        routing_key: &str,
        messages: impl IntoIterator<Item = (BasicProperties, Vec<u8>)>,
    ) -> Result<(), Failure> {
        let session = self.open().await?;
        session.channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let mut sent = Vec::new();
        for (properties, payload) in messages {
            let exchange = ShortString::try_new(exchange)?;
            let routing_key = ShortString::try_new(routing_key)?;
            let options = BasicPublishOptions::default();
            sent.push(
                session.channel.basic_publish(exchange, routing_key, options, &payload, properties).await?,
            );
        }
        for confirmation in sent {
            if !confirmation.await?.is_ack() {
                return Err("the broker rejected a message".into());
            }
        }
        session.close().await
    }

    /// Publishes records and waits for their confirmations. The header `content_type` becomes the
    /// property of this name.
    ///
    /// # Errors
    /// As [`publish`](Self::publish); a name or a property is longer than 255 bytes.
    pub async fn put(
        &self,
        exchange: &str,
        routing_key: &str,
        records: &[PlainRecord],
    ) -> Result<(), Failure> {
        let message = |record: &PlainRecord| Ok((properties(record)?, record.payload.clone()));
        let messages = records.iter().map(message).collect::<Result<Vec<_>, Failure>>()?;
        self.publish(exchange, routing_key, messages).await
    }
}

/// Takes the messages that are ready. Later ones that the broker delivers as well go back when the
/// channel is closed.
async fn take_ready(connection: &Connection, queue: &str, taken: &mut Vec<Delivery>) -> Result<(), Failure> {
    let channel = connection.create_channel().await?;
    let name = ShortString::try_new(queue)?;
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let count = channel.queue_declare(name.clone(), passive, FieldTable::default()).await?.message_count();
    if count > 0 {
        let options = BasicConsumeOptions::default();
        let deliveries = channel.basic_consume(name, ShortString::default(), options, FieldTable::default());
        let mut deliveries = deliveries.await?.take(usize::try_from(count)?);
        let mut last = None;
        while let Ok(Some(delivery)) = tokio::time::timeout(QUIET, deliveries.next()).await {
            let delivery = delivery?;
            last = Some(delivery.acker.clone());
            taken.push(delivery);
        }
        if let Some(last) = last {
            last.ack(BasicAckOptions { multiple: true }).await?;
        }
    }
    Ok(channel.close(SUCCESS, ShortString::default()).await?)
}

fn properties(record: &PlainRecord) -> Result<BasicProperties, Failure> {
    let mut properties = BasicProperties::default();
    let mut headers = FieldTable::default();
    for (name, value) in &record.headers {
        if name == CONTENT_TYPE {
            properties = properties.with_content_type(ShortString::try_new(value.as_str())?);
        } else {
            headers
                .insert(ShortString::try_new(name.as_str())?, AMQPValue::LongString(value.as_str().into()));
        }
    }
    if let Some(id) = &record.message_id {
        properties = properties.with_message_id(ShortString::try_new(id.as_str())?);
    }
    Ok(properties.with_headers(headers))
}

impl From<&Delivery> for PlainRecord {
    fn from(delivery: &Delivery) -> Self {
        let properties = &delivery.properties;
        let table = properties.headers().iter().flat_map(FieldTable::inner);
        let mut headers: Vec<(String, String)> =
            table.map(|(name, value)| (name.to_string(), text(value))).collect();
        for (name, value) in [
            (CONTENT_TYPE, properties.content_type().as_ref().map(ToString::to_string)),
            (DELIVERY_MODE, properties.delivery_mode().as_ref().map(ToString::to_string)),
        ] {
            headers.extend(value.map(|value| (name.to_owned(), value)));
        }
        Self {
            key: None,
            message_id: properties.message_id().as_ref().map(ToString::to_string),
            headers,
            payload: delivery.data.clone(),
        }
    }
}

fn text(value: &AMQPValue) -> String {
    match value {
        AMQPValue::LongString(text) => text.to_string(),
        AMQPValue::ShortString(text) => text.to_string(),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let written = PlainRecord {
            key: None,
            message_id: Some("7".to_owned()),
            headers: vec![
                ("cloudEvents_subject".to_owned(), "k".to_owned()),
                (CONTENT_TYPE.to_owned(), "text/plain".to_owned()),
            ],
            payload: b"x".to_vec(),
        };
        let delivery = Delivery {
            properties: properties(&written).unwrap(),
            data: written.payload.clone(),
            ..Delivery::mock(1, ShortString::default(), ShortString::default(), false, Vec::new())
        };
        assert_eq!(PlainRecord::from(&delivery), written);
    }
}
