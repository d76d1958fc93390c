//! Sets up logging: to standard error, as text or as JSON.

mod repeats;
mod writer;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

#[cfg(feature = "rabbitmq")]
use brokers::rabbitmq::PAYLOAD_LOG_TARGET;
use engine::telemetry::LOG_LINES_DROPPED;
use repeats::{Repeated, Repeats};
use tokio_util::task::AbortOnDropHandle;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use writer::{FlushAtEnd, LineWriter};

use super::exit::Exit;
use super::failure::Failure;
use crate::config::{Log, LogFormat, level};

/// The variable whose directives replace the configured level.
pub(crate) const VARIABLE: &str = "RELAY_LOG";
/// Either the flag or the variable may have set it; the parsed command line does not distinguish
/// them.
const FLAG: &str = "--log-level (or RELAY_LOG)";

/// Changes the level of a log that has started.
pub(crate) struct LogLevel(Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>);

impl LogLevel {
    /// Logs at another level from now on.
    pub(crate) fn set(&self, level: &str) -> Result<(), String> {
        self.0(filter("log.level", level).map_err(|failure| failure.to_string())?)
    }
}

/// A log that has started.
pub(crate) struct Started {
    pub(crate) level: LogLevel,
    /// Writes the last lines when it is dropped.
    pub(crate) end: FlushAtEnd,
    pub(crate) lines: LogLines,
}

/// The lines of the log, to count those that were dropped or left out.
pub(crate) struct LogLines {
    writer: LineWriter,
    repeats: Repeats,
}

/// Interval of the reports about dropped lines.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

impl LogLines {
    /// Spawns a task that counts dropped lines as a metric and logs their number, once the log has
    /// a reader again; and what a database server has repeated meanwhile. Call it after the
    /// recorder is installed. The task ends when the handle is dropped.
    pub(crate) fn report(self) -> AbortOnDropHandle<()> {
        AbortOnDropHandle::new(tokio::spawn(async move {
            let counter = metrics::counter!(LOG_LINES_DROPPED);
            let mut reported = 0;
            loop {
                let dropped = self.writer.dropped();
                counter.absolute(dropped);
                if dropped > reported {
                    // If this line is dropped as well, the next report follows.
                    tracing::warn!(
                        dropped,
                        "lines of this log were dropped since the start: its reader hangs or is gone, or \
                         its disk is full"
                    );
                    reported = dropped;
                }
                for Repeated { text, times } in self.repeats.due(Instant::now()) {
                    tracing::warn!(times, "a database server repeats a warning: {text}");
                }
                tokio::time::sleep(REPORT_INTERVAL).await;
            }
        }))
    }
}

/// Starts logging. `directives` from the flag or the variable override the configured level.
pub(crate) fn start(log: &Log, directives: Option<&str>) -> Result<Started, Failure> {
    let filter = match directives {
        Some(directives) => filter(FLAG, directives)?,
        None => filter("log.level", &log.level)?,
    };
    let failed =
        |problem: String| Failure::new(Exit::Broken, format_args!("logging could not start: {problem}"));
    let (writer, end) = writer::start(std::io::stderr()).map_err(|error| failed(error.to_string()))?;
    let repeats = Repeats::default();
    let lines = LogLines { writer: writer.clone(), repeats: repeats.clone() };
    let builder = tracing_subscriber::fmt().with_env_filter(filter);
    // An error of the log must not be printed to the same place, which would panic.
    let builder = builder.log_internal_errors(false).with_writer(writer);
    let (started, level) = match log.format {
        LogFormat::Json => {
            let builder = builder.json().flatten_event(true).with_filter_reloading();
            let handle = builder.reload_handle();
            let set = move |filter| handle.reload(filter).map_err(|error| error.to_string());
            (builder.finish().with(repeats).try_init(), LogLevel(Box::new(set)))
        }
        LogFormat::Text => {
            let builder = builder.with_ansi(has_colour()).with_filter_reloading();
            let handle = builder.reload_handle();
            let set = move |filter| handle.reload(filter).map_err(|error| error.to_string());
            (builder.finish().with(repeats).try_init(), LogLevel(Box::new(set)))
        }
    };
    started.map_err(|error| failed(error.to_string()))?;
    Ok(Started { level, end, lines })
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
