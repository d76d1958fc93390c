//! Sessions that cannot be opened: the party at fault, and the time until the error.

use std::sync::Arc;
use std::time::{Duration, Instant};

use message::{Connector, Fault, FaultScope, PublishError, Receipts};

use crate::{Broker, Capabilities, Failure, Outcome};

/// Timeout of an attempt to connect that must fail. The connector's own timeout is at most a
/// second. This timeout is far longer, so that no case fails on a busy machine; an attempt that
/// hangs exceeds it.
const BOUND: Duration = Duration::from_secs(60);

/// Goal: an outage is the broker's fault, so it uses up no attempts. Oracle: the error.
pub(crate) async fn nobody(broker: Arc<dyn Broker>, _: Capabilities) -> Outcome {
    let error = refusal(broker.unreachable()?.as_ref()).await?;
    assert_eq!((error.fault(), error.scope()), (Fault::Broker, FaultScope::Session), "{error}");
    Ok(())
}

/// Returns the error of an attempt to connect that must fail within a minute.
///
/// # Errors
/// The attempt succeeded, or did not fail in time.
pub async fn refusal(connector: &dyn Connector) -> Result<PublishError, Failure> {
    let (sender, _receipts) = Receipts::channel();
    let begun = Instant::now();
    let attempt = tokio::time::timeout(BOUND, connector.connect(sender)).await;
    match attempt.map_err(|_| format!("no verdict after {:?}", begun.elapsed()))? {
        Ok(_) => Err("it connected".into()),
        Err(error) => Ok(error),
    }
}
