//! Converts messages to Kafka records and back: the CloudEvents Kafka binding in binary mode
//! (<https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/kafka-protocol-binding.md>).
//!
//! | record | message |
//! |---|---|
//! | key | ordering key; a record without one has its `ce_subject` as ordering key |
//! | value | payload; a record without a value is a message with the header `tombstone: true` and an empty payload |
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
use message::{ForeignMessage, HeadersCut, Malformed, Message, TOMBSTONE, WIRE_HEADERS_MAX, WireHeaders};
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
/// Number of header names that are not UTF-8 after which no further header is read: each costs a
/// panic, which the program may log with a backtrace.
const NAMES_WITHOUT_TEXT_MAX: usize = 8;

/// Returns the record's value; `None` for a tombstone.
pub(crate) fn value(message: &Message) -> Option<&[u8]> {
    (!message.is_tombstone()).then_some(&message.payload[..])
}

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

/// A header of a record, not copied.
pub(super) struct Arrived<'a> {
    /// Its position in the record, from 0.
    pub(super) at: usize,
    /// `None`: its name is not UTF-8. `rdkafka` panics on such a name, which any client can have
    /// written.
    pub(super) header: Option<Header<'a, &'a [u8]>>,
}

/// Returns the headers of a record in their order, without copying any. Beyond the bounds, returns
/// those that are kept, and why the others are not.
fn arrived<H: Headers>(headers: &H) -> (Vec<Arrived<'_>>, Option<HeadersCut>) {
    let count = headers.count();
    let mut found = Vec::new();
    let mut seen = WireHeaders { count, bytes: 0 };
    let mut without_text = 0;
    for at in 0..count.min(WIRE_HEADERS_MAX) {
        let header = catch_unwind(AssertUnwindSafe(|| headers.get(at))).ok();
        match &header {
            Some(header) => seen.bytes += header.key.len() + value_bytes(header),
            None => without_text += 1,
        }
        found.push(Arrived { at, header });
        if without_text == NAMES_WITHOUT_TEXT_MAX {
            break;
        }
    }
    let cut = match seen.check() {
        Err(cut) => Some(cut),
        Ok(()) if found.len() < count => {
            let problem = "many names of headers are not UTF-8; use text";
            Some(HeadersCut::new(problem, count))
        }
        Ok(()) => None,
    };
    let Some(mut cut) = cut else { return (found, None) };
    found.retain(|Arrived { header, .. }| match header {
        Some(header) => cut.keeps(header.key, value_bytes(header)),
        None => cut.keeps("", 0),
    });
    (found, Some(cut))
}

fn value_bytes(header: &Header<'_, &[u8]>) -> usize {
    header.value.map_or(0, <[u8]>::len)
}

