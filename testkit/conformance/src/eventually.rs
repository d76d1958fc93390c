//! Waits for a condition instead of a fixed time.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use crate::Failure;

/// Timeout of a condition. It is generous, because only a failing test reaches it, and a passing
/// test must also pass on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);
const PAUSE: Duration = Duration::from_millis(20);

/// Repeats `ask` until there is an answer, and returns the answer.
///
/// # Errors
/// There was no answer within four minutes, or `ask` failed.
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

/// Returns `Some(())` if the condition is true, for [`eventually`].
#[must_use]
pub fn when(condition: bool) -> Option<()> {
    condition.then_some(())
}
