//! Sets up logging: to standard error, as text or as JSON.

use std::io::IsTerminal;

#[cfg(feature = "rabbitmq")]
use brokers::rabbitmq::PAYLOAD_LOG_TARGET;
use tracing_subscriber::EnvFilter;

use super::exit::Exit;
use super::failure::Failure;
use crate::config::{Log, LogFormat, level};

/// The variable whose directives replace the configured level.
pub(crate) const VARIABLE: &str = "RELAY_LOG";
/// Either may have set it; the parsed command line does not distinguish them.
const FLAG: &str = "--log-level (or RELAY_LOG)";

/// Changes the level of a log that has started.
pub(crate) struct LogLevel(Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>);

impl LogLevel {
    /// Logs at another level from now on.
    pub(crate) fn set(&self, level: &str) -> Result<(), String> {
        self.0(filter("log.level", level).map_err(|failure| failure.to_string())?)
    }
}

/// Starts logging. `directives` from the flag or the variable override the configured level.
pub(crate) fn start(log: &Log, directives: Option<&str>) -> Result<LogLevel, Failure> {
    let filter = match directives {
        Some(directives) => filter(FLAG, directives)?,
        None => filter("log.level", &log.level)?,
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let (started, level) = match log.format {
        LogFormat::Json => {
            let builder = builder.json().flatten_event(true).with_filter_reloading();
            let handle = builder.reload_handle();
            let set = move |filter| handle.reload(filter).map_err(|error| error.to_string());
            (builder.try_init(), LogLevel(Box::new(set)))
        }
        LogFormat::Text => {
            let builder = builder.with_ansi(has_colour()).with_filter_reloading();
            let handle = builder.reload_handle();
            let set = move |filter| handle.reload(filter).map_err(|error| error.to_string());
            (builder.try_init(), LogLevel(Box::new(set)))
        }
    };
    started.map_err(|error| Failure::new(Exit::Broken, format_args!("logging could not start: {error}")))?;
    Ok(level)
}

fn filter(given_as: &str, directives: &str) -> Result<EnvFilter, Failure> {
    let wrong = |problem| Failure::with_help(Exit::Usage, format_args!("{given_as}: {problem}"), level::HELP);
    let filter = level::filter(directives).map_err(wrong)?;
    // The client library would write payloads into the log.
    #[cfg(feature = "rabbitmq")]
    let filter = match format!("{PAYLOAD_LOG_TARGET}=off").parse() {
        Ok(directive) => filter.add_directive(directive),
        Err(error) => return Err(Failure::new(Exit::Broken, format_args!("{PAYLOAD_LOG_TARGET}: {error}"))),
    };
    Ok(filter)
}

fn has_colour() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "rabbitmq")]
    #[test]
    fn payloads_are_never_logged() {
        let filter = filter(FLAG, "trace,lapin=trace").ok().unwrap().to_string();
        assert!(filter.contains("lapin::returned_messages=off"), "{filter}");
    }

    #[test]
    fn a_wrong_level_is_refused_with_its_text() {
        for level in ["relay=loud", "waring"] {
            let failure = filter(FLAG, level).unwrap_err();
            assert_eq!(failure.exit(), Exit::Usage);
            let text = failure.to_string();
            assert!(text.contains(level) && text.contains("--log-level"), "{text}");
        }
    }
}
