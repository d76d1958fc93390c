//! Metrics by topic. Their handles are kept, so a message costs a map lookup and no allocation.
//! Topics beyond a limit share one series.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use message::{Fault, FaultScope, Topic};
use metrics::{Counter, Histogram, counter, histogram};

/// The label of all topics beyond the limit.
pub(super) const OTHER: &str = "other";

/// The series of one topic.
#[derive(Clone)]
struct Series {
    label: Arc<str>,
    published: Counter,
    publish_seconds: Histogram,
    delivery_seconds: Histogram,
}

impl Series {
    fn new(relay: &Arc<str>, label: &str) -> Self {
        let label: Arc<str> = label.into();
        let labels = [("relay", Arc::clone(relay)), ("topic", Arc::clone(&label))];
        Self {
            published: counter!("relay_published_total", &labels),
            publish_seconds: histogram!("relay_publish_seconds", &labels),
            delivery_seconds: histogram!("relay_delivery_seconds", &labels),
            label,
        }
    }
}

/// The series of all topics of one pipeline.
pub(super) struct Topics {
    relay: Arc<str>,
    topics_max: usize,
    known: HashMap<Topic, Series>,
    other: Option<Series>,
}

impl Topics {
    /// Creates the metrics. At most `topics_max` topics get their own series: the first ones that
    /// messages are published to.
    pub(super) fn new(relay: &Arc<str>, topics_max: usize) -> Self {
        Self { relay: Arc::clone(relay), topics_max, known: HashMap::new(), other: None }
    }

    fn series(&mut self, topic: &Topic) -> &Series {
        let Self { relay, topics_max, known, other } = self;
        // Two lookups for a known topic are cheaper than one that clones its name.
        if !known.contains_key(topic) {
            if known.len() >= *topics_max {
                return other.get_or_insert_with(|| Series::new(relay, OTHER));
            }
            known.insert(topic.clone(), Series::new(relay, topic.as_str()));
        }
        match known.get(topic) {
            Some(series) => series,
            None => other.get_or_insert_with(|| Series::new(relay, OTHER)),
        }
    }

    /// Records a confirmed message: how long the broker took, where that is known, and the
    /// message's age.
    pub(super) fn published(&mut self, topic: &Topic, took: Option<Duration>, age: Duration) {
        let series = self.series(topic);
        series.published.increment(1);
        if let Some(took) = took {
            series.publish_seconds.record(took);
        }
        series.delivery_seconds.record(age);
    }

    /// Records messages that were confirmed although the broker routed them nowhere.
    pub(super) fn unrouted(&mut self, topic: &Topic, messages: u64) {
        let topic = Arc::clone(&self.series(topic).label);
        counter!("relay_unrouted_total", "relay" => Arc::clone(&self.relay), "topic" => topic)
            .increment(messages);
    }

    /// Records a message that has to wait because its destination has no room for it.
    pub(super) fn busy(&mut self, topic: &Topic) {
        let topic = Arc::clone(&self.series(topic).label);
        counter!("relay_busy_total", "relay" => Arc::clone(&self.relay), "topic" => topic).increment(1);
    }

    /// Records a receipt that was not a confirmation.
    pub(super) fn failed(&mut self, topic: &Topic, fault: Fault, scope: FaultScope) {
        let topic = Arc::clone(&self.series(topic).label);
        counter!("relay_publish_failures_total", "relay" => Arc::clone(&self.relay), "topic" => topic,
            "fault" => fault.as_str(), "scope" => scope.as_str())
        .increment(1);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    /// Returns the text of a scrape after a message to each of these topics.
    fn scraped(topics_max: usize, names: &[&str]) -> String {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            let mut topics = Topics::new(&"orders".into(), topics_max);
            for name in names {
                let topic = Topic::new(*name).unwrap();
                topics.published(&topic, Some(Duration::from_millis(3)), Duration::from_secs(1));
                topics.failed(&topic, Fault::Broker, FaultScope::Topic);
                topics.unrouted(&topic, 2);
                topics.busy(&topic);
            }
        });
        recorder.handle().render()
    }

    fn series<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
        let mut found: Vec<_> = text.lines().filter(|line| line.starts_with(name)).collect();
        found.sort_unstable();
        found
    }

    #[test]
    fn topics_beyond_the_limit_share_one_series() {
        let names: Vec<String> = (0..1_000).map(|number| format!("topic-{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let text = scraped(2, &names);
        let expected = [
            "relay_published_total{relay=\"orders\",topic=\"other\"} 998",
            "relay_published_total{relay=\"orders\",topic=\"topic-0\"} 1",
            "relay_published_total{relay=\"orders\",topic=\"topic-1\"} 1",
        ];
        assert_eq!(series(&text, "relay_published_total"), expected);
        assert_eq!(series(&text, "relay_publish_failures_total").len(), 3);
        assert_eq!(series(&text, "relay_busy_total").len(), 3);
        let unrouted = series(&text, "relay_unrouted_total");
        assert_eq!(unrouted[0], "relay_unrouted_total{relay=\"orders\",topic=\"other\"} 1996");
        assert_eq!(unrouted.len(), 3);
        assert_eq!(series(&scraped(0, &names), "relay_published_total").len(), 1);
    }

    #[test]
    fn hostile_names_make_no_series_of_their_own() {
        for name in ["a\"} 1 # ", "b\\", "{c=\"d\"}", "e\nf 1"] {
            assert!(Topic::new(name).is_err(), "{name:?} is not a topic");
        }
        let text = scraped(10, &["a/b:c#d"]);
        let expected = ["relay_published_total{relay=\"orders\",topic=\"a/b:c#d\"} 1"];
        assert_eq!(series(&text, "relay_published_total"), expected);
        // Names of consumers are less strict.
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            counter!("inbox_applied_total", "consumer" => "a\"} 1\nb 1 \\").increment(1);
        });
        let text = recorder.handle().render();
        let expected = ["inbox_applied_total{consumer=\"a\\\"} 1\\nb 1 \\\\\"} 1"];
        assert_eq!(series(&text, "inbox_"), expected);
        assert!(series(&text, "b ").is_empty(), "{text}");
    }
}
