//! The settings of SQS's adapter, for cases that need more than the shared brokers offer.

use brokers::sqs::Config;

/// Returns the settings for a server at this endpoint.
pub(crate) fn config(endpoint: String) -> Config {
    Config::default()
        .region("elasticmq")
        .endpoint_url(endpoint)
        .access_key_id("test")
        .secret_access_key("test")
        .poll_wait_secs(1)
}
