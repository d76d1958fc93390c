//! A bandwidth quota of Kafka: the broker delays what a client sends next.

use std::time::{Duration, Instant};

use ::brokers::kafka::{Connector, GroupConfig, Subscriber, TopicPlan};
use conformance::consuming::{handle, ids};
use conformance::facts::Order;
use conformance::{relaying, sample};
use harness::plain::kafka::{Kafka, Reading};
use message::{Message, Subscription};
use rdkafka::message::Message as _;
use tests::brokers::{create_kafka_topic, patient_kafka};
use tests::kafka_requests::limit_bandwidth;
use tests::{Backend, Outcome, Stage};

tests::cases! { "kafka_quota/{case}":
    // It waits for the quota.
    night anywhere + kafka { a_throttled_client_keeps_its_session = throttled }
}

/// The quota, in bytes a second. Kafka lets ten seconds of it pass at once.
const QUOTA: u32 = 100_000;
const KEYS: usize = 5;
const ROUNDS: i64 = 30;
/// Bytes of a message. All of them are three times what passes at once.
const PADDING: usize = 20_000;
/// Maximum bytes of a batch, so that there are many requests.
const BATCH_BYTES: usize = 100_000;
/// Less than half of what the quota takes. A client that is not throttled needs a second.
const DELAY_MIN: Duration = Duration::from_secs(8);

/// Goal: a publisher and a consumer that a quota slows down lose no session, and no message is sent
/// or received twice. Oracle: the receipts and the number of sessions; the records, as a plain
/// client reads them; the ids that are received; the time, which shows that the quota took effect.
async fn throttled(stage: Stage) -> Outcome {
    let client = stage.unique("throttled");
    limit_bandwidth(&stage, &client, QUOTA).await?;
    let servers = Backend::Kafka.address()?;
    let config = patient_kafka(&servers).client_id(client).message_bytes_max(BATCH_BYTES);
    let topic = stage.unique("quota");
    create_kafka_topic(&stage, &config, TopicPlan::new(&topic, 1)).await?;
    let messages: Vec<Message> = sample::orders(&topic, KEYS, ROUNDS)?.into_iter().map(padded).collect();

    let begun_at = Instant::now();
    let sent = relaying::send(&Connector::new(config.clone())?, &messages).await?;
    assert!(sent.refused.is_empty() && sent.sessions == 1, "{:?} in {}", sent.refused, sent.sessions);
    assert!(begun_at.elapsed() >= DELAY_MIN, "published in {:?}", begun_at.elapsed());
    let reading = Reading::default().at_least(messages.len());
    let records = Kafka::new(servers).read_all(&topic, reading).await?;
    let payloads: Vec<Vec<u8>> =
        records.iter().map(|record| record.payload().unwrap_or_default().to_vec()).collect();
    sample::assert_holds(&payloads, &messages, Order::PerKey, true)?;

    let subscriber = Subscriber::new(config, GroupConfig::new(stage.unique("group"), [&topic]))?;
    let mut member: Box<dyn Subscription> = subscriber.subscribe().await?;
    let begun_at = Instant::now();
    let received = handle(&mut member, messages.len()).await?;
    assert!(begun_at.elapsed() >= DELAY_MIN, "received in {:?}", begun_at.elapsed());
    assert_eq!(ids(&received), messages.iter().map(|message| message.id).collect());
    Ok(member.close().await?)
}

/// Makes a message large. Spaces behind its JSON change nothing.
fn padded(message: Message) -> Message {
    let payload = [&message.payload[..], &[b' '; PADDING]].concat();
    Message { payload: payload.into(), ..message }
}
