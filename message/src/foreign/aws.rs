//! Envelopes of Amazon's services, which come over SQS.

use bytes::Bytes;

use super::body::{Object, plain};
use super::cloud_event;
use super::cloud_event::may_be_in_body;
use super::identity::{identity, time_of};
use super::unmapped::Unmapped;
use crate::cloudevents::beginning;
use crate::foreign_message::ForeignMessage;
use crate::subscription::Malformed;
use crate::text::{ContentType, Source};

const NOTIFICATION: &str = "SNS notification";
const EVENT: &str = "EventBridge event";

/// Members of a notification that have a place of their own in the message.
const PLACED: [&str; 2] = ["Message", "MessageAttributes"];

/// Reads a notification of Amazon SNS. The payload is its `Message`, the kind the name of the SNS
/// topic, the source its ARN. Message attributes are headers; everything else of the envelope has
/// the prefix `sns.`, the signature as well. The signature is not verified: the policy of the queue
/// decides who may send to it.
///
/// If the message is an event of EventBridge or a CloudEvent, it is read as that.
///
/// With raw message delivery, SNS sends no envelope: the body is the message itself, and its
/// attributes are those of SQS. Use the mapping of that form, or
/// [`by_arrival`](super::by_arrival).
///
/// # Errors
/// [`Unmapped::OtherForm`]: there is no such envelope. [`Unmapped::Invalid`]: a part is missing, or
/// it confirms a subscription and is not a message.
pub fn sns(malformed: &Malformed) -> Result<ForeignMessage, Unmapped> {
    let Some(envelope) = Object::with(NOTIFICATION, &malformed.payload, &["TopicArn"])? else {
        return Err(Unmapped::other_form(
            "no envelope of SNS; with raw message delivery, the body is the message itself",
        ));
    };
    let kind = envelope.required("Type")?;
    if kind != "Notification" {
        let kind = beginning(&kind);
        return Err(Unmapped::invalid(format!(
            "an SNS message of type {kind:?} has no event; open its SubscribeURL to decide about the \
             subscription"
        )));
    }
    let arn = envelope.required("TopicArn")?;
    let id = envelope.required("MessageId")?;
    let sent = envelope.required("Timestamp")?;
    let at = time_of("the SNS Timestamp", &sent)?;
    let Some(inner) = envelope.text("Message") else {
        return Err(Unmapped::invalid("the SNS notification has no text in Message"));
    };
    let mut opened = malformed.clone();
    opened.headers.retain(|(name, _)| name != "content-type");
    // First, so that it is the time of the message inside: SQS gets a copy at another time.
    opened.properties.insert(0, (String::from("sns.timestamp"), sent));
    for (name, json) in envelope.all().filter(|(name, _)| !PLACED.contains(name)) {
        let text = plain(json).unwrap_or_else(|| json.to_owned());
        opened.properties.push((format!("sns.{name}"), text));
    }
    attributes(&envelope, &mut opened)?;
    opened.payload = Bytes::from(inner);
    for mapping in [event_bridge, cloud_event] {
        match mapping(&opened) {
            Err(Unmapped::OtherForm(_)) => {}
            read => return read,
        }
    }
    let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(&opened.payload).is_ok();
    let content_type = if is_json { ContentType::json() } else { ContentType::new("text/plain")? };
    let topic = arn.rsplit(':').next().unwrap_or(&arn);
    let message = opened.to_message(identity(&opened, &arn, &id, Some(at))?, topic)?;
    Ok(message.source(Source::new(arn.as_str())?).time(at).content_type(content_type))
}

/// Adds the message attributes of a notification as headers, before those of SQS.
fn attributes(envelope: &Object<'_>, opened: &mut Malformed) -> Result<(), Unmapped> {
    let Some(attributes) = envelope.object("MessageAttributes")? else { return Ok(()) };
    let mut headers = Vec::new();
    for (name, json) in attributes.all() {
        let Some(attribute) = Object::read(NOTIFICATION, json.as_bytes())? else {
            let name = beginning(name);
            return Err(Unmapped::invalid(format!(
                "the attribute {name:?} of the SNS notification is not an object"
            )));
        };
        let kind = attribute.required("Type")?;
        if kind != "String" {
            opened.properties.push((format!("sns.attribute_type.{name}"), kind));
        }
        headers.push((name.to_owned(), attribute.text("Value").unwrap_or_default()));
    }
    headers.append(&mut opened.headers);
    opened.headers = headers;
    Ok(())
}

/// Reads an event of Amazon EventBridge. The payload is its `detail`, the kind its `detail-type`;
/// everything else of the envelope is a header with the prefix `eventbridge.`.
///
/// # Errors
/// [`Unmapped::OtherForm`]: there is no such envelope. [`Unmapped::Invalid`]: a part is missing.
pub fn event_bridge(malformed: &Malformed) -> Result<ForeignMessage, Unmapped> {
    let envelope = match Object::with(EVENT, &malformed.payload, &["detail-type"])? {
        Some(envelope) if !may_be_in_body(malformed) || envelope.raw("specversion").is_none() => envelope,
        _ => return Err(Unmapped::other_form("no envelope of EventBridge")),
    };
    let kind = envelope.required("detail-type")?;
    let source = envelope.required("source")?;
    let id = envelope.required("id")?;
    let at = time_of("the time of the EventBridge event", &envelope.required("time")?)?;
    let Some(detail) = envelope.payload("detail") else {
        return Err(Unmapped::invalid("the EventBridge event has no detail"));
    };
    let mut opened = malformed.clone();
    opened.headers.retain(|(name, _)| name != "content-type");
    for (name, json) in envelope.all().filter(|(name, _)| *name != "detail") {
        let text = plain(json).unwrap_or_else(|| json.to_owned());
        opened.properties.push((format!("eventbridge.{name}"), text));
    }
    opened.payload = detail;
    let message = opened.to_message(identity(&opened, &source, &id, Some(at))?, &kind)?;
    Ok(message.source(Source::new(uri(&source))?).time(at).content_type(ContentType::json()))
}

