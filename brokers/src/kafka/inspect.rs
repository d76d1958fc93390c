//! The cluster's answers about its topics: metadata and settings. Read-only.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, OwnedResourceSpecifier, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::FromClientConfig as _;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::metadata::{Metadata, MetadataBroker, MetadataTopic};
use tokio::task::spawn_blocking;

use super::config::Config;
use super::fault;
use super::login::Login;
use crate::inspect::{BrokerFacts, InspectError, Inspected};

/// Facts about a topic. A setting is missing when the cluster does not show it to this user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopicFacts {
    /// Number of partitions.
    pub partitions: usize,
    /// The smallest number of replicas of any partition.
    pub replicas: usize,
    /// The smallest number of in-sync replicas of any partition.
    pub in_sync: usize,
    /// Number of partitions that have no leader now.
    pub leaderless: usize,
    /// `min.insync.replicas`.
    pub min_insync_replicas: Option<usize>,
    /// `unclean.leader.election.enable`.
    pub unclean_leader_election: Option<bool>,
    /// `retention.ms`.
    pub retention: Option<Retained>,
    /// `retention.bytes` of a partition; `None` without a limit.
    pub retention_bytes: Option<u64>,
    /// `message.timestamp.type`.
    pub timestamp_type: Option<String>,
    /// `message.timestamp.before.max.ms`: how much older than its arrival a record may be.
    pub timestamp_before_max: Option<Duration>,
    /// `message.timestamp.after.max.ms`: how far ahead of the broker's clock a record may be.
    pub timestamp_after_max: Option<Duration>,
    /// `cleanup.policy`.
    pub cleanup_policy: Option<String>,
    /// `max.message.bytes`, which limits batches.
    pub message_bytes_max: Option<u64>,
    /// The reason why the settings are unknown.
    pub settings_problem: Option<String>,
}

/// How long a topic keeps a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retained {
    /// At least this long.
    For(Duration),
    /// Until it is deleted.
    Forever,
}

pub(super) type Client = AdminClient<DefaultClientContext>;

/// A cluster's answer about its brokers and topics.
pub(super) struct Asked {
    pub(super) client: Arc<Client>,
    pub(super) brokers: Vec<i32>,
    pub(super) topics: Vec<Inspected<TopicFacts>>,
}

/// Asks the cluster about these topics. Cancel-safe.
///
/// # Errors
/// [`InspectError`] when the cluster does not answer, or a setting or the credentials are wrong.
pub async fn inspect(config: &Config, topics: &[String]) -> Result<BrokerFacts<TopicFacts>, InspectError> {
    let names = topics.to_vec();
    let find = move |cluster: &Metadata| names.into_iter().map(|topic| find(cluster, topic)).collect();
    let Asked { brokers, topics, .. } = ask(config, find).await?;
    Ok(BrokerFacts { version: None, nodes: Some(brokers.len()), clock: None, alarms: None, topics })
}

/// Asks the cluster about the topics that `select` finds in it, and about their settings.
pub(super) async fn ask(
    config: &Config,
    select: impl FnOnce(&Metadata) -> Vec<Inspected<TopicFacts>> + Send + 'static,
) -> Result<Asked, InspectError> {
    let timeout = config.connect_timeout();
    let owned = config.clone();
    // Blocks: it reads secrets and certificates and waits for the cluster's answer.
    let asked = spawn_blocking(move || {
        let properties = owned.client().map_err(|error| InspectError::operator(error.to_string()))?;
        let client = Client::from_config(&properties)
            .map_err(|error| InspectError::operator(fault::creation(&error)))?;
        Login::of(&owned, None)?.give(client.inner())?;
        let described = client.inner().fetch_metadata(None, timeout);
        let cluster = described.map_err(|error| failed("list topics", &error))?;
        let brokers = cluster.brokers().iter().map(MetadataBroker::id).collect();
        Ok::<_, InspectError>(Asked { client: Arc::new(client), brokers, topics: select(&cluster) })
    });
    let mut asked = asked
        .await
        .map_err(|error| InspectError::broker(format!("asking kafka was interrupted: {error}")))??;
    add_settings(&asked.client, timeout, &mut asked.topics).await;
    Ok(asked)
}

/// Returns the cluster's answer about a topic.
pub(super) fn find(cluster: &Metadata, topic: String) -> Inspected<TopicFacts> {
    let listed = cluster.topics().iter().find(|listed| listed.name() == topic);
    let facts = match listed {
        Some(listed) => placed(listed),
        None => Err(InspectError::operator(fault::describe(
            Code::UnknownTopicOrPartition,
            &format!("topic {topic:?}"),
        ))),
    };
    Inspected { topic, facts }
}

