//! `relay consumers`: whether consumers work, according to their inboxes.

use std::sync::Arc;
use std::time::Duration;

use message::MessageId;
use serde_json::json;
use tests::workload::Workload;
use tests::{Broker, Dialect, Outcome, Stage};
use time::OffsetDateTime;

use super::Ran;
use crate::verify;

tests::cases! { "{case}/{on}":
    pairs { a_consumer_that_takes_nothing_is_named }
}

/// Goal: an operator sees that messages reach the broker and their consumer takes none of them; a
/// consumer that has not started yet, and one that has the message, are not reported. Oracle: the
/// message ids, and the exit codes.
async fn a_consumer_that_takes_nothing_is_named<DB: Dialect>(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let workload = Workload::<DB>::open(&stage, broker).await?;
    let config = verify::config(&stage, &workload, &workload.database.url, "")?;
    let consumers = async || Ran::with(&config, &["consumers", "--output", "json"]).await;
    // The message is older than five minutes, by its id.
    let old = OffsetDateTime::now_utc() - Duration::from_secs(600);
    let millis = u64::try_from(old.unix_timestamp())? * 1_000;
    let id = MessageId::try_from(uuid::Builder::from_unix_timestamp_millis(millis, &[7; 10]).into_uuid())?;
    let mut tx = workload.begin().await?;
    workload.outbox().enqueue(&mut tx, workload.message("a", 1).id(id)).await?;
    tx.commit().await?;

    let before = consumers().await?.done()?.json()?;
    assert_eq!((&before[0]["has_started"], &before[0]["untaken"]), (&json!(false), &json!(null)), "{before}");
    workload.consume().await?.stop().await?;
    let waiting = consumers().await?.done()?.json()?;
    assert_eq!(waiting[0]["untaken"], json!(null), "it is not published yet: {waiting}");

    Ran::with(&config, &["run", "--once"]).await?.done()?;
    let stalled = consumers().await?.ended(3)?.json()?;
    assert_eq!(stalled[0]["untaken"], json!(id.to_string()), "{stalled}");
    let text = Ran::with(&config, &["consumers"]).await?.ended(3)?.out;
    let told = format!("message {id} of topic {} was published", workload.topic);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("workload: it applies nothing, for ") && words.contains(&told), "{text}");
    assert!(words.contains(&format!("relay show {id}")), "{text}");

    let consumer = workload.consume().await?;
    workload.applied(1).await?;
    consumer.stop().await?;
    let known = consumers().await?.done()?.json()?;
    assert_eq!((&known[0]["untaken"], &known[0]["waits"]), (&json!(null), &json!([])), "{known}");
    let unknown = ["consumers", "--consumer", "nobody"];
    Ran::with(&config, &unknown).await?.refused(2, &["has the consumer nobody"])?;
    Ok(())
}