/// Returns a name as a URI reference: other characters are percent-encoded.
fn uri(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_graphic() {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::MessageId;
    use crate::message::Message;
    use time::macros::datetime;

    fn queued(body: &str) -> Malformed {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        Malformed {
            topic: String::from("queue"),
            properties: vec![pair("sqs.MessageId", "m-1"), pair("sqs.SentTimestamp", "2026-11-27T21:00:00Z")],
            payload: Bytes::copy_from_slice(body.as_bytes()),
            ..Malformed::default()
        }
    }

    fn notification(message: &str) -> String {
        serde_json::json!({
            "Type": "Notification", "MessageId": "17", "TopicArn": "arn:aws:sns:eu-west-1:1:orders",
            "Message": message, "Timestamp": "2026-11-27T20:00:00.000Z", "SignatureVersion": "1",
            "Signature": "c2ln", "UnsubscribeURL": "https://sns/",
            "MessageAttributes": {
                "tenant": {"Type": "String", "Value": "acme"}, "n": {"Type": "Number", "Value": "7"}
            }
        })
        .to_string()
    }

    #[test]
    fn a_notification_is_read_with_attributes_and_signature() {
        let message = Message::from(sns(&queued(&notification(r#"{"order":7}"#))).unwrap());
        let at = datetime!(2026-11-27 20:00 UTC);
        let arn = "arn:aws:sns:eu-west-1:1:orders";
        assert_eq!(message.id, MessageId::derived(at, [arn, "17"]).unwrap());
        assert_eq!((message.kind.as_str(), message.source.as_str()), ("orders", arn));
        assert_eq!((&message.payload[..], message.content_type.is_json()), (&br#"{"order":7}"#[..], true));
        for (name, value) in [
            ("tenant", "acme"),
            ("n", "7"),
            ("sns.attribute_type.n", "Number"),
            ("sns.Signature", "c2ln"),
            ("sns.UnsubscribeURL", "https://sns/"),
            ("sqs.MessageId", "m-1"),
        ] {
            assert_eq!(message.headers.get(name), Some(value), "{name}");
        }
        let text = Message::from(sns(&queued(&notification("hello"))).unwrap());
        assert_eq!((&text.payload[..], text.content_type.as_str()), (&b"hello"[..], "text/plain"));
    }

    #[test]
    fn what_a_notification_wraps_is_read_as_that() {
        let id = MessageId::new();
        let event = format!(r#"{{"specversion":"1.0","id":"{id}","source":"/s","type":"t","data":1}}"#);
        let message = Message::from(sns(&queued(&notification(&event))).unwrap());
        assert_eq!((message.id, message.kind.as_str(), &message.payload[..]), (id, "t", &b"1"[..]));
        assert_eq!(message.headers.get("tenant"), Some("acme"));
        // The time of an event without one is that of SNS, not that of the copy in the queue.
        let event = event.replace(&id.to_string(), "17");
        let message = Message::from(sns(&queued(&notification(&event))).unwrap());
        assert_eq!(message.id.generated_at(), datetime!(2026-11-27 20:00 UTC));
        let bridged = Message::from(sns(&queued(&notification(BRIDGED))).unwrap());
        assert_eq!(bridged.kind.as_str(), "Order Placed");
    }

    #[test]
    fn notifications_that_are_no_message_have_clear_answers() {
        let raw = sns(&queued(r#"{"order":7}"#)).unwrap_err();
        assert!(raw.is_other_form() && raw.to_string().contains("raw message delivery"), "{raw}");
        let confirm = notification("x").replace("\"Notification\"", "\"SubscriptionConfirmation\"");
        for (body, part) in [
            (confirm, "SubscribeURL"),
            (notification("x").replace("\"MessageId\":\"17\",", ""), "MessageId"),
            (notification("x").replace("2026-11-27T20:00:00.000Z", "soon"), "\"soon\""),
            (notification("x").replace("\"Message\":\"x\",", ""), "in Message"),
        ] {
            let error = sns(&queued(&body)).unwrap_err();
            assert!(!error.is_other_form() && error.to_string().contains(part), "{body}: {error}");
        }
    }

    const BRIDGED: &str = r#"{"version":"0","id":"17","detail-type":"Order Placed","source":"my shop",
        "account":"1","time":"2026-11-27T20:00:00Z","region":"eu","resources":["a"],"detail":{"n": 1.0}}"#;

    #[test]
    fn an_event_of_eventbridge_is_its_detail() {
        let message = Message::from(event_bridge(&queued(BRIDGED)).unwrap());
        let at = datetime!(2026-11-27 20:00 UTC);
        assert_eq!(message.id, MessageId::derived(at, ["my shop", "17"]).unwrap());
        assert_eq!((message.kind.as_str(), message.source.as_str()), ("Order Placed", "my%20shop"));
        assert_eq!(&message.payload[..], br#"{"n": 1.0}"#);
        assert_eq!(message.headers.get("eventbridge.resources"), Some(r#"["a"]"#));
        let error = event_bridge(&queued(&BRIDGED.replace("\"detail\"", "\"other\""))).unwrap_err();
        assert!(error.to_string().contains("no detail"), "{error}");
        assert!(event_bridge(&queued("{}")).unwrap_err().is_other_form());
    }
}
