//! Messages as other libraries write them, from `producers.json`. A message with an id that the
//! inbox accepts becomes an effect; any other becomes a dead letter with everything that arrived.
//! None is lost or merged with another one, and none stops its neighbours.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ::brokers::{kafka, rabbitmq, sqs};
use async_trait::async_trait;
use aws_sdk_sqs::primitives::Blob;
use aws_sdk_sqs::types::MessageAttributeValue;
use bytes::Bytes;
use conformance::consuming::{receive, settle};
use harness::plain::rabbitmq::Rabbitmq;
use harness::plain::sqs::Sqs;
use inbox::{Consumer, DeadLetter, DeadLetterQuery, Handler, HandlerError, Inbox, InboxOptions, Tx};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, ByteArray, FieldArray, FieldTable, ShortString};
use message::{Message, MessageId, Subscriber, Subscription, foreign};
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use serde::Deserialize;
use serde_json::{Map, Value};
use sqlx::Sqlite;
use tests::eventually::when;
use tests::{Backend, Database, Failure, Outcome, Stage, eventually};
use uuid::Uuid;

use super::{KafkaScene, amqp_subscribe, queue, sqs_queue, sqs_subscribe};

const PATIENCE: Duration = Duration::from_secs(60);

tests::cases! { "foreign/{on}/{case}":
    kafka {
        whatever_others_send_is_a_dead_letter_or_an_effect = from_kafka,
        ready_mappings_read_what_others_send = mapped_from_kafka,
    }
    rabbitmq {
        whatever_others_send_is_a_dead_letter_or_an_effect = from_rabbitmq,
        ready_mappings_read_what_others_send = mapped_from_rabbitmq,
    }
    sqs {
        whatever_others_send_is_a_dead_letter_or_an_effect = from_sqs,
        ready_mappings_read_what_others_send = mapped_from_sqs,
    }
}

#[derive(Deserialize)]
struct Corpus {
    /// Bodies for producers that list none, by broker.
    bodies: std::collections::BTreeMap<String, Vec<Value>>,
    producers: Vec<Producer>,
}

/// The answer of the ready mappings to a delivery.
#[derive(Deserialize, Clone, Debug)]
#[serde(rename_all = "snake_case")]
enum Mapped {
    /// A message of this kind; `$topic` stands for the topic.
    Kind(String),
    /// An error with this text.
    Error(String),
}

/// The same for all bodies, or one for each.
#[derive(Deserialize)]
#[serde(untagged)]
enum Expected {
    Same(Mapped),
    ByBody(Vec<Mapped>),
}

/// An envelope as one library writes it.
#[derive(Deserialize)]
struct Producer {
    name: String,
    broker: String,
    key: Option<Value>,
    #[serde(default)]
    properties: Map<String, Value>,
    #[serde(default)]
    headers: Vec<(String, Value)>,
    bodies: Option<Vec<Value>>,
    /// The answer of the ready mappings, if it has no effect by itself.
    mapped: Option<Expected>,
    /// Whether the message has an id that the inbox accepts.
    #[serde(default)]
    effect: bool,
}

/// One message to send, with its placeholders filled in.
struct Sent {
    producer: String,
    key: Option<Vec<u8>>,
    properties: Map<String, Value>,
    headers: Vec<(String, Value)>,
    /// `None` is Kafka's tombstone.
    body: Option<Vec<u8>>,
    /// The message's id, if it must take effect.
    effect: Option<String>,
    mapped: Option<Mapped>,
}

/// Returns all messages of a broker in the order of the file. Messages of one producer follow each
/// other, so each one has neighbours.
fn corpus(backend: Backend) -> Result<Vec<Sent>, Failure> {
    let Corpus { bodies, producers } = serde_json::from_str(include_str!("producers.json"))?;
    let mut sent = Vec::new();
    for producer in producers.iter().filter(|producer| producer.broker == backend.as_str()) {
        let default = bodies.get(backend.as_str()).ok_or("no bodies for this broker")?;
        for (at, body) in producer.bodies.as_ref().unwrap_or(default).iter().enumerate() {
            let mut id = None;
            let mapped = match &producer.mapped {
                Some(Expected::Same(mapped)) => Some(mapped.clone()),
                Some(Expected::ByBody(all)) => Some(all.get(at).ok_or("a body without an answer")?.clone()),
                None => None,
            };
            let headers = producer.headers.iter();
            let message = Sent {
                producer: producer.name.clone(),
                key: producer.key.as_ref().and_then(|key| bytes(key, &mut id)),
                properties: producer
                    .properties
                    .iter()
                    .map(|(name, value)| (name.clone(), filled(value, &mut id)))
                    .collect(),
                headers: headers.map(|(name, value)| (name.clone(), filled(value, &mut id))).collect(),
                body: bytes(body, &mut id),
                effect: None,
                mapped,
            };
            sent.push(Sent { effect: id.filter(|_| producer.effect), ..message });
        }
    }
    Ok(sent)
}

