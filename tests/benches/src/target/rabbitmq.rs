//! RabbitMQ: a bare publisher with a window of confirms.

use std::sync::Arc;

use async_trait::async_trait;
use brokers::rabbitmq;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Confirmation, Connection, ConnectionProperties};
use message::Connector;

use super::{Rows, Target};
use crate::Failure;

pub(super) struct Rabbitmq {
    url: String,
}

impl Rabbitmq {
    pub(super) fn new(url: String) -> Self {
        Self { url }
    }

    fn config(&self) -> Result<rabbitmq::Config, Failure> {
        Ok(serde_json::from_value(serde_json::json!({ "url": self.url }))?)
    }
}

#[async_trait]
impl Target for Rabbitmq {
    fn name(&self) -> &'static str {
        "rabbitmq"
    }

    async fn prepare(&self, topic: &str) -> Result<(), Failure> {
        let admin = rabbitmq::Admin::connect(&self.config()?).await?;
        admin.declare_queue(topic, rabbitmq::QueueOptions::default()).await?;
        admin.close().await;
        Ok(())
    }

    fn connector(&self) -> Result<Arc<dyn Connector>, Failure> {
        Ok(Arc::new(rabbitmq::Connector::new(&self.config()?)?))
    }

    /// Pages are windows: all messages of a page are published, then their confirms are awaited
    /// before the next page on this channel. A second channel works meanwhile.
    async fn bare(&self, mut rows: Rows) -> Result<u64, Failure> {
        let connection = Connection::connect(&self.url, ConnectionProperties::default()).await?;
        let mut confirmed = 0;
        let mut waiting: Option<tokio::task::JoinHandle<Result<u64, lapin::Error>>> = None;
        let mut channels = Vec::new();
        for _ in 0..2 {
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            channels.push(channel);
        }
        for turn in 0_usize.. {
            let page = rows.next().await?;
            let done = page.is_empty();
            let channel = channels[turn % 2].clone();
            let mut confirms = Vec::with_capacity(page.len());
            for row in page {
                let mut headers = FieldTable::default();
                for (name, value) in row.attributes() {
                    headers.insert(ShortString::try_new(name)?, AMQPValue::LongString(value.into()));
                }
                let properties = BasicProperties::default()
                    .with_headers(headers)
                    .with_delivery_mode(2)
                    .with_message_id(ShortString::try_new(row.message_id)?);
                let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
                let routing_key = ShortString::try_new(row.topic)?;
                confirms.push(
                    channel
                        .basic_publish(ShortString::default(), routing_key, options, &row.payload, properties)
                        .await?,
                );
            }
            let window = tokio::spawn(async move {
                let mut acks = 0;
                for confirm in confirms {
                    acks += u64::from(matches!(confirm.await?, Confirmation::Ack(None)));
                }
                Ok(acks)
            });
            if let Some(before) = waiting.replace(window) {
                confirmed += before.await??;
            }
            if done {
                break;
            }
        }
        if let Some(last) = waiting {
            confirmed += last.await??;
        }
        connection.close(200, ShortString::default()).await?;
        Ok(confirmed)
    }

    async fn remove(&self, topic: &str) -> Result<(), Failure> {
        let admin = rabbitmq::Admin::connect(&self.config()?).await?;
        admin.delete_queue(topic).await?;
        admin.close().await;
        Ok(())
    }
}
