//! A plain SQS client.

use std::time::{Duration, Instant};

use aws_config::BehaviorVersion;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::{Credentials, Region};
use aws_sdk_sqs::types::{
    Message, MessageSystemAttributeName, QueueAttributeName, SendMessageBatchRequestEntry,
};

use super::PlainRecord;
use crate::Failure;

/// Maximum time without a message while one is awaited.
const SILENCE: Duration = Duration::from_secs(240);
/// Pause before an empty queue is read again.
const PAUSE: Duration = Duration::from_millis(20);
/// Maximum number of entries in a request (SQS quotas).
const BATCH: usize = 10;

/// An account on a server.
#[derive(Debug, Clone)]
pub struct Sqs {
    client: Client,
}

/// The way to an account. What is `None` comes from the environment, as for every client of AWS.
#[derive(Clone, Default)]
pub struct Account {
    /// The URL of a server other than Amazon's.
    pub endpoint: Option<String>,
    /// The region.
    pub region: Option<String>,
    /// Access key and secret.
    pub key: Option<(String, String)>,
}

/// A message to send.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outgoing {
    /// The body.
    pub body: String,
    /// The group, for a FIFO queue.
    pub group: Option<String>,
    /// The deduplication id, for a FIFO queue.
    pub deduplication: Option<String>,
}

/// The number of messages in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Messages that can be received.
    pub visible: u64,
    /// Messages that were received and not deleted.
    pub in_flight: u64,
    /// Messages that cannot be received yet.
    pub delayed: u64,
}

impl Counts {
    /// Returns the number of all messages.
    #[must_use]
    pub fn total(self) -> u64 {
        self.visible + self.in_flight + self.delayed
    }
}

impl Sqs {
    /// Takes an account.
    pub async fn new(account: Account) -> Self {
        let mut loader = aws_config::defaults(BehaviorVersion::latest());
        if let Some(endpoint) = account.endpoint {
            loader = loader.endpoint_url(endpoint);
        }
        if let Some(region) = account.region {
            loader = loader.region(Region::new(region));
        }
        if let Some((id, secret)) = account.key {
            loader = loader.credentials_provider(Credentials::new(id, secret, None, None, "plain"));
        }
        Self { client: Client::new(&loader.load().await) }
    }

    /// Takes the account of an ElasticMQ server, which accepts any key.
    pub async fn elasticmq(endpoint: impl Into<String>) -> Self {
        let key = Some(("test".to_owned(), "test".to_owned()));
        let endpoint = Some(endpoint.into());
        Self::new(Account { endpoint, region: Some("elasticmq".to_owned()), key }).await
    }

    /// Returns the client of the SDK.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the URL of a queue.
    ///
    /// # Errors
    /// There is no such queue, or the server does not answer.
    pub async fn url(&self, queue: &str) -> Result<String, Failure> {
        let found = self.client.get_queue_url().queue_name(queue).send().await?;
        found.queue_url.ok_or_else(|| format!("queue {queue} has no address").into())
    }

    /// Removes all messages from a queue and returns them with all attributes, in order if the
    /// queue keeps one. Waits for at least this many. Not cancel-safe: messages that were removed
    /// are lost.
    ///
    /// # Errors
    /// The server does not answer, or nothing came for four minutes.
    pub async fn take_all(&self, queue: &str, at_least: usize) -> Result<Vec<Message>, Failure> {
        let url = self.url(queue).await?;
        let mut taken = Vec::new();
        let mut heard_at = Instant::now();
        loop {
            let asked = self.client.receive_message().queue_url(&url).max_number_of_messages(10);
            let asked = asked.message_attribute_names("All");
            let asked = asked.message_system_attribute_names(MessageSystemAttributeName::All);
            let messages = asked.send().await?.messages.unwrap_or_default();
            if !messages.is_empty() {
                heard_at = Instant::now();
            } else if taken.len() >= at_least {
                return Ok(taken);
            } else if heard_at.elapsed() > SILENCE {
                return Err(format!("{queue}: {} messages of at least {at_least}", taken.len()).into());
            } else {
                tokio::time::sleep(PAUSE).await;
            }
            for message in messages {
                let handle = message.receipt_handle.as_deref().unwrap_or_default();
                self.client.delete_message().queue_url(&url).receipt_handle(handle).send().await?;
                taken.push(message);
            }
        }
    }

