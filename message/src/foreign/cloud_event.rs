//! CloudEvents with ids that no inbox accepts, or in a body that is not declared as an event.

use super::body;
use super::identity::{identity, time_of};
use super::unmapped::Unmapped;
use crate::chunk::CHUNK_ATTRIBUTES;
use crate::cloudevents::{Envelope, beginning};
use crate::evidence::ordering_key;
use crate::foreign_message::ForeignMessage;
use crate::structured::Event;
use crate::subscription::Malformed;
use crate::text::Source;

/// The property with the content type beside an event that was in the body.
const OUTER_CONTENT_TYPE: &str = "foreign.content_type";

/// Reads a CloudEvent: attributes in headers, or the whole event as JSON in the body, whatever
/// content type it has. An id of version 7 is kept; any other is hashed with the source and the
/// time. The key is that of the broker, else `partitionkey`, else `subject`.
///
/// # Errors
/// [`Unmapped::OtherForm`]: this is not a CloudEvent. [`Unmapped::Invalid`]: it has two ids, no id,
/// source, type or time, or one that is invalid; it is a batch, or a chunk of a larger message.
pub fn cloud_event(malformed: &Malformed) -> Result<ForeignMessage, Unmapped> {
    if ["ce_id", "ce_specversion"].into_iter().any(|name| malformed.header(name).is_some()) {
        return in_headers(malformed);
    }
    let content_type = malformed.header("content-type").unwrap_or_default();
    if content_type.starts_with("application/cloudevents-batch") {
        return Err(Unmapped::invalid("a batch of CloudEvents; send each event as a message of its own"));
    }
    in_headers(&opened(malformed)?)
}

/// Returns the delivery with the event of its body as headers and payload.
fn opened(malformed: &Malformed) -> Result<Malformed, Unmapped> {
    let text =
        std::str::from_utf8(&malformed.payload).ok().filter(|text| text.contains("specversion")).ok_or_else(
            || Unmapped::other_form("no CloudEvent: neither a ce_id nor a specversion in the body"),
        )?;
    let event = Event::parse(text).map_err(|problem| match malformed.header("content-type") {
        Some(declared) if declared.starts_with("application/cloudevents") => Unmapped::invalid(problem),
        _ => Unmapped::other_form(problem),
    })?;
    let mut properties = malformed.properties.clone();
    let mut headers = malformed.headers.clone();
    headers.retain(|(name, value)| {
        let is_outer = name == "content-type";
        if is_outer {
            properties.push((OUTER_CONTENT_TYPE.to_owned(), value.clone()));
        }
        !is_outer
    });
    let mut envelope = Envelope {
        topic: malformed.topic.clone(),
        key: malformed.key.clone(),
        headers,
        ..Envelope::default()
    };
    event.fill(&mut envelope).map_err(Unmapped::Invalid)?;
    properties.extend(event.unread("body"));
    let opened = envelope.into_malformed(malformed.problem.clone());
    Ok(Malformed { properties, broker_notes: malformed.broker_notes.clone(), ..opened })
}

/// Reads an event whose attributes are headers named `ce_*`.
fn in_headers(malformed: &Malformed) -> Result<ForeignMessage, Unmapped> {
    refuse_chunk(malformed)?;
    if let Some(version) = malformed.header("ce_specversion").filter(|version| !version.starts_with("1.")) {
        let version = beginning(version);
        return Err(Unmapped::invalid(format!("CloudEvents specversion {version:?}; send 1.0")));
    }
    let required = |name: &str| {
        let missing = || Unmapped::invalid(format!("the CloudEvent has no {name}; send it"));
        malformed.header(&format!("ce_{name}")).filter(|text| !text.is_empty()).ok_or_else(missing)
    };
    let id = required("id")?;
    if let Some((_, other)) = malformed.headers.iter().find(|(name, other)| name == "ce_id" && other != id) {
        return Err(Unmapped::invalid(format!(
            "the CloudEvent has two ids, {:?} and {:?}; send one",
            beginning(id),
            beginning(other)
        )));
    }
    let source = required("source")?;
    let kind = required("type")?;
    let time = malformed.header("ce_time").map(|text| time_of("the CloudEvents time", text)).transpose()?;
    let mut message = malformed.to_message(identity(malformed, source, id, time)?, kind)?;
    message = message.source(Source::new(source)?);
    if let Some(time) = time {
        message = message.time(time);
    }
    let key = ["ce_partitionkey", "partitionkey", "ce_subject"].into_iter().find_map(|name| {
        let text = malformed.header(name)?;
        ordering_key(text.as_bytes())
    });
    Ok(match key.filter(|_| malformed.ordering_key().is_none()) {
        Some(key) => message.key(key),
        None => message,
    })
}

/// Refuses a part of a larger message, which no handler may take for the whole.
///
/// # Errors
/// [`Unmapped::Invalid`].
pub(super) fn refuse_chunk(malformed: &Malformed) -> Result<(), Unmapped> {
    match CHUNK_ATTRIBUTES.into_iter().find(|name| malformed.header(&format!("ce_{name}")).is_some()) {
        Some(name) => Err(Unmapped::invalid(format!(
            "a chunk of a larger message ({name}), which no mapping assembles; its envelope must be valid"
        ))),
        None => Ok(()),
    }
}

