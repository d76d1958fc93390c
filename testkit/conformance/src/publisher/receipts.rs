//! One receipt for each submission, and the meaning of `Ok`.

use std::sync::Arc;

use crate::{Broker, Capabilities, Outcome, relaying, sample};

/// Goal: every submission gets exactly one receipt. `Ok` means that the broker holds the message.
/// The order of a key holds with as many of its messages in flight as the session allows. Oracle:
/// the session counts receipts; a plain client reads the records.
pub(crate) async fn everything(broker: Arc<dyn Broker>, capabilities: Capabilities) -> Outcome {
    const KEYS: usize = 20;
    const PER_KEY: i64 = 25;
    let topic = broker.topic_name("orders");
    broker.create_topic(&topic).await?;
    let messages = sample::orders(&topic, KEYS, PER_KEY)?;
    let sent = relaying::send(broker.connector()?.as_ref(), &messages).await?;
    assert!(sent.refused.is_empty(), "{:?}", sent.refused);
    assert_eq!(sent.confirmed.len(), messages.len());
    let payloads = broker.payloads(&topic, messages.len()).await?;
    sample::assert_holds(&payloads, &messages, capabilities.order, sent.sessions == 1)
}
