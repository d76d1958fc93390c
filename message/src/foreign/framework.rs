//! Messages of frameworks that name them in headers, or in an envelope of their own in the body.

use serde_json::value::RawValue;
use std::collections::BTreeMap;
use time::OffsetDateTime;

use super::body::{Object, plain};
use super::identity::{identity, of_millis, time_of};
use super::unmapped::Unmapped;
use crate::evidence::ordering_key;
use crate::foreign_message::ForeignMessage;
use crate::subscription::Malformed;
use crate::text::ContentType;

/// A form with its parts in headers. Of several names, the first one that is there counts; each may
/// also be that of a property, such as `amqp.type`.
struct InHeaders {
    name: &'static str,
    /// The headers that messages of this form have.
    marks: &'static [&'static str],
    /// For marks that other producers write as well: further headers, at least one of which this
    /// form has.
    beside: &'static [&'static str],
    id: &'static [&'static str],
    /// Without any of these, the kind is the topic.
    kind: &'static [&'static str],
    time: &'static [&'static str],
    key: &'static [&'static str],
    /// A header that holds others as a JSON object.
    nested: Option<&'static str>,
}

const NO_NAMES: &[&str] = &[];

/// The beginning of each type in an envelope of MassTransit.
const MASSTRANSIT_URN: &str = "urn:message:";

const IN_HEADERS: [InHeaders; 9] = [
    InHeaders {
        name: "cap",
        marks: &["cap-msg-id"],
        beside: NO_NAMES,
        id: &["cap-msg-id"],
        kind: &["cap-msg-name", "cap-msg-type"],
        time: &["cap-senttime"],
        key: NO_NAMES,
        nested: None,
    },
    InHeaders {
        name: "nservicebus",
        marks: &["NServiceBus.MessageId"],
        beside: NO_NAMES,
        id: &["NServiceBus.MessageId"],
        kind: &["NServiceBus.EnclosedMessageTypes"],
        time: &["NServiceBus.TimeSent"],
        key: NO_NAMES,
        nested: Some("NServiceBus.AmazonSQS.Headers"),
    },
    InHeaders {
        name: "wolverine",
        marks: &["id", "message-type"],
        beside: &["attempts", "conversation-id"],
        id: &["id"],
        kind: &["message-type"],
        time: &["sent-at"],
        key: NO_NAMES,
        nested: None,
    },
    InHeaders {
        name: "wolverine",
        marks: &["id", "accepted-content-types"],
        beside: &["attempts", "conversation-id"],
        id: &["id"],
        kind: &["amqp.type"],
        time: &["sent-at"],
        key: NO_NAMES,
        nested: None,
    },
    InHeaders {
        name: "masstransit",
        marks: &["MT-Message-Type"],
        beside: NO_NAMES,
        id: &["MessageId", "amqp.message_id"],
        kind: &["MT-Message-Type"],
        time: NO_NAMES,
        key: NO_NAMES,
        nested: None,
    },
    InHeaders {
        name: "celery",
        marks: &["id", "task"],
        beside: &["lang", "root_id", "argsrepr"],
        id: &["id"],
        kind: &["task"],
        time: NO_NAMES,
        key: NO_NAMES,
        nested: None,
    },
    InHeaders {
        name: "axon",
        marks: &["axon-message-id"],
        beside: NO_NAMES,
        id: &["axon-message-id"],
        kind: &["axon-message-type"],
        time: &["axon-message-timestamp"],
        key: &["axon-message-aggregate-id"],
        nested: None,
    },
    InHeaders {
        name: "eventuate",
        marks: &["ID", "DESTINATION"],
        beside: NO_NAMES,
        id: &["ID"],
        kind: &["event-type", "command_type"],
        time: &["DATE"],
        key: &["PARTITION_ID"],
        nested: None,
    },
    InHeaders {
        name: "spring",
        marks: &["id", "timestamp"],
        beside: &["contentType", "JavaType", "__TypeId__", "spring_json_header_types"],
        id: &["id"],
        kind: &["JavaType", "__TypeId__"],
        time: &["timestamp"],
        key: NO_NAMES,
        nested: None,
    },
];

