//! Waits for a count as long as it grows.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::Failure;

/// Asks for `count` every `poll` until it reaches `target`. Fails if it has not grown for
/// `patience`.
pub(crate) async fn reach(
    target: u64,
    patience: Duration,
    poll: Duration,
    mut count: impl AsyncFnMut() -> Result<u64, Failure>,
) -> Result<(), Failure> {
    let (mut last, mut since) = (count().await?, Instant::now());
    while last < target {
        sleep(poll).await;
        let now = count().await?;
        if now > last {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() > patience {
            return Err(format!("nothing was published for {patience:?}, {last} of {target} done").into());
        }
    }
    Ok(())
}
