//! Deliveries of producers that do not use the toolkit, as a consumer's inbox stores them. The
//! producers are plain clients.

mod corpus;

use std::future::Future;
use std::time::Duration;

use ::brokers::kafka::{self, GroupConfig, TopicPlan};
use ::brokers::rabbitmq::{self, QueueOptions};
use ::brokers::sqs::Subscriber as SqsSubscriber;
use aws_sdk_sqs::primitives::Blob;
use aws_sdk_sqs::types::MessageAttributeValue;
use conformance::consuming::{receive, settle};
use harness::plain::rabbitmq::Rabbitmq;
use harness::plain::sqs::{Outgoing, Sqs};
use inbox::{Cause, ConsumerName, DeadLetter, DeadLetterQuery, Inbox, InboxOptions, Reason, Tenant};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldArray, FieldTable, ShortString};
use message::{Delivery, Subscription};
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use sqlx::Sqlite;
use tests::brokers::{create_kafka_topic, create_rabbitmq_queue, create_sqs_queue};
use tests::{Backend, Database, Failure, Outcome, Stage};

use crate::sqs;

/// The same body for all deliveries.
const BODY: &str = r#"{"amount":10}"#;
const TENANTS: [&str; 5] = ["t1", "t2", "t3", "t4", "t5"];
const PATIENCE: Duration = Duration::from_mins(4);
/// A moment in milliseconds since 1970, and as text.
const AT_MS: i64 = 1_700_000_000_123;
const AT: &str = "2023-11-14T22:13:20.123Z";

tests::cases! { "foreign/{on}/{case}":
    rabbitmq {
        deliveries_of_one_body_are_dead_letters_of_their_own = rabbitmq_apart,
        equal_deliveries_are_dead_letters_of_their_own = |stage: Stage| rabbitmq_equal(stage, false),
        equal_deliveries_of_a_quorum_queue_are_dead_letters_of_their_own = |stage: Stage| rabbitmq_equal(stage, true),
    }
    sqs {
        deliveries_of_one_body_are_dead_letters_of_their_own = sqs_apart,
        equal_deliveries_are_dead_letters_of_their_own = sqs_equal,
    }
    kafka {
        deliveries_of_one_body_are_dead_letters_of_their_own = kafka_apart,
        equal_deliveries_are_dead_letters_of_their_own = kafka_equal,
    }
    modules { corpus }
}

/// Receives this many deliveries and dead-letters them without acknowledging any. A second session
/// does the same and settles them. Returns the dead letters.
async fn letters<F, Fut>(stage: &Stage, deliveries: usize, subscribe: F) -> Result<Vec<DeadLetter>, Failure>
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<Box<dyn Subscription>, Failure>>,
{
    let database = Database::<Sqlite>::migrated(stage).await?;
    let inbox = Inbox::open(database.consumer.clone(), InboxOptions::default()).await?;
    for is_last in [false, true] {
        let mut member = subscribe().await?;
        let received = receive(&mut member, deliveries).await?;
        for delivery in &received {
            dead_letter(&inbox, delivery).await?;
        }
        if is_last {
            settle(&mut member, &received).await?;
        }
        member.close().await?;
    }
    Ok(inbox.dead_letters(&DeadLetterQuery::default()).await?)
}

async fn dead_letter(inbox: &Inbox<Sqlite>, delivery: &Delivery) -> Outcome {
    let malformed = delivery.message.as_ref().err().ok_or("a message without an id was read")?;
    let cause = Cause::new(Reason::Malformed, malformed.problem.clone(), 0);
    drop(inbox.dead_letter(&ConsumerName::new("billing")?, &Tenant::none(), delivery, cause).await?);
    Ok(())
}

fn value<'a>(letter: &'a DeadLetter, name: &str) -> Option<&'a str> {
    letter.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// Checks that each was delivered twice, that all have the same body, and that each has these
/// headers and its own tenant.
fn assert_apart(letters: &[DeadLetter], expected: &[(&str, &str)]) {
    let mut tenants: Vec<_> = letters.iter().filter_map(|letter| value(letter, "tenant")).collect();
    tenants.sort_unstable();
    assert_eq!(tenants, TENANTS, "{letters:?}");
    for letter in letters {
        assert_eq!((letter.deliveries, &letter.payload[..]), (2, BODY.as_bytes()), "{letter:?}");
        for (name, text) in expected {
            assert_eq!(value(letter, name), Some(*text), "{name}: {:?}", letter.headers);
        }
    }
}

