//! Log lines and metrics of maintenance.

use std::sync::Arc;

use metrics::{counter, gauge};
use outbox_log::retention::{Expired, Segment};
use outbox_log::{LogError, RelayName};
use tracing::{info, warn};

/// Reports the maintenance of one pipeline's outbox.
#[derive(Debug, Clone)]
pub struct History {
    relay: Arc<str>,
    /// The failure or obstacle that was reported last. Each is reported once, until something
    /// changes.
    told: String,
}

impl History {
    /// Creates the reporter for the outbox that the relay `name` reads.
    #[must_use]
    pub fn new(name: &RelayName) -> Self {
        Self { relay: name.as_str().into(), told: String::new() }
    }

    pub(crate) fn expired(&self, expired: Expired) {
        if expired.segments > 0 {
            counter!("relay_expired_segments_total", "relay" => self.relay.to_string())
                .increment(expired.segments);
            info!(relay = %self.relay, segments = expired.segments, rows = expired.rows, bytes = expired.bytes,
                "old messages deleted");
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "gauges are floating point; sizes stay far below 2^52")]
    pub(crate) fn segments(&mut self, segments: &[Segment]) {
        let oldest = segments.iter().filter_map(|segment| segment.oldest_age).max().unwrap_or_default();
        gauge!("relay_history_seconds", "relay" => self.relay.to_string()).set(oldest.as_secs_f64());
        let sizes: Option<Vec<u64>> = segments.iter().map(|segment| segment.bytes).collect();
        if let Some(sizes) = sizes {
            let bytes = sizes.iter().sum::<u64>();
            gauge!("relay_history_bytes", "relay" => self.relay.to_string()).set(bytes as f64);
        }
        let reasons = segments.iter().filter_map(|segment| segment.held_back.as_ref());
        let obstacle = reasons.filter(|reason| reason.needs_attention()).map(ToString::to_string).next();
        self.tell(obstacle.map(|obstacle| format!("old messages cannot be deleted: {obstacle}")));
    }

    pub(crate) fn failed(&mut self, failure: &LogError) {
        self.tell(Some(format!("could not delete old messages: {failure}")));
    }

    pub(crate) fn ended(&self, fault: &tokio::task::JoinError) {
        counter!("relay_maintenance_faults_total", "relay" => self.relay.to_string()).increment(1);
        warn!(relay = %self.relay, "a bug in this program ended maintenance, which restarts: {fault}");
    }

    fn tell(&mut self, text: Option<String>) {
        let text = text.unwrap_or_default();
        if !text.is_empty() && text != self.told {
            warn!(relay = %self.relay, "{text}");
        }
        self.told = text;
    }
}