/// A form whose envelope is a JSON object in the body.
struct InBody {
    name: &'static str,
    what: &'static str,
    /// The members that the envelope of this form has.
    marks: &'static [&'static str],
    read: fn(&Object<'_>) -> Result<Parts, Unmapped>,
}

/// The parts of an envelope.
struct Parts {
    id: String,
    kind: Option<String>,
    time: Option<String>,
    payload: Option<bytes::Bytes>,
}

const IN_BODY: [InBody; 3] = [
    InBody {
        name: "masstransit",
        what: "envelope of MassTransit",
        marks: &["messageId", "messageType", "message"],
        read: |envelope| {
            let types = envelope.raw("messageType").unwrap_or_default();
            let types: Vec<String> = serde_json::from_str(types).unwrap_or_default();
            let is_urn = |text: &String| text.starts_with(MASSTRANSIT_URN);
            let Some(first) = types.first().filter(|_| types.iter().all(is_urn)) else {
                return Err(Unmapped::other_form(format!(
                    "no envelope of MassTransit: messageType is not a list of texts that begin with \
                     {MASSTRANSIT_URN}"
                )));
            };
            Ok(Parts {
                id: envelope.required("messageId")?,
                kind: Some(masstransit_type(first).to_owned()),
                time: envelope.text("sentTime"),
                payload: envelope.payload("message"),
            })
        },
    },
    InBody {
        name: "sequin",
        what: "change event of Sequin",
        marks: &["record", "action", "metadata"],
        read: |envelope| {
            let metadata = envelope.object("metadata")?;
            let part = |name: &str| metadata.as_ref().and_then(|metadata| metadata.text(name));
            let missing =
                || Unmapped::other_form("no change event of Sequin: it has no metadata.idempotency_key");
            let id = part("idempotency_key").ok_or_else(missing)?;
            let action = envelope.required("action")?;
            Ok(Parts {
                id,
                kind: part("table_name").map(|table| format!("{table}.{action}")),
                time: part("commit_timestamp"),
                payload: None,
            })
        },
    },
    InBody {
        name: "laravel",
        what: "job of Laravel",
        marks: &["uuid", "displayName", "job"],
        read: |envelope| {
            Ok(Parts {
                id: envelope.required("uuid")?,
                kind: envelope.text("displayName"),
                time: None,
                payload: None,
            })
        },
    },
];

/// Reads a message of a framework, by its headers or by the envelope in its body: CAP, NServiceBus,
/// Wolverine, MassTransit, Celery, Axon, Eventuate Tram, Sequin, Laravel, and messages of Spring
/// that have an id and a time. The payload of an envelope of MassTransit is its `message`; any
/// other is the whole body.
///
/// Names that any producer may use (`id`, `timestamp`, `task`, `messageType`) do not suffice: a
/// message of Spring also has `contentType`, `JavaType`, `__TypeId__` or
/// `spring_json_header_types`, one of Celery `lang`, `root_id` or `argsrepr`, one of Wolverine
/// `attempts` or `conversation-id`; the types in an envelope of MassTransit begin with
/// `urn:message:`.
///
/// The id is hashed with the name of the framework and the time. Where the framework sends none
/// (Celery, Laravel, MassTransit with a raw body), it is that of the broker.
///
/// # Errors
/// [`Unmapped::OtherForm`]: it is none of these. This includes a message that has only such names,
/// and one of such a form whose time cannot be read. [`Unmapped::Invalid`]: the id is missing, or
/// there is no time or an invalid one.
pub fn framework(malformed: &Malformed) -> Result<ForeignMessage, Unmapped> {
    let in_headers = IN_HEADERS.iter().filter(|form| form.fits(malformed));
    let in_headers = in_headers.map(|form| form.read(malformed));
    let in_body = IN_BODY.iter().filter_map(|form| {
        let envelope = Object::with(form.what, &malformed.payload, form.marks).transpose()?;
        Some(envelope.and_then(|envelope| form.message(malformed, &envelope)))
    });
    let mut unread = Unmapped::other_form("no message of a known framework");
    for read in in_headers.chain(in_body) {
        match read {
            Err(error) if error.is_other_form() => unread = error,
            read => return read,
        }
    }
    Err(unread)
}

