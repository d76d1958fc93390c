//! Converts messages to SQS records and back.
//!
//! CloudEvents has no SQS binding and SQS allows 10 attributes, so the body is one CloudEvent in
//! the JSON event format (structured mode). It has `specversion`, `id`, `source`, `type`, `time`,
//! `subject` (the ordering key), `datacontenttype`, `traceparent` and `tracestate` at the top
//! level. Free headers are one more attribute, `headers`. Its value is a JSON object *as text*,
//! because the format has no objects as attribute values and no upper case or punctuation in names.
//!
//! A JSON payload is in `data` byte for byte, everything else in `data_base64`. The message
//! attributes `ce_id`, `ce_type`, `ce_source`, `traceparent`, `content-type` and, for a chunk,
//! `ce_chunkindex` and `ce_chunkcount` repeat what filters and tools need to see.

use bytes::Bytes;
use message::cloudevents::Envelope;
use message::{Malformed, Message, PublishError, WireHeaders};

use crate::structured::{self, Event};

/// The media type of the body.
const STRUCTURED: &str = "application/cloudevents+json; charset=utf-8";

/// The prefix of CloudEvents attributes among the message attributes.
const PREFIX: &str = "ce_";

/// The data type of our message attributes.
pub(super) const STRING: &str = "String";

/// A message as SQS carries it.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) body: String,
    pub(crate) attributes: Vec<(&'static str, String)>,
}

impl Record {
    /// Counts the bytes as SQS does: the body, and name, type and value of every attribute.
    pub(crate) fn bytes(&self) -> usize {
        let attributes = self.attributes.iter();
        let attribute_bytes = |(name, value): &(&str, String)| name.len() + STRING.len() + value.len();
        self.body.len() + attributes.map(attribute_bytes).sum::<usize>()
    }
}

/// Encodes a message as a record.
///
/// # Errors
/// [`PublishError::refused`] when it has more than `bytes_max` bytes.
pub(crate) fn encode(message: &Message, bytes_max: usize) -> Result<Record, PublishError> {
    let body = structured::write(message, message.headers.iter(), &[])
        .map_err(|error| PublishError::refused("the message cannot be written as JSON").with_source(error))?;
    let record = Record { body, attributes: message_attributes(message) };
    let bytes = record.bytes();
    if bytes > bytes_max {
        return Err(PublishError::refused(format!(
            "the message for {} has {bytes} bytes as a CloudEvent; sqs takes at most {bytes_max}: shorten the \
             payload, or store it elsewhere and send a reference",
            message.topic
        )));
    }
    Ok(record)
}

fn message_attributes(message: &Message) -> Vec<(&'static str, String)> {
    let trace = message.trace.as_ref().map(|trace| ("traceparent", trace.parent().to_owned()));
    let chunk = message.chunk.as_ref().map(|chunk| {
        let [index, count] = [("ce_chunkindex", chunk.index()), ("ce_chunkcount", chunk.count())];
        [index, count].map(|(name, number)| (name, number.to_string()))
    });
    [
        ("ce_id", message.id.to_string()),
        ("ce_type", message.kind.to_string()),
        ("ce_source", message.source.to_string()),
        ("content-type", STRUCTURED.to_owned()),
    ]
    .into_iter()
    .chain(trace)
    .chain(chunk.into_iter().flatten())
    // A type may contain a character that an attribute cannot; the body has it escaped.
    .filter(|(_, value)| value.chars().all(structured::is_xml))
    .collect()
}

/// Reads a message: a CloudEvent in the body, or `ce_*` attributes with any payload as the body.
///
/// # Errors
/// [`Malformed`] with the evidence.
pub(crate) fn decode(
    queue: &str,
    body: String,
    attributes: Vec<(String, String)>,
) -> Result<Message, Box<Malformed>> {
    let mut envelope = Envelope { topic: queue.to_owned(), ..Envelope::default() };
    let mut seen = WireHeaders::default();
    attributes.iter().for_each(|(name, value)| seen.add(name.len(), value.len()));
    if let Err(mut cut) = seen.check() {
        let kept = attributes.into_iter().filter(|(name, value)| cut.keeps(name, value.len()));
        kept.for_each(|(name, value)| envelope.push_header(&[PREFIX], &name, value));
        envelope.payload = Bytes::from(body);
        let malformed = envelope.into_malformed(cut.to_string());
        return Err(Box::new(malformed.cut("sqs.headers_cut", &cut)));
    }
    let binary = attributes.iter().any(|(name, _)| name == "ce_id");
    match Event::parse(&body) {
        Ok(event) => match event.fill(&mut envelope) {
            Ok(()) => envelope.open().map_err(|mut malformed| {
                malformed.properties.extend(event.unread("sqs"));
                malformed.properties.extend(beside(attributes));
                malformed
            }),
            Err(problem) => {
                // Half an event beside its whole body would be taken for one in binary mode.
                let topic = queue.to_owned();
                let whole = Envelope { topic, payload: Bytes::from(body), ..Envelope::default() };
                let mut malformed = whole.into_malformed(problem);
                malformed.properties.extend(beside(attributes));
                Err(Box::new(malformed))
            }
        },
        Err(problem) => {
            for (name, value) in attributes {
                match name.as_str() {
                    "content-type" => envelope.content_type = Some(value),
                    _ => envelope.push_header(&[PREFIX], &name, value),
                }
            }
            envelope.payload = Bytes::from(body);
            if binary {
                return envelope.open();
            }
            let advice = "send a CloudEvent as JSON, or the attribute ce_id beside the payload";
            Err(Box::new(envelope.into_malformed(format!("{problem}; {advice}"))))
        }
    }
}

