//! The beginning of every process of a storm.

use std::path::Path;

use serde::de::DeserializeOwned;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::Failure;

/// Reads the task of this process, and arms its crash points.
///
/// # Errors
/// The file cannot be read, or a crash point is unknown.
pub fn task<T: DeserializeOwned>(file: &Path) -> Result<T, Failure> {
    #[cfg(feature = "crash-points")]
    message::crash_points::arm_from_environment()?;
    let text = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", file.display()).into())
}

/// Returns a token that SIGTERM or SIGINT cancels.
///
/// # Errors
/// Signals cannot be received.
pub fn stop_on_signals() -> Result<CancellationToken, Failure> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stopping.cancel();
    });
    Ok(stop)
}
