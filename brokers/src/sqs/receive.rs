//! One receive request as a separate task: dropping the caller's future loses no message that SQS
//! has already handed over and hidden from other consumers.

use std::time::Duration;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::Config;
use aws_sdk_sqs::config::timeout::TimeoutConfig;
use aws_sdk_sqs::types::{Message as Received, MessageSystemAttributeName};
use tokio::time::Instant;

use super::fault::Failure;
use super::throttle::{THROTTLED_MAX, patiently};

/// Maximum messages of one receive request (SQS quota).
pub(super) const RECEIVE_MAX: usize = 10;

/// The end of a request for this many messages.
pub(super) struct Answer {
    pub(super) asked: usize,
    pub(super) page: Result<Page, Failure>,
}

/// The messages of one answer.
pub(super) struct Page {
    /// When the messages were last hidden from other consumers, for the visibility timeout.
    pub(super) hidden_at: Instant,
    pub(super) messages: Vec<Received>,
}

/// A receive request.
#[derive(Debug, Clone)]
pub(super) struct ReceiveRequest {
    pub(super) client: Client,
    pub(super) url: String,
    pub(super) visibility_timeout_secs: i32,
}

impl ReceiveRequest {
    /// Asks for this many messages, at most [`RECEIVE_MAX`]. SQS answers at once when there are
    /// some, otherwise after `wait`.
    pub(super) async fn run(self, asked: usize, wait: Duration, timeouts: TimeoutConfig) -> Answer {
        let page = patiently(THROTTLED_MAX, || self.page(asked, wait, timeouts.clone())).await;
        Answer { asked, page }
    }

    async fn page(&self, asked: usize, wait: Duration, timeouts: TimeoutConfig) -> Result<Page, Failure> {
        let seconds = i32::try_from(wait.as_secs()).unwrap_or(i32::MAX);
        let answer = self
            .client
            .receive_message()
            .queue_url(&self.url)
            .max_number_of_messages(i32::try_from(asked).unwrap_or(1))
            .visibility_timeout(self.visibility_timeout_secs)
            .wait_time_seconds(seconds)
            .message_attribute_names("All")
            .message_system_attribute_names(MessageSystemAttributeName::All)
            .customize()
            .config_override(Config::builder().timeout_config(timeouts))
            .send()
            .await;
        let messages = answer.map_err(|error| Failure::of_request(&error))?.messages.unwrap_or_default();
        Ok(Page { hidden_at: Instant::now(), messages })
    }
}
