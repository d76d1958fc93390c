//! SQS, standard and FIFO.

use std::sync::Arc;

use async_trait::async_trait;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_sqs::types::{MessageSystemAttributeName, QueueAttributeName};
use brokers::sqs::{Admin, Config, Connector as SqsConnector, Subscriber};
use conformance::{Foreign, Redelivery};
use message::{Connector, MaxInFlightPerKey, Subscription};

use crate::backends::Backend;
use crate::brokers::{Broker, Record, payloads};
use crate::eventually::eventually;
use crate::facts::Order;
use crate::stage::{Stage, random};
use crate::trial::{Failure, Outcome};

const REGION: &str = "elasticmq";

/// SQS with one kind of queue.
pub struct Sqs {
    stage: Stage,
    endpoint: String,
    fifo: bool,
    client: Client,
}

impl Sqs {
    /// Takes the server of a backend: [`Backend::SqsFifo`] with FIFO queues, others with standard
    /// queues.
    ///
    /// # Errors
    /// This run does not have it.
    pub async fn open(stage: &Stage, backend: Backend) -> Result<Self, Failure> {
        let endpoint = backend.address()?;
        let config = aws_config::defaults(BehaviorVersion::latest())
            .endpoint_url(&endpoint)
            .region(Region::new(REGION))
            .credentials_provider(Credentials::new("test", "test", None, None, "tests"))
            .load()
            .await;
        let fifo = backend == Backend::SqsFifo;
        Ok(Self { stage: stage.clone(), client: Client::new(&config), endpoint, fifo })
    }

    fn config(&self) -> Config {
        Config::default()
            .region(REGION)
            .endpoint_url(self.endpoint.clone())
            .access_key_id("test")
            .secret_access_key("test")
            .visibility_timeout_secs(10)
    }

    async fn url(&self, topic: &str) -> Result<String, Failure> {
        let answer = self.client.get_queue_url().queue_name(topic).send().await?;
        answer.queue_url.ok_or_else(|| "an answer without a URL".into())
    }

    /// Removes every message of a queue, as SQS removes those that are older than its retention.
    ///
    /// # Errors
    /// The server refused or is unavailable.
    pub async fn forget(&self, queue: &str) -> Outcome {
        self.client.purge_queue().queue_url(self.url(queue).await?).send().await?;
        Ok(())
    }

    /// Returns how many messages a queue can hand out.
    ///
    /// # Errors
    /// The server refused or is unavailable.
    pub async fn waiting(&self, queue: &str) -> Result<u64, Failure> {
        self.count(queue, &[QueueAttributeName::ApproximateNumberOfMessages]).await
    }

    /// Returns the sum of these counts of a queue.
    async fn count(&self, queue: &str, wanted: &[QueueAttributeName]) -> Result<u64, Failure> {
        let asked = self.client.get_queue_attributes().queue_url(self.url(queue).await?);
        let answer = asked.set_attribute_names(Some(wanted.to_vec())).send().await?;
        let counts = answer.attributes().ok_or("an answer without counts")?;
        wanted.iter().map(|name| Ok(counts.get(name).ok_or("a count is missing")?.parse::<u64>()?)).sum()
    }

    async fn read(&self, url: &str) -> Result<Vec<Record>, Failure> {
        let answer = self
            .client
            .receive_message()
            .queue_url(url)
            .max_number_of_messages(10)
            .message_system_attribute_names(MessageSystemAttributeName::All)
            .send()
            .await?;
        let mut records = Vec::new();
        for message in answer.messages.unwrap_or_default() {
            if let Some(handle) = &message.receipt_handle {
                self.client.delete_message().queue_url(url).receipt_handle(handle).send().await?;
            }
            records.push(record(&message)?);
        }
        Ok(records)
    }
}

fn record(message: &aws_sdk_sqs::types::Message) -> Result<Record, Failure> {
    let event: serde_json::Value = serde_json::from_str(message.body().unwrap_or_default())?;
    let members = event.as_object().ok_or("the body is no JSON object")?;
    let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let payload = members.get("data").map(text).unwrap_or_default().into_bytes();
    let attribute = |name| message.attributes().and_then(|all| all.get(&name)).cloned();
    Ok(Record {
        key: attribute(MessageSystemAttributeName::MessageGroupId),
        message_id: members.get("id").map(text),
        headers: members
            .iter()
            .filter(|(name, _)| *name != "data")
            .map(|(n, v)| (n.clone(), text(v)))
            .collect(),
        payload,
    })
}

