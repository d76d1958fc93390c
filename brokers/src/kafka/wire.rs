//! Converts messages to Kafka records and back: the CloudEvents Kafka binding in binary mode
//! (<https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/kafka-protocol-binding.md>).
//!
//! | record | message |
//! |---|---|
//! | key | ordering key; a record without one has its `ce_subject` as ordering key |
//! | value | payload; a tombstone (no value) is read as an empty payload |
//! | timestamp | time of the handover to the client library: Kafka's retention counts from it, and a message may have waited longer than that |
//! | header `ce_id`, `ce_source`, `ce_type`, `ce_time`, `ce_specversion`, `ce_subject` | CloudEvents attributes |
//! | header `ce_chunkindex`, `ce_chunkcount`, `ce_chunkbytes`, `ce_chunkfingerprint` | which part of a larger message it is |
//! | header `content-type` | content type |
//! | header `traceparent`, `tracestate` | trace context |
//! | any other header | free header |
//!
//! An event in structured mode (`content-type: application/cloudevents+json`), as other producers
//! send it, is also read.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use message::cloudevents::{self, Envelope};
use message::{Malformed, Message};
use rdkafka::message::{Header, Headers, OwnedHeaders};

use super::evidence;
use crate::structured;

const PREFIX: &str = "ce_";
/// The attributes and their headers, so that no name is built for each message.
const ATTRIBUTES: [(&str, &str); 6] = [
    ("specversion", "ce_specversion"),
    ("id", "ce_id"),
    ("source", "ce_source"),
    ("type", "ce_type"),
    ("time", "ce_time"),
    ("subject", "ce_subject"),
];
const CONTENT_TYPE: &str = "content-type";

/// Returns the record's headers.
pub(crate) fn headers(message: &Message) -> OwnedHeaders {
    let plain = cloudevents::trace_headers(message).chain(message.headers.iter());
    let mut headers = OwnedHeaders::new_with_capacity(9 + message.headers.len());
    for (name, value) in cloudevents::attributes(message) {
        match ATTRIBUTES.iter().find(|(attribute, _)| *attribute == name) {
            Some((_, header)) => headers = put(headers, header, &value),
            None => headers = put(headers, &format!("{PREFIX}{name}"), &value),
        }
    }
    headers = put(headers, CONTENT_TYPE, message.content_type.as_str());
    plain.fold(headers, |headers, (name, value)| put(headers, name, value))
}

fn put(headers: OwnedHeaders, key: &str, value: &str) -> OwnedHeaders {
    headers.insert(Header { key, value: Some(value) })
}

/// Returns each header, and `None` for one whose name is not UTF-8. `rdkafka` panics on such a
/// name, which any client can have written.
pub(super) fn each_header<H: Headers>(headers: &H) -> impl Iterator<Item = Option<Header<'_, &[u8]>>> {
    (0..headers.count()).map(|at| catch_unwind(AssertUnwindSafe(|| headers.get(at))).ok())
}

