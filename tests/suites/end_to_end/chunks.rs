//! Messages that are larger than their broker accepts.

use std::num::NonZeroUsize;
use std::sync::Arc;

use crate::verify;
use async_trait::async_trait;
use inbox::{Consumer, ConsumerName, Handler, HandlerError, Inbox, InboxOptions, Shutdown, Tx};
use message::{
    ContentType, EventType, Message, OrderingKey, PayloadEncoding, Receipts, SizeLimit, Splitter, Submission,
    Ticket, Topic,
};
use tests::relay_process::Config;
use tests::workload::Workload;
use tests::{Broker, Dialect, Failure, Outcome, RelayProcess, Stage, eventually};

tests::cases! { "{case}/{on}":
    everywhere { a_message_in_chunks_arrives_whole_and_once }
}

const RELAY: &str = "orders";
/// The limit of the broker in the relay's configuration.
const LIMIT: usize = 32 << 10;
const ENGINE: &str = "message_bytes_max = \"32KiB\"\noversize = \"chunk\"\n";

/// A handler that writes the effect of an order, whose payload is readable only as a whole.
pub(crate) struct Apply;

#[async_trait]
impl<DB: Dialect> Handler<DB> for Apply {
    async fn handle(&self, tx: &mut Tx<DB>, message: &Message) -> Result<Option<Vec<u8>>, HandlerError> {
        let order: serde_json::Value = serde_json::from_slice(&message.payload)
            .map_err(|error| HandlerError::reject("a fragment").with_source(error))?;
        let key = order["key"].as_str().ok_or_else(|| HandlerError::reject("no key"))?;
        let insert = format!("INSERT INTO effect (fact) VALUES ('{key}#{}')", order["seq"]);
        <DB as Dialect>::execute(tx, &insert)
            .await
            .map_err(|error| HandlerError::retry(error.to_string()))?;
        Ok(None)
    }
}

/// Goal: messages of three times the limit, among small messages of the same keys, take effect
/// once, whole and in order, although one relay stops between two chunks and another is killed.
/// `relay verify` proves it. Oracle: the checker; the handler parses JSON, which a fragment is not;
/// nothing is left incomplete; the report.
async fn a_message_in_chunks_arrives_whole_and_once<DB: Dialect>(
    stage: Stage,
    broker: Arc<dyn Broker>,
) -> Outcome {
    let workload = Workload::<DB>::open(&stage, broker).await?;
    let config =
        Config::write(&stage, RELAY, &workload.database.relay_url()?, workload.broker.as_ref(), ENGINE)?;
    let inbox = Inbox::open(workload.database.consumer.clone(), InboxOptions::default()).await?;
    let (broker, topic) = (Arc::clone(&workload.broker), workload.topic.clone());
    let consumer = Consumer::builder(inbox.clone(), ConsumerName::new("workload")?)
        .subscribe(move || {
            let (broker, topic) = (Arc::clone(&broker), topic.clone());
            async move {
                let subscribed = broker.join("workload", &topic).await;
                subscribed.map_err(|failure| message::SubscriptionError::lost(failure.to_string()))
            }
        })
        .handler(Apply)
        .prefetch(NonZeroUsize::new(64).ok_or("zero")?)
        .build()?;
    let shutdown = Shutdown::new();
    let running = tokio::spawn(consumer.run(shutdown.clone()));

    let mut tx = workload.begin().await?;
    let half_sent = workload.place_large_in(&mut tx, "key-0", 3 * LIMIT).await?;
    tx.commit().await?;
    begin_to_send(&workload, half_sent).await?;
    let relay = RelayProcess::start(&stage, &config)?;
    workload.applied(1).await?;
    place(&workload).await?;
    workload.applied(3).await?;
    relay.kill().await?;
    place(&workload).await?;
    let relay = RelayProcess::start(&stage, &config)?;
    workload.settled().await?;
    // The last chunks may still be on their way a second time, because the killed relay had not
    // recorded which chunks it had sent.
    eventually("nothing is left incomplete", || async {
        let left = workload.database.integer("SELECT count(*) FROM inbox_chunk").await?;
        Ok((left == 0).then_some(()))
    })
    .await?;
    shutdown.graceful.cancel();
    running.await??;
    relay.stop().await?;
    verified(&stage, &workload).await
}

/// Checks that `relay verify` recognizes a message by its chunks: in the inbox, and on the broker
/// if that has a readable log.
async fn verified<DB: Dialect>(stage: &Stage, workload: &Workload<DB>) -> Outcome {
    let config = verify::config(stage, workload, &workload.database.url, "")?;
    let (code, report) = verify::verify(&config, &["--grace", "1s"]).await?;
    let placed = workload.database.integer("SELECT count(*) FROM placed").await?;
    assert_eq!((code, &report["pipelines"][0]["enqueued"]), (Some(0), &placed.into()), "{report:#}");
    Ok(())
}

/// Places small and large orders of three keys.
async fn place<DB: Dialect>(workload: &Workload<DB>) -> Outcome {
    for number in 0..12 {
        let mut tx = workload.begin().await?;
        let padding = if number % 2 == 0 { 3 * LIMIT } else { 0 };
        workload.place_large_in(&mut tx, &format!("key-{}", number % 3), padding).await?;
        tx.commit().await?;
    }
    Ok(())
}

/// Sends only the first two chunks of an order, like a relay that stops there.
async fn begin_to_send<DB: Dialect>(
    workload: &Workload<DB>,
    (id, payload): (message::MessageId, Vec<u8>),
) -> Outcome {
    let message =
        Message::new(Topic::new(workload.topic.as_str())?, EventType::new("order.placed")?, payload)
            .with_id(id)
            .with_key(OrderingKey::new("key-0")?)
            .with_content_type(ContentType::json());
    let limit = SizeLimit { destination: "the test", message_bytes_max: LIMIT };
    let splitter = Splitter { limit, encoding: PayloadEncoding::Base64, chunked_bytes_max: 1 << 20 };
    let chunks = splitter.split(&message)?.ok_or("the order is not large")?;
    assert!(chunks.len() > 2, "{}", chunks.len());
    let (receipts, mut received) = Receipts::channel();
    let mut publisher = workload.broker.connector()?.connect(receipts).await?;
    for (number, message) in (0..).zip(chunks.into_iter().take(2)) {
        publisher.submit(vec![Submission { ticket: Ticket(number), message: message.into() }]).await;
        received.recv().await.ok_or("no receipt")?.outcome.map_err(Failure::from)?;
    }
    publisher.close(std::time::Duration::from_secs(5)).await;
    Ok(())
}
