//! Exchanges and queues made by the program itself: for tests, examples and the demo. In production
//! they belong to whoever operates the broker.

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

/// How a queue is declared; always durable.
#[derive(Debug, Clone, Copy, Default)]
pub struct QueueOptions {
    /// Replicated (`x-queue-type=quorum`) instead of classic.
    pub quorum: bool,
    /// The most messages it holds (`x-max-length`). Above it, new ones are rejected
    /// (`x-overflow=reject-publish`): the broker's default would drop old, acknowledged messages.
    pub messages_max: Option<NonZeroU32>,
}

/// A session that declares, counts and deletes.
pub struct Admin {
    connection: Connection,
}

impl Admin {
    /// Connects with the settings of publishers and subscribers.
    ///
    /// # Errors
    /// [`SubscriptionError`]: unreachable, wrong credentials or settings.
    pub async fn connect(config: &Config) -> Result<Self, SubscriptionError> {
        let endpoint =
            Endpoint::new(config).map_err(|error| SubscriptionError::operator(error.to_string()))?;
        Ok(Self { connection: endpoint.open("admin").await? })
    }

    /// Declares a durable queue; does nothing when it exists with the same options.
    ///
    /// # Errors
    /// [`SubscriptionError`]: it exists with other options, or permission is missing.
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
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let channel = self.channel().await?;
        self.ask(&channel, channel.queue_declare(short(name)?, durable, arguments)).await.map(drop)
    }

    /// Declares a durable topic exchange; does nothing when it exists.
    ///
    /// # Errors
    /// [`SubscriptionError`]: it exists with another kind, or permission is missing.
    pub async fn declare_exchange(&self, name: &str) -> Result<(), SubscriptionError> {
        let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let channel = self.channel().await?;
        let kind = ExchangeKind::Topic;
        self.ask(&channel, channel.exchange_declare(short(name)?, kind, durable, FieldTable::default())).await
    }

    /// Lets an exchange route a routing key (with the wildcards `*` and `#`) to a queue.
    ///
    /// # Errors
    /// [`SubscriptionError`]: queue or exchange is missing, or permission.
    pub async fn bind(&self, queue: &str, exchange: &str, key: &str) -> Result<(), SubscriptionError> {
        let (queue, exchange, key) = (short(queue)?, short(exchange)?, short(key)?);
        let options = QueueBindOptions::default();
        let channel = self.channel().await?;
        self.ask(&channel, channel.queue_bind(queue, exchange, key, options, FieldTable::default())).await
    }

    /// Lets an exchange route a routing key to another exchange: what is bound to that one goes
    /// together.
    ///
    /// # Errors
    /// [`SubscriptionError`]: an exchange is missing, or permission.
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

    /// Takes back what [`bind_exchange`](Self::bind_exchange) did; nothing there is fine.
    ///
    /// # Errors
    /// [`SubscriptionError`]: permission is missing.
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

    /// How many messages wait in a queue, not counting those that are delivered and unsettled.
    ///
    /// # Errors
    /// [`SubscriptionError`]: the queue is missing, or permission.
    pub async fn count(&self, queue: &str) -> Result<u32, SubscriptionError> {
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let channel = self.channel().await?;
        let found =
            self.ask(&channel, channel.queue_declare(short(queue)?, passive, FieldTable::default())).await?;
        Ok(found.message_count())
    }

    /// Throws away what waits in a queue; answers how much that was.
    ///
    /// # Errors
    /// [`SubscriptionError`]: the queue is missing, or permission.
    pub async fn purge(&self, queue: &str) -> Result<u32, SubscriptionError> {
        let channel = self.channel().await?;
        self.ask(&channel, channel.queue_purge(short(queue)?, QueuePurgeOptions::default())).await
    }

    /// Deletes a queue with all its messages; does nothing when it is missing.
    ///
    /// # Errors
    /// [`SubscriptionError`]: permission is missing.
    pub async fn delete_queue(&self, name: &str) -> Result<(), SubscriptionError> {
        let channel = self.channel().await?;
        self.ask(&channel, channel.queue_delete(short(name)?, QueueDeleteOptions::default())).await.map(drop)
    }

    /// Deletes an exchange; does nothing when it is missing.
    ///
    /// # Errors
    /// [`SubscriptionError`]: permission is missing.
    pub async fn delete_exchange(&self, name: &str) -> Result<(), SubscriptionError> {
        let channel = self.channel().await?;
        self.ask(&channel, channel.exchange_delete(short(name)?, ExchangeDeleteOptions::default())).await
    }

    /// Ends the session.
    pub async fn close(self) {
        self.connection.say_goodbye(Instant::now() + GOODBYE).await;
    }

    /// A channel for one command: a refused command closes its channel.
    async fn channel(&self) -> Result<Channel, SubscriptionError> {
        self.connection.channel().await.map_err(fault::of_subscription)
    }

    /// Waits for the answer of a channel that is used once.
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
