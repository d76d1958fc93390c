//! Evidence of an AMQP delivery that is not a message: everything besides header texts and body.
//! Pure.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, ShortString};
use message::Malformed;
use message::cloudevents::format_unix_ms;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::headers::{DEPTH_MAX, PREFIXES, header_text};
use crate::evidence::hex;

/// Adds what `malformed` lacks: the protocol's properties, and of these headers those without a
/// plain text, and the broker's own as notes.
pub(super) fn complete<'a>(
    malformed: &mut Malformed,
    properties: &BasicProperties,
    headers: impl Iterator<Item = (&'a ShortString, &'a AMQPValue)>,
) {
    malformed.properties.extend(of_protocol(properties));
    malformed.headers.retain(|(name, _)| !is_of_broker(name));
    for (name, value) in headers {
        let name = name.as_str();
        if is_of_broker(name) {
            malformed.broker_notes.push((name.to_owned(), readable(value)));
            continue;
        }
        if header_text(value).is_none() {
            malformed.headers.push((name.to_owned(), readable(value)));
        }
        // A number and its text, or two spellings of a prefix, are different headers.
        let is_plain = matches!(value, AMQPValue::LongString(_)) && !name.starts_with(PREFIXES[1]);
        if !is_plain {
            malformed.properties.push((format!("amqp.header_type.{name}"), kind(value).to_owned()));
        }
        if let AMQPValue::LongString(text) = value
            && std::str::from_utf8(text.as_bytes()).is_err()
        {
            malformed.properties.push((format!("amqp.header_hex.{name}"), hex(text.as_bytes())));
        }
    }
}

/// Returns the SHA-256 of all headers that a redelivery repeats, in hexadecimal.
pub(super) fn digest<'a>(headers: impl Iterator<Item = (&'a ShortString, &'a AMQPValue)>) -> String {
    let mut hash = Sha256::new();
    for (name, value) in headers.filter(|(name, _)| !is_of_broker(name.as_str())) {
        let shown = match value {
            AMQPValue::LongString(text) => text.as_bytes().to_vec(),
            value => readable(value).into_bytes(),
        };
        for part in [name.as_str().as_bytes(), kind(value).as_bytes(), &shown] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
    }
    hex(&hash.finalize())
}

/// Returns whether the message has a position of its own: in a stream, where nothing is ever
/// redelivered.
pub(super) fn has_place(properties: &BasicProperties) -> bool {
    properties.headers().as_ref().is_some_and(|headers| headers.contains_key("x-stream-offset"))
}

/// Returns whether RabbitMQ sets this header, and changes it when it redelivers a message or moves
/// it to another queue (rabbitmq.com/docs/dlx, rabbitmq.com/docs/quorum-queues).
pub(super) fn is_of_broker(name: &str) -> bool {
    ["x-death", "x-delivery-count", "x-acquired-count"].contains(&name)
        || ["x-first-death-", "x-last-death-"].iter().any(|prefix| name.starts_with(prefix))
}

/// Returns the AMQP 0-9-1 properties that are set, under their names in the specification.
fn of_protocol(properties: &BasicProperties) -> Vec<(String, String)> {
    let text = |property: &Option<ShortString>| property.as_ref().map(ToString::to_string);
    let number = |property: &Option<u8>| property.as_ref().map(ToString::to_string);
    let at_ms = |seconds: u64| i64::try_from(seconds).ok()?.checked_mul(1_000);
    let time = |seconds: u64| at_ms(seconds).map_or_else(|| seconds.to_string(), format_unix_ms);
    let all = [
        ("content_type", text(properties.content_type())),
        ("content_encoding", text(properties.content_encoding())),
        ("delivery_mode", number(properties.delivery_mode())),
        ("priority", number(properties.priority())),
        ("correlation_id", text(properties.correlation_id())),
        ("reply_to", text(properties.reply_to())),
        ("expiration", text(properties.expiration())),
        ("message_id", text(properties.message_id())),
        ("timestamp", properties.timestamp().map(time)),
        ("type", text(properties.kind())),
        ("user_id", text(properties.user_id())),
        ("app_id", text(properties.app_id())),
        ("cluster_id", text(properties.cluster_id())),
    ];
    all.into_iter().filter_map(|(name, value)| Some((format!("amqp.{name}"), value?))).collect()
}

/// Returns a header value in readable form: plain text, or JSON.
fn readable(value: &AMQPValue) -> String {
    header_text(value).unwrap_or_else(|| json(value, 0).to_string())
}

fn json(value: &AMQPValue, depth: usize) -> Value {
    match value {
        _ if depth > DEPTH_MAX => Value::from("…"),
        AMQPValue::FieldTable(table) => {
            let entries = table.inner().iter();
            entries.map(|(name, value)| (name.to_string(), json(value, depth + 1))).collect()
        }
        AMQPValue::FieldArray(array) => array.as_slice().iter().map(|value| json(value, depth + 1)).collect(),
        AMQPValue::Boolean(value) => Value::from(*value),
        AMQPValue::ShortShortInt(value) => Value::from(*value),
        AMQPValue::ShortShortUInt(value) => Value::from(*value),
        AMQPValue::ShortInt(value) => Value::from(*value),
        AMQPValue::ShortUInt(value) => Value::from(*value),
        AMQPValue::LongInt(value) => Value::from(*value),
        AMQPValue::LongUInt(value) => Value::from(*value),
        AMQPValue::LongLongInt(value) => Value::from(*value),
        AMQPValue::Float(value) => Value::from(*value),
        AMQPValue::Double(value) => Value::from(*value),
        AMQPValue::Timestamp(seconds) => Value::from(*seconds),
        AMQPValue::DecimalValue(decimal) => Value::from(format!("{}e-{}", decimal.value, decimal.scale)),
        AMQPValue::ByteArray(bytes) => Value::from(hex(bytes.as_slice())),
        AMQPValue::Void => Value::Null,
        AMQPValue::LongString(_) | AMQPValue::ShortString(_) => Value::from(header_text(value)),
    }
}

