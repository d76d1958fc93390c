//! Creates exchanges and queues, for tests, examples and the demo. In production they belong to the
//! broker's operators.

use std::num::NonZeroU32;

use lapin::options::{
    ExchangeBindOptions, ExchangeDeclareOptions, ExchangeDeleteOptions, ExchangeUnbindOptions,
    QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions, QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{Channel, Error, ExchangeKind};
use message::SubscriptionError;
use tokio::time::Instant;

use super::config::Config;
use super::connection::Connection;
use super::endpoint::Endpoint;
use super::fault;
use super::publisher::GOODBYE;

/// How a queue is declared; always durable. Start from [`QueueOptions::default`].
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct QueueOptions {
    /// Replicated (`x-queue-type=quorum`) instead of classic.
    pub quorum: bool,
    /// Maximum number of messages (`x-max-length`). Above it, new ones are rejected
    /// (`x-overflow=reject-publish`): the broker's default would drop old, acknowledged messages.
    pub messages_max: Option<NonZeroU32>,
    /// Deliveries of one message after which a quorum queue drops or dead-letters it
    /// (`x-delivery-limit`); `None` is the broker's default: 20 since RabbitMQ 4, no limit before.
    /// Outages count as deliveries, so choose a number out of reach.
    pub deliveries_max: Option<NonZeroU32>,
}

impl QueueOptions {
    /// Sets whether the queue is replicated.
    #[must_use]
    pub fn quorum(mut self, quorum: bool) -> Self {
        self.quorum = quorum;
        self
    }

    /// Sets the maximum number of messages; `None` is no limit.
    #[must_use]
    pub fn messages_max(mut self, messages_max: Option<NonZeroU32>) -> Self {
        self.messages_max = messages_max;
        self
    }

    /// Sets the number of deliveries of one message.
    #[must_use]
    pub fn deliveries_max(mut self, deliveries_max: Option<NonZeroU32>) -> Self {
        self.deliveries_max = deliveries_max;
        self
    }
}

/// A session that declares, counts and deletes.
pub struct Admin {
    connection: Connection,
}

impl Admin {
    /// Connects with the settings of publishers and subscribers.
    ///
    /// # Errors
    /// [`SubscriptionError`] when the broker is unreachable, or credentials or settings are wrong.
    pub async fn connect(config: &Config) -> Result<Self, SubscriptionError> {
        let endpoint =
            Endpoint::new(config).map_err(|error| SubscriptionError::operator(error.to_string()))?;
        Ok(Self { connection: endpoint.open("admin").await? })
    }

    /// Declares a durable queue; does nothing when it exists with the same options.
    ///
    /// # Errors
    /// [`SubscriptionError`] when it exists with other options, or permission is missing.
    pub async fn declare_queue(&self, name: &str, options: QueueOptions) -> Result<(), SubscriptionError> {
        let mut arguments = FieldTable::default();
        let text = |text: &str| AMQPValue::LongString(LongString::from(text));
        if options.quorum {
            arguments.insert(short("x-queue-type")?, text("quorum"));
        }
        if let Some(messages_max) = options.messages_max {
            arguments.insert(short("x-max-length")?, AMQPValue::LongLongInt(messages_max.get().into()));
            arguments.insert(short("x-overflow")?, text("reject-publish"));
        }
        if let Some(deliveries_max) = options.deliveries_max {
            let limit = AMQPValue::LongLongInt(deliveries_max.get().into());
            arguments.insert(short("x-delivery-limit")?, limit);
        }
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let channel = self.channel().await?;
        self.ask(&channel, channel.queue_declare(short(name)?, durable, arguments)).await.map(drop)
    }

    /// Declares a durable topic exchange; does nothing when it exists.
    ///
    /// # Errors
    /// [`SubscriptionError`] when it exists with another kind, or permission is missing.
    pub async fn declare_exchange(&self, name: &str) -> Result<(), SubscriptionError> {
        let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let channel = self.channel().await?;
        let kind = ExchangeKind::Topic;
        self.ask(&channel, channel.exchange_declare(short(name)?, kind, durable, FieldTable::default())).await
    }

    /// Makes an exchange route a routing key (with the wildcards `*` and `#`) to a queue.
    ///
    /// # Errors
    /// [`SubscriptionError`] when the queue, the exchange or permission is missing.
    pub async fn bind(&self, queue: &str, exchange: &str, key: &str) -> Result<(), SubscriptionError> {
        let (queue, exchange, key) = (short(queue)?, short(exchange)?, short(key)?);
        let options = QueueBindOptions::default();
        let channel = self.channel().await?;
        self.ask(&channel, channel.queue_bind(queue, exchange, key, options, FieldTable::default())).await
    }

    /// Makes an exchange route a routing key to another exchange, whose bindings then share the
    /// messages.
    ///
    /// # Errors
    /// [`SubscriptionError`] when an exchange or permission is missing.
    pub async fn bind_exchange(
        &self,
        destination: &str,
        source: &str,
        key: &str,
    ) -> Result<(), SubscriptionError> {
        let (destination, source, key) = (short(destination)?, short(source)?, short(key)?);
        let (channel, options) = (self.channel().await?, ExchangeBindOptions::default());
        self.ask(&channel, channel.exchange_bind(destination, source, key, options, FieldTable::default()))
            .await
    }

    /// Reverts [`bind_exchange`](Self::bind_exchange); a missing binding is not an error.
    ///
    /// # Errors
    /// [`SubscriptionError`] when permission is missing.
    pub async fn unbind_exchange(
        &self,
        destination: &str,
        source: &str,
        key: &str,
    ) -> Result<(), SubscriptionError> {
        let (destination, source, key) = (short(destination)?, short(source)?, short(key)?);
        let (channel, options) = (self.channel().await?, ExchangeUnbindOptions::default());
        self.ask(&channel, channel.exchange_unbind(destination, source, key, options, FieldTable::default()))
            .await
    }

    /// Returns how many messages wait in a queue, without those that are delivered and unsettled.
    ///
    /// # Errors
    /// [`SubscriptionError`] when the queue or permission is missing.
    pub async fn count(&self, queue: &str) -> Result<u32, SubscriptionError> {
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let channel = self.channel().await?;
        let found =
            self.ask(&channel, channel.queue_declare(short(queue)?, passive, FieldTable::default())).await?;
        Ok(found.message_count())
    }

    /// Discards the messages that wait in a queue. Returns their number.
    ///
    /// # Errors
    /// [`SubscriptionError`] when the queue or permission is missing.
    pub async fn purge(&self, queue: &str) -> Result<u32, SubscriptionError> {
        let channel = self.channel().await?;
        self.ask(&channel, channel.queue_purge(short(queue)?, QueuePurgeOptions::default())).await
    }

    /// Deletes a queue with all its messages; does nothing when it is missing.
    ///
    /// # Errors
    /// [`SubscriptionError`] when permission is missing.
    pub async fn delete_queue(&self, name: &str) -> Result<(), SubscriptionError> {
        let channel = self.channel().await?;
        self.ask(&channel, channel.queue_delete(short(name)?, QueueDeleteOptions::default())).await.map(drop)
    }

    /// Deletes an exchange; does nothing when it is missing.
    ///
    /// # Errors
    /// [`SubscriptionError`] when permission is missing.
    pub async fn delete_exchange(&self, name: &str) -> Result<(), SubscriptionError> {
        let channel = self.channel().await?;
        self.ask(&channel, channel.exchange_delete(short(name)?, ExchangeDeleteOptions::default())).await
    }

    /// Ends the session.
    pub async fn close(self) {
        self.connection.say_goodbye(Instant::now() + GOODBYE).await;
    }

    /// Opens a channel for one command: a refused command closes its channel.
    async fn channel(&self) -> Result<Channel, SubscriptionError> {
        self.connection.channel().await.map_err(fault::of_subscription)
    }

    /// Waits for the answer on a channel that is used once, and closes the channel.
    async fn ask<T>(
        &self,
        channel: &Channel,
        answer: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, SubscriptionError> {
        let answer = self.connection.ask(answer).await.map_err(fault::of_subscription)?;
        self.connection.finish(channel).await;
        Ok(answer)
    }
}

fn short(name: &str) -> Result<ShortString, SubscriptionError> {
    ShortString::try_new(name)
        .map_err(|error| SubscriptionError::operator(format!("the name {name:?} cannot be used: {error}")))
}