impl InHeaders {
    fn fits(&self, malformed: &Malformed) -> bool {
        let has = |name: &&str| malformed.header(name).is_some();
        self.marks.iter().all(has) && (self.beside.is_empty() || self.beside.iter().any(has))
    }

    fn read(&self, malformed: &Malformed) -> Result<ForeignMessage, Unmapped> {
        let nested = self.nested.and_then(|name| malformed.header(name)).and_then(texts).unwrap_or_default();
        let found = |names: &[&str]| {
            let here =
                names.iter().find_map(|name| malformed.header(name).or_else(|| malformed.property(name)));
            here.or_else(|| names.iter().find_map(|name| nested.get(*name).map(String::as_str)))
        };
        // Spring writes texts as JSON.
        let Some(id) = found(self.id).map(|id| id.trim_matches('"')) else {
            let names = self.id.join(" or ");
            return Err(Unmapped::invalid(format!("a message of {} without {names}", self.name)));
        };
        let time = match self.time.iter().find(|name| found(&[name]).is_some()) {
            Some(name) => Some(self.time(malformed, name, found(&[name]).unwrap_or_default())?),
            None => snowflake(self.name, id),
        };
        let kind = found(self.kind).map(kind_of).filter(|kind| !kind.is_empty());
        let kind = kind.unwrap_or(&malformed.topic);
        let mut message = malformed.to_message(identity(malformed, self.name, id, time)?, kind)?;
        if let Some(time) = time {
            message = message.time(time);
        }
        let key = found(self.key).and_then(|key| ordering_key(key.as_bytes()));
        Ok(match key.filter(|_| malformed.ordering_key().is_none()) {
            Some(key) => message.key(key),
            None => message,
        })
    }

    /// Returns the time in a header: a text, or 8 bytes with milliseconds since 1970.
    fn time(&self, malformed: &Malformed, name: &str, text: &str) -> Result<OffsetDateTime, Unmapped> {
        let bytes = malformed.header_bytes(name).and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
        if malformed.header_type(name) == Some("bytes")
            && let Some(at) = bytes.and_then(|bytes| of_millis(i64::from_be_bytes(bytes)))
        {
            return Ok(at);
        }
        time_of(&format!("the header {name} of {}", self.name), text).map_err(|error| {
            // Other frameworks may write the same marks: the message may be one of theirs.
            if self.beside.is_empty() { error } else { Unmapped::other_form(error.to_string()) }
        })
    }
}

impl InBody {
    fn message(&self, malformed: &Malformed, envelope: &Object<'_>) -> Result<ForeignMessage, Unmapped> {
        let Parts { id, kind, time, payload } = (self.read)(envelope)?;
        let time = time.map(|text| time_of(&format!("the time in the {}", self.what), &text)).transpose()?;
        let kind = kind.unwrap_or_else(|| malformed.topic.clone());
        let mut opened = malformed.clone();
        if let Some(payload) = payload {
            opened.payload = payload;
            for (name, json) in envelope.all().filter(|(name, _)| *name != "message") {
                let text = plain(json).unwrap_or_else(|| json.to_owned());
                opened.properties.push((format!("{}.{name}", self.name), text));
            }
        }
        let mut message = opened.to_message(identity(&opened, self.name, &id, time)?, &kind)?;
        if let Some(time) = time {
            message = message.time(time);
        }
        Ok(message.content_type(ContentType::json()))
    }
}

/// Returns the text members of a JSON object.
fn texts(json: &str) -> Option<BTreeMap<String, String>> {
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(json).ok()?;
    Some(members.into_iter().filter_map(|(name, raw)| Some((name, plain(raw.get())?))).collect())
}

