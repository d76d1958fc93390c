//! The end of a session with messages in flight.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use message::{Fault, FaultScope};

use crate::facts::Fact;
use crate::session::{End, Session};
use crate::{Broker, Capabilities, Outcome, sample};

const COUNT: usize = 300;

/// Goal: closing a session without a grace period answers every submission. Oracle: as for
/// [`ended`].
pub(crate) async fn close(broker: Arc<dyn Broker>, _: Capabilities) -> Outcome {
    ended(broker, End::Close(Duration::ZERO)).await
}

/// Goal: dropping a session answers every submission. Oracle: as for [`ended`].
pub(crate) async fn drop(broker: Arc<dyn Broker>, _: Capabilities) -> Outcome {
    ended(broker, End::Drop).await
}

/// Goal: every message in flight at the end of a session gets exactly one receipt: `Ok` only if the
/// broker holds it, otherwise unknown, with the broker at fault. Oracle: the session counts
/// receipts; a plain client reads the records.
async fn ended(broker: Arc<dyn Broker>, how: End) -> Outcome {
    let topic = broker.topic_name("ending");
    broker.create_topic(&topic).await?;
    let mut session = Session::open(broker.connector()?.as_ref()).await?;
    // Each message has its own key, so that all may be in flight.
    let messages = sample::orders(&topic, COUNT, 1)?;
    session.submit(messages.iter().cloned().enumerate()).await;
    let mut confirmed = BTreeSet::new();
    for (number, outcome) in session.end(how).await? {
        match outcome {
            Ok(()) => assert!(confirmed.insert(sample::fact(&messages[number].payload)?)),
            Err(error) => {
                assert_eq!((error.fault(), error.scope()), (Fault::Broker, FaultScope::Session), "{error}");
            }
        }
    }
    let payloads = broker.payloads(&topic, confirmed.len()).await?;
    let stored: BTreeSet<Fact> =
        payloads.iter().map(|payload| sample::fact(payload)).collect::<Result<_, _>>()?;
    let missing: Vec<&Fact> = confirmed.difference(&stored).collect();
    assert!(missing.is_empty(), "confirmed and not there: {missing:?}");
    Ok(())
}
