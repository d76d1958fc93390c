//! Plain SQS, for cases that need more than the shared harness offers: other visibility timeouts,
//! and the number of messages left in a queue.

use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_sqs::types::QueueAttributeName;
use brokers::sqs::{Config, Subscriber};
use message::Subscription;
use tests::{Backend, Failure};

const REGION: &str = "elasticmq";

/// Returns the settings for a server at this endpoint.
pub(crate) fn config(endpoint: String) -> Config {
    Config::default()
        .region(REGION)
        .endpoint_url(endpoint)
        .access_key_id("test")
        .secret_access_key("test")
        .poll_wait_secs(1)
}

/// Opens a subscription with this visibility timeout. Unsettled deliveries are redelivered after
/// it.
pub(crate) async fn subscribe(
    queue: &str,
    visibility_timeout_secs: u32,
) -> Result<Box<dyn Subscription>, Failure> {
    let config = config(Backend::Sqs.address()?).visibility_timeout_secs(visibility_timeout_secs);
    Ok(Subscriber::new(&config, queue)?.subscribe().await?)
}

/// Returns a plain client of the SDK.
pub(crate) async fn plain() -> Result<Client, Failure> {
    let config = aws_config::defaults(BehaviorVersion::latest())
        .endpoint_url(Backend::Sqs.address()?)
        .region(Region::new(REGION))
        .credentials_provider(Credentials::new("test", "test", None, None, "tests"))
        .load()
        .await;
    Ok(Client::new(&config))
}

/// Returns the URL of a queue.
pub(crate) async fn url(client: &Client, queue: &str) -> Result<String, Failure> {
    let found = client.get_queue_url().queue_name(queue).send().await?;
    found.queue_url.ok_or_else(|| "an answer without a URL".into())
}

/// Returns how many messages are in a queue, including hidden and delayed ones.
pub(crate) async fn left(queue: &str) -> Result<u64, Failure> {
    let client = plain().await?;
    let wanted = [
        QueueAttributeName::ApproximateNumberOfMessages,
        QueueAttributeName::ApproximateNumberOfMessagesNotVisible,
        QueueAttributeName::ApproximateNumberOfMessagesDelayed,
    ];
    let asked = client.get_queue_attributes().queue_url(url(&client, queue).await?);
    let answer = asked.set_attribute_names(Some(wanted.to_vec())).send().await?;
    let counts = answer.attributes().ok_or("an answer without counts")?;
    wanted.iter().map(|name| Ok(counts.get(name).ok_or("a count is missing")?.parse::<u64>()?)).sum()
}
