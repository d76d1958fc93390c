//! The log lines of librdkafka itself, under the target `librdkafka`, and its clients' errors.

use rdkafka::config::RDKafkaLogLevel as Level;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

/// Passes a line on.
pub(super) fn forward(level: Level, facility: &str, text: &str) {
    match level {
        // Said at each connect about a property that the order of keys rests on, and nobody can
        // change.
        _ if is_expected(facility, text) => tracing::debug!(target: "librdkafka", facility, "{text}"),
        _ if is_loss(facility, text) => tracing::error!(
            target: "brokers::kafka",
            "records were removed from kafka before this group had read them; keep them for longer than \
             consumers can lag behind, and send what is missing again with `relay replay`: {text}"
        ),
        Level::Emerg | Level::Alert | Level::Critical | Level::Error => {
            tracing::error!(target: "librdkafka", facility, "{text}");
        }
        Level::Warning => tracing::warn!(target: "librdkafka", facility, "{text}"),
        Level::Notice | Level::Info => tracing::info!(target: "librdkafka", facility, "{text}"),
        Level::Debug => tracing::debug!(target: "librdkafka", facility, "{text}"),
    }
}

/// Whether a consumer goes on elsewhere than where it was. librdkafka tells it in its log only.
fn is_loss(facility: &str, text: &str) -> bool {
    facility == "OFFSET" && text.contains("offset reset") && text.contains("Offset out of range")
}

/// Tells an error of a client that no message is to blame for, and returns its code. The end of a
/// partition is no error.
pub(super) fn error(error: &KafkaError, reason: &str) -> Option<Code> {
    let code = error.rdkafka_error_code().filter(|code| *code != Code::PartitionEOF)?;
    tracing::warn!(target: "brokers::kafka", %code, reason, "kafka client");
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