/// Returns the type of a header value.
fn kind(value: &AMQPValue) -> &'static str {
    match value {
        AMQPValue::Boolean(_) => "bool",
        AMQPValue::ShortShortInt(_) => "int8",
        AMQPValue::ShortShortUInt(_) => "uint8",
        AMQPValue::ShortInt(_) => "int16",
        AMQPValue::ShortUInt(_) => "uint16",
        AMQPValue::LongInt(_) => "int32",
        AMQPValue::LongUInt(_) => "uint32",
        AMQPValue::LongLongInt(_) => "int64",
        AMQPValue::Float(_) => "float",
        AMQPValue::Double(_) => "double",
        AMQPValue::DecimalValue(_) => "decimal",
        AMQPValue::ShortString(_) => "short text",
        AMQPValue::LongString(_) => "text",
        AMQPValue::FieldArray(_) => "array",
        AMQPValue::Timestamp(_) => "timestamp",
        AMQPValue::FieldTable(_) => "table",
        AMQPValue::ByteArray(_) => "bytes",
        AMQPValue::Void => "void",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapin::types::{FieldArray, FieldTable};

    fn short(text: &str) -> ShortString {
        ShortString::try_new(text).unwrap()
    }

    fn headers(all: Vec<(&str, AMQPValue)>) -> FieldTable {
        let mut table = FieldTable::default();
        for (name, value) in all {
            table.insert(short(name), value);
        }
        table
    }

    fn malformed(all: Vec<(&str, AMQPValue)>) -> Malformed {
        let properties = BasicProperties::default().with_headers(headers(all));
        *super::super::wire::decode("orders", &properties, b"{}".to_vec()).unwrap_err()
    }

    #[test]
    fn every_property_and_every_header_is_kept() {
        let death =
            headers(vec![("count", AMQPValue::LongLongInt(2)), ("queue", AMQPValue::LongString("q".into()))]);
        let list = vec![AMQPValue::Void, AMQPValue::Boolean(true), AMQPValue::LongString("\"".into())];
        let properties = BasicProperties::default()
            .with_message_id(short("17"))
            .with_correlation_id(short("c"))
            .with_reply_to(short("answers"))
            .with_app_id(short("shop"))
            .with_type(short("charge"))
            .with_timestamp(1_700_000_000)
            .with_priority(4)
            .with_headers(headers(vec![
                ("tenant", AMQPValue::LongString("acme".into())),
                ("attempt", AMQPValue::LongInt(3)),
                ("raw", AMQPValue::ByteArray(vec![0, 255].into())),
                ("list", AMQPValue::FieldArray(FieldArray::from(list))),
                ("latin", AMQPValue::LongString(vec![0xe4].into())),
                ("x-death", AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::FieldTable(death)]))),
                ("x-first-death-queue", AMQPValue::LongString("q".into())),
                ("x-delivery-count", AMQPValue::LongLongInt(2)),
            ]));
        let malformed = super::super::wire::decode("orders", &properties, b"{}".to_vec()).unwrap_err();
        for (name, value) in [
            ("message-id", "17"),
            ("amqp.message_id", "17"),
            ("amqp.correlation_id", "c"),
            ("amqp.reply_to", "answers"),
            ("amqp.app_id", "shop"),
            ("amqp.type", "charge"),
            ("amqp.timestamp", "2023-11-14T22:13:20Z"),
            ("amqp.priority", "4"),
            ("tenant", "acme"),
            ("attempt", "3"),
            ("amqp.header_type.attempt", "int32"),
            ("raw", "\"00ff\""),
            ("amqp.header_type.raw", "bytes"),
            ("list", r#"[null,true,"\""]"#),
            ("amqp.header_hex.latin", "e4"),
            ("x-death", r#"[{"count":2,"queue":"q"}]"#),
            ("x-first-death-queue", "q"),
            ("x-delivery-count", "2"),
        ] {
            assert_eq!(malformed.find(name), Some(value), "{name}: {malformed:?}");
        }
        assert_eq!(malformed.find("amqp.header_type.tenant"), None);
        let notes: Vec<&str> = malformed.broker_notes.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(notes, ["x-death", "x-delivery-count", "x-first-death-queue"]);
        assert!(!malformed.headers.iter().any(|(name, _)| notes.contains(&name.as_str())));
    }

    #[test]
    fn a_number_is_not_its_text_and_one_spelling_of_a_prefix_not_the_other() {
        let text = |text: &str| AMQPValue::LongString(text.into());
        let all = [
            malformed(vec![("n", text("3"))]),
            malformed(vec![("n", AMQPValue::LongInt(3))]),
            malformed(vec![("n", AMQPValue::LongLongInt(3))]),
            malformed(vec![("cloudEvents_type", text("t"))]),
            malformed(vec![("cloudEvents:type", text("t"))]),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(all[at + 1..].iter().all(|other| other != one), "{one:?}");
        }
    }

    #[test]
    fn a_table_of_any_depth_is_shown_to_a_bound() {
        let deep =
            (0..1_000).fold(AMQPValue::Void, |inner, _| AMQPValue::FieldTable(headers(vec![("a", inner)])));
        let shown = malformed(vec![("deep", deep)]).find("deep").unwrap().to_owned();
        assert!(shown.contains('…') && shown.len() < 200, "{shown}");
    }
}
