//! Creates queues, for tests, examples and the demo. In production they belong to the account's
//! operators.

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::QueueAttributeName;
use message::SubscriptionError;

use super::client::ClientFactory;
use super::config::Config;
use super::fault::{Failure, Kind};
use super::queues::{is_fifo, queue_url};

/// A client that creates, counts and deletes.
#[derive(Debug)]
pub struct Admin {
    client: Client,
}

impl Admin {
    /// Creates a client with the settings of publishers and subscribers.
    ///
    /// # Errors
    /// [`SubscriptionError`] when settings are wrong, or there are no credentials.
    pub async fn connect(config: &Config) -> Result<Self, SubscriptionError> {
        let factory =
            ClientFactory::new(config).map_err(|error| SubscriptionError::operator(error.to_string()))?;
        Ok(Self { client: factory.client().await? })
    }

    /// Creates a queue, a FIFO queue if its name ends in `.fifo`; does nothing when it exists.
    ///
    /// # Errors
    /// [`SubscriptionError`] when the name is not valid, or permission is missing.
    pub async fn create_queue(&self, name: &str) -> Result<(), SubscriptionError> {
        let mut create = self.client.create_queue().queue_name(name);
        if is_fifo(name) {
            create = create.attributes(QueueAttributeName::FifoQueue, "true");
        }
        create.send().await.map(drop).map_err(|error| failed(name, &Failure::of_request(&error)))
    }

    /// Returns how many messages wait in a queue; SQS calls this number approximate.
    ///
    /// # Errors
    /// [`SubscriptionError`] when the queue or permission is missing.
    pub async fn count(&self, name: &str) -> Result<u64, SubscriptionError> {
        let url = self.url(name).await?;
        let wanted = QueueAttributeName::ApproximateNumberOfMessages;
        let asked =
            self.client.get_queue_attributes().queue_url(url).attribute_names(wanted.clone()).send().await;
        let answer = asked.map_err(|error| failed(name, &Failure::of_request(&error)))?;
        let count = answer.attributes().and_then(|attributes| attributes.get(&wanted)?.parse().ok());
        count.ok_or_else(|| SubscriptionError::lost(format!("queue {name}: the answer has no count")))
    }

    /// Discards everything in a queue, which takes AWS up to 60 seconds.
    ///
    /// # Errors
    /// [`SubscriptionError`] when the queue or permission is missing, or another purge is running.
    pub async fn purge(&self, name: &str) -> Result<(), SubscriptionError> {
        let url = self.url(name).await?;
        let purged = self.client.purge_queue().queue_url(url).send().await;
        purged.map(drop).map_err(|error| failed(name, &Failure::of_request(&error)))
    }

    /// Deletes a queue with all its messages; does nothing when it is missing.
    ///
    /// # Errors
    /// [`SubscriptionError`] when permission is missing.
    pub async fn delete_queue(&self, name: &str) -> Result<(), SubscriptionError> {
        let url = match queue_url(&self.client, name, None).await {
            Ok(url) => url,
            Err(failure) if failure.kind == Kind::Missing => return Ok(()),
            Err(failure) => return Err(failed(name, &failure)),
        };
        let deleted = self.client.delete_queue().queue_url(url).send().await;
        deleted.map(drop).map_err(|error| failed(name, &Failure::of_request(&error)))
    }

    async fn url(&self, name: &str) -> Result<String, SubscriptionError> {
        queue_url(&self.client, name, None).await.map_err(|failure| failed(name, &failure))
    }
}

fn failed(name: &str, failure: &Failure) -> SubscriptionError {
    failure.to_subscription_error(name)
}
