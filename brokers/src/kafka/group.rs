//! An operator's settings for a subscription: validation, and the librdkafka properties derived
//! from them.

use std::collections::HashSet;

use rdkafka::ClientConfig;
use serde::Deserialize;

use super::config::{Config, STATISTICS_EVERY_MS};
use crate::settings::InvalidSetting;

/// The topics to consume, and the group to join: the section `[consumer.kafka]` of a configuration
/// file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct GroupConfig {
    /// The consumer group. Its members share the partitions, and its offsets record their progress.
    pub group: String,
    /// The topics that the members share; the alternative to `partitions`.
    #[serde(default)]
    pub topics: Vec<String>,
    /// Fixed partitions, read without joining the group: no rebalance, no waiting. Offsets are
    /// still committed to the group, which Kafka refuses while the group has members. Two readers
    /// of one partition both receive every message.
    #[serde(default)]
    pub partitions: Vec<Partition>,
    /// Start position of a group that is new to a topic. Default `earliest`: nothing is skipped.
    #[serde(default)]
    pub start: Start,
    /// Maximum number of messages prefetched for the consumer, 1 to 100,000. Payloads are further
    /// limited to 64 MiB plus one message. Default 1,000.
    #[serde(default = "prefetch_len")]
    pub prefetch_len: usize,
    /// Time without a heartbeat after which the group reassigns this member's partitions, in
    /// milliseconds, 6,000 to 300,000. Default 45,000. A slow handler does not cost membership:
    /// heartbeats continue meanwhile.
    #[serde(default = "session_timeout_ms")]
    pub session_timeout_ms: u64,
}

/// A partition by name and number.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Partition {
    /// The topic.
    pub topic: String,
    /// Its partition, from 0.
    pub partition: u16,
}

/// Start position of a group that is new to a topic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Start {
    /// At the oldest message that the broker still has (default).
    #[default]
    Earliest,
    /// At the end, once. When the group has no offset in any partition of a topic and no members,
    /// the ends of all partitions are committed before it joins, and everything older is skipped. A
    /// subscriber decides this once per topic, at its first subscription. Nothing else is ever
    /// skipped. A topic that does not exist then and partitions that are added later are read from
    /// their beginning. So are partitions whose leaders do not answer within the connect timeout
    /// while others do. An offset out of range is reset to the oldest message.
    ///
    /// A group has an offset in a partition from the first delivery on. Until then a new process
    /// cannot know that an earlier one found no topic; messages that arrived between the two are
    /// skipped.
    Latest,
}

fn prefetch_len() -> usize {
    1_000
}

fn session_timeout_ms() -> u64 {
    45_000
}

/// Maximum length of a group's name in bytes. Kafka itself limits only the length of its strings,
/// but its tools and metric names need a lower limit.
const GROUP_BYTES_MAX: usize = 255;
/// Maximum length of a topic's name in bytes (Kafka: `Topic.MAX_NAME_LENGTH`).
const TOPIC_BYTES_MAX: usize = 249;

/// Interval between queries for the cluster's topics. A topic that was missing is read from then
/// on; a recreated topic is noticed even by a member that does not fetch.
const METADATA_REFRESH: &str = "topic.metadata.refresh.interval.ms";
const METADATA_REFRESH_MS: &str = "30000";

/// Returns whether Kafka accepts this as a topic's name. librdkafka takes a leading `^` for a
/// pattern.
fn is_topic(name: &str) -> bool {
    let legal = |char: char| char.is_ascii_alphanumeric() || matches!(char, '.' | '_' | '-');
    (1..=TOPIC_BYTES_MAX).contains(&name.len()) && name.chars().all(legal) && name != "." && name != ".."
}

