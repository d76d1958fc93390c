//! The log lines of librdkafka itself, under the target `librdkafka`.

use rdkafka::config::RDKafkaLogLevel as Level;

/// Passes a line on.
pub(super) fn forward(level: Level, facility: &str, text: &str) {
    match level {
        // Said at each connect about a property that the order of keys rests on, and nobody can
        // change.
        _ if is_expected(facility, text) => tracing::debug!(target: "librdkafka", facility, "{text}"),
        Level::Emerg | Level::Alert | Level::Critical | Level::Error => {
            tracing::error!(target: "librdkafka", facility, "{text}");
        }
        Level::Warning => tracing::warn!(target: "librdkafka", facility, "{text}"),
        Level::Notice | Level::Info => tracing::info!(target: "librdkafka", facility, "{text}"),
        Level::Debug => tracing::debug!(target: "librdkafka", facility, "{text}"),
    }
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
}
