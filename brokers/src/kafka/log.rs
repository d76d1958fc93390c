//! Forwards librdkafka's own log lines, under the target `librdkafka`, and logs its clients'
//! errors.

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel as Level;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

/// Selects the log lines of one client that the program wants.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lines {
    level: Level,
}

impl Lines {
    /// Makes a client report recreated topics, which it does in one of its debug lines. The other
    /// lines that this enables are not forwarded.
    pub(super) fn of(client: &mut ClientConfig) -> Self {
        let level = client.log_level;
        let others = client.get("debug").map(|others| format!("{others},")).unwrap_or_default();
        client.set("debug", format!("{others}metadata"));
        client.log_level = Level::Debug;
        // An operator who sets `debug` wants its lines.
        Self { level: if others.is_empty() { level } else { Level::Debug } }
    }

    /// Forwards a line, if it is wanted.
    pub(super) fn forward(self, level: Level, facility: &str, text: &str) {
        if level as i32 <= self.level as i32 {
            forward(level, facility, text);
        }
    }
}

/// Beginning of the message of an error: Kafka removed records of a partition before the group of
/// this consumer had read them. The consumer continues with the oldest record that is left. The
/// target of the log line is `brokers::kafka`.
pub const RECORDS_LOST: &str = "kafka deleted records before this group had read them";

/// The id that librdkafka prints for a topic whose id it did not know.
const NO_ID: &str = "AAAAAAAAAAAAAAAAAAAAAA";

/// The id of a topic as librdkafka learns it: at first, and when the id changes because the topic
/// was deleted and recreated. librdkafka continues in the new topic from the old offset (2.12.1,
/// `rd_kafka_topic_metadata_update0`).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TopicId<'t> {
    pub(super) topic: &'t str,
    pub(super) id: &'t str,
    /// Whether librdkafka knew a different id before.
    pub(super) is_other: bool,
}

/// Returns the topic id that a line reports.
pub(super) fn topic_id<'t>(facility: &str, text: &'t str) -> Option<TopicId<'t>> {
    let (named, ids) = text.split_once(" changed id from ").filter(|_| facility == "METADATA")?;
    let (_, topic) = named.rsplit_once("Topic ")?;
    let (before, id) = ids.split_once(" to ").filter(|(_, id)| *id != NO_ID)?;
    Some(TopicId { topic, id, is_other: before != NO_ID })
}

/// Forwards a line.
pub(super) fn forward(level: Level, facility: &str, text: &str) {
    match level {
        // Logged at each connect, about a property that the order of keys depends on and that
        // cannot be changed.
        _ if is_expected(facility, text) => tracing::debug!(target: "librdkafka", facility, "{text}"),
        _ if is_loss(facility, text) => tracing::error!(
            target: "brokers::kafka",
            "{RECORDS_LOST}; raise the retention above the lag of the consumers, and send the missing messages again with `relay replay`: {text}"
        ),
        Level::Emerg | Level::Alert | Level::Critical | Level::Error => {
            tracing::error!(target: "librdkafka", facility, "{text}");
        }
        Level::Warning => tracing::warn!(target: "librdkafka", facility, "{text}"),
        Level::Notice | Level::Info => tracing::info!(target: "librdkafka", facility, "{text}"),
        Level::Debug => tracing::debug!(target: "librdkafka", facility, "{text}"),
    }
}

/// Returns whether a consumer continues at another offset than its own. librdkafka reports this
/// only in its log.
fn is_loss(facility: &str, text: &str) -> bool {
    facility == "OFFSET" && text.contains("offset reset") && text.contains("Offset out of range")
}

/// Logs an error of a client that no message caused, and returns its code. The end of a partition
/// is not an error.
pub(super) fn error(error: &KafkaError, reason: &str) -> Option<Code> {
    let code = error.rdkafka_error_code().filter(|code| *code != Code::PartitionEOF)?;
    if code == Code::AllBrokersDown {
        // It also follows whenever a broker closes an idle connection. Outages have lines of
        // their own.
        tracing::info!(target: "brokers::kafka", %code, reason, "kafka client");
    } else {
        tracing::warn!(target: "brokers::kafka", %code, reason, "kafka client");
    }
    Some(code)
}

fn is_expected(facility: &str, text: &str) -> bool {
    facility == "CONFWARN" && text.contains("enable.gapless.guarantee")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_warning_about_our_own_property_is_expected() {
        let warning = "Configuration property enable.gapless.guarantee is experimental";
        assert!(is_expected("CONFWARN", warning));
        assert!(!is_expected("FAIL", warning) && !is_expected("CONFWARN", "Configuration property x"));
    }

    #[test]
    fn a_topic_that_is_made_anew_has_another_id() {
        const OLD: &str = "9RVHGTjMT1uPIpNUEqZyKg";
        const NEW: &str = "2s8ZLbsZQvu8vC1fxYvUeA";
        let line =
            |before, after| format!("[thrd:main]: Topic or.ders_1 changed id from {before} to {after}");
        let told = |is_other| Some(TopicId { topic: "or.ders_1", id: NEW, is_other });
        assert_eq!(topic_id("METADATA", &line(OLD, NEW)), told(true));
        assert_eq!(topic_id("METADATA", &line(NO_ID, NEW)), told(false), "it is new to this client");
        assert_eq!(topic_id("METADATA", &line(OLD, NO_ID)), None, "a broker that has no ids");
        assert_eq!(topic_id("TOPIC", &line(OLD, NEW)), None);
    }

    #[test]
    fn lines_that_nobody_asked_for_are_not_passed_on() {
        let mut client = ClientConfig::new();
        client.log_level = Level::Warning;
        assert_eq!(Lines::of(&mut client).level as i32, Level::Warning as i32);
        assert_eq!(client.get("debug"), Some("metadata"));
        client.set("debug", "fetch");
        assert_eq!(Lines::of(&mut client).level as i32, Level::Debug as i32);
        assert_eq!(client.get("debug"), Some("fetch,metadata"));
    }

    #[test]
    fn a_reset_of_an_offset_that_is_gone_is_a_loss() {
        let reset = "orders [1]: offset reset (at offset 7 (leader epoch 0), broker 1) to offset BEGINNING: ";
        assert!(is_loss("OFFSET", &format!("{reset}fetch failed: Broker: Offset out of range")));
        assert!(!is_loss(
            "OFFSET",
            &format!("{reset}no previously committed offset: Local: No offset stored")
        ));
        assert!(!is_loss("FAIL", "Offset out of range"));
    }
}
