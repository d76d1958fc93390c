//! The level of the log, or directives instead of it.

use std::borrow::Cow;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// The help for a refused level.
pub(crate) const HELP: &str = "use error, warn, info, debug, trace, or directives such as info,relay=debug";

/// Returns the filter for a level or for directives. `warning` means `warn`.
///
/// # Errors
/// Returns the text with its problem. An unknown word would be read as the name of a module, and
/// silence the log for all others, errors included.
pub(crate) fn filter(text: &str) -> Result<EnvFilter, String> {
    let parts: Vec<Cow<'_, str>> = text.split(',').map(|part| usual(part.trim())).collect();
    for part in &parts {
        let is_directive = part.contains(['=', '[']) || part.contains("::");
        if !part.is_empty() && !is_directive && part.parse::<LevelFilter>().is_err() {
            return Err(format!(
                "{text:?} is not a log level: {part:?} would silence the log, except for a module with that name"
            ));
        }
    }
    EnvFilter::try_new(parts.join(",")).map_err(|error| format!("{text:?} is not a log level: {error}"))
}

/// Returns the directive with the usual name of its level.
fn usual(part: &str) -> Cow<'_, str> {
    let start = part.rfind('=').map_or(0, |at| at + 1);
    match part.get(start..) {
        Some(level) if level.eq_ignore_ascii_case("warning") => Cow::Owned(format!("{}warn", &part[..start])),
        _ => Cow::Borrowed(part),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_level_does_not_silence_the_log() {
        for text in ["waring", "notice", "infoo", "fatal", "info,waring", "relay=loud", "relay"] {
            let problem = filter(text).unwrap_err();
            assert!(problem.contains(text) && problem.contains("not a log level"), "{problem}");
        }
    }

    #[test]
    fn levels_and_directives_are_taken() {
        for (text, filtered) in [
            ("info", "info"),
            ("WARN", "warn"),
            ("warning", "warn"),
            ("WARNING", "warn"),
            ("off", "off"),
            ("info,relay=debug", "relay=debug,info"),
            ("info, relay=warning", "relay=warn,info"),
            ("relay::engine", "relay::engine=trace"),
            ("info,[publish]=debug", "info,[publish]=debug"),
        ] {
            assert_eq!(filter(text).unwrap().to_string(), filtered, "{text}");
        }
    }
}
