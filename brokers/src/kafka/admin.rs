//! Creates, lists and deletes topics, for tests, examples and the demo. In production, operators
//! use their own tools.

use std::sync::Arc;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication, TopicResult};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::FromClientConfig as _;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use tokio::task::spawn_blocking;

use super::config::Config;
use super::fault;
use super::login::Login;
use crate::oauth::TokenError;
use crate::settings::InvalidSetting;

/// An administrator's connection to a cluster.
pub struct Admin {
    client: Arc<AdminClient<DefaultClientContext>>,
    config: Config,
}

/// An administrative request that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// A setting is wrong. The operator's fault.
    #[error(transparent)]
    Setting(#[from] InvalidSetting),
    /// The cluster refused it, or did not answer.
    #[error("{reason}")]
    Refused {
        /// The request, and the cluster's answer to it.
        reason: String,
        /// The client library's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A topic to create.
#[derive(Debug, Clone)]
pub struct TopicPlan {
    /// Its name.
    pub name: String,
    /// Number of partitions.
    pub partitions: u16,
    /// Number of brokers that hold each partition.
    pub replicas: u16,
    /// Its settings: `max.message.bytes`, `retention.ms`, …
    pub settings: Vec<(String, String)>,
}

impl TopicPlan {
    /// Describes a topic with one replica and the cluster's default settings.
    #[must_use]
    pub fn new(name: impl Into<String>, partitions: u16) -> Self {
        Self { name: name.into(), partitions, replicas: 1, settings: Vec::new() }
    }

    /// Adds a setting.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }
}

impl From<TokenError> for AdminError {
    fn from(error: TokenError) -> Self {
        Self::Refused { reason: error.to_string(), source: error.into() }
    }
}

impl Admin {
    /// Creates a client for this cluster; the first request connects. Blocks to read local files.
    ///
    /// # Errors
    /// [`AdminError`] when a setting is wrong.
    pub fn new(config: &Config) -> Result<Self, AdminError> {
        let client = AdminClient::from_config(&config.client()?).map_err(|error| {
            let reason = fault::creation(&error);
            AdminError::Refused { source: reason.clone().into(), reason }
        })?;
        Ok(Self { client: Arc::new(client), config: config.clone() })
    }

    /// Gives the client a token for the next request, if it logs in with tokens.
    async fn log_in(&self) -> Result<(), AdminError> {
        let client = Arc::clone(&self.client);
        let config = self.config.clone();
        let given = spawn_blocking(move || Login::of(&config, None)?.give(client.inner())).await;
        match given {
            Ok(given) => Ok(given?),
            Err(error) => Err(AdminError::Refused {
                reason: String::from("logging in was interrupted"),
                source: error.into(),
            }),
        }
    }

    /// Creates topics; an existing topic stays as it is. Cancel-safe: a request that was sent is
    /// carried out.
    ///
    /// # Errors
    /// [`AdminError::Refused`] naming the topic.
    pub async fn create_topics(&self, plans: &[TopicPlan]) -> Result<(), AdminError> {
        let topics: Vec<NewTopic<'_>> = plans.iter().map(new_topic).collect();
        self.log_in().await?;
        let results = self.client.create_topics(&topics, &self.options()).await;
        check("create", results, Code::TopicAlreadyExists)
    }

    /// Deletes topics; a missing topic is not an error.
    ///
    /// # Errors
    /// [`AdminError::Refused`] naming the topic.
    pub async fn delete_topics(&self, names: &[&str]) -> Result<(), AdminError> {
        self.log_in().await?;
        let results = self.client.delete_topics(names, &self.options()).await;
        check("delete", results, Code::UnknownTopicOrPartition)
    }

    /// Returns the names of all topics with their partition counts.
    ///
    /// # Errors
    /// [`AdminError::Refused`] when the cluster does not answer.
    pub async fn topics(&self) -> Result<Vec<(String, usize)>, AdminError> {
        self.log_in().await?;
        let client = Arc::clone(&self.client);
        let timeout = self.config.connect_timeout();
        let listed = spawn_blocking(move || {
            let metadata = client.inner().fetch_metadata(None, timeout)?;
            let topics = metadata.topics().iter();
            Ok::<_, KafkaError>(
                topics.map(|topic| (topic.name().to_owned(), topic.partitions().len())).collect(),
            )
        });
        match listed.await {
            Ok(listed) => listed.map_err(|error| refused("list topics", error)),
            Err(error) => Err(AdminError::Refused {
                reason: String::from("listing topics was interrupted"),
                source: error.into(),
            }),
        }
    }

    fn options(&self) -> AdminOptions {
        let timeout = Some(self.config.connect_timeout());
        AdminOptions::new().request_timeout(timeout).operation_timeout(timeout)
    }
}

fn new_topic(plan: &TopicPlan) -> NewTopic<'_> {
    let replicas = TopicReplication::Fixed(i32::from(plan.replicas));
    let topic = NewTopic::new(&plan.name, i32::from(plan.partitions), replicas);
    plan.settings.iter().fold(topic, |topic, (name, value)| topic.set(name, value))
}

fn check(verb: &str, results: Result<Vec<TopicResult>, KafkaError>, fine: Code) -> Result<(), AdminError> {
    let results = results.map_err(|error| refused(&format!("{verb} topics"), error))?;
    match results.into_iter().filter_map(Result::err).find(|(_, code)| *code != fine) {
        Some((topic, code)) => Err(refused(&format!("{verb} topic {topic:?}"), KafkaError::AdminOp(code))),
        None => Ok(()),
    }
}

fn refused(what: &str, error: KafkaError) -> AdminError {
    let code = fault::code(&error);
    let reason = fault::describe(code, &format!("cannot {what}"));
    AdminError::Refused { reason, source: error.into() }
}