/// Returns facts about the placement of a topic's partitions.
fn placed(topic: &MetadataTopic) -> Result<TopicFacts, InspectError> {
    if let Some(error) = topic.error() {
        let code = Code::from(error);
        let reason = fault::describe(code, &format!("topic {:?}", topic.name()));
        return Err(InspectError { fault: fault::classify(code).0, reason });
    }
    let partitions = topic.partitions();
    let fewest = |count: fn(&rdkafka::metadata::MetadataPartition) -> usize| {
        partitions.iter().map(count).min().unwrap_or_default()
    };
    Ok(TopicFacts {
        partitions: partitions.len(),
        replicas: fewest(|partition| partition.replicas().len()),
        in_sync: fewest(|partition| partition.isr().len()),
        leaderless: partitions.iter().filter(|partition| partition.leader() < 0).count(),
        ..TopicFacts::default()
    })
}

/// Adds the settings of the topics that exist.
async fn add_settings(client: &Client, timeout: Duration, topics: &mut [Inspected<TopicFacts>]) {
    let known: Vec<String> =
        topics.iter().filter(|asked| asked.facts.is_ok()).map(|asked| asked.topic.clone()).collect();
    if known.is_empty() {
        return;
    }
    let asked: Vec<ResourceSpecifier<'_>> = known.iter().map(|name| ResourceSpecifier::Topic(name)).collect();
    let options = AdminOptions::new().request_timeout(Some(timeout));
    let mut answers: HashMap<String, Result<HashMap<String, String>, String>> = HashMap::new();
    let whole = match client.describe_configs(&asked, &options).await {
        Ok(results) => {
            for (name, result) in known.iter().zip(results) {
                let answer = match result {
                    Ok(resource) => {
                        // The cluster's answer has its own order.
                        let name = match resource.specifier {
                            OwnedResourceSpecifier::Topic(name) => name,
                            _ => continue,
                        };
                        let entries = resource.entries.into_iter();
                        let values = entries.filter_map(|entry| Some((entry.name, entry.value?))).collect();
                        answers.insert(name, Ok(values));
                        continue;
                    }
                    Err(code) => fault::describe(code, "cannot describe its settings"),
                };
                answers.entry(name.clone()).or_insert(Err(answer));
            }
            String::from("the cluster did not describe its settings")
        }
        Err(error) => failed("describe its settings", &error).reason,
    };
    for Inspected { topic, facts } in topics {
        let Ok(facts) = facts else { continue };
        match answers.remove(topic).unwrap_or_else(|| Err(whole.clone())) {
            Ok(settings) => facts.set(&settings),
            Err(problem) => facts.settings_problem = Some(problem),
        }
    }
}

impl TopicFacts {
    fn set(&mut self, settings: &HashMap<String, String>) {
        let value = |name: &str| settings.get(name).map(String::as_str);
        let number = |name: &str| value(name).and_then(|text| text.parse::<i64>().ok());
        self.min_insync_replicas =
            number("min.insync.replicas").and_then(|replicas| usize::try_from(replicas).ok());
        self.unclean_leader_election = value("unclean.leader.election.enable").map(|text| text == "true");
        self.retention = number("retention.ms").map(|millis| match u64::try_from(millis) {
            Ok(millis) => Retained::For(Duration::from_millis(millis)),
            Err(_) => Retained::Forever,
        });
        self.retention_bytes = number("retention.bytes").and_then(|bytes| u64::try_from(bytes).ok());
        let millis = |name: &str| number(name).and_then(|millis| u64::try_from(millis).ok());
        self.timestamp_type = value("message.timestamp.type").map(str::to_owned);
        self.timestamp_before_max = millis("message.timestamp.before.max.ms").map(Duration::from_millis);
        self.timestamp_after_max = millis("message.timestamp.after.max.ms").map(Duration::from_millis);
        self.cleanup_policy = value("cleanup.policy").map(str::to_owned);
        self.message_bytes_max = number("max.message.bytes").and_then(|bytes| u64::try_from(bytes).ok());
    }
}

pub(super) fn failed(what: &str, error: &KafkaError) -> InspectError {
    let code = fault::code(error);
    let reason = fault::describe(code, &format!("cannot {what}"));
    InspectError { fault: fault::classify(code).0, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_from_their_texts() {
        let mut facts = TopicFacts::default();
        let settings = [
            ("retention.ms", "-1"),
            ("min.insync.replicas", "2"),
            ("retention.bytes", "-1"),
            ("message.timestamp.after.max.ms", "3600000"),
        ];
        facts.set(&settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        assert_eq!((facts.retention, facts.min_insync_replicas), (Some(Retained::Forever), Some(2)));
        assert_eq!((facts.retention_bytes, facts.unclean_leader_election), (None, None));
        assert_eq!(facts.timestamp_after_max, Some(Duration::from_secs(3_600)));
    }
}
