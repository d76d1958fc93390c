//! The errors of a demo.

use std::error::Error;
use std::path::PathBuf;

/// The reason why a demo has no result. A broken promise is a result, not an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DemoError {
    /// An option is wrong, which is the operator's fault.
    #[error("{0}")]
    Usage(String),
    /// Database, broker or file system did not do what the demo needs.
    #[error("cannot {what}")]
    Unavailable {
        /// The step that failed.
        what: String,
        /// The reason why it failed.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The time limit was reached.
    #[error("gave up after {seconds} s; the state reached: {state}; logs of the processes: {}", logs.display())]
    TimeLimit {
        /// The limit.
        seconds: u64,
        /// The progress at that time.
        state: String,
        /// The folder of the logs.
        logs: PathBuf,
    },
    /// A process of the demo failed again and again.
    #[error("{process} ended {failures} times on its own; its log: {}", log.display())]
    Process {
        /// The process.
        process: &'static str,
        /// The number of failures.
        failures: u64,
        /// The path of its log.
        log: PathBuf,
    },
    /// Interrupted from the keyboard; everything was removed.
    #[error("interrupted")]
    Interrupted,
}

impl DemoError {
    /// Returns the error for an option whose feature this program was built without.
    #[cfg(not(all(feature = "postgres", feature = "rabbitmq", feature = "sqs")))]
    pub(crate) fn not_built(option: &str, what: &str) -> Self {
        Self::Usage(format!(
            "{option}: this demo was built without {what}; run it with everything: \
             cargo run --package outbox-toolkit-relay --features demo -- demo …"
        ))
    }

    /// Adds the step that failed; for `map_err`.
    pub(crate) fn during<E: Into<Box<dyn Error + Send + Sync>>>(
        what: impl Into<String>,
    ) -> impl FnOnce(E) -> Self {
        move |source| Self::Unavailable { what: what.into(), source: source.into() }
    }
}
