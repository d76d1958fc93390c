//! CloudEvents in the JSON event format, where the event is the whole body
//! (<https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md>).

#[cfg(any(feature = "http", feature = "sqs"))]
use std::collections::BTreeMap;

#[cfg(any(feature = "http", feature = "sqs"))]
use base64::Engine as _;
#[cfg(any(feature = "http", feature = "sqs"))]
use base64::engine::general_purpose::STANDARD;
#[cfg(any(feature = "kafka", feature = "rabbitmq"))]
use message::Malformed;
#[cfg(any(feature = "http", feature = "kafka", feature = "rabbitmq", feature = "sqs"))]
use message::Message;
#[cfg(any(feature = "kafka", feature = "rabbitmq"))]
use message::cloudevents::Envelope;
#[cfg(any(feature = "http", feature = "sqs"))]
use message::cloudevents::{attributes, trace_headers};
pub(crate) use message::structured::Event;
#[cfg(all(feature = "sqs", not(feature = "http")))]
use message::structured::HEADERS;
#[cfg(feature = "http")]
pub(crate) use message::structured::{HEADERS, read_headers_text};
#[cfg(any(feature = "http", feature = "sqs"))]
use serde_json::value::RawValue;

/// The media type of a single event. A batch, `application/cloudevents-batch+json`, does not count
/// as one.
#[cfg(any(feature = "http", feature = "kafka", feature = "rabbitmq"))]
const MEDIA_TYPE: &str = "application/cloudevents+json";

/// Writes a message as an event. `headers` are its free headers, `extensions` further attributes.
/// The text has only characters of XML 1.0, which are all that SQS accepts.
///
/// # Errors
/// A part cannot be written as JSON.
#[cfg(any(feature = "http", feature = "sqs"))]
pub(crate) fn write<'a>(
    message: &Message,
    headers: impl Iterator<Item = (&'a str, &'a str)>,
    extensions: &[(&str, &str)],
) -> Result<String, serde_json::Error> {
    let mut members: Vec<(&str, String)> = Vec::with_capacity(14);
    for (name, value) in attributes(message) {
        members.push((name, quoted(&value)?));
    }
    members.push(("datacontenttype", quoted(message.content_type.as_str())?));
    for (name, value) in trace_headers(message).chain(extensions.iter().copied()) {
        members.push((name, quoted(value)?));
    }
    if let Some(headers) = headers_text(headers)? {
        members.push((HEADERS, quoted(&headers)?));
    }
    match embeddable(message) {
        Some(json) => members.push(("data", json.to_owned())),
        None => members.push(("data_base64", quoted(&STANDARD.encode(&message.payload))?)),
    }
    let members: Vec<String> = members.iter().map(|(name, json)| format!("\"{name}\":{json}")).collect();
    Ok(format!("{{{}}}", members.join(",")))
}

/// Returns the value of the attribute [`HEADERS`], a JSON object; `None` without headers.
///
/// # Errors
/// They cannot be written as JSON.
#[cfg(any(feature = "http", feature = "sqs"))]
pub(crate) fn headers_text<'a>(
    headers: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<Option<String>, serde_json::Error> {
    let headers: BTreeMap<&str, &str> = headers.collect();
    if headers.is_empty() { Ok(None) } else { serde_json::to_string(&headers).map(Some) }
}

/// Returns a JSON string without characters that XML does not have. JSON itself escapes the others.
#[cfg(any(feature = "http", feature = "sqs"))]
fn quoted(text: &str) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string(text)?.replace('\u{FFFE}', "\\ufffe").replace('\u{FFFF}', "\\uffff"))
}

/// Returns the payload's own text, if it is JSON that comes back byte for byte: no white space
/// around it (a parser would drop it), and only characters of XML.
#[cfg(any(feature = "http", feature = "sqs"))]
fn embeddable(message: &Message) -> Option<&str> {
    if !message.content_type.is_json() {
        return None;
    }
    let text = std::str::from_utf8(&message.payload).ok()?;
    let value: &RawValue = serde_json::from_str(text).ok()?;
    (value.get().len() == text.len() && text.chars().all(is_xml)).then_some(text)
}

/// Returns whether this is a character of XML 1.0 (W3C XML 1.0, section 2.2).
#[cfg(any(feature = "http", feature = "sqs"))]
pub(crate) fn is_xml(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | '\u{20}'..='\u{D7FF}' | '\u{E000}'..='\u{FFFD}' | '\u{10000}'..)
}

/// Returns whether a content type is that of a single event.
#[cfg(any(feature = "http", feature = "kafka", feature = "rabbitmq"))]
pub(crate) fn is_event(content_type: &str) -> bool {
    content_type.split(';').next().is_some_and(|text| text.trim().eq_ignore_ascii_case(MEDIA_TYPE))
}

/// Opens an envelope in binary or structured mode. The body is the event if the content type
/// declares it and no header has an id. With an id in the headers, the payload merely happens to be
/// an event.
///
/// # Errors
/// [`Malformed`] with everything that arrived. Unread members become properties whose names begin
/// with `broker`. The event's content type replaces the body's own. If that was a header, it
/// becomes a property named `content_type`.
#[cfg(any(feature = "kafka", feature = "rabbitmq"))]
pub(crate) fn open(
    mut envelope: Envelope,
    broker: &str,
    content_type: Option<&str>,
) -> Result<Message, Box<Malformed>> {
    if !envelope.content_type.as_deref().is_some_and(is_event)
        || envelope.attributes.iter().any(|(name, _)| name == "id")
    {
        return envelope.open();
    }
    let (whole, body) = (envelope.clone(), envelope.payload.clone());
    envelope.content_type = None;
    let beside = std::mem::take(&mut envelope.attributes);
    let read = std::str::from_utf8(&body).map_err(|_| String::from("the CloudEvent is not UTF-8"));
    let event = read.and_then(Event::parse).and_then(|event| event.fill(&mut envelope).map(|()| event));
    match event {
        Err(problem) => Err(Box::new(whole.into_malformed(problem))),
        Ok(event) => {
            // The event's own attributes come first, so they win.
            envelope.attributes.extend(beside);
            envelope.open().map_err(|mut malformed| {
                malformed.properties.extend(event.unread(broker));
                let displaced = content_type.map(str::to_owned).zip(whole.content_type);
                malformed.properties.extend(displaced);
                malformed
            })
        }
    }
}