impl GroupConfig {
    /// Returns the defaults for this group and these topics.
    #[must_use]
    pub fn new(group: impl Into<String>, topics: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            group: group.into(),
            topics: topics.into_iter().map(Into::into).collect(),
            partitions: Vec::new(),
            start: Start::Earliest,
            prefetch_len: prefetch_len(),
            session_timeout_ms: session_timeout_ms(),
        }
    }

    /// Checks everything that can be checked without a broker.
    ///
    /// # Errors
    /// [`InvalidSetting`] with the setting, its value and the accepted values.
    pub fn check(&self) -> Result<(), InvalidSetting> {
        InvalidSetting::unless_name("kafka", "group", &self.group, GROUP_BYTES_MAX)?;
        if self.topics.is_empty() == self.partitions.is_empty() {
            let problem = "set topics (shared by the group) or partitions (fixed), but not both";
            return Err(InvalidSetting::new("kafka.topics", problem));
        }
        let named = self.topics.iter().chain(self.partitions.iter().map(|partition| &partition.topic));
        if let Some(wrong) = named.into_iter().find(|topic| !is_topic(topic)) {
            let problem = format!(
                "{wrong:?} is not a topic's name: 1 to {TOPIC_BYTES_MAX} letters, digits, dots, underscores and hyphens; \
                 patterns are not supported"
            );
            return Err(InvalidSetting::new("kafka.topics", problem));
        }
        InvalidSetting::unless_within("kafka", "prefetch_len", self.prefetch_len, 1..=100_000)?;
        InvalidSetting::unless_within("kafka", "session_timeout_ms", self.session_timeout_ms, 6_000..=300_000)
    }

    /// Returns every topic that is read in whole or in part.
    pub(super) fn all_topics(&self) -> HashSet<&str> {
        let fixed = self.partitions.iter().map(|fixed| fixed.topic.as_str());
        self.topics.iter().map(String::as_str).chain(fixed).collect()
    }

    /// Names the group, topics and partitions that this reads, for logs.
    pub(super) fn origin(&self) -> String {
        let fixed = self.partitions.iter().map(|fixed| format!("{}[{}]", fixed.topic, fixed.partition));
        let names: Vec<String> = self.topics.iter().cloned().chain(fixed).collect();
        format!("kafka group {} on {}", self.group, names.join(","))
    }

    /// Returns the consumer's properties. Reads the password's file.
    pub(super) fn consumer(&self, config: &Config) -> Result<ClientConfig, InvalidSetting> {
        self.check()?;
        let mut client = config.client()?;
        client
            .set("group.id", &self.group)
            // Only this adapter commits offsets, once the effects are committed.
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("enable.partition.eof", "false")
            .set("isolation.level", "read_committed")
            // "latest" would also skip messages in partitions that are added later
            // (`beginning.rs`).
            .set("auto.offset.reset", "earliest")
            // Members keep partitions that do not move: they can still settle their deliveries, and
            // the rest of the group does not stop. The eager assignors revoke everything each time.
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set("statistics.interval.ms", STATISTICS_EVERY_MS)
            .set("session.timeout.ms", self.session_timeout_ms.to_string())
            .set("queued.min.messages", self.prefetch_len.to_string())
            .set("allow.auto.create.topics", if config.create_topics { "true" } else { "false" });
        if !config.properties.contains_key(METADATA_REFRESH) {
            client.set(METADATA_REFRESH, METADATA_REFRESH_MS);
        }
        Ok(client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_or_partitions_but_not_both_and_no_patterns() {
        assert!(GroupConfig::new("g", ["orders"]).check().is_ok());
        assert!(GroupConfig::new("", ["orders"]).check().is_err());
        assert!(GroupConfig::new("g", Vec::<String>::new()).check().is_err());
        assert!(GroupConfig::new("g", ["^orders.*"]).check().is_err());
        for hostile in ["", " g", "g\0h", "g\nh", &"g".repeat(256)] {
            let error = GroupConfig::new(hostile, ["orders"]).check().unwrap_err();
            assert!(error.setting.starts_with("kafka.group"), "{error}");
        }
        for hostile in ["", ".", "..", "or ders", "orders\0", "größe", "a/b", &"a".repeat(250)] {
            assert_eq!(GroupConfig::new("g", [hostile]).check().unwrap_err().setting, "kafka.topics");
        }
        let mut both = GroupConfig::new("g", ["orders"]);
        both.partitions.push(Partition { topic: String::from("orders"), partition: 0 });
        assert!(both.check().unwrap_err().problem.contains("not both"));
        let mut slow = GroupConfig::new("g", ["orders"]);
        slow.session_timeout_ms = 1;
        assert_eq!(slow.check().unwrap_err().setting, "kafka.session_timeout_ms");
    }

    #[test]
    fn librdkafka_accepts_the_properties() {
        let client = GroupConfig::new("g", ["orders"]).consumer(&Config::new(["127.0.0.1:9092"])).unwrap();
        assert_eq!(client.get("enable.auto.commit"), Some("false"));
        assert!(client.create_native_config().is_ok());
    }
}