/// Returns message attributes beside an event, which has its own headers.
fn beside(attributes: Vec<(String, String)>) -> impl Iterator<Item = (String, String)> {
    attributes.into_iter().map(|(name, value)| (format!("sqs.attribute.{name}"), value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use message::{ContentType, EventType, Fault, OrderingKey, Topic, TraceContext};

    const MIB: usize = 1 << 20;

    fn sample(payload: &'static [u8]) -> Message {
        let topic = Topic::new("orders").unwrap();
        let kind = EventType::new("order.placed").unwrap();
        let mut message = Message::new(topic, kind, payload)
            .with_key(OrderingKey::new("Müller \"7\"\u{FFFF}").unwrap())
            .with_content_type(ContentType::json());
        message.headers.insert("Tenant-Id", "ac\tme").unwrap();
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        message.trace = Some(TraceContext::new(parent, Some("a=b".into())).unwrap());
        message
    }

    fn back(message: &Message) -> Message {
        let record = encode(message, MIB).unwrap();
        assert!(record.body.chars().all(structured::is_xml), "{}", record.body);
        assert!(record.attributes.len() <= 10);
        let owned = |(name, value): (&str, String)| (name.to_owned(), value);
        decode("orders", record.body, record.attributes.into_iter().map(owned).collect()).unwrap()
    }

    #[test]
    fn a_message_survives_the_wire_byte_for_byte() {
        for payload in [
            &br#"{"total": 12.0, "total":  1e2, "u": "\u00fc"}"#[..],
            b"null",
            b"\"text\"",
            b" {\"spaces\": \"around\"}\n",
            "{\"x\": \"\u{FFFF}\"}".as_bytes(),
            b"not json",
            b"",
            &[0, 159, 146, 150],
        ] {
            let message = sample(payload);
            assert_eq!(back(&message), message);
            let octets = message.with_content_type(ContentType::octets());
            assert_eq!(back(&octets), octets);
        }
    }

    #[test]
    fn any_consumer_finds_attributes_and_data_at_the_top_level() {
        let message = sample(br#"{"total":12}"#);
        let event: serde_json::Value = serde_json::from_str(&encode(&message, MIB).unwrap().body).unwrap();
        assert_eq!(event["id"], message.id.to_string());
        assert_eq!((&event["type"], &event["source"]), (&"order.placed".into(), &"/outbox".into()));
        assert_eq!(event["data"]["total"], 12);
        assert_eq!(event["headers"], r#"{"Tenant-Id":"ac\tme"}"#);
    }

    #[test]
    fn an_oversize_message_is_refused_with_its_size() {
        let message = sample(br#"{"total":12}"#);
        let bytes = encode(&message, MIB).unwrap().bytes();
        assert!(encode(&message, bytes).is_ok());
        let error = encode(&message, bytes - 1).unwrap_err();
        assert_eq!(error.fault(), Fault::Message);
        assert!(error.to_string().contains(&format!("has {bytes} bytes")), "{error}");
    }

    #[test]
    fn an_event_or_attributes_with_too_many_headers_are_malformed_although_an_id_is_there() {
        let id = (String::from("ce_id"), message::MessageId::new().to_string());
        let members: String = (0..=message::WIRE_HEADERS_MAX).map(|n| format!(r#","a{n}":1"#)).collect();
        let body = format!(r#"{{"specversion":"1.0"{members}}}"#);
        let malformed = decode("orders", body.clone(), vec![id.clone()]).unwrap_err();
        assert!(malformed.problem.starts_with("there are 4002 headers"), "{malformed}");
        assert!(malformed.payload == body.as_bytes() && !malformed.is_cut);
        let many = (0..message::WIRE_HEADERS_MAX).map(|n| (format!("a{n}"), String::new()));
        let malformed =
            decode("orders", "hello".into(), std::iter::once(id).chain(many).collect()).unwrap_err();
        assert!(malformed.is_cut && malformed.problem.starts_with("there are 4001 headers"), "{malformed}");
        let note = "1000 of 4001 headers are kept; the first one left out: \"a999\" with 0 bytes";
        assert_eq!(malformed.find("sqs.headers_cut"), Some(note));
    }

    #[test]
    fn attributes_beside_any_payload_are_read() {
        let id = message::MessageId::new();
        let attributes =
            [("ce_id", id.to_string()), ("content-type", "text/plain".into()), ("team", "a".into())];
        let owned = attributes.map(|(name, value)| (name.to_owned(), value)).to_vec();
        let message = decode("orders", "hello".into(), owned).unwrap();
        assert_eq!((message.id, &message.payload[..]), (id, &b"hello"[..]));
        assert_eq!((message.content_type.as_str(), message.headers.get("team")), ("text/plain", Some("a")));
    }

    #[test]
    fn a_payload_with_more_members_than_an_event_may_have_is_a_payload() {
        let id = message::MessageId::new();
        let attributes = [("ce_id", id.to_string()), ("content-type", "application/json".into())];
        let owned = attributes.map(|(name, value)| (name.to_owned(), value)).to_vec();
        let members: Vec<_> = (0..=message::WIRE_HEADERS_MAX).map(|n| format!(r#""sku{n}":1"#)).collect();
        let prices = format!("{{{}}}", members.join(","));
        let message = decode("orders", prices.clone(), owned.clone()).unwrap();
        assert!(message.id == id && message.payload == prices.as_bytes());
        // Without an id, the attributes are those of the message all the same.
        let beside = vec![(String::from("ce_source"), String::from("/s"))];
        let malformed = decode("orders", prices.clone(), beside).unwrap_err();
        assert!(malformed.problem.starts_with("the body has no specversion"), "{malformed}");
        assert_eq!(malformed.find("ce_source"), Some("/s"));
        // An event is one wherever its version stands.
        let event = prices.replace('}', r#","specversion":"1.0"}"#);
        let malformed = decode("orders", event.clone(), owned).unwrap_err();
        assert!(malformed.problem.starts_with("there are 4002 headers"), "{malformed}");
        assert!(malformed.payload == event.as_bytes() && !malformed.is_cut);
    }

    #[test]
    fn a_foreign_event_is_read_with_extensions_and_text_data() {
        let id = message::MessageId::new();
        let body = format!(
            r#"{{"specversion":"1.0","id":"{id}","source":"/s","type":"t","datacontenttype":"text/plain",
                "partitionkey":"p","sequence":7,"data":"a\"b"}}"#
        );
        let message = decode("orders", body, Vec::new()).unwrap();
        assert_eq!(&message.payload[..], b"a\"b");
        assert_eq!(
            (message.headers.get("partitionkey"), message.headers.get("sequence")),
            (Some("p"), Some("7"))
        );
    }

    #[test]
    fn what_is_no_event_is_malformed_and_keeps_its_bytes() {
        for (body, part) in [
            ("hello", "not a CloudEvent in JSON"),
            (r#"{"id":"x"}"#, "no specversion"),
            (r#"{"specversion":"1.0","type":"t"}"#, "no id"),
            (r#"{"specversion":"1.0","id":"order-7"}"#, "order-7"),
            (r#"{"specversion":"1.0","data_base64":"?"}"#, "not base64"),
        ] {
            let malformed = decode("orders", body.to_owned(), Vec::new()).unwrap_err();
            assert!(malformed.problem.contains(part), "{}", malformed.problem);
        }
        assert_eq!(&decode("orders", "hello".into(), Vec::new()).unwrap_err().payload[..], b"hello");
    }

    #[test]
    fn an_event_that_is_malformed_keeps_what_is_no_text_and_what_stands_beside_it() {
        let body = r#"{"specversion":"1.0","id":"17","tags":["a", 1],"data_base64":"eA=="}"#;
        let beside = vec![(String::from("ce_id"), String::from("18"))];
        let malformed = decode("orders", body.to_owned(), beside.clone()).unwrap_err();
        assert_eq!(&malformed.payload[..], b"x");
        for (name, value) in
            [("ce_id", "17"), ("sqs.event.tags", r#"["a", 1]"#), ("sqs.attribute.ce_id", "18")]
        {
            assert_eq!(malformed.find(name), Some(value), "{name}: {malformed:?}");
        }
        let whole = decode("orders", r#"{"specversion":"1.0","headers":7}"#.to_owned(), beside).unwrap_err();
        assert_eq!(whole.find("sqs.attribute.ce_id"), Some("18"));
    }
}