/// Checks that there are `count` dead letters, each delivered twice.
fn assert_equal_ones(letters: &[DeadLetter], count: usize) {
    let deliveries: Vec<u32> = letters.iter().map(|letter| letter.deliveries).collect();
    assert_eq!(deliveries, vec![2; count], "{letters:?}");
}

async fn queue(stage: &Stage, quorum: bool) -> Result<String, Failure> {
    let config = rabbitmq::Config::new(Backend::Rabbitmq.address()?);
    let queue = stage.unique("foreign");
    create_rabbitmq_queue(stage, &config, &queue, QueueOptions::default().quorum(quorum)).await?;
    Ok(queue)
}

async fn amqp_publish(queue: &str, all: Vec<BasicProperties>) -> Outcome {
    let messages = all.into_iter().map(|properties| (properties, BODY.as_bytes().to_vec()));
    Rabbitmq::new(Backend::Rabbitmq.address()?).publish("", queue, messages).await
}

async fn amqp_subscribe(queue: &str) -> Result<Box<dyn Subscription>, Failure> {
    let config = rabbitmq::Config::new(Backend::Rabbitmq.address()?);
    Ok(rabbitmq::Subscriber::new(&config, [queue])?.subscribe().await?)
}

/// Goal: five charges of the same amount that differ in one header become five dead letters with
/// all properties and headers, and redeliveries are counted. Oracle: the inbox's table.
async fn rabbitmq_apart(stage: Stage) -> Outcome {
    let queue = queue(&stage, false).await?;
    let properties = |tenant: &&str| -> Result<BasicProperties, Failure> {
        let mut headers = FieldTable::default();
        let list = FieldArray::from(vec![AMQPValue::LongInt(1), AMQPValue::Boolean(true)]);
        for (name, value) in [
            ("tenant", AMQPValue::LongString((*tenant).into())),
            ("attempt", AMQPValue::LongInt(3)),
            ("list", AMQPValue::FieldArray(list)),
        ] {
            headers.insert(ShortString::try_new(name)?, value);
        }
        Ok(BasicProperties::default()
            .with_correlation_id(ShortString::try_new("c-1")?)
            .with_reply_to(ShortString::try_new("answers")?)
            .with_type(ShortString::try_new("charge")?)
            .with_app_id(ShortString::try_new("shop")?)
            .with_timestamp(AT_MS.unsigned_abs() / 1_000)
            .with_headers(headers))
    };
    amqp_publish(&queue, TENANTS.iter().map(properties).collect::<Result<_, _>>()?).await?;
    let letters = letters(&stage, TENANTS.len(), || amqp_subscribe(&queue)).await?;
    let expected = [
        ("attempt", "3"),
        ("amqp.header_type.attempt", "int32"),
        ("list", "[1,true]"),
        ("amqp.correlation_id", "c-1"),
        ("amqp.reply_to", "answers"),
        ("amqp.type", "charge"),
        ("amqp.app_id", "shop"),
        ("amqp.timestamp", "2023-11-14T22:13:20Z"),
        ("amqp.exchange", ""),
    ];
    assert_apart(&letters, &expected);
    Ok(())
}

/// Goal: three indistinguishable webhooks become three dead letters, and redeliveries are counted.
/// Oracle: the inbox's table.
async fn rabbitmq_equal(stage: Stage, quorum: bool) -> Outcome {
    let queue = queue(&stage, quorum).await?;
    amqp_publish(&queue, vec![BasicProperties::default(); 3]).await?;
    assert_equal_ones(&letters(&stage, 3, || amqp_subscribe(&queue)).await?, 3);
    Ok(())
}

async fn sqs_queue(stage: &Stage) -> Result<String, Failure> {
    let config = sqs::config(Backend::Sqs.address()?);
    let queue = stage.unique("foreign");
    create_sqs_queue(stage, &config, &queue).await?;
    Ok(queue)
}

async fn sqs_subscribe(queue: &str) -> Result<Box<dyn Subscription>, Failure> {
    Ok(SqsSubscriber::new(&sqs::config(Backend::Sqs.address()?), queue)?.subscribe().await?)
}