/// The number of the next `$n`.
static NEXT: AtomicU32 = AtomicU32::new(1_000);

/// Replaces `$v4` and `$v7` by fresh ids, and stores the latter in `id`; `$n` by a number of four
/// digits that no other message has.
fn filled(value: &Value, id: &mut Option<String>) -> Value {
    match value {
        Value::String(text) if text.contains("$v7") => {
            let fresh = MessageId::new().to_string();
            let text = text.replace("$v7", &fresh);
            *id = Some(fresh);
            Value::String(text)
        }
        Value::String(text) if text.contains("$n") => {
            Value::String(text.replace("$n", &NEXT.fetch_add(1, Ordering::Relaxed).to_string()))
        }
        Value::String(text) => Value::String(text.replace("$v4", &Uuid::new_v4().to_string())),
        Value::Array(values) => values.iter().map(|value| filled(value, id)).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| (name.clone(), filled(value, id))).collect()
        }
        other => other.clone(),
    }
}

/// Returns the bytes of a notation: text as it is, `{"hex": …}`, `{"repeat": [text, count]}`, null
/// as `None`, and anything else as JSON.
fn bytes(notation: &Value, id: &mut Option<String>) -> Option<Vec<u8>> {
    match filled(notation, id) {
        Value::Null => None,
        Value::String(text) => Some(text.into_bytes()),
        value => Some(special(&value).unwrap_or_else(|| value.to_string().into_bytes())),
    }
}

fn special(value: &Value) -> Option<Vec<u8>> {
    if let Some(hex) = value["hex"].as_str() {
        return (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).ok()).collect();
    }
    let repeat = value["repeat"].as_array()?;
    let count = usize::try_from(repeat[1].as_u64()?).ok()?;
    Some(repeat[0].as_str()?.repeat(count).into_bytes())
}

/// A handler that records which messages took effect.
struct WritesDown;

#[async_trait]
impl Handler<Sqlite> for WritesDown {
    async fn handle(&self, tx: &mut Tx<Sqlite>, message: &Message) -> Result<Option<Vec<u8>>, HandlerError> {
        let insert = sqlx::query("INSERT INTO effect VALUES ($1)").bind(message.id.to_string());
        insert.execute(&mut **tx).await?;
        Ok(None)
    }
}

/// Consumes the sent messages. Demands one effect or one dead letter for each.
async fn consumed(stage: &Stage, sent: Vec<Sent>, subscriber: impl Subscriber) -> Outcome {
    let database = Database::<Sqlite>::migrated(stage).await?;
    database.execute("CREATE TABLE effect (id TEXT NOT NULL)").await?;
    let inbox = Inbox::open(database.consumer.clone(), InboxOptions::default()).await?;
    let consumer = Consumer::builder(inbox.clone(), "billing").handler(WritesDown).subscribe(subscriber);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(consumer.run(async move { drop(stopped.await) }));
    let count = i64::try_from(sent.len())?;
    let all = "SELECT (SELECT count(*) FROM inbox_dead_letter) + (SELECT count(*) FROM effect)";
    let waited = eventually("every message is an effect or a dead letter", || async {
        Ok(when(database.integer(all).await? >= count))
    });
    let waited = waited.await;
    drop(stop);
    running.await??;
    let mut query = DeadLetterQuery::default();
    let mut letters = Vec::new();
    loop {
        let page = inbox.dead_letters(&query).await?;
        let Some(last) = page.last() else { break };
        query.after = Some(last.id);
        letters.extend(page);
    }
    let effects: Vec<String> = database.texts("SELECT id FROM effect").await?;
    compared(sent, letters, effects)?;
    waited
}

