//! A plain RabbitMQ client.

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};

use super::{Copy, SOURCE};
use crate::error::DemoError;
use crate::{CONTENT_TYPE, KIND};

/// The reply code of an orderly end (AMQP 0-9-1 specification, section 1.2).
const SUCCESS: u16 = 200;

struct Session {
    connection: Connection,
    channel: Channel,
}

impl Session {
    async fn open(url: &str) -> Result<Self, lapin::Error> {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        Ok(Self { connection, channel })
    }

    async fn close(self) -> Result<(), lapin::Error> {
        self.connection.close(SUCCESS, ShortString::default()).await
    }
}

/// Publishes copies and waits for their confirmations.
pub(super) async fn publish(
    url: &str,
    exchange: &str,
    topic: &str,
    copies: &[Copy],
) -> Result<(), DemoError> {
    let what = "publish to RabbitMQ again";
    let session = Session::open(url).await.map_err(DemoError::during(what))?;
    let select = session.channel.confirm_select(ConfirmSelectOptions::default()).await;
    select.map_err(DemoError::during(what))?;
    let mut sent = Vec::with_capacity(copies.len());
    for copy in copies {
        let publish = session.channel.basic_publish(
            short(exchange)?,
            short(topic)?,
            BasicPublishOptions::default(),
            &copy.payload,
            properties(copy)?,
        );
        sent.push(publish.await.map_err(DemoError::during(what))?);
    }
    for confirm in sent {
        let confirmation = confirm.await.map_err(DemoError::during(what))?;
        if !confirmation.is_ack() {
            return Err(DemoError::during(what)("the broker rejected a message"));
        }
    }
    session.close().await.map_err(DemoError::during(what))
}

fn properties(copy: &Copy) -> Result<BasicProperties, DemoError> {
    let id = copy.id.to_string();
    let mut headers = FieldTable::default();
    for (name, value) in [
        ("cloudEvents_specversion", "1.0"),
        ("cloudEvents_id", &id),
        ("cloudEvents_source", SOURCE),
        ("cloudEvents_type", KIND),
        ("cloudEvents_subject", &copy.key),
    ] {
        headers.insert(short(name)?, AMQPValue::LongString(LongString::from(value)));
    }
    let properties = BasicProperties::default().with_message_id(short(&id)?);
    Ok(properties.with_content_type(short(CONTENT_TYPE)?).with_headers(headers))
}

fn short(text: &str) -> Result<ShortString, DemoError> {
    ShortString::try_new(text).map_err(|error| DemoError::Usage(format!("{text:?}: {error}")))
}
