//! Why a demo did not come to a result.

use std::error::Error;
use std::path::PathBuf;

/// Why a demo did not come to a result. A broken promise is a result, not an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DemoError {
    /// An option is wrong. The operator's fault.
    #[error("{0}")]
    Usage(String),
    /// Database, broker or file system did not do what the demo needs.
    #[error("cannot {what}")]
    Unavailable {
        /// The step that failed.
        what: String,
        /// Why it failed.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The time limit was reached.
    #[error("gave up after {seconds} s; the state reached: {state}; logs of the processes: {}", logs.display())]
    TimeLimit {
        /// The limit.
        seconds: u64,
        /// How far everything had come.
        state: String,
        /// Where the logs are.
        logs: PathBuf,
    },
    /// A process of the demo could not do its work, again and again.
    #[error("{process} ended {failures} times by itself; its log: {}", log.display())]
    Process {
        /// Which.
        process: &'static str,
        /// How often.
        failures: u64,
        /// Where its log is.
        log: PathBuf,
    },
    /// Interrupted from the keyboard; everything was removed.
    #[error("interrupted")]
    Interrupted,
}

impl DemoError {
    /// An option asks for something that this program was built without.
    #[cfg(not(all(feature = "postgres", feature = "rabbitmq", feature = "sqs")))]
    pub(crate) fn not_built(option: &str, what: &str) -> Self {
        Self::Usage(format!(
            "{option}: this demo was built without {what}; run it with everything: \
             cargo run --package outbox-toolkit-relay --features demo -- demo …"
        ))
    }

    /// Names what was tried; for `map_err`.
    pub(crate) fn during<E: Into<Box<dyn Error + Send + Sync>>>(
        what: impl Into<String>,
    ) -> impl FnOnce(E) -> Self {
        move |source| Self::Unavailable { what: what.into(), source: source.into() }
    }
}
