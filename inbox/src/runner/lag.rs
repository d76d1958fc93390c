//! Gauges for the lag of a consumer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use message::Lag;
use metrics::{Gauge, gauge};

use crate::ids::ConsumerName;

/// Interval between queries of the subscription, which answers from memory.
pub(super) const ASK_EVERY: Duration = Duration::from_secs(5);

/// Maximum number of topics with their own gauge; the others share one.
const TOPICS_MAX: usize = 100;
const OTHER: &str = "other";

/// The gauges of one consumer, by topic.
pub(super) struct LagGauges {
    consumer: Arc<str>,
    gauges: BTreeMap<String, Gauge>,
}

impl LagGauges {
    pub(super) fn new(consumer: &ConsumerName) -> Self {
        Self { consumer: consumer.as_str().into(), gauges: BTreeMap::new() }
    }

    /// Sets the gauges to the known values. A topic that is no longer known gets `NaN`.
    #[expect(clippy::cast_precision_loss, reason = "gauges are floating point; counts stay far below 2^52")]
    pub(super) fn set(&mut self, known: &[Lag]) {
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        for Lag { topic, messages, .. } in known {
            let is_own = self.gauges.contains_key(topic) || self.gauges.len() < TOPICS_MAX;
            let label = if is_own { topic } else { OTHER };
            if !self.gauges.contains_key(label) {
                let gauge = gauge!("inbox_lag_messages", "consumer" => Arc::clone(&self.consumer),
                    "topic" => label.to_owned());
                self.gauges.insert(label.to_owned(), gauge);
            }
            let sum = sums.entry(label).or_default();
            *sum = sum.saturating_add(*messages);
        }
        for (label, gauge) in &self.gauges {
            gauge.set(sums.get(label.as_str()).map_or(f64::NAN, |messages| *messages as f64));
        }
    }

    /// Clears the gauges: without a session nothing is known.
    pub(super) fn clear(&mut self) {
        self.set(&[]);
    }
}

impl Drop for LagGauges {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_bounded_and_a_session_that_ends_leaves_no_value() {
        let mut gauges = LagGauges::new(&ConsumerName::new("billing").unwrap());
        let known: Vec<Lag> =
            (0..1_000_u64).map(|number| Lag::new(format!("topic-{number}"), number)).collect();
        gauges.set(&known);
        assert_eq!(gauges.gauges.len(), TOPICS_MAX + 1);
        gauges.set(&known);
        gauges.clear();
        assert_eq!(gauges.gauges.len(), TOPICS_MAX + 1);
    }
}
