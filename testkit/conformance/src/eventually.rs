//! Waiting for a condition, never for a time.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use crate::Failure;

/// How long a condition may take to become true. Generous, because only a failing test uses it up:
/// one that passes must pass on a machine that is busy with ten other things.
const PATIENCE: Duration = Duration::from_secs(240);
const PAUSE: Duration = Duration::from_millis(20);

/// Asks again and again until the answer is there, and returns it.
///
/// # Errors
/// The condition did not come true within four minutes, or asking failed.
pub async fn eventually<T, F>(what: &str, mut ask: impl FnMut() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<Option<T>, Failure>>,
{
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask().await? {
            return Ok(answer);
        }
        if Instant::now() >= deadline {
            return Err(format!("not within {PATIENCE:?}: {what}").into());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// `Some(())` when true: for [`eventually`].
#[must_use]
pub fn when(condition: bool) -> Option<()> {
    condition.then_some(())
}