fn compared(mut sent: Vec<Sent>, mut letters: Vec<DeadLetter>, effects: Vec<String>) -> Outcome {
    let (applied, expected) = (effects.len(), sent.iter().filter_map(|sent| sent.effect.clone()));
    assert_eq!(effects.into_iter().collect::<BTreeSet<_>>(), expected.clone().collect(), "effects");
    assert_eq!(applied, expected.count(), "an effect was doubled");
    // Messages with the most headers choose first: a message without headers matches any dead
    // letter with its body.
    sent.sort_by_key(|sent| std::cmp::Reverse(sent.headers.len()));
    for sent in sent.iter().filter(|sent| sent.effect.is_none()) {
        let at = letters.iter().position(|letter| sent.is_kept_in(letter)).ok_or_else(|| {
            let body = String::from_utf8_lossy(sent.body.as_deref().unwrap_or_default());
            let body: String = body.chars().take(300).collect();
            let letters: Vec<_> = letters.iter().map(|letter| (&letter.error, &letter.payload)).collect();
            format!("no dead letter has all of {}, {:?}, {body}: {letters:?}", sent.producer, sent.headers)
        })?;
        let letter = letters.swap_remove(at);
        assert_eq!(letter.deliveries, 1, "{}: merged with another delivery", sent.producer);
    }
    assert!(letters.is_empty(), "dead letters of nothing that was sent: {letters:?}");
    Ok(())
}

impl Sent {
    /// Returns whether the dead letter has the body and the key of this message, and each of its
    /// headers whose value is text.
    fn is_kept_in(&self, letter: &DeadLetter) -> bool {
        let has = |name: &str, value: &str| {
            letter.headers.iter().any(|(known, text)| known == name && text == value)
        };
        let keeps = |(name, value): &(String, Value)| match value {
            Value::String(text) => {
                let elsewhere =
                    [name.replace("cloudEvents:", "ce_"), format!("kafka.{}", name.replace('-', "_"))];
                has(name, text) || elsewhere.iter().any(|name| has(name, text))
            }
            value if value["repeat"].is_array() => {
                special(value).is_some_and(|text| has(name, &String::from_utf8_lossy(&text)))
            }
            _ => true,
        };
        let key = match self.key.as_deref().map(std::str::from_utf8) {
            Some(Ok(key)) => letter.key.as_deref() == Some(key),
            _ => letter.key.is_none(),
        };
        self.is_payload(&letter.payload) && key && self.headers.iter().all(keeps)
    }

    /// Returns whether the payload is the body of this message. If the body is a CloudEvent in
    /// JSON, the payload may also be its data, because the inbox stores the other attributes as
    /// headers.
    fn is_payload(&self, payload: &[u8]) -> bool {
        let body = self.body.as_deref().unwrap_or_default();
        let event: Value = serde_json::from_slice(body).unwrap_or_default();
        let data = event.get("data").filter(|_| !event["specversion"].is_null());
        let is_data = data.is_some_and(|data| data.to_string().as_bytes() == payload);
        payload == body || is_data
    }
}

async fn from_kafka(stage: Stage) -> Outcome {
    let sent = corpus(Backend::Kafka)?;
    assert!(sent.len() >= 200, "{} messages", sent.len());
    let scene = KafkaScene::open(&stage).await?;
    to_kafka(&scene, &sent)?;
    let group = kafka::GroupConfig::new(&scene.group, [&scene.topic]);
    let config = kafka::Config::new(scene.servers.split(','));
    consumed(&stage, sent, kafka::Subscriber::new(config, group)?).await
}

fn to_kafka(scene: &KafkaScene, sent: &[Sent]) -> Outcome {
    let producer: BaseProducer = ClientConfig::new().set("bootstrap.servers", &scene.servers).create()?;
    for message in sent {
        let mut headers = OwnedHeaders::new();
        for (key, value) in &message.headers {
            let value = bytes(value, &mut None);
            headers = headers.insert(Header { key, value: value.as_deref() });
        }
        let mut record = BaseRecord::<[u8], [u8]>::to(&scene.topic).headers(headers);
        record.key = message.key.as_deref();
        record.payload = message.body.as_deref();
        // The time of a record may lie before 1970, as on a machine without a clock.
        record.timestamp = message.properties.get("timestamp").and_then(Value::as_i64);
        producer.send(record).map_err(|(error, _)| error)?;
    }
    Ok(producer.flush(PATIENCE)?)
}