/// Returns the message that a record carries.
///
/// # Errors
/// [`Malformed`] with everything that arrived, when the record is not a message.
pub(crate) fn read(record: &impl rdkafka::Message) -> Result<Message, Box<Malformed>> {
    let mut envelope = Envelope { topic: record.topic().to_owned(), ..Envelope::default() };
    envelope.payload = Bytes::copy_from_slice(record.payload().unwrap_or_default());
    let mut problem = None;
    match record.key().map(std::str::from_utf8) {
        Some(Ok(key)) => envelope.key = Some(key.to_owned()),
        Some(Err(_)) => problem = Some("the record's key is not UTF-8; use text as the ordering key"),
        None => {}
    }
    for header in record.headers().into_iter().flat_map(each_header) {
        let Some(header) = header else {
            problem = problem.or(Some("the name of a header is not UTF-8; use text"));
            continue;
        };
        // A foreign header that is not text carries no identity: it is read as far as possible.
        let value = String::from_utf8_lossy(header.value.unwrap_or_default()).into_owned();
        if header.key.eq_ignore_ascii_case(CONTENT_TYPE) && envelope.content_type.is_none() {
            envelope.content_type = Some(value);
        } else {
            envelope.push_header(&[PREFIX], header.key, value);
        }
    }
    let read = match problem {
        Some(problem) => Err(Box::new(envelope.into_malformed(problem.to_owned()))),
        None => structured::open(envelope, "kafka", Some("kafka.content_type")),
    };
    read.map_err(|mut malformed| {
        malformed.properties.extend(evidence::properties(record));
        malformed
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use message::{ContentType, EventType, OrderingKey, Topic, TraceContext};
    use rdkafka::Timestamp;
    use rdkafka::message::OwnedMessage;

    fn sample() -> Message {
        let topic = Topic::new("orders").unwrap();
        let mut message = Message::new(topic, EventType::new("order.placed").unwrap(), r#"{"total":12}"#)
            .with_key(OrderingKey::new("order-7").unwrap())
            .with_content_type(ContentType::json());
        message.headers.insert("tenant", "acme").unwrap();
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        message.trace = Some(TraceContext::new(parent, Some("a=b".into())).unwrap());
        message
    }

    fn record(message: &Message, key: Option<&[u8]>, payload: Option<&[u8]>) -> OwnedMessage {
        let at = Timestamp::CreateTime(1_700_000_000_123);
        let (key, payload) = (key.map(<[u8]>::to_vec), payload.map(<[u8]>::to_vec));
        OwnedMessage::new(payload, key, message.topic.to_string(), at, 3, 42, Some(headers(message)))
    }

    /// Headers of which the second has a name that is not UTF-8.
    struct Foreign;

    impl Headers for Foreign {
        fn count(&self) -> usize {
            3
        }

        fn try_get(&self, at: usize) -> Option<Header<'_, &[u8]>> {
            let names: [&[u8]; 3] = [b"a", b"\xff", b"c"];
            let key = std::str::from_utf8(names.get(at)?).unwrap();
            Some(Header { key, value: Some(b"1") })
        }
    }

    #[test]
    fn a_name_that_is_not_text_hides_no_other_header() {
        let names: Vec<_> = each_header(&Foreign).map(|header| header.map(|header| header.key)).collect();
        assert_eq!(names, [Some("a"), None, Some("c")]);
    }

    #[test]
    fn a_message_survives_the_wire() {
        let message = sample();
        let record = record(&message, Some(b"order-7"), Some(&message.payload));
        assert_eq!(read(&record).unwrap(), message);
    }

    #[test]
    fn a_consumer_in_another_language_finds_the_attributes() {
        let headers = headers(&sample());
        let names: Vec<&str> = headers.iter().map(|header| header.key).collect();
        let expected = [
            "ce_specversion",
            "ce_id",
            "ce_source",
            "ce_type",
            "ce_time",
            "ce_subject",
            "content-type",
            "traceparent",
            "tracestate",
            "tenant",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn records_that_share_a_key_share_it_whatever_their_subjects() {
        let mut message = sample();
        for subject in ["invoice-1", "invoice-2"] {
            message.key = Some(OrderingKey::new(subject).unwrap());
            let key = |record: Option<&[u8]>| {
                let record = self::record(&message, record, Some(b"{}"));
                read(&record).unwrap().key.unwrap().as_str().to_owned()
            };
            assert_eq!(key(Some(b"customer-7")), "customer-7");
            assert_eq!(key(None), subject, "nothing else orders a record without a key");
        }
    }

    #[test]
    fn a_tombstone_is_an_empty_payload() {
        let message = sample();
        assert!(read(&record(&message, Some(b"order-7"), None)).unwrap().payload.is_empty());
    }

    #[test]
    fn a_record_without_identity_or_with_a_binary_key_is_malformed_and_kept() {
        let message = sample();
        let mut bare = record(&message, None, Some(b"hello"));
        bare.detach_headers();
        let malformed = read(&bare).unwrap_err();
        assert!(malformed.problem.contains("no id"), "{malformed}");
        assert_eq!((&malformed.payload[..], malformed.topic.as_str()), (&b"hello"[..], "orders"));
        let malformed = read(&record(&message, Some(&[0xff]), None)).unwrap_err();
        assert!(malformed.problem.contains("not UTF-8"), "{malformed}");
        assert!(malformed.headers.iter().any(|(name, _)| name == "ce_id"));
    }

    #[test]
    fn what_is_no_text_is_kept_in_hexadecimal() {
        let mut message = sample();
        message.headers = message::Headers::new();
        let header = |key, value| Header { key, value };
        let headers = OwnedHeaders::new()
            .insert(header("schema", Some(&[0, 0xff][..])))
            .insert(header("empty", Some(&[][..])))
            .insert(header("null", None));
        let key = 7_i64.to_be_bytes().map(|byte| byte | 0x80);
        let record = record(&message, Some(&key), None).replace_headers(Some(headers));
        let malformed = read(&record).unwrap_err();
        assert_eq!(malformed.key, None);
        for (name, value) in [
            ("kafka.timestamp", Some("2023-11-14T22:13:20.123Z")),
            ("kafka.timestamp_type", Some("CreateTime")),
            ("kafka.key_hex", Some("8080808080808087")),
            ("kafka.value", Some("null")),
            ("kafka.header_hex.schema", Some("00ff")),
            ("kafka.header_null.null", Some("")),
            ("kafka.header_hex.empty", None),
        ] {
            assert_eq!(malformed.find(name), value, "{name}");
        }
        assert!(malformed.headers.iter().any(|(name, _)| name == "schema"), "as far as it is a text");
    }
}
