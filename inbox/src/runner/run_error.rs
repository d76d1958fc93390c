//! Why a consumer ended other than by a graceful shutdown.

use std::time::Duration;

use tokio::task::JoinError;

use super::build_error::BuildError;

/// Why a consumer ended other than by a graceful shutdown. Nothing is lost: unsettled deliveries
/// are delivered again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// It was aborted.
    #[error("the consumer was aborted with {unsettled} deliveries unsettled")]
    Aborted {
        /// Number of unsettled deliveries.
        unsettled: usize,
    },
    /// The broker would redeliver messages that are still being worked on.
    #[error(
        "{origin} redelivers messages that are unsettled for {redelivers_after:?}, but the consumer extends \
         this time only every {keep_alive_interval:?}; set keep_alive_interval to at most {:?}, or raise \
         the broker's visibility timeout",
        .redelivers_after.div_f32(2.0)
    )]
    KeepAliveTooSeldom {
        /// The subscription.
        origin: String,
        /// The interval between keep-alives.
        keep_alive_interval: Duration,
        /// How long the broker waits.
        redelivers_after: Duration,
    },
    /// The consumer could not be built; nothing ran.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A worker ended without a result: a defect of this crate.
    #[error("a worker of the consumer failed")]
    Worker(#[from] JoinError),
}