fn amqp(value: &Value) -> Result<AMQPValue, Failure> {
    Ok(match value {
        Value::Null => AMQPValue::Void,
        Value::Bool(value) => AMQPValue::Boolean(*value),
        Value::String(text) => AMQPValue::LongString(text.as_str().into()),
        Value::Number(number) => match number.as_i64() {
            Some(integer) => AMQPValue::LongLongInt(integer),
            None => AMQPValue::Double(number.as_f64().ok_or("a number without a value")?),
        },
        Value::Array(values) => {
            AMQPValue::FieldArray(FieldArray::from(values.iter().map(amqp).collect::<Result<Vec<_>, _>>()?))
        }
        Value::Object(fields) => match special(value) {
            Some(bytes) if value["hex"].is_string() => AMQPValue::ByteArray(ByteArray::from(bytes)),
            Some(text) => AMQPValue::LongString(text.into()),
            None => AMQPValue::FieldTable(table(fields)?),
        },
    })
}

fn table<'a>(fields: impl IntoIterator<Item = (&'a String, &'a Value)>) -> Result<FieldTable, Failure> {
    let mut table = FieldTable::default();
    for (name, value) in fields {
        table.insert(ShortString::try_new(name.as_str())?, amqp(value)?);
    }
    Ok(table)
}

fn amqp_properties(message: &Sent) -> Result<BasicProperties, Failure> {
    let headers = table(message.headers.iter().map(|(name, value)| (name, value)))?;
    let mut properties = BasicProperties::default().with_headers(headers);
    for (name, value) in &message.properties {
        let text = || ShortString::try_new(value.as_str().unwrap_or_default());
        let number = value.as_u64().unwrap_or_default();
        properties = match name.as_str() {
            "content_type" => properties.with_content_type(text()?),
            "content_encoding" => properties.with_content_encoding(text()?),
            "correlation_id" => properties.with_correlation_id(text()?),
            "reply_to" => properties.with_reply_to(text()?),
            "expiration" => properties.with_expiration(text()?),
            "message_id" => properties.with_message_id(text()?),
            "type" => properties.with_type(text()?),
            "app_id" => properties.with_app_id(text()?),
            "cluster_id" => properties.with_cluster_id(text()?),
            "delivery_mode" => properties.with_delivery_mode(u8::try_from(number)?),
            "priority" => properties.with_priority(u8::try_from(number)?),
            "timestamp" => properties.with_timestamp(number),
            other => return Err(format!("no AMQP property is called {other}").into()),
        };
    }
    Ok(properties)
}

async fn from_rabbitmq(stage: Stage) -> Outcome {
    let sent = corpus(Backend::Rabbitmq)?;
    let queue = queue(&stage, false).await?;
    to_rabbitmq(&queue, &sent).await?;
    let config = rabbitmq::Config::new(Backend::Rabbitmq.address()?);
    consumed(&stage, sent, rabbitmq::Subscriber::new(&config, [&queue])?).await
}

async fn to_rabbitmq(queue: &str, sent: &[Sent]) -> Outcome {
    let message = |sent: &Sent| Ok((amqp_properties(sent)?, sent.body.clone().unwrap_or_default()));
    let messages = sent.iter().map(message).collect::<Result<Vec<_>, Failure>>()?;
    Rabbitmq::new(Backend::Rabbitmq.address()?).publish("", queue, messages).await
}

async fn from_sqs(stage: Stage) -> Outcome {
    let sent = corpus(Backend::Sqs)?;
    let queue = sqs_queue(&stage).await?;
    to_sqs(&queue, &sent).await?;
    consumed(&stage, sent, sqs::Subscriber::new(&crate::sqs::config(Backend::Sqs.address()?), &queue)?).await
}

async fn to_sqs(queue: &str, sent: &[Sent]) -> Outcome {
    let plain = Sqs::elasticmq(Backend::Sqs.address()?).await;
    let url = plain.url(queue).await?;
    for message in sent {
        let body = String::from_utf8(message.body.clone().unwrap_or_default())?;
        let mut send = plain.client().send_message().queue_url(&url).message_body(body);
        for (name, value) in &message.headers {
            let attribute = MessageAttributeValue::builder();
            let attribute = match value {
                Value::String(text) => attribute.data_type("String").string_value(text),
                Value::Number(number) => attribute.data_type("Number").string_value(number.to_string()),
                value => match value["number"].as_str() {
                    Some(number) => attribute.data_type("Number").string_value(number),
                    None => attribute
                        .data_type("Binary")
                        .binary_value(Blob::new(special(value).ok_or("no bytes")?)),
                },
            };
            send = send.message_attributes(name, attribute.build()?);
        }
        send.send().await?;
    }
    Ok(())
}

