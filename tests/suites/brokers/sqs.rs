//! Plain SQS, for cases that need more than the shared brokers offer.

use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::{BehaviorVersion, Credentials, Region};
use brokers::sqs::Config;
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
