//! Evidence of a Kafka record that is not a message: everything besides key, value and header
//! texts. Pure.

use message::cloudevents::format_unix_ms;
use rdkafka::Timestamp;
use rdkafka::message::Headers as _;

use crate::evidence::hex;

/// Returns the properties of a record, named as in `docs/wire.md`.
pub(super) fn properties(record: &impl rdkafka::Message) -> Vec<(String, String)> {
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
    for header in record.headers().into_iter().flat_map(|headers| headers.iter()) {
        match header.value {
            None => put(&format!("header_null.{}", header.key), String::new()),
            Some(value) if std::str::from_utf8(value).is_err() => {
                put(&format!("header_hex.{}", header.key), hex(value));
            }
            Some(_) => {}
        }
    }
    properties
}
