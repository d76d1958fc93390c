//! Opens publishing sessions.

use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_sqs::Client;
use message::{PublishError, Publisher, Receipts};

use super::answers::Answers;
use super::client::ClientFactory;
use super::config::Config;
use super::dispatcher::Pace;
use super::fault::{Failure, Kind};
use super::limits::Limits;
use super::publisher::SqsPublisher;
use super::send::Sender;
use crate::settings::InvalidSetting;

/// A queue name to query on connecting; the queue does not have to exist.
const PROBE: &str = "outbox-probe";

/// Opens publishing sessions with SQS.
#[derive(Debug)]
pub struct Connector {
    factory: ClientFactory,
    config: Config,
}

impl Connector {
    /// Creates a connector with these settings. Does not connect yet.
    ///
    /// # Errors
    /// [`InvalidSetting`] with the setting, its value and the accepted values.
    pub fn new(config: &Config) -> Result<Self, InvalidSetting> {
        let factory = ClientFactory::new(config)?;
        factory.warn();
        Ok(Self { factory, config: config.clone() })
    }
}

#[async_trait]
impl message::Connector for Connector {
    fn destination(&self) -> &str {
        self.factory.destination()
    }

    fn connect_max(&self) -> Duration {
        let request = Duration::from_millis(self.config.request_timeout_ms);
        request.saturating_mul(self.config.attempts).saturating_add(BESIDES_REQUESTS)
    }

    async fn connect(&self, receipts: Receipts) -> Result<Box<dyn Publisher>, PublishError> {
        let client = self.factory.client().await?;
        probe(&client).await?;
        let pace = Pace {
            concurrency: self.config.concurrency,
            linger: Duration::from_millis(self.config.linger_ms),
            batch_bytes_max: self.config.message_bytes_max,
        };
        let queues = self.factory.queues();
        let limits = Limits::new(pace.concurrency);
        let sender = Sender { client, queues, answers: Answers::default(), limits };
        Ok(Box::new(SqsPublisher::new(receipts, sender, pace, self.config.fair_queues)))
    }
}

/// Maximum time for credentials, and for the pauses between attempts of a request.
const BESIDES_REQUESTS: Duration = Duration::from_secs(60);

/// Sends one request to find out whether SQS answers and accepts the credentials, because HTTP has
/// no sessions. "No such queue" and "not allowed to ask" are good answers.
async fn probe(client: &Client) -> Result<(), PublishError> {
    match client.get_queue_url().queue_name(PROBE).send().await.map_err(|error| Failure::of_request(&error)) {
        Err(failure) if !matches!(failure.kind, Kind::Missing | Kind::Forbidden) => {
            Err(failure.to_session_error())
        }
        _ => Ok(()),
    }
}