/// Returns whether the payload may be an event in JSON.
pub(super) fn may_be_in_body(malformed: &Malformed) -> bool {
    body::contains(&malformed.payload, b"\"specversion\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::MessageId;
    use crate::message::Message;
    use bytes::Bytes;
    use time::macros::datetime;

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    fn in_body(body: &str) -> Malformed {
        Malformed {
            topic: String::from("orders"),
            headers: vec![pair("content-type", "application/json"), pair("beside", "1")],
            payload: Bytes::copy_from_slice(body.as_bytes()),
            ..Malformed::default()
        }
    }

    #[test]
    fn an_event_in_an_undeclared_body_is_read_with_all_its_attributes() {
        let body = r#"{"specversion":"1.0","id":"17","source":"/shop","type":"order.placed",
            "time":"2026-11-27T20:00:00Z","subject":"order-7","partitionkey":"p","sequence":7,
            "tags":[1],"data":{"n": 1.0}}"#;
        let message = Message::from(cloud_event(&in_body(body)).unwrap());
        let at = datetime!(2026-11-27 20:00 UTC);
        assert_eq!(message.id, MessageId::derived(at, ["/shop", "17"]).unwrap());
        assert_eq!((message.kind.as_str(), message.source.as_str()), ("order.placed", "/shop"));
        assert_eq!((message.time, message.key.unwrap().as_str()), (at, "p"));
        assert_eq!((&message.payload[..], message.content_type.is_json()), (&br#"{"n": 1.0}"#[..], true));
        for (name, value) in [
            ("partitionkey", "p"),
            ("sequence", "7"),
            ("beside", "1"),
            ("body.event.tags", "[1]"),
            ("foreign.content_type", "application/json"),
        ] {
            assert_eq!(message.headers.get(name), Some(value), "{name}");
        }
    }

    #[test]
    fn a_valid_id_is_kept_although_the_key_is_not_text() {
        let id = MessageId::new();
        let malformed = Malformed {
            topic: String::from("orders"),
            headers: vec![
                pair("ce_id", &id.to_string()),
                pair("ce_source", "/s"),
                pair("ce_type", "t"),
                pair("ce_tenant", "acme"),
            ],
            properties: vec![pair("kafka.key_hex", "00ff")],
            ..Malformed::default()
        };
        let message = Message::from(cloud_event(&malformed).unwrap());
        assert_eq!((message.id, message.key.unwrap().as_str()), (id, "hex:00ff"));
        assert_eq!(message.headers.get("tenant"), Some("acme"));
    }

    #[test]
    fn bad_events_have_clear_answers() {
        let rest = r#""source":"/s","type":"t","time":"2026-11-27T20:00:00Z""#;
        for (body, is_other, part) in [
            (String::from("hello"), true, "no CloudEvent"),
            (String::from("{}"), true, "no CloudEvent"),
            (String::from(r#"{"specversion":"1.0","#), true, "not a CloudEvent in JSON"),
            (format!(r#"{{"specversion":"1.0","id":"1","id":"2",{rest}}}"#), false, "\"id\""),
            (format!(r#"{{"specversion":"1.0",{rest}}}"#), false, "no id"),
            (format!(r#"{{"specversion":"0.3","id":"1",{rest}}}"#), false, "\"0.3\""),
            (String::from(r#"{"specversion":"1.0","id":"1","type":"t"}"#), false, "no source"),
            (String::from(r#"{"specversion":"1.0","id":"1","source":"/s"}"#), false, "no type"),
            (String::from(r#"{"specversion":"1.0","id":"1","source":"/s","type":"t"}"#), false, "no time"),
            (format!(r#"{{"specversion":"1.0","id":"1","chunkindex":"0",{rest}}}"#), false, "a chunk"),
            (format!(r#"{{"specversion":"1.0","id":"1",{rest},"data":1,"data_base64":""}}"#), false, "both"),
        ] {
            let error = cloud_event(&in_body(&body)).unwrap_err();
            assert!(error.to_string().contains(part), "{body}: {error}");
            assert_eq!(error.is_other_form(), is_other, "{body}: {error}");
        }
        let mut batch = in_body(r#"[{"specversion":"1.0"}]"#);
        batch.headers = vec![pair("content-type", "application/cloudevents-batch+json")];
        assert!(cloud_event(&batch).unwrap_err().to_string().contains("a batch"));
        let mut headers = vec![pair("ce_id", "1"), pair("ce_source", "/s"), pair("ce_type", "t")];
        headers.push(pair("ce_id", "2"));
        let twice = Malformed { topic: String::from("orders"), headers, ..Malformed::default() };
        let error = cloud_event(&twice).unwrap_err().to_string();
        assert!(error.contains(r#"two ids, "1" and "2""#), "{error}");
    }
}
