//! Detects a client that has lost all its brokers for good. Pure.
//!
//! A node whose session with the controller has ended lists the topics but no brokers (measured:
//! Kafka 4.1 on one node, `broker.session.timeout.ms` exceeded). librdkafka forgets brokers that
//! are not listed, and can forget its bootstrap servers with them. Then it never connects again,
//! even after the cluster has recovered (2.12.1, watched for 100 s; confluentinc/librdkafka#5301).
//! A new client does connect. The statistics show this state: they no longer contain a broker. A
//! broker that is merely down stays in them.

use std::time::{Duration, Instant};

use rdkafka::Statistics;

/// Maximum time without any broker. Less than two intervals of the statistics; when librdkafka
/// bootstraps again, it lists the servers at once.
const WITHOUT_MAX: Duration = Duration::from_secs(15);

/// Tracks how long a client has been without any broker.
#[derive(Debug, Default)]
pub(super) struct CutOff {
    since: Option<Instant>,
}

/// Error of a client without any broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the kafka client knows no broker, because the cluster reported none; a new client contacts the bootstrap servers"
)]
pub(super) struct IsCutOff;

impl CutOff {
    /// Evaluates what librdkafka's statistics say about its brokers.
    ///
    /// # Errors
    /// [`IsCutOff`] when there has been none for too long.
    pub(super) fn check(&mut self, statistics: &Statistics, now: Instant) -> Result<(), IsCutOff> {
        // These entries have no address of their own: a coordinator, the client's own thread.
        let is_real = |source: &str| !matches!(source, "logical" | "internal");
        if statistics.brokers.values().any(|broker| is_real(&broker.source)) {
            self.since = None;
            return Ok(());
        }
        let since = *self.since.get_or_insert(now);
        if now.duration_since(since) < WITHOUT_MAX { Ok(()) } else { Err(IsCutOff) }
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::statistics::Broker;

    use super::*;

    fn told(sources: &[&str]) -> Statistics {
        let broker = |source: &&str| {
            ((*source).to_owned(), Broker { source: (*source).to_owned(), ..Broker::default() })
        };
        Statistics { brokers: sources.iter().map(broker).collect(), ..Statistics::default() }
    }

    #[test]
    fn a_client_without_brokers_is_cut_off_after_a_while() {
        let (mut cut_off, begin) = (CutOff::default(), Instant::now());
        let lost = told(&["logical", "internal"]);
        for (statistics, seconds, expected) in [
            (told(&["configured", "internal"]), 0, Ok(())),
            (lost.clone(), 10, Ok(())),
            (told(&["learned", "logical"]), 20, Ok(())),
            (lost.clone(), 30, Ok(())),
            (lost.clone(), 44, Ok(())),
            (lost, 45, Err(IsCutOff)),
        ] {
            let found = cut_off.check(&statistics, begin + Duration::from_secs(seconds));
            assert_eq!(found, expected, "{seconds} s");
        }
    }
}
