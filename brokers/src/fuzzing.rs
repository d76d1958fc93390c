//! Exposes the wire formats as functions of plain values for the fuzz targets. Not part of the API.
//!
//! Each broker has two functions: `*_read` reads a record, and `*_again` writes a message and reads
//! it back. `*_again` returns `None` where writing is refused.

use ::http::{HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use message::{Malformed, Message};
use rdkafka::Timestamp;
use rdkafka::message::{Header, OwnedHeaders, OwnedMessage};

use crate::{http, kafka, rabbitmq, sqs};

/// The outcome of reading a record.
pub type Read = Result<Message, Box<Malformed>>;

/// A record as it may arrive, in terms that all brokers share.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// Topic, routing key or queue.
    pub topic: String,
    /// Kafka's key.
    pub key: Option<Vec<u8>>,
    /// Headers, properties or attributes.
    pub headers: Vec<(String, Vec<u8>)>,
    /// Value, payload or body.
    pub payload: Vec<u8>,
}

/// Reads a record as a Kafka record.
pub fn kafka_read(record: &Record) -> Read {
    let headers = record.headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
        headers.insert(Header { key, value: Some(value) })
    });
    let payload = Some(record.payload.clone());
    let at = Timestamp::NotAvailable;
    kafka::wire::read(&OwnedMessage::new(
        payload,
        record.key.clone(),
        record.topic.clone(),
        at,
        0,
        0,
        Some(headers),
    ))
}

/// Writes a message as a Kafka record and reads it back.
pub fn kafka_again(message: &Message) -> Option<Read> {
    let at = Timestamp::NotAvailable;
    let key = message.key.as_ref().map(|key| key.as_str().as_bytes().to_vec());
    let payload = kafka::wire::value(message).map(<[u8]>::to_vec);
    let headers = Some(kafka::wire::headers(message));
    Some(kafka::wire::read(&OwnedMessage::new(payload, key, message.topic.to_string(), at, 0, 0, headers)))
}

/// Reads a record as an AMQP delivery. `message-id`, `content-type` and `type` are properties;
/// everything else is a header, typed by how its text parses. Anything that AMQP cannot carry is
/// left out.
pub fn rabbitmq_read(record: &Record) -> Read {
    let mut properties = BasicProperties::default();
    let mut table = FieldTable::default();
    for (name, bytes) in &record.headers {
        let text = String::from_utf8_lossy(bytes);
        let Ok(short_name) = ShortString::try_new(name.as_str()) else { continue };
        match (name.as_str(), ShortString::try_new(&*text)) {
            ("message-id", Ok(text)) => properties = properties.with_message_id(text),
            ("content-type", Ok(text)) => properties = properties.with_content_type(text),
            ("type", Ok(text)) => properties = properties.with_type(text),
            _ => {
                table.insert(short_name, value(&text, bytes));
            }
        }
    }
    rabbitmq::wire::decode(&record.topic, &properties.with_headers(table), record.payload.clone())
}

fn value(text: &str, bytes: &[u8]) -> AMQPValue {
    if let Ok(value) = text.parse() {
        AMQPValue::Boolean(value)
    } else if let Ok(value) = text.parse() {
        AMQPValue::LongLongInt(value)
    } else if let Ok(value) = text.parse() {
        AMQPValue::Double(value)
    } else {
        AMQPValue::LongString(LongString::from(bytes.to_vec()))
    }
}

/// Writes a message as an AMQP delivery and reads it back.
pub fn rabbitmq_again(message: &Message) -> Option<Read> {
    let bounds = rabbitmq::wire::Bounds { payload_bytes_max: 16 << 20, frame_bytes_max: 131_072 };
    let record = rabbitmq::wire::encode(message, &bounds, None).ok()?;
    let topic = record.routing_key.as_str();
    Some(rabbitmq::wire::decode(topic, &record.properties, record.payload.to_vec()))
}

/// Reads a record as an SQS message; all values become text.
pub fn sqs_read(record: &Record) -> Read {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let attributes = record.headers.iter().map(|(name, value)| (name.clone(), text(value))).collect();
    sqs::wire::decode(&record.topic, text(&record.payload), attributes)
}

/// Writes a message as an SQS message and reads it back.
pub fn sqs_again(message: &Message) -> Option<Read> {
    let record = sqs::wire::encode(message, 1 << 20).ok()?;
    let attributes = record.attributes.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Some(sqs::wire::decode(message.topic.as_str(), record.body, attributes))
}

/// Reads a record as an HTTP request. Anything that a request cannot carry is left out.
pub fn http_read(record: &Record) -> Read {
    http::read(&record.topic, &headers(&record.headers), Bytes::from(record.payload.clone()))
}

fn headers(pairs: &[(String, Vec<u8>)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    headers
}

/// Writes a message as an HTTP request and reads it back, in structured or binary mode.
pub fn http_again(message: &Message, is_structured: bool) -> Option<Read> {
    let mode = if is_structured { http::Mode::Structured } else { http::Mode::Binary };
    http::fuzzing::again(message, mode)
}

/// The verdict on an answer of an HTTP endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Whether it confirms the message.
    pub is_confirmed: bool,
    /// The error of a message that it does not confirm.
    pub error: String,
    /// The wait that the endpoint asks for.
    pub retry_after: Option<std::time::Duration>,
}

/// Reads the answer of an HTTP endpoint at `url` to a message. The record's topic is its status, if
/// it can be one, and `at` is the current time. Returns `None` if the record is not an answer, or
/// `url` not an endpoint.
pub fn http_answer(
    url: &str,
    record: &Record,
    message: &Message,
    at: std::time::SystemTime,
) -> Option<Answer> {
    http::fuzzing::answered(url, &record.topic, &headers(&record.headers), &record.payload, message, at)
}