/// Returns the message that a record carries.
///
/// # Errors
/// [`Malformed`] with everything that arrived, when the record is not a message; without the
/// headers beyond the bounds of [`WireHeaders`].
pub(crate) fn read(record: &impl rdkafka::Message) -> Result<Message, Box<Malformed>> {
    let mut envelope = Envelope { topic: record.topic().to_owned(), ..Envelope::default() };
    envelope.payload = Bytes::copy_from_slice(record.payload().unwrap_or_default());
    let mut problem = None;
    match record.key().map(std::str::from_utf8) {
        Some(Ok(key)) => envelope.key = Some(key.to_owned()),
        Some(Err(_)) => {
            problem = Some(String::from("the record's key is not UTF-8; use text as the ordering key"));
        }
        None => {}
    }
    let (headers, cut) = record.headers().map(arrived).unwrap_or_default();
    problem = problem.or(cut.as_ref().map(HeadersCut::to_string));
    for Arrived { header, .. } in &headers {
        let Some(header) = header else {
            problem.get_or_insert_with(|| String::from("the name of a header is not UTF-8; use text"));
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
        Some(problem) => Err(Box::new(envelope.into_malformed(problem))),
        None => structured::open(envelope, "kafka", Some("kafka.content_type")),
    };
    let read = read.map(|mut message| {
        if record.payload().is_none() {
            // Fails only above the limit of headers. Then the mark is lost, not the message.
            let _ = message.headers.insert(TOMBSTONE, "true");
        } else if message.is_tombstone() {
            // The record has a value, whatever the header says. If it were forwarded with this
            // header, its key would be deleted.
            message.headers.remove(TOMBSTONE);
            // Takes the place of the header that was removed, so there is room for it.
            let named = |known: &str| format!("{known}, \"{TOMBSTONE}\"");
            let known = message.headers.get(ForeignMessage::LEFT_OUT).map(named);
            let left_out = known.unwrap_or_else(|| format!("\"{TOMBSTONE}\""));
            let _ = message.headers.insert(ForeignMessage::LEFT_OUT, &left_out);
        }
        message
    });
    read.map_err(|mut malformed| {
        malformed.properties.extend(evidence::properties(record, &headers));
        malformed.broker_notes.extend(evidence::place(record));
        match cut {
            Some(cut) => Box::new(malformed.cut("kafka.headers_cut", &cut)),
            None => malformed,
        }
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

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

    /// Headers with these names, and the number of times that one was read.
    struct Foreign {
        names: Vec<&'static [u8]>,
        reads: Cell<usize>,
    }

    impl Foreign {
        fn new(names: impl IntoIterator<Item = &'static [u8]>) -> Self {
            Self { names: names.into_iter().collect(), reads: Cell::new(0) }
        }
    }

    impl Headers for Foreign {
        fn count(&self) -> usize {
            self.names.len()
        }

        fn try_get(&self, at: usize) -> Option<Header<'_, &[u8]>> {
            self.reads.set(self.reads.get() + 1);
            let key = std::str::from_utf8(self.names.get(at)?).unwrap();
            Some(Header { key, value: Some(b"1") })
        }
    }

    #[test]
    fn a_name_that_is_not_text_hides_no_other_header() {
        let foreign = Foreign::new([&b"a"[..], b"\xff", b"c"]);
        let (headers, cut) = arrived(&foreign);
        let names: Vec<_> = headers.iter().map(|it| it.header.as_ref().map(|header| header.key)).collect();
        assert_eq!((names, cut.is_none()), (vec![Some("a"), None, Some("c")], true));
    }

    #[test]
    fn names_that_are_not_text_end_the_reading_of_headers() {
        let foreign =
            Foreign::new(std::iter::once(&b"a"[..]).chain(std::iter::repeat_n(&b"\xff"[..], 3_000)));
        let (headers, cut) = arrived(&foreign);
        let cut = cut.expect("headers were left out");
        assert_eq!((headers.len(), foreign.reads.get()), (9, 9), "each one costs a panic");
        assert!(cut.to_string().contains("not UTF-8"), "{cut}");
        assert_eq!(cut.note(), "9 of 3001 headers are kept");
    }

    #[test]
    fn headers_are_counted_before_one_is_copied() {
        let foreign = Foreign::new(std::iter::repeat_n(&b"h"[..], 1_000_000));
        let (headers, cut) = arrived(&foreign);
        assert!(cut.is_some() && headers.len() == 1_000);
        assert_eq!(foreign.reads.get(), WIRE_HEADERS_MAX);
    }

    #[test]
    fn a_record_with_too_many_or_too_large_headers_is_malformed_and_says_what_is_missing() {
        let message = sample();
        let with = |headers: &mut dyn Iterator<Item = (&'static str, Vec<u8>)>| {
            let record = record(&message, Some(b"order-7"), Some(b"{}"));
            let all = headers.fold(self::headers(&message), |all, (key, value)| {
                all.insert(Header { key, value: Some(&value) })
            });
            read(&record.replace_headers(Some(all)))
        };
        let rest = WIRE_HEADERS_MAX - headers(&message).count();
        let most = with(&mut std::iter::repeat_n(("tenant", vec![b'x']), rest)).unwrap();
        assert_eq!(most.headers, message.headers, "the first of a name counts");
        let many = with(&mut std::iter::repeat_n(("tenant", vec![b'x']), rest + 1)).unwrap_err();
        assert!(many.is_cut && many.problem.starts_with("there are 4001 headers"), "{many}");
        assert_eq!(many.find("ce_id"), Some(message.id.to_string().as_str()));
        assert_eq!(
            many.find("kafka.headers_cut"),
            Some("1000 of 4001 headers are kept; the first one left out: \"tenant\" with 1 bytes")
        );
        let large = with(&mut [("big", vec![0xff; 20 << 20]), ("after", vec![])].into_iter()).unwrap_err();
        assert!(large.is_cut && large.problem.starts_with("the headers have 209"), "{large}");
        assert_eq!((large.header("big"), large.find("kafka.header_hex.big")), (None, None));
        assert_eq!((large.header("tenant"), large.header("after")), (Some("acme"), Some("")));
        let note = large.find("kafka.headers_cut").unwrap();
        assert!(note.ends_with("\"big\" with 20971520 bytes"), "{note}");
        assert_eq!((&large.payload[..], large.key.as_deref()), (&b"{}"[..], Some("order-7")));
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
    fn a_record_without_a_value_is_not_one_with_an_empty_value() {
        let message = sample();
        let read = |value: Option<&[u8]>| read(&record(&message, Some(b"order-7"), value)).unwrap();
        let (tombstone, empty) = (read(None), read(Some(b"")));
        assert!(tombstone.payload.is_empty() && tombstone.is_tombstone());
        assert!(empty.payload.is_empty() && !empty.is_tombstone());
        assert_eq!((value(&tombstone), value(&empty)), (None, Some(&b""[..])));
        let mut claimed = sample();
        claimed.headers.insert(TOMBSTONE, "true").unwrap();
        let claimed = self::read(&record(&claimed, Some(b"order-7"), Some(b""))).unwrap();
        assert!(!claimed.is_tombstone() && claimed.headers.get("tenant").is_some());
        assert_eq!(claimed.headers.get(ForeignMessage::LEFT_OUT), Some("\"tombstone\""));
        let again = self::read(&record(&claimed, Some(b"order-7"), Some(b""))).unwrap();
        assert_eq!(again.headers, claimed.headers);
        // The mark of another producer beside a payload says nothing.
        let mut marked = sample();
        marked.headers.insert(TOMBSTONE, "true").unwrap();
        assert_eq!(value(&marked), Some(&br#"{"total":12}"#[..]));
    }

    #[test]
    fn extension_attributes_are_headers() {
        let mut message = sample();
        let extended = headers(&message).insert(Header { key: "ce_partitionkey", value: Some("p") });
        let extended = extended.insert(Header { key: "ce_tenant", value: Some("other") });
        let record =
            record(&message, Some(b"order-7"), Some(&message.payload)).replace_headers(Some(extended));
        message.headers.insert("partitionkey", "p").unwrap();
        assert_eq!(read(&record).unwrap(), message, "a free header wins over an extension of its name");
    }

    #[test]
    fn two_ids_are_not_one() {
        let message = sample();
        let with = |id: &str| {
            let all = headers(&message).insert(Header { key: "ce_id", value: Some(id) });
            read(&record(&message, None, Some(b"{}")).replace_headers(Some(all)))
        };
        assert_eq!(with(&message.id.to_string()).unwrap().id, message.id);
        let malformed = with(&message::MessageId::new().to_string()).unwrap_err();
        assert!(malformed.problem.starts_with("the message has two ids"), "{malformed}");
        assert_eq!(malformed.headers.iter().filter(|(name, _)| name == "ce_id").count(), 2);
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
            ("kafka.partition", Some("3")),
            ("kafka.offset", Some("42")),
            ("kafka.header_hex.schema", Some("00ff")),
            ("kafka.header_null.null", Some("")),
            ("kafka.header_hex.empty", None),
        ] {
            assert_eq!(malformed.find(name), value, "{name}");
        }
        assert!(malformed.headers.iter().any(|(name, _)| name == "schema"), "as far as it is a text");
    }
}