#[async_trait]
impl conformance::Broker for Sqs {
    fn topic_name(&self, prefix: &str) -> String {
        format!("{}{}", self.stage.unique(prefix), if self.fifo { ".fifo" } else { "" })
    }

    async fn create_topic(&self, topic: &str) -> Outcome {
        Admin::connect(&self.config()).await?.create_queue(topic).await?;
        let (config, topic) = (self.config(), topic.to_owned());
        self.stage.afterwards(format!("queue {topic}"), async move {
            Ok(Admin::connect(&config).await?.delete_queue(&topic).await?)
        });
        Ok(())
    }

    fn connector(&self) -> Result<Arc<dyn Connector>, Failure> {
        Ok(Arc::new(SqsConnector::new(&self.config())?))
    }

    fn unreachable(&self) -> Result<Arc<dyn Connector>, Failure> {
        let nobody = self.config().endpoint_url("http://127.0.0.1:1").attempts(1).connect_timeout_ms(500);
        Ok(Arc::new(SqsConnector::new(&nobody)?))
    }

    async fn subscribe(
        &self,
        _: &str,
        topic: &str,
        redelivery: Redelivery,
    ) -> Result<Box<dyn Subscription>, Failure> {
        let visibility_timeout_secs = match redelivery {
            Redelivery::Late => 300,
            Redelivery::Soon => 2,
        };
        let config = self.config().poll_wait_secs(1).visibility_timeout_secs(visibility_timeout_secs);
        Ok(Subscriber::new(&config, topic)?.subscribe().await?)
    }

    async fn payloads(&self, topic: &str, at_least: usize) -> Result<Vec<Vec<u8>>, Failure> {
        self.drain(topic, at_least).await.map(payloads)
    }

    async fn put(&self, topic: &str, foreign: &Foreign) -> Outcome {
        self.write(topic, Record::foreign(foreign, "")).await
    }

    fn oversize_bytes(&self) -> Option<usize> {
        Some((1 << 20) + 1)
    }

    async fn unsettled(&self, topic: &str) -> Result<Option<u64>, Failure> {
        let wanted = [
            QueueAttributeName::ApproximateNumberOfMessages,
            QueueAttributeName::ApproximateNumberOfMessagesNotVisible,
            QueueAttributeName::ApproximateNumberOfMessagesDelayed,
        ];
        self.count(topic, &wanted).await.map(Some)
    }
}

#[async_trait]
impl Broker for Sqs {
    fn backend(&self) -> Backend {
        if self.fifo { Backend::SqsFifo } else { Backend::Sqs }
    }

    fn max_in_flight_per_key(&self) -> MaxInFlightPerKey {
        MaxInFlightPerKey::One
    }

    fn order(&self) -> Order {
        if self.fifo { Order::PerKey } else { Order::Free }
    }

    async fn join(&self, _: &str, topic: &str) -> Result<Box<dyn Subscription>, Failure> {
        Ok(Subscriber::new(&self.config(), topic)?.subscribe().await?)
    }

    fn relay_section(&self) -> Option<String> {
        Some(format!(
            "[pipeline.sqs]\nregion = {REGION:?}\nendpoint_url = {:?}\naccess_key_id = \"test\"\n\
             secret_access_key = \"test\"\n",
            self.endpoint
        ))
    }

    async fn drain(&self, topic: &str, at_least: usize) -> Result<Vec<Record>, Failure> {
        let url = &self.url(topic).await?;
        let records = &tokio::sync::Mutex::new(Vec::new());
        eventually("the queue is read", || async move {
            let mut records = records.lock().await;
            loop {
                let more = self.read(url).await?;
                if more.is_empty() {
                    break;
                }
                records.extend(more);
            }
            Ok((records.len() >= at_least).then(|| std::mem::take(&mut *records)))
        })
        .await
    }

    async fn write(&self, topic: &str, record: Record) -> Outcome {
        let url = self.url(topic).await?;
        let mut members: serde_json::Map<String, serde_json::Value> =
            record.headers.into_iter().map(|(name, value)| (name, value.into())).collect();
        members.insert(String::from("data"), String::from_utf8(record.payload)?.into());
        let body = serde_json::Value::Object(members).to_string();
        let mut send = self.client.send_message().queue_url(url).message_body(body);
        if self.fifo {
            let random = random();
            send = send
                .message_group_id(record.key.unwrap_or_else(|| random.clone()))
                .message_deduplication_id(random);
        }
        send.send().await?;
        Ok(())
    }
}
