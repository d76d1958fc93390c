//! CloudEvents in the JSON event format, where the event is the whole body
//! (<https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md>).

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use message::cloudevents::{Envelope, is_attribute};
#[cfg(any(feature = "kafka", feature = "rabbitmq"))]
use message::{Malformed, Message};
use serde_json::value::RawValue;

/// The attribute that carries free headers in events that this toolkit writes.
pub(crate) const HEADERS: &str = "headers";

/// The media type of a single event. A batch, `application/cloudevents-batch+json`, does not count
/// as one.
#[cfg(any(feature = "kafka", feature = "rabbitmq"))]
const MEDIA_TYPE: &str = "application/cloudevents+json";

/// The members of an event.
#[derive(Debug)]
pub(crate) struct Event<'a>(BTreeMap<String, &'a RawValue>);

impl<'a> Event<'a> {
    /// Parses a body.
    ///
    /// # Errors
    /// The reason why the body is not an event.
    pub(crate) fn parse(body: &'a str) -> Result<Self, String> {
        let event: BTreeMap<String, &RawValue> = serde_json::from_str(body)
            .map_err(|error| format!("the body is not a CloudEvent in JSON ({error})"))?;
        if event.contains_key("specversion") {
            Ok(Self(event))
        } else {
            Err(String::from("the body has no specversion, so it is not a CloudEvent"))
        }
    }

    /// Fills an envelope with attributes, extensions (as headers) and payload.
    ///
    /// # Errors
    /// Names the member that cannot be read.
    pub(crate) fn fill(&self, envelope: &mut Envelope) -> Result<(), String> {
        for (name, value) in &self.0 {
            match name.as_str() {
                "data" | "data_base64" => {}
                HEADERS => read_headers(envelope, value)?,
                name => {
                    let Some(text) = plain_text(value) else { continue };
                    let target =
                        if is_attribute(name) { &mut envelope.attributes } else { &mut envelope.headers };
                    target.push((name.to_owned(), text));
                }
            }
        }
        envelope.payload = self.payload(envelope)?;
        Ok(())
    }

    fn payload(&self, envelope: &mut Envelope) -> Result<Bytes, String> {
        if let Some(encoded) = self.0.get("data_base64") {
            let text: String = serde_json::from_str(encoded.get())
                .map_err(|error| format!("the CloudEvents member data_base64 is not a string: {error}"))?;
            return STANDARD
                .decode(&text)
                .map(Bytes::from)
                .map_err(|error| format!("the CloudEvents member data_base64 is not base64: {error}"));
        }
        let Some(data) = self.0.get("data") else { return Ok(Bytes::new()) };
        let declared = envelope.attributes.iter().find(|(name, _)| name == "datacontenttype");
        let json = match declared {
            Some((_, declared)) => {
                message::ContentType::new(declared.as_str()).is_ok_and(|content_type| content_type.is_json())
            }
            None => {
                // JSON by default (CloudEvents JSON event format 1.0.2, section 3.1).
                envelope.content_type = Some(String::from("application/json"));
                true
            }
        };
        // With a content type other than JSON, a JSON string stands for its text.
        match serde_json::from_str::<String>(data.get()) {
            Ok(text) if !json => Ok(Bytes::from(text)),
            _ => Ok(Bytes::copy_from_slice(data.get().as_bytes())),
        }
    }

    /// Returns the members that are neither payload nor plain text, as raw JSON.
    pub(crate) fn unread(&self, broker: &str) -> impl Iterator<Item = (String, String)> {
        let is_unread = |name: &str, value: &RawValue| match name {
            "data_base64" => false,
            "data" => self.0.contains_key("data_base64"),
            _ => plain_text(value).is_none(),
        };
        let members = self.0.iter().filter(move |(name, value)| is_unread(name, value));
        members.map(move |(name, value)| (format!("{broker}.event.{name}"), value.get().to_owned()))
    }
}

/// Reads the `headers` attribute of our own events. An attribute of this name from another producer
/// is an ordinary header.
fn read_headers(envelope: &mut Envelope, value: &RawValue) -> Result<(), String> {
    let text: String = serde_json::from_str(value.get())
        .map_err(|error| format!("the CloudEvents attribute headers is not a string: {error}"))?;
    match serde_json::from_str::<BTreeMap<String, String>>(&text) {
        Ok(headers) => envelope.headers.extend(headers),
        Err(_) => envelope.headers.push((HEADERS.to_owned(), text)),
    }
    Ok(())
}

/// Returns a string, number or boolean as text, and `None` for `null` and nested values.
fn plain_text(value: &RawValue) -> Option<String> {
    match serde_json::from_str(value.get()).ok()? {
        serde_json::Value::String(text) => Some(text),
        serde_json::Value::Number(number) => Some(number.to_string()),
        serde_json::Value::Bool(value) => Some(value.to_string()),
        _ => None,
    }
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
    let media_type = envelope.content_type.as_deref().and_then(|text| text.split(';').next());
    let is_event = media_type.is_some_and(|text| text.trim().eq_ignore_ascii_case(MEDIA_TYPE));
    if !is_event || envelope.attributes.iter().any(|(name, _)| name == "id") {
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
    use message::MessageId;

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
