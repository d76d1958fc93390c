//! Messages and their forms on the wire, from the file that clients in other languages read in
//! their own tests.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use message::{Chunk, ContentType, EventType, Message, MessageId, OrderingKey, Source, Topic, TraceContext};
use rdkafka::message::Headers;
use serde_json::Value;

use crate::{kafka, rabbitmq, sqs};

const FILE: &str = include_str!("../../examples/clients/vectors.json");

/// A message in the file, and its forms.
struct Wire {
    message: Message,
    forms: Value,
}

fn wires() -> Vec<Wire> {
    let file: Value = serde_json::from_str(FILE).unwrap();
    let wires = file["wires"].as_array().unwrap().iter();
    wires.map(|forms| Wire { message: message(&forms["message"]), forms: forms.clone() }).collect()
}

fn message(of: &Value) -> Message {
    let text = |name: &str| of[name].as_str().unwrap();
    let given = |name: &str| of[name].as_str().map(str::to_owned);
    let number = |name: &str| of["chunk"][name].as_u64().unwrap();
    let payload = STANDARD.decode(text("payload_base64")).unwrap();
    let topic = Topic::new(text("topic")).unwrap();
    let mut message = Message::new(topic, EventType::new(text("kind")).unwrap(), payload)
        .with_id(text("id").parse::<MessageId>().unwrap())
        .with_content_type(ContentType::new(text("content_type")).unwrap());
    message.key = given("key").map(|key| OrderingKey::new(key).unwrap());
    message.source = Source::new(text("source")).unwrap();
    message.time = (UNIX_EPOCH + Duration::from_micros(of["time_microseconds"].as_u64().unwrap())).into();
    message.trace =
        given("traceparent").map(|parent| TraceContext::new(parent, given("tracestate")).unwrap());
    for (name, value) in of["headers"].as_object().unwrap() {
        message.headers.insert(name, value.as_str().unwrap()).unwrap();
    }
    if of["chunk"].is_object() {
        let whole = of["chunk"]["fingerprint"].as_str().unwrap().parse().unwrap();
        let index = u32::try_from(number("index")).unwrap();
        let count = u32::try_from(number("count")).unwrap();
        message.chunk = Some(Box::new(Chunk::new(index, count, number("bytes"), whole).unwrap()));
    }
    message
}

fn texts(of: &Value) -> BTreeMap<String, String> {
    serde_json::from_value(of.clone()).unwrap()
}

fn headers(table: &FieldTable) -> BTreeMap<String, String> {
    let text = |value: &AMQPValue| match value {
        AMQPValue::LongString(text) => String::from_utf8(text.as_bytes().to_vec()).unwrap(),
        other => panic!("{other:?}"),
    };
    table.inner().iter().map(|(name, value)| (name.to_string(), text(value))).collect()
}

#[test]
fn kafka_headers_are_those_of_the_clients() {
    for Wire { message, forms } in wires() {
        let written = kafka::wire::headers(&message);
        let text = |value: Option<&[u8]>| String::from_utf8(value.unwrap().to_vec()).unwrap();
        let written: BTreeMap<String, String> =
            written.iter().map(|header| (header.key.to_owned(), text(header.value))).collect();
        assert_eq!(written, texts(&forms["kafka"]["headers"]));
        assert_eq!(message.key.as_ref().map(OrderingKey::as_str), forms["kafka"]["key"].as_str());
    }
}

#[test]
fn rabbitmq_properties_are_those_of_the_clients() {
    let bounds = rabbitmq::wire::Bounds { payload_bytes_max: 1 << 20, frame_bytes_max: 131_072 };
    for Wire { message, forms } in wires() {
        let forms = &forms["rabbitmq"];
        let record = rabbitmq::wire::encode(&message, &bounds, None).unwrap();
        let properties = &record.properties;
        assert_eq!(headers(properties.headers().as_ref().unwrap()), texts(&forms["headers"]));
        for (name, property) in [
            ("message_id", properties.message_id()),
            ("type", properties.kind()),
            ("content_type", properties.content_type()),
            ("routing_key", &Some(record.routing_key.clone())),
        ] {
            assert_eq!(property.as_ref().map(ToString::to_string).as_deref(), forms[name].as_str(), "{name}");
        }
        assert_eq!(*properties.timestamp(), forms["timestamp"].as_u64());
        assert_eq!(properties.delivery_mode().map(u64::from), forms["delivery_mode"].as_u64());
        let read = rabbitmq::wire::decode("orders", properties, record.payload.to_vec()).unwrap();
        assert_eq!(read, message);
    }
}

#[test]
fn sqs_bodies_and_attributes_are_those_of_the_clients() {
    for Wire { message, forms } in wires() {
        let record = sqs::wire::encode(&message, 1 << 20).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&record.body).unwrap(), forms["sqs"]["body"]);
        let written = record.attributes.into_iter().map(|(name, value)| (name.to_owned(), value));
        assert_eq!(written.collect::<BTreeMap<_, _>>(), texts(&forms["sqs"]["attributes"]));
    }
}

/// Returns the properties of a delivery in the file.
fn properties(form: &Value) -> BasicProperties {
    let given = |name: &str| form[name].as_str().map(|text| ShortString::try_new(text).unwrap());
    let mut table = FieldTable::default();
    for (name, text) in texts(&form["headers"]) {
        table.insert(ShortString::try_new(name).unwrap(), AMQPValue::LongString(text.into()));
    }
    let mut properties = BasicProperties::default().with_headers(table);
    if let Some(id) = given("message_id") {
        properties = properties.with_message_id(id);
    }
    if let Some(kind) = given("type") {
        properties = properties.with_type(kind);
    }
    if let Some(content_type) = given("content_type") {
        properties = properties.with_content_type(content_type);
    }
    properties
}

/// Goal: what other producers send is read, and refused, as the clients do it. Oracle: what the
/// file says of each delivery.
#[test]
fn deliveries_of_others_are_read_as_by_the_clients() {
    let file: Value = serde_json::from_str(FILE).unwrap();
    let deliveries = file["deliveries"].as_array().unwrap();
    assert!(deliveries.len() > 30);
    for delivery in deliveries {
        let why = delivery["why"].as_str().unwrap();
        let form = &delivery["rabbitmq"];
        let expected = &delivery["message"];
        let body = form["body"].as_str().unwrap().as_bytes().to_vec();
        let read = rabbitmq::wire::decode(form["routing_key"].as_str().unwrap(), &properties(form), body);
        if expected.is_null() {
            assert!(read.is_err(), "{why}");
            continue;
        }
        let read = read.unwrap_or_else(|malformed| panic!("{why}: {malformed}"));
        let of = |name: &str| expected[name].as_str();
        assert_eq!(Some(read.id.to_string().as_str()), of("id"), "{why}");
        assert_eq!(Some(read.kind.as_str()), of("kind"), "{why}");
        assert_eq!(read.key.as_ref().map(OrderingKey::as_str), of("key"), "{why}");
        assert_eq!(Some(read.source.as_str()), of("source"), "{why}");
        assert_eq!(Some(read.content_type.as_str()), of("content_type"), "{why}");
        let headers = read.headers.iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(headers.collect::<BTreeMap<_, _>>(), texts(&expected["headers"]), "{why}");
        let payload = STANDARD.decode(of("payload_base64").unwrap()).unwrap();
        assert_eq!(&read.payload[..], &payload[..], "{why}");
    }
}