    /// Sends messages, in their order, and checks the answer for each.
    ///
    /// # Errors
    /// The server does not answer, or refuses a message.
    pub async fn put(&self, queue: &str, messages: &[Outgoing]) -> Result<(), Failure> {
        let url = self.url(queue).await?;
        for batch in messages.chunks(BATCH) {
            let entries = batch.iter().enumerate().map(|(place, message)| {
                let entry = SendMessageBatchRequestEntry::builder().id(place.to_string());
                let entry = entry.message_body(&message.body).set_message_group_id(message.group.clone());
                entry.set_message_deduplication_id(message.deduplication.clone()).build()
            });
            let entries = entries.collect::<Result<Vec<_>, _>>()?;
            let sent =
                self.client.send_message_batch().queue_url(&url).set_entries(Some(entries)).send().await?;
            if let Some(failed) = sent.failed().first() {
                return Err(format!("{}: {:?}", failed.code(), failed.message()).into());
            }
        }
        Ok(())
    }

    /// Counts the messages of a queue.
    ///
    /// # Errors
    /// The server does not answer, or leaves out a count.
    pub async fn counts(&self, queue: &str) -> Result<Counts, Failure> {
        let visible = QueueAttributeName::ApproximateNumberOfMessages;
        let in_flight = QueueAttributeName::ApproximateNumberOfMessagesNotVisible;
        let delayed = QueueAttributeName::ApproximateNumberOfMessagesDelayed;
        let wanted = vec![visible.clone(), in_flight.clone(), delayed.clone()];
        let asked = self.client.get_queue_attributes().queue_url(self.url(queue).await?);
        let answer = asked.set_attribute_names(Some(wanted)).send().await?;
        let count = |attribute: QueueAttributeName| -> Result<u64, Failure> {
            let text = answer.attributes().and_then(|counts| counts.get(&attribute));
            Ok(text.ok_or_else(|| format!("queue {queue}: the answer has no {attribute}"))?.parse()?)
        };
        Ok(Counts { visible: count(visible)?, in_flight: count(in_flight)?, delayed: count(delayed)? })
    }

    /// Removes every message of a queue, as SQS removes those that are older than its retention.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub async fn purge(&self, queue: &str) -> Result<(), Failure> {
        self.client.purge_queue().queue_url(self.url(queue).await?).send().await?;
        Ok(())
    }
}

impl TryFrom<&Message> for PlainRecord {
    type Error = Failure;

    /// Reads a CloudEvent in the JSON event format.
    fn try_from(message: &Message) -> Result<Self, Failure> {
        let event: serde_json::Value = serde_json::from_str(message.body().unwrap_or_default())?;
        let members = event.as_object().ok_or("the body is not a JSON object")?;
        let text =
            |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let around = members.iter().filter(|(name, _)| *name != "data");
        let group = MessageSystemAttributeName::MessageGroupId;
        Ok(Self {
            key: message.attributes().and_then(|all| all.get(&group)).cloned(),
            message_id: members.get("id").map(text),
            headers: around.map(|(name, value)| (name.clone(), text(value))).collect(),
            payload: members.get("data").map(text).unwrap_or_default().into_bytes(),
        })
    }
}

impl From<&PlainRecord> for Outgoing {
    /// Writes a CloudEvent in the JSON event format, with the payload as a JSON string.
    fn from(record: &PlainRecord) -> Self {
        let headers = record.headers.iter().map(|(name, value)| (name.clone(), value.as_str().into()));
        let mut members: serde_json::Map<String, serde_json::Value> = headers.collect();
        members.insert("data".to_owned(), String::from_utf8_lossy(&record.payload).into());
        let body = serde_json::Value::Object(members).to_string();
        Self { body, group: record.key.clone(), deduplication: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let written = PlainRecord {
            headers: vec![("id".to_owned(), "7".to_owned()), ("type".to_owned(), "t".to_owned())],
            payload: b"x".to_vec(),
            ..PlainRecord::default()
        };
        let message = Message::builder().body(Outgoing::from(&written).body).build();
        let read = PlainRecord::try_from(&message).unwrap();
        assert_eq!(read, PlainRecord { message_id: Some("7".to_owned()), ..written });
        assert!(PlainRecord::try_from(&Message::builder().body("[]").build()).is_err());
    }
}
