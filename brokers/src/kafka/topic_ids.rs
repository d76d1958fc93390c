//! Tracks which topic a session's positions and the committed offsets belong to. Pure.
//!
//! Kafka keeps a group's offsets under the topic's name, and drops them with the topic. A member
//! that has not noticed yet that its topic was deleted and recreated commits its old positions
//! again, in the new topic. The next member to begin there would skip everything below them. So
//! each commit carries a mark, the ids of the cluster and of the topic, in the text that Kafka
//! keeps beside an offset.

use std::collections::HashMap;

/// Prefix of a mark; other programs write into this text as well.
const PREFIX: &str = "topic-id:";

/// The ids of a session's topics. A topic keeps the first id that was recorded: the positions of
/// the session belong to it.
#[derive(Debug, Default)]
pub(super) struct TopicIds {
    cluster: Option<String>,
    topics: HashMap<String, String>,
}

impl TopicIds {
    /// Records the id of the cluster.
    pub(super) fn reached(&mut self, cluster: String) {
        self.cluster = Some(cluster);
    }

    /// Records the id of a topic. Returns whether it is another topic than before.
    #[must_use]
    pub(super) fn note(&mut self, topic: &str, id: &str) -> bool {
        self.topics.entry(topic.to_owned()).or_insert_with(|| id.to_owned()) != id
    }

    /// Returns whether the id of a topic is known.
    pub(super) fn knows(&self, topic: &str) -> bool {
        self.topics.contains_key(topic)
    }

    /// Returns the mark of a topic's offsets; `None` while an id is unknown, as with brokers before
    /// 2.8.
    pub(super) fn mark(&self, topic: &str) -> Option<String> {
        Some(format!("{PREFIX}{}/{}", self.cluster.as_ref()?, self.topics.get(topic)?))
    }

    /// Returns the offset to commit before a partition is begun, or `None` if it is right or the
    /// topic's id is unknown. An offset of another topic of this name is replaced by 0. An offset
    /// without a mark of this cluster (written by an earlier version, another tool or a mirror) is
    /// kept and gets a mark.
    pub(super) fn correct(&self, topic: &str, offset: i64, mark: &str) -> Option<i64> {
        let own = self.mark(topic)?;
        if mark == own {
            return None;
        }
        let cluster_of = |mark: &str| Some(mark.strip_prefix(PREFIX)?.split_once('/')?.0.to_owned());
        let is_of_this_cluster = cluster_of(mark).is_some() && cluster_of(mark) == self.cluster;
        Some(if is_of_this_cluster { 0 } else { offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(cluster: &str, topic: &str) -> TopicIds {
        let mut ids = TopicIds::default();
        ids.reached(cluster.to_owned());
        assert!(!ids.note("orders", topic), "it is the first");
        ids
    }

    #[test]
    fn a_topic_keeps_the_id_that_the_positions_of_the_session_belong_to() {
        let mut ids = ids("c", "old");
        let mark = ids.mark("orders");
        assert!(!ids.note("orders", "old") && ids.note("orders", "new"));
        assert_eq!(ids.mark("orders"), mark);
        assert_eq!(ids.mark("invoices"), None);
        assert_eq!(TopicIds::default().mark("orders"), None);
    }

    #[test]
    fn only_offsets_of_another_topic_of_the_same_cluster_are_taken_back() {
        let ids = ids("c", "new");
        for (mark, expected) in [
            ("topic-id:c/new", None),
            ("topic-id:c/old", Some(0)),
            ("topic-id:mirrored/old", Some(7)),
            ("topic-id:", Some(7)),
            ("someone's note", Some(7)),
            ("", Some(7)),
        ] {
            assert_eq!(ids.correct("orders", 7, mark), expected, "{mark:?}");
        }
        assert_eq!(ids.correct("invoices", 7, "topic-id:c/old"), None, "its id is not known");
    }
}