/// A delivery as the mappings read it.
#[derive(Debug, PartialEq, Eq)]
enum Read {
    Own,
    Foreign { id: MessageId, kind: String, is_tombstone: bool },
    Refused(String),
}

/// Goal: what each library writes is read by a ready mapping, or refused with a clear answer; a
/// redelivery gives the same ids, and only a record without a value is a tombstone. Oracle: the
/// file of the corpus.
async fn mapped<F, Fut>(sent: Vec<Sent>, topic: &str, subscribe: F) -> Outcome
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<Box<dyn Subscription>, Failure>>,
{
    let read = foreign::first([foreign::any, foreign::by_arrival]);
    let mut sessions = Vec::new();
    for is_last in [false, true] {
        let mut member = subscribe().await?;
        let received = receive(&mut member, sent.len()).await?;
        let outcomes = received.iter().map(|delivery| match &delivery.message {
            Ok(_) => (Bytes::new(), Read::Own),
            Err(malformed) => {
                let outcome = match read(malformed).map(Message::from) {
                    Ok(message) => Read::Foreign {
                        id: message.id,
                        kind: message.kind.to_string(),
                        is_tombstone: message.is_tombstone(),
                    },
                    Err(error) => Read::Refused(error.to_string()),
                };
                (malformed.payload.clone(), outcome)
            }
        });
        sessions.push(outcomes.collect::<Vec<_>>());
        if is_last {
            settle(&mut member, &received).await?;
        }
        member.close().await?;
    }
    let ids = |outcomes: &[(Bytes, Read)]| -> Vec<MessageId> {
        let ids = outcomes.iter().filter_map(|(_, outcome)| match outcome {
            Read::Foreign { id, .. } => Some(*id),
            _ => None,
        });
        let mut ids: Vec<_> = ids.collect();
        ids.sort_unstable();
        ids
    };
    let [mut first, second] = <[_; 2]>::try_from(sessions).map_err(|_| "two sessions")?;
    assert_eq!(ids(&first), ids(&second), "a redelivery has the same ids");
    let different: BTreeSet<_> = ids(&first).into_iter().collect();
    assert_eq!(different.len(), ids(&first).len(), "two messages have one id");
    for sent in &sent {
        let fits = |(payload, outcome): &(Bytes, Read)| match (&sent.mapped, outcome) {
            (None, Read::Own) => true,
            (Some(Mapped::Kind(expected)), Read::Foreign { kind, is_tombstone, .. }) => {
                *kind == expected.replace("$topic", topic)
                    && *is_tombstone == sent.body.is_none()
                    && sent.is_payload(payload)
            }
            (Some(Mapped::Error(part)), Read::Refused(error)) => {
                error.contains(part) && sent.is_payload(payload)
            }
            _ => false,
        };
        let at = first.iter().position(fits).ok_or_else(|| {
            let left: Vec<_> = first.iter().map(|(_, outcome)| outcome).collect();
            format!("{}: nothing is {:?}; left: {left:?}", sent.producer, sent.mapped)
        })?;
        first.swap_remove(at);
    }
    Ok(())
}

async fn mapped_from_kafka(stage: Stage) -> Outcome {
    let sent = corpus(Backend::Kafka)?;
    let scene = KafkaScene::open(&stage).await?;
    to_kafka(&scene, &sent)?;
    mapped(sent, &scene.topic, || scene.subscribe()).await
}

async fn mapped_from_rabbitmq(stage: Stage) -> Outcome {
    let sent = corpus(Backend::Rabbitmq)?;
    let queue = queue(&stage, false).await?;
    to_rabbitmq(&queue, &sent).await?;
    mapped(sent, &queue, || amqp_subscribe(&queue)).await
}

async fn mapped_from_sqs(stage: Stage) -> Outcome {
    let sent = corpus(Backend::Sqs)?;
    let queue = sqs_queue(&stage).await?;
    to_sqs(&queue, &sent).await?;
    mapped(sent, &queue, || sqs_subscribe(&queue)).await
}