/// Returns the name of a type without what .NET and MassTransit write around it: the first of
/// several, without its assembly.
fn kind_of(text: &str) -> &str {
    let first = text.split([';', ',']).next().unwrap_or(text).trim();
    masstransit_type(first)
}

fn masstransit_type(urn: &str) -> &str {
    urn.strip_prefix(MASSTRANSIT_URN).unwrap_or(urn)
}

/// Returns the time in an id of CAP, a number of its generator: the bits above the lowest 22 are
/// milliseconds since November 2010.
fn snowflake(name: &str, id: &str) -> Option<OffsetDateTime> {
    const EPOCH_MILLIS: i64 = 1_288_834_974_657;
    let number = id.parse::<i64>().ok().filter(|number| name == "cap" && *number > 0)?;
    of_millis(EPOCH_MILLIS + (number >> 22))
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

    fn delivery(headers: &[(&str, &str)], body: &str) -> Malformed {
        Malformed {
            topic: String::from("orders"),
            headers: headers.iter().map(|(name, value)| pair(name, value)).collect(),
            payload: Bytes::copy_from_slice(body.as_bytes()),
            ..Malformed::default()
        }
    }

    fn read(headers: &[(&str, &str)], body: &str) -> Message {
        framework(&delivery(headers, body)).unwrap().into()
    }

    #[test]
    fn headers_name_id_kind_and_time() {
        let at = datetime!(2026-11-27 20:00 UTC);
        for (name, kind, headers) in [
            (
                "cap",
                "order.placed",
                &[
                    ("cap-msg-id", "17"),
                    ("cap-msg-name", "order.placed"),
                    ("cap-senttime", "11/27/2026 20:00:00 +00:00"),
                ][..],
            ),
            (
                "nservicebus",
                "Shop.OrderPlaced",
                &[
                    ("NServiceBus.MessageId", "17"),
                    ("NServiceBus.TimeSent", "2026-11-27 20:00:00:000000 Z"),
                    (
                        "NServiceBus.EnclosedMessageTypes",
                        "Shop.OrderPlaced, Shop, Version=1.0.0.0;Shop.Event",
                    ),
                ],
            ),
            (
                "wolverine",
                "Shop.OrderPlaced",
                &[
                    ("id", "17"),
                    ("message-type", "Shop.OrderPlaced"),
                    ("attempts", "0"),
                    ("sent-at", "2026-11-27 20:00:00:000000 Z"),
                ],
            ),
            (
                "eventuate",
                "OrderPlaced",
                &[
                    ("ID", "17"),
                    ("DESTINATION", "orders"),
                    ("event-type", "OrderPlaced"),
                    ("DATE", "Fri, 27 Nov 2026 20:00:00 GMT"),
                    ("PARTITION_ID", "7"),
                ],
            ),
            (
                "spring",
                "orders",
                &[("id", "\"17\""), ("timestamp", "1795809600000"), ("contentType", "application/json")],
            ),
        ] {
            let message = read(headers, "{}");
            assert_eq!(message.id, MessageId::derived(at, [name, "17"]).unwrap(), "{name}");
            assert_eq!((message.kind.as_str(), message.time), (kind, at), "{name}");
        }
        let eventuate =
            read(&[("ID", "17"), ("DESTINATION", "o"), ("DATE", "1795809600000"), ("PARTITION_ID", "7")], "");
        assert_eq!(eventuate.key.unwrap().as_str(), "7");
        // The number itself says when it was made.
        let cap = read(&[("cap-msg-id", "1874316271230304256")], "");
        assert_eq!(cap.time.date(), time::macros::date!(2025 - 01 - 01));
    }

    #[test]
    fn a_time_in_bytes_is_read() {
        let mut axon = delivery(&[("axon-message-id", "17"), ("axon-message-timestamp", "\u{FFFD}")], "");
        axon.properties = vec![pair("kafka.header_hex.axon-message-timestamp", "000001a220d80400")];
        let message = Message::from(framework(&axon).unwrap());
        assert_eq!(message.time, of_millis(0x01a2_20d8_0400).unwrap());
    }

    #[test]
    fn an_envelope_in_the_body_is_read() {
        let masstransit = r#"{"messageId":"17","messageType":["urn:message:Shop:OrderPlaced"],
            "message":{"n": 1.0},"sentTime":"2026-11-27T20:00:00Z","host":{"a":1}}"#;
        let message = read(&[], masstransit);
        let at = datetime!(2026-11-27 20:00 UTC);
        assert_eq!(message.id, MessageId::derived(at, ["masstransit", "17"]).unwrap());
        assert_eq!(
            (message.kind.as_str(), &message.payload[..]),
            ("Shop:OrderPlaced", &br#"{"n": 1.0}"#[..])
        );
        assert_eq!(message.headers.get("masstransit.host"), Some(r#"{"a":1}"#));
        let sequin = r#"{"record":{"id":7},"action":"insert","metadata":{"table_name":"orders",
            "idempotency_key":"17","commit_timestamp":"2026-11-27T20:00:00Z"}}"#;
        let message = read(&[], sequin);
        assert_eq!((message.kind.as_str(), &message.payload[..]), ("orders.insert", sequin.as_bytes()));
        let nested = read(
            &[
                ("NServiceBus.MessageId", "17"),
                (
                    "NServiceBus.AmazonSQS.Headers",
                    r#"{"NServiceBus.EnclosedMessageTypes":"A","NServiceBus.TimeSent":"1795809600000"}"#,
                ),
            ],
            "",
        );
        assert_eq!((nested.kind.as_str(), nested.time), ("A", at));
    }

    #[test]
    fn messages_without_a_time_or_an_id_have_clear_answers() {
        let celery = [("id", "17"), ("task", "bill"), ("lang", "py")];
        let celery = framework(&delivery(&celery, "")).unwrap_err().to_string();
        assert!(celery.contains("\"17\" has no time"), "{celery}");
        let raw = framework(&delivery(&[("MT-Message-Type", "x")], "")).unwrap_err().to_string();
        assert!(raw.contains("masstransit without MessageId or amqp.message_id"), "{raw}");
        let late = [("cap-msg-id", "17"), ("cap-senttime", "soon")];
        let late = framework(&delivery(&late, "")).unwrap_err().to_string();
        assert!(late.contains("cap-senttime") && late.contains("\"soon\""), "{late}");
        assert!(framework(&delivery(&[("id", "17")], "{}")).unwrap_err().is_other_form());
    }

    #[test]
    fn names_that_any_producer_may_use_recognise_no_framework() {
        const AT: &str = "1795809600000";
        for (headers, body, reason) in [
            (&[("id", "17"), ("timestamp", AT)][..], "{}", "no message of a known framework"),
            (&[("id", "17"), ("task", "bill")], "{}", "no message of a known framework"),
            (&[("id", "17"), ("message-type", "x")], "{}", "no message of a known framework"),
            (
                &[("id", "17"), ("timestamp", "1795809600"), ("contentType", "x")],
                "",
                "the header timestamp of spring is \"1795809600\"",
            ),
            (
                &[("id", "17"), ("message-type", "x"), ("attempts", "0"), ("sent-at", "soon")],
                "",
                "the header sent-at of wolverine is \"soon\"",
            ),
            (&[], r#"{"messageId":"17","messageType":"placed","message":"m","stack":"a"}"#, "urn:message:"),
            (&[], r#"{"messageId":"17","messageType":["urn:message:A","B"],"message":{}}"#, "urn:message:"),
            (&[], r#"{"messageId":"17","messageType":[],"message":{}}"#, "urn:message:"),
            (&[], r#"{"messageId":"17","messageId":"18"}"#, "no message of a known framework"),
            (&[], r#"{"record":1,"action":"a","metadata":{}}"#, "no metadata.idempotency_key"),
        ] {
            let error = framework(&delivery(headers, body)).unwrap_err();
            assert!(error.is_other_form(), "{headers:?} {body}: {error}");
            assert!(error.to_string().contains(reason), "{headers:?} {body}: {error}");
        }
    }
}
