//! One receipt for each submission, and what `Ok` means.

use std::sync::Arc;

use tests::{Broker, Outcome, Stage};

use crate::{relaying, sample};

/// Goal: every submission has exactly one receipt, `Ok` means that the broker holds the message, and the order of a
/// key is kept with as many of its messages in flight as the session allows.
/// Oracle: the session counts receipts; the records as a plain client reads them.
pub(crate) async fn everything(stage: Stage, broker: Arc<dyn Broker>) -> Outcome {
    const KEYS: usize = 20;
    const PER_KEY: i64 = 25;
    let topic = broker.topic_name(&stage, "orders");
    broker.create_topic(&stage, &topic).await?;
    let messages = sample::orders(&topic, KEYS, PER_KEY)?;
    let sent = relaying::send(broker.connector()?.as_ref(), &messages).await?;
    assert!(sent.refused.is_empty(), "{:?}", sent.refused);
    assert_eq!(sent.confirmed.len(), messages.len());
    let records = broker.drain(&topic, messages.len()).await?;
    sample::assert_holds(&records, &messages, broker.order(), sent.sessions == 1)
}