/// Does the same as [`rabbitmq_apart`]. Each dead letter has the broker's own id and the time of
/// sending.
async fn sqs_apart(stage: Stage) -> Outcome {
    let queue = sqs_queue(&stage).await?;
    let plain = Sqs::elasticmq(Backend::Sqs.address()?).await;
    let url = plain.url(&queue).await?;
    let attribute = |kind: &str| MessageAttributeValue::builder().data_type(kind);
    let mut ids = Vec::new();
    for tenant in TENANTS {
        let sent = plain
            .client()
            .send_message()
            .queue_url(&url)
            .message_body(BODY)
            .message_attributes("tenant", attribute("String").string_value(tenant).build()?)
            .message_attributes("n", attribute("Number").string_value("7").build()?)
            .message_attributes("raw", attribute("Binary").binary_value(Blob::new([0, 255])).build()?)
            .send()
            .await?;
        ids.push(sent.message_id.ok_or("no message id")?);
    }
    let letters = letters(&stage, TENANTS.len(), || sqs_subscribe(&queue)).await?;
    let expected = [
        ("n", "7"),
        ("sqs.attribute_type.n", "Number"),
        ("sqs.attribute_hex.raw", "00ff"),
        ("sqs.ApproximateReceiveCount", "1"),
    ];
    assert_apart(&letters, &expected);
    let mut found: Vec<_> = letters.iter().filter_map(|letter| value(letter, "sqs.MessageId")).collect();
    found.sort_unstable();
    ids.sort_unstable();
    assert_eq!(found, ids);
    assert!(letters.iter().all(|letter| value(letter, "sqs.SentTimestamp").is_some()), "{letters:?}");
    Ok(())
}

/// Does the same as [`rabbitmq_equal`]: SQS gives each message an id.
async fn sqs_equal(stage: Stage) -> Outcome {
    let queue = sqs_queue(&stage).await?;
    let message = Outgoing { body: BODY.to_owned(), ..Outgoing::default() };
    Sqs::elasticmq(Backend::Sqs.address()?).await.put(&queue, &vec![message; 3]).await?;
    assert_equal_ones(&letters(&stage, 3, || sqs_subscribe(&queue)).await?, 3);
    Ok(())
}

/// A topic of one partition, and a group that reads it.
struct KafkaScene {
    servers: String,
    topic: String,
    group: String,
}

impl KafkaScene {
    async fn open(stage: &Stage) -> Result<Self, Failure> {
        let servers = Backend::Kafka.address()?;
        let config = kafka::Config::new(servers.split(','));
        let topic = stage.unique("foreign");
        // The records are old. Kafka looks for expired ones every five minutes.
        let plan = TopicPlan::new(&topic, 1).with("retention.ms", "-1");
        create_kafka_topic(stage, &config, plan).await?;
        Ok(Self { servers, topic, group: stage.unique("group") })
    }

    fn put(&self, key: &[u8], headers: &[OwnedHeaders]) -> Outcome {
        let mut client = ClientConfig::new();
        let producer: BaseProducer = client.set("bootstrap.servers", &self.servers).create()?;
        for headers in headers {
            let record = BaseRecord::to(&self.topic).key(key).payload(BODY).timestamp(AT_MS);
            producer.send(record.headers(headers.clone())).map_err(|(error, _)| error)?;
        }
        Ok(producer.flush(PATIENCE)?)
    }

    async fn subscribe(&self) -> Result<Box<dyn Subscription>, Failure> {
        let group = GroupConfig::new(&self.group, [&self.topic]);
        let config = kafka::Config::new(self.servers.split(','));
        Ok(kafka::Subscriber::new(config, group)?.subscribe().await?)
    }
}

fn header<'a>(key: &'a str, value: &'a [u8]) -> Header<'a, &'a [u8]> {
    Header { key, value: Some(value) }
}

/// Does the same as [`rabbitmq_apart`]. The dead letters have the record's timestamp, and the bytes
/// of a key that is not text.
async fn kafka_apart(stage: Stage) -> Outcome {
    let scene = KafkaScene::open(&stage).await?;
    let headers = |tenant: &&str| {
        let headers = OwnedHeaders::new().insert(header("tenant", tenant.as_bytes()));
        headers.insert(header("schema", &[0, 255]))
    };
    scene.put(&255_u64.to_be_bytes(), &TENANTS.iter().map(headers).collect::<Vec<_>>())?;
    let letters = letters(&stage, TENANTS.len(), || scene.subscribe()).await?;
    let expected = [
        ("kafka.key_hex", "00000000000000ff"),
        ("kafka.timestamp", AT),
        ("kafka.timestamp_type", "CreateTime"),
        ("kafka.header_hex.schema", "00ff"),
    ];
    assert_apart(&letters, &expected);
    Ok(())
}

/// Does the same as [`rabbitmq_equal`]: each record has an offset.
async fn kafka_equal(stage: Stage) -> Outcome {
    let scene = KafkaScene::open(&stage).await?;
    scene.put(b"k", &[OwnedHeaders::new(), OwnedHeaders::new(), OwnedHeaders::new()])?;
    assert_equal_ones(&letters(&stage, 3, || scene.subscribe()).await?, 3);
    Ok(())
}
