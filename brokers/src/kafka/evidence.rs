//! Evidence of a Kafka record that is not a message: everything except its key, its value and the
//! headers that are text. Pure.

use message::cloudevents::format_unix_ms;
use rdkafka::Timestamp;

use super::wire::Arrived;
use crate::evidence::hex;

/// Returns the record's place in its topic. It is part of the delivery's origin, which
/// distinguishes deliveries, and therefore not a property.
pub(super) fn place(record: &impl rdkafka::Message) -> [(String, String); 2] {
    [("partition", record.partition().to_string()), ("offset", record.offset().to_string())]
        .map(|(name, value)| (format!("kafka.{name}"), value))
}

/// Returns the properties of a record with these headers, named as in `docs/wire.md`.
pub(super) fn properties(record: &impl rdkafka::Message, headers: &[Arrived<'_>]) -> Vec<(String, String)> {
    let mut properties = Vec::new();
    let mut put = |name: &str, value: String| properties.push((format!("kafka.{name}"), value));
    match record.timestamp() {
        Timestamp::NotAvailable => {}
        Timestamp::CreateTime(at_ms) => {
            put("timestamp", format_unix_ms(at_ms));
            put("timestamp_type", String::from("CreateTime"));
        }
        Timestamp::LogAppendTime(at_ms) => {
            put("timestamp", format_unix_ms(at_ms));
            put("timestamp_type", String::from("LogAppendTime"));
        }
    }
    if let Some(key) = record.key().filter(|key| std::str::from_utf8(key).is_err()) {
        put("key_hex", hex(key));
    }
    if record.payload().is_none() {
        put("value", String::from("null"));
    }
    for Arrived { at, header } in headers {
        match header.as_ref().map(|header| (header.key, header.value)) {
            None => put(&format!("header_without_text.{at}"), String::new()),
            Some((name, None)) => put(&format!("header_null.{name}"), String::new()),
            Some((name, Some(value))) if std::str::from_utf8(value).is_err() => {
                put(&format!("header_hex.{name}"), hex(value));
            }
            Some(_) => {}
        }
    }
    properties
}
