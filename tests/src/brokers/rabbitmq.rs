//! RabbitMQ.

use std::sync::Arc;

use async_trait::async_trait;
use brokers::rabbitmq::{Admin, Config, Connector as RabbitmqConnector, QueueOptions, Subscriber};
use conformance::{Foreign, Redelivery};
use lapin::options::{BasicGetOptions, BasicPublishOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use message::{Connector, MaxInFlightPerKey, Subscription};

use crate::backends::Backend;
use crate::brokers::{Broker, Record, payloads};
use crate::eventually::eventually;
use crate::stage::Stage;
use crate::trial::{Failure, Outcome};

/// RabbitMQ; a topic is a durable classic queue on the default exchange.
pub struct Rabbitmq {
    stage: Stage,
    url: String,
}

impl Rabbitmq {
    /// Takes the broker at `amqp://…`.
    #[must_use]
    pub fn new(stage: &Stage, url: String) -> Self {
        Self { stage: stage.clone(), url }
    }

    fn config(&self) -> Config {
        super::patient_rabbitmq(&self.url)
    }

    async fn channel(&self) -> Result<(Connection, Channel), Failure> {
        let connection = Connection::connect(&self.url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        Ok((connection, channel))
    }
}

fn record(delivery: lapin::message::Delivery) -> Record {
    let properties = &delivery.properties;
    let mut headers: std::collections::BTreeMap<String, String> = properties
        .headers()
        .iter()
        .flat_map(FieldTable::inner)
        .map(|(name, value)| (name.to_string(), text(value)))
        .collect();
    for (name, value) in [
        ("content_type", properties.content_type().as_ref().map(ToString::to_string)),
        ("delivery_mode", properties.delivery_mode().as_ref().map(ToString::to_string)),
    ] {
        headers.extend(value.map(|value| (name.to_owned(), value)));
    }
    Record {
        key: None,
        message_id: properties.message_id().as_ref().map(ToString::to_string),
        headers,
        payload: delivery.data,
    }
}

fn text(value: &AMQPValue) -> String {
    match value {
        AMQPValue::LongString(text) => text.to_string(),
        AMQPValue::ShortString(text) => text.to_string(),
        other => format!("{other:?}"),
    }
}

#[async_trait]
impl conformance::Broker for Rabbitmq {
    fn topic_name(&self, prefix: &str) -> String {
        self.stage.unique(prefix)
    }

    async fn create_topic(&self, topic: &str) -> Outcome {
        let admin = Admin::connect(&self.config()).await?;
        admin.declare_queue(topic, QueueOptions::default()).await?;
        admin.close().await;
        let (config, topic) = (self.config(), topic.to_owned());
        self.stage.afterwards(format!("queue {topic}"), async move {
            let admin = Admin::connect(&config).await?;
            admin.delete_queue(&topic).await?;
            admin.close().await;
            Ok(())
        });
        Ok(())
    }

    fn connector(&self) -> Result<Arc<dyn Connector>, Failure> {
        Ok(Arc::new(RabbitmqConnector::new(&self.config())?))
    }

    fn unreachable(&self) -> Result<Arc<dyn Connector>, Failure> {
        Ok(Arc::new(RabbitmqConnector::new(&Config::new("amqp://guest:guest@127.0.0.1:1/%2f"))?))
    }

    async fn subscribe(&self, _: &str, topic: &str, _: Redelivery) -> Result<Box<dyn Subscription>, Failure> {
        Ok(Subscriber::new(&self.config(), [topic])?.subscribe().await?)
    }

    async fn payloads(&self, topic: &str, at_least: usize) -> Result<Vec<Vec<u8>>, Failure> {
        self.drain(topic, at_least).await.map(payloads)
    }

    async fn put(&self, topic: &str, foreign: &Foreign) -> Outcome {
        self.write(topic, Record::foreign(foreign, "cloudEvents_")).await
    }

    fn oversize_bytes(&self) -> Option<usize> {
        Some((16 << 20) + 1)
    }
}

#[async_trait]
impl Broker for Rabbitmq {
    fn backend(&self) -> Backend {
        Backend::Rabbitmq
    }

    fn max_in_flight_per_key(&self) -> MaxInFlightPerKey {
        MaxInFlightPerKey::One
    }

    fn relay_section(&self) -> Option<String> {
        Some(format!("[pipeline.rabbitmq]\nurl = {:?}\n", self.url))
    }

    async fn drain(&self, topic: &str, at_least: usize) -> Result<Vec<Record>, Failure> {
        let (_connection, channel) = self.channel().await?;
        let records = &tokio::sync::Mutex::new(Vec::new());
        let channel = &channel;
        eventually("the queue is read", || async move {
            let mut records = records.lock().await;
            let options = BasicGetOptions { no_ack: true };
            while let Some(got) = channel.basic_get(ShortString::try_new(topic)?, options).await? {
                records.push(record(got.delivery));
            }
            Ok((records.len() >= at_least).then(|| std::mem::take(&mut *records)))
        })
        .await
    }

    async fn write(&self, topic: &str, record: Record) -> Outcome {
        let (_connection, channel) = self.channel().await?;
        let mut headers = FieldTable::default();
        for (name, value) in &record.headers {
            headers
                .insert(ShortString::try_new(name.as_str())?, AMQPValue::LongString(value.as_str().into()));
        }
        let mut properties = BasicProperties::default().with_headers(headers);
        if let Some(id) = &record.message_id {
            properties = properties.with_message_id(ShortString::try_new(id.as_str())?);
        }
        let (exchange, queue) = (ShortString::default(), ShortString::try_new(topic)?);
        channel.confirm_select(lapin::options::ConfirmSelectOptions::default()).await?;
        channel
            .basic_publish(exchange, queue, BasicPublishOptions::default(), &record.payload, properties)
            .await?
            .await?;
        Ok(())
    }
}
