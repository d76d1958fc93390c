//! The cluster's answers about what transactions depend on.

use std::time::Duration;

use rdkafka::admin::{AdminOptions, ResourceSpecifier};
use rdkafka::metadata::Metadata;

use super::probe::probe;
use crate::inspect::{InspectError, Inspected};
use crate::kafka::config::Config;
use crate::kafka::inspect::{Asked, TopicFacts, ask, failed, find};

/// The topic in which Kafka's coordinators keep the state of transactions.
pub const STATE_TOPIC: &str = "__transaction_state";
/// Prefix of the names of topics of marks.
pub(super) const MARKS: &str = "outbox-marks.";

/// Returns the log and the relay that a topic of marks belongs to.
pub(super) fn owner_of(topic: &str) -> Option<(&str, &str)> {
    // The identity of a log has no dot; the name of a relay may have some.
    topic.strip_prefix(MARKS)?.split_once('.')
}

/// Returns the topic of the marks of a relay that publishes from a log.
#[must_use]
pub fn marks_topic(log: &str, relay: &str) -> String {
    format!("{MARKS}{log}.{relay}")
}

/// Facts about a cluster's transactions.
#[derive(Debug, Clone)]
pub struct TransactionFacts {
    /// [`STATE_TOPIC`]; `None` before the cluster's first transaction.
    pub state: Option<TopicFacts>,
    /// The relay's topics of marks, one for each log that it has published from.
    pub marks: Vec<Inspected<TopicFacts>>,
    /// `transaction.max.timeout.ms`, or the reason why it is unknown.
    pub timeout_max: Result<Duration, String>,
    /// The transactional id under which this user began transactions, beside those of the relay, or
    /// the reason why it could not. Not requested before the cluster's first transaction: the
    /// request itself would create [`STATE_TOPIC`] with the replication configured at that time.
    pub may_begin: Option<Result<String, InspectError>>,
}

/// Queries the settings of the cluster that the transactions of this relay depend on. Cancel-safe.
///
/// # Errors
/// [`InspectError`] when the cluster does not answer, or a setting or the credentials are wrong.
pub async fn inspect_transactions(config: &Config, relay: &str) -> Result<TransactionFacts, InspectError> {
    let wanted = relay.to_owned();
    let select = move |cluster: &Metadata| {
        let names = cluster.topics().iter().map(|topic| topic.name().to_owned());
        let is_own = |name: &String| owner_of(name).is_some_and(|(_, relay)| relay == wanted);
        let asked = names.filter(|name| name == STATE_TOPIC || is_own(name));
        asked.map(|name| find(cluster, name)).collect()
    };
    let asked = ask(config, select).await?;
    let timeout_max = timeout_max(&asked, config.connect_timeout()).await;
    let (state, marks): (Vec<_>, Vec<_>) =
        asked.topics.into_iter().partition(|asked| asked.topic == STATE_TOPIC);
    let state = state.into_iter().find_map(|asked| asked.facts.ok());
    let log = marks.first().and_then(|asked| owner_of(&asked.topic)).map_or("new", |(log, _)| log);
    let may_begin = match state {
        Some(_) => Some(probe(config, log, relay).await),
        None => None,
    };
    Ok(TransactionFacts { state, marks, timeout_max, may_begin })
}

/// Returns the longest transaction that the cluster allows. Every broker should give the same
/// answer.
async fn timeout_max(asked: &Asked, timeout: Duration) -> Result<Duration, String> {
    const SETTING: &str = "transaction.max.timeout.ms";
    let broker = asked.brokers.first().ok_or("the cluster names no broker")?;
    let options = AdminOptions::new().request_timeout(Some(timeout));
    let answers = asked.client.describe_configs(&[ResourceSpecifier::Broker(*broker)], &options).await;
    let answers = answers.map_err(|error| failed("describe a broker's settings", &error).reason)?;
    let answer = answers.into_iter().next().ok_or("the cluster did not describe a broker's settings")?;
    let resource = answer.map_err(|code| format!("cannot describe a broker's settings: {code}"))?;
    let value = resource.get(SETTING).and_then(|entry| entry.value.as_deref());
    let millis = value
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| format!("the broker does not report {SETTING}"))?;
    Ok(Duration::from_millis(millis))
}