#[cfg(all(test, any(feature = "kafka", feature = "rabbitmq")))]
mod tests {
    use super::*;
    use bytes::Bytes;
    use message::{MessageId, WIRE_HEADERS_MAX};

    fn envelope(body: &str) -> Envelope {
        Envelope {
            topic: String::from("orders"),
            key: Some(String::from("order-7")),
            content_type: Some(String::from("Application/CloudEvents+json; charset=utf-8")),
            payload: Bytes::copy_from_slice(body.as_bytes()),
            ..Envelope::default()
        }
    }

    #[test]
    fn an_event_in_the_body_is_read() {
        let id = MessageId::new();
        let body = format!(
            r#"{{"specversion":"1.0","id":"{id}","source":"/s","type":"order.placed","topic":"o","data":{{"n": 1}}}}"#
        );
        let message = open(envelope(&body), "kafka", None).unwrap();
        assert_eq!((message.id, message.kind.as_str(), message.source.as_str()), (id, "order.placed", "/s"));
        assert_eq!((&message.payload[..], message.content_type.is_json()), (&br#"{"n": 1}"#[..], true));
        assert_eq!((message.key.unwrap().as_str(), message.headers.get("topic")), ("order-7", Some("o")));
    }

    #[test]
    fn an_event_with_too_many_members_or_headers_keeps_its_whole_body() {
        let id = MessageId::new();
        let event = |rest: &str| format!(r#"{{"specversion":"1.0","id":"{id}"{rest}}}"#);
        let members = |count: usize| -> String { (0..count).map(|n| format!(r#","a{n}":1"#)).collect() };
        let headers = |count: usize, value: &str| {
            let all: Vec<_> = (0..count).map(|n| format!(r#"\"a{n}\":\"{value}\""#)).collect();
            format!(r#","headers":"{{{}}}""#, all.join(","))
        };
        let most = open(envelope(&event(&members(WIRE_HEADERS_MAX - 2))), "kafka", None).unwrap();
        assert_eq!(most.headers.len(), message::HEADERS_MAX);
        for (rest, problem) in [
            (members(WIRE_HEADERS_MAX - 1), "there are 4001 headers"),
            (headers(WIRE_HEADERS_MAX + 1, ""), "there are 4001 headers"),
            // The header beside the event and its two attributes count as well.
            (headers(WIRE_HEADERS_MAX - 2, ""), "there are 4001 headers"),
            (headers(2, &"x".repeat(9 << 20)), "the headers have 188"),
        ] {
            let body = event(&rest);
            let mut arrived = envelope(&body);
            arrived.headers.push((String::from("beside"), String::from("1")));
            let malformed = open(arrived, "kafka", None).unwrap_err();
            assert!(malformed.problem.starts_with(problem), "{problem}: {malformed}");
            assert!(malformed.payload == body.as_bytes() && !malformed.is_cut, "all of it is in the payload");
            assert_eq!(malformed.header("beside"), Some("1"));
        }
    }

    #[test]
    fn an_event_that_says_something_twice_keeps_its_whole_body() {
        let (id, other) = (MessageId::new(), MessageId::new());
        for (body, problem) in [
            (format!(r#"{{"specversion":"1.0","id":"{id}","id":"{other}"}}"#), "the member \"id\""),
            (
                format!(r#"{{"specversion":"1.0","id":"{id}","data":1,"data_base64":"eA=="}}"#),
                "both data and",
            ),
            (
                format!(r#"{{"specversion":"1.0","id":"{id}","headers":"{{\"a\":\"1\",\"a\":\"2\"}}"}}"#),
                "the member \"a\"",
            ),
        ] {
            let malformed = open(envelope(&body), "kafka", None).unwrap_err();
            assert!(malformed.problem.contains(problem), "{problem}: {malformed}");
            assert_eq!(&malformed.payload[..], body.as_bytes());
        }
    }

    #[test]
    fn a_payload_that_is_an_event_stays_one() {
        let (id, body) = (MessageId::new(), r#"{"specversion":"1.0","id":"17"}"#);
        let mut binary = envelope(body);
        binary.attributes.push((String::from("id"), id.to_string()));
        let message = open(binary, "kafka", None).unwrap();
        assert_eq!((message.id, &message.payload[..]), (id, body.as_bytes()));
    }

    #[test]
    fn what_is_no_event_or_has_a_foreign_id_keeps_its_evidence() {
        let malformed = open(envelope("{}"), "kafka", None).unwrap_err();
        assert!(malformed.problem.contains("no specversion"), "{malformed}");
        assert_eq!(&malformed.payload[..], b"{}");
        let event = envelope(r#"{"specversion":"1.0","id":"17","tags":[1],"data":2}"#);
        let malformed = open(event.clone(), "amqp", None).unwrap_err();
        assert_eq!((malformed.find("ce_id"), malformed.find("amqp.event.tags")), (Some("17"), Some("[1]")));
        assert_eq!(malformed.find("content"), None);
        let displaced = open(event.clone(), "x", Some("content")).unwrap_err();
        assert_eq!(displaced.find("content"), event.content_type.as_deref());
        assert_eq!(&malformed.payload[..], b"2");
    }
}
