//! The attributes of queues. Read-only.

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::QueueAttributeName as Name;
use message::Fault;
use serde::Deserialize;

use super::client::ClientFactory;
use super::config::Config;
use super::fault::{Failure, Kind};
use super::queues::{Queues, is_fifo, queue_url};
use crate::inspect::{BrokerFacts, InspectError, Inspected};

/// Facts about a topic's queue. An attribute is missing when the server does not report it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueFacts {
    /// Its name or URL, as configured.
    pub queue: String,
    /// Whether it is a FIFO queue.
    pub fifo: bool,
    /// Whether SQS derives deduplication ids from contents (FIFO). The toolkit sends its own.
    pub content_based_deduplication: Option<bool>,
    /// Scope of deduplication: `queue` or `messageGroup` (FIFO).
    pub deduplication_scope: Option<String>,
    /// `VisibilityTimeout`: the default for receive requests that set none.
    pub visibility_timeout: Option<Duration>,
    /// `MessageRetentionPeriod`.
    pub retention: Option<Duration>,
    /// `MaximumMessageSize`.
    pub message_bytes_max: Option<u64>,
    /// `DelaySeconds`.
    pub delay: Option<Duration>,
    /// The redrive policy for messages that stay unsettled.
    pub redrive: Option<Redrive>,
}

/// A redrive policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redrive {
    /// The dead-letter queue's name.
    pub queue: String,
    /// Number of receives after which a message goes there.
    pub receives_max: u32,
    /// How long it is kept there, counted from when it was first sent; unknown if the queue cannot
    /// be inspected.
    pub retention: Option<Duration>,
}

/// The policy as SQS writes it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Policy {
    dead_letter_target_arn: String,
    max_receive_count: Count,
}

/// A number, or a text that holds one: servers send both.
#[derive(Deserialize)]
#[serde(untagged)]
enum Count {
    Number(u32),
    Text(String),
}

/// Asks about the queues of these topics. Cancel-safe.
///
/// # Errors
/// [`InspectError`] when settings are wrong, or there are no credentials.
pub async fn inspect(config: &Config, topics: &[String]) -> Result<BrokerFacts<QueueFacts>, InspectError> {
    let factory = ClientFactory::new(config).map_err(|error| InspectError::operator(error.to_string()))?;
    let client = factory.client().await.map_err(message::SubscriptionError::from)?;
    let queues = factory.queues();
    let mut inspected = Vec::new();
    for topic in topics {
        let facts = look(&client, &queues, queues.of(topic)).await;
        inspected.push(Inspected { topic: topic.clone(), facts });
    }
    Ok(BrokerFacts { version: None, nodes: None, clock: None, alarms: None, topics: inspected })
}

async fn look(client: &Client, queues: &Queues, queue: &str) -> Result<QueueFacts, InspectError> {
    let url = queues.url(client, queue).await.map_err(|failure| failed(queue, &failure))?;
    let attributes = attributes(client, &url).await.map_err(|failure| failed(queue, &failure))?;
    let mut facts = QueueFacts::of(queue, &attributes);
    if let Some(policy) = attributes.get(&Name::RedrivePolicy) {
        facts.redrive = redrive(policy);
    }
    if let Some(redrive) = &mut facts.redrive
        && let Ok(url) = queue_url(client, &redrive.queue, queues.owner()).await
        && let Ok(attributes) = self::attributes(client, &url).await
    {
        redrive.retention = seconds(&attributes, &Name::MessageRetentionPeriod);
    }
    Ok(facts)
}

async fn attributes(client: &Client, url: &str) -> Result<HashMap<Name, String>, Failure> {
    let asked = client.get_queue_attributes().queue_url(url).attribute_names(Name::All).send().await;
    Ok(asked.map_err(|error| Failure::of_request(&error))?.attributes.unwrap_or_default())
}

fn redrive(policy: &str) -> Option<Redrive> {
    let policy: Policy = serde_json::from_str(policy).ok()?;
    let receives_max = match policy.max_receive_count {
        Count::Number(number) => number,
        Count::Text(text) => text.parse().ok()?,
    };
    // arn:aws:sqs:<region>:<account>:<queue>
    let queue = policy.dead_letter_target_arn.rsplit(':').next()?.to_owned();
    Some(Redrive { queue, receives_max, retention: None })
}

fn seconds(attributes: &HashMap<Name, String>, name: &Name) -> Option<Duration> {
    attributes.get(name)?.parse().ok().map(Duration::from_secs)
}

impl QueueFacts {
    fn of(queue: &str, attributes: &HashMap<Name, String>) -> Self {
        let is = |name: &Name| attributes.get(name).map(|text| text == "true");
        Self {
            queue: queue.to_owned(),
            fifo: is(&Name::FifoQueue).unwrap_or_else(|| is_fifo(queue)),
            content_based_deduplication: is(&Name::ContentBasedDeduplication),
            deduplication_scope: attributes.get(&Name::DeduplicationScope).cloned(),
            visibility_timeout: seconds(attributes, &Name::VisibilityTimeout),
            retention: seconds(attributes, &Name::MessageRetentionPeriod),
            message_bytes_max: attributes.get(&Name::MaximumMessageSize).and_then(|text| text.parse().ok()),
            delay: seconds(attributes, &Name::DelaySeconds),
            redrive: None,
        }
    }
}

fn failed(queue: &str, failure: &Failure) -> InspectError {
    let error = failure.to_subscription_error(queue);
    // A missing queue is the operator's fault, however a subscription would treat it.
    let fault = if failure.kind == Kind::Missing { Fault::Operator } else { error.fault() };
    InspectError { fault, reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redrive_policy_is_read_with_a_number_or_a_text() {
        for count in ["3", "\"3\""] {
            let policy = format!(
                r#"{{"deadLetterTargetArn":"arn:aws:sqs:eu-central-1:1:orders-dead","maxReceiveCount":{count}}}"#
            );
            let read = redrive(&policy).unwrap();
            assert_eq!((read.queue.as_str(), read.receives_max), ("orders-dead", 3));
        }
        assert_eq!(redrive("no json"), None);
    }
}
