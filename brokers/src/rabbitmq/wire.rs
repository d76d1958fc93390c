//! Converts messages to AMQP 0-9-1 records and back, by the CloudEvents AMQP binding in binary
//! mode.
//!
//! Attributes travel as `cloudEvents_*` headers (`cloudEvents:` is also read), `datacontenttype` as
//! the property `content_type`, trace context and free headers under their own names. The id is
//! also the property `message_id` and the event type the property `type`, where AMQP tools look for
//! them. An event in structured mode (content type `application/cloudevents+json`), as other
//! producers send it, is also read.

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use message::cloudevents::{Envelope, attributes, trace_headers};
use message::{HeadersCut, Malformed, Message, PublishError, WireHeaders};

use super::evidence;
use super::headers::{PREFIXES, header_text, value_bytes};
use crate::structured;

/// The headers by which RabbitMQ routes a message to more queues. Their values must be arrays; with
/// a text it closes the channel (`unacceptable_type_in_header`).
const ROUTING_HEADERS: [&str; 2] = ["CC", "BCC"];

/// The property `delivery_mode` of a message that survives a broker restart.
const PERSISTENT: u8 = 2;

/// The bytes of a table entry besides its name and value: length of the name, type, length of the
/// value.
const ENTRY_BYTES: usize = 1 + 1 + 4;

/// The bytes reserved for a content header frame besides its properties: frame header and end,
/// class, weight, body size, property flags, timestamp, delivery mode, table length (AMQP 0-9-1
/// specification, sections 4.2.3, 4.2.6).
const FRAME_BYTES: usize = 64;

/// The limits that the connection and the configuration set.
#[derive(Debug, Clone)]
pub(crate) struct Bounds {
    /// Maximum bytes of a payload.
    pub(crate) payload_bytes_max: usize,
    /// Maximum bytes of a frame: properties and headers must fit into one.
    pub(crate) frame_bytes_max: usize,
}

/// A message as AMQP carries it.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) routing_key: ShortString,
    pub(crate) properties: BasicProperties,
    pub(crate) payload: Bytes,
}

/// Encodes a message as a record.
///
/// # Errors
/// [`PublishError::refused`] when the payload or the headers exceed the bounds, a text does not fit
/// an AMQP short string, or RabbitMQ routes by a header of this name (final: no setting helps).
pub(crate) fn encode(
    message: &Message,
    bounds: &Bounds,
    app_id: Option<&ShortString>,
) -> Result<Record, PublishError> {
    let (bytes, bytes_max) = (message.payload.len(), bounds.payload_bytes_max);
    if bytes > bytes_max {
        return Err(PublishError::refused(format!(
            "the payload for {} has {bytes} bytes; rabbitmq takes at most {bytes_max}: shorten it, send a \
             reference, or raise payload_bytes_max here and max_message_size on the broker",
            message.topic
        )));
    }
    if let Some((name, _)) = message.headers.iter().find(|(name, _)| ROUTING_HEADERS.contains(name)) {
        return Err(PublishError::refused(format!(
            "the header {name} for {} cannot be a text: rabbitmq routes by the headers CC and BCC; give it \
             another name",
            message.topic
        ))
        .without_retry());
    }
    let id = message.id.to_string();
    let mut size = FRAME_BYTES + id.len() + message.kind.as_str().len() + message.content_type.as_str().len();
    let mut headers = FieldTable::default();
    let mut insert = |name: String, value: &str| {
        size += name.len() + value.len() + ENTRY_BYTES;
        headers.insert(short("header name", name)?, AMQPValue::LongString(LongString::from(value)));
        Ok::<_, PublishError>(())
    };
    for (name, value) in attributes(message) {
        insert(format!("{}{name}", PREFIXES[0]), &value)?;
    }
    for (name, value) in message.headers.iter().chain(trace_headers(message)) {
        insert(name.to_owned(), value)?;
    }
    // AMQP cannot split a content header over frames: a longer one closes the whole connection (501
    // FRAME_ERROR).
    if size > bounds.frame_bytes_max {
        return Err(PublishError::refused(format!(
            "the headers for {} have {size} bytes; the connection's frame_max is {}: shorten them, or raise \
             frame_max on the broker",
            message.topic, bounds.frame_bytes_max
        )));
    }
    let mut properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_message_id(short("message id", id)?)
        .with_content_type(short("content type", message.content_type.as_str())?)
        .with_type(short("event type", message.kind.as_str())?)
        .with_headers(headers);
    if let Ok(seconds) = u64::try_from(message.time.unix_timestamp()) {
        properties = properties.with_timestamp(seconds);
    }
    if let Some(app_id) = app_id {
        properties = properties.with_app_id(app_id.clone());
    }
    let routing_key = short("routing key", message.topic.as_str())?;
    Ok(Record { routing_key, properties, payload: message.payload.clone() })
}

/// Converts a text to an AMQP short string. The library's own conversion panics above 255 bytes.
fn short(what: &str, text: impl Into<String>) -> Result<ShortString, PublishError> {
    ShortString::try_new(text)
        .map_err(|error| PublishError::refused(format!("the {what} does not fit AMQP")).with_source(error))
}

/// Reads a delivery. `topic` is its routing key, or the queue if it has none.
///
/// # Errors
/// [`Malformed`] with the evidence, when there is no valid id or an attribute cannot be accepted.
pub(crate) fn decode(
    topic: &str,
    properties: &BasicProperties,
    payload: Vec<u8>,
) -> Result<Message, Box<Malformed>> {
    let text = |property: &Option<ShortString>| property.as_ref().map(ToString::to_string);
    let mut envelope = Envelope {
        topic: topic.to_owned(),
        message_id: text(properties.message_id()),
        content_type: text(properties.content_type()),
        payload: Bytes::from(payload),
        ..Envelope::default()
    };
    let is_of_broker = |(name, _): &(&ShortString, &AMQPValue)| evidence::is_of_broker(name.as_str());
    let arrived = || properties.headers().iter().flat_map(FieldTable::inner);
    // The broker's own change with a redelivery, so they must not decide about the others. A sender
    // can write such names too, so they have a bound of their own.
    let mut bound = HeadersCut::new("", 0);
    let of_broker: Vec<_> = arrived()
        .filter(is_of_broker)
        .filter(|(name, value)| bound.keeps(name.as_str(), value_bytes(value)))
        .collect();
    let of_sender = || arrived().filter(|header| !is_of_broker(header));
    let all = || of_sender().chain(of_broker.iter().copied());
    let mut seen = WireHeaders::default();
    of_sender().for_each(|(name, value)| seen.add(name.as_str().len(), value_bytes(value)));
    if let Err(mut cut) = seen.check() {
        let kept: Vec<_> =
            of_sender().filter(|(name, value)| cut.keeps(name.as_str(), value_bytes(value))).collect();
        fill(&mut envelope, kept.iter().copied());
        let mut malformed = envelope.into_malformed(cut.to_string());
        evidence::complete(&mut malformed, properties, kept.into_iter().chain(of_broker.iter().copied()));
        // Without a position or an id, only this distinguishes deliveries with equal kept parts.
        malformed.properties.push((String::from("amqp.headers_sha256"), evidence::digest(of_sender())));
        return Err(Box::new(malformed.cut("amqp.headers_cut", &cut)));
    }
    fill(&mut envelope, all());
    // A foreign producer may name the type only in the property `type`.
    if let Some(kind) = text(properties.kind())
        && !envelope.attributes.iter().any(|(name, _)| name == "type")
    {
        envelope.attributes.push((String::from("type"), kind));
    }
    structured::open(envelope, "amqp", None).map_err(|mut malformed| {
        evidence::complete(&mut malformed, properties, all());
        malformed
    })
}

/// Sorts headers with a text into the envelope.
fn fill<'a>(envelope: &mut Envelope, headers: impl Iterator<Item = (&'a ShortString, &'a AMQPValue)>) {
    for (name, value) in headers {
        if let Some(value) = header_text(value) {
            envelope.push_header(&PREFIXES, name.as_str(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use message::{ContentType, EventType, Fault, OrderingKey, Topic, TraceContext};

    const WIDE: Bounds = Bounds { payload_bytes_max: 16 << 20, frame_bytes_max: 131_072 };

    fn sample() -> Message {
        let mut message = Message::new(
            Topic::new("orders").unwrap(),
            EventType::new("order.placed").unwrap(),
            r#"{"total":12}"#,
        )
        .with_key(OrderingKey::new("Müller 7").unwrap())
        .with_content_type(ContentType::json());
        message.headers.insert("tenant", "acme").unwrap();
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        message.trace = Some(TraceContext::new(parent, Some("a=b".into())).unwrap());
        message
    }

    #[test]
    fn a_message_survives_the_wire() {
        let message = sample();
        let record = encode(&message, &WIDE, None).unwrap();
        let back = decode("orders", &record.properties, record.payload.to_vec()).unwrap();
        assert_eq!(back, message);
    }

    #[test]
    fn a_delivery_with_too_many_headers_is_malformed_and_distinguished_by_all_of_them() {
        let message = sample();
        let properties = encode(&message, &WIDE, None).unwrap().properties;
        let deliver = |count: usize, last: &str, of_broker: &[&str]| {
            let mut table = properties.headers().clone().unwrap();
            for n in table.inner().len()..count {
                table.insert(short("header", format!("h{n:05}")).unwrap(), AMQPValue::LongInt(1));
            }
            for name in of_broker {
                table.insert(short("header", *name).unwrap(), AMQPValue::LongInt(1));
            }
            table.insert(short("header", "z").unwrap(), AMQPValue::LongString(last.into()));
            decode("orders", &properties.clone().with_headers(table), b"{}".to_vec())
        };
        let of_broker = ["x-acquired-count", "x-delivery-count", "x-first-death-queue"];
        let most = message::WIRE_HEADERS_MAX - 1;
        for of_broker in [&[][..], &of_broker[..]] {
            assert_eq!(deliver(most, "1", of_broker).unwrap().id, message.id);
        }
        let read = |last: &str| deliver(most + 1, last, &[]).unwrap_err();
        let one = read("1");
        assert!(one.is_cut && one.problem.starts_with("there are 4001 headers"), "{one}");
        let note = one.find("amqp.headers_cut").unwrap();
        assert!(note.starts_with("1000 of 4001 headers are kept; the first one left out: "), "{note}");
        assert_eq!(
            (one.find("amqp.message_id"), one.find("z")),
            (Some(message.id.to_string().as_str()), None)
        );
        let (again, other) = (read("1"), read("2"));
        assert!(one == again && one != other, "what is left out distinguishes them");
        let mut redelivered = deliver(most + 1, "1", &of_broker).unwrap_err();
        assert_eq!(redelivered.broker_notes.len(), of_broker.len());
        redelivered.broker_notes.clear();
        assert_eq!(redelivered, one, "the broker's own headers change nothing else");
    }

    #[test]
    fn what_a_sender_writes_under_the_brokers_names_is_bounded() {
        let message = sample();
        let properties = encode(&message, &WIDE, None).unwrap().properties;
        let mut table = properties.headers().clone().unwrap();
        for n in 0..message::WIRE_HEADERS_MAX {
            table.insert(short("header", format!("x-first-death-{n}")).unwrap(), AMQPValue::LongInt(1));
        }
        table.insert(short("header", "cloudEvents_id").unwrap(), AMQPValue::LongString("none".into()));
        let malformed = decode("orders", &properties.with_headers(table), b"{}".to_vec()).unwrap_err();
        assert_eq!((malformed.broker_notes.len(), malformed.is_cut), (1_000, false));
    }

    #[test]
    fn amqp_tools_find_the_id_and_persistence_in_the_properties() {
        let message = sample();
        let app = ShortString::try_new("shop").unwrap();
        let properties = encode(&message, &WIDE, Some(&app)).unwrap().properties;
        assert_eq!(properties.message_id().as_ref().unwrap().as_str(), message.id.to_string());
        assert_eq!(properties.delivery_mode(), &Some(2));
        assert_eq!(properties.kind().as_ref().unwrap().as_str(), "order.placed");
        assert_eq!(properties.app_id(), &Some(app));
        assert!(properties.headers().as_ref().unwrap().contains_key("cloudEvents_id"));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_size_and_limit() {
        let mut message = sample();
        let narrow = Bounds { payload_bytes_max: 11, ..WIDE };
        let error = encode(&message, &narrow, None).unwrap_err();
        assert_eq!(error.fault(), Fault::Message);
        assert!(error.to_string().contains("12 bytes; rabbitmq takes at most 11"), "{error}");
        for n in 0..20 {
            message.headers.insert(format!("h{n}"), "x".repeat(8_000)).unwrap();
        }
        let error = encode(&message, &WIDE, None).unwrap_err();
        assert!(error.to_string().contains("frame_max is 131072"), "{error}");
    }

    #[test]
    fn a_header_by_which_rabbitmq_routes_is_refused_for_good_and_named() {
        for name in ["CC", "BCC"] {
            let mut message = sample();
            message.headers.insert(name, "audit").unwrap();
            let error = encode(&message, &WIDE, None).unwrap_err();
            assert_eq!(error.fault(), Fault::Message);
            assert!(error.is_final() && error.to_string().contains(&format!("header {name} ")), "{error}");
        }
        // RabbitMQ looks for these exact names.
        let mut message = sample();
        for name in ["cc", "Bcc", "CC2"] {
            message.headers.insert(name, "audit").unwrap();
        }
        encode(&message, &WIDE, None).unwrap();
    }

    #[test]
    fn a_foreign_message_needs_nothing_but_a_message_id() {
        let id = message::MessageId::new();
        let properties = BasicProperties::default()
            .with_message_id(ShortString::try_new(id.to_string()).unwrap())
            .with_type(ShortString::try_new("order.paid").unwrap());
        let message = decode("orders", &properties, b"x".to_vec()).unwrap();
        assert_eq!((message.id, message.kind.as_str()), (id, "order.paid"));
    }

    #[test]
    fn the_colon_spelling_and_numbers_are_read() {
        let id = message::MessageId::new();
        let mut headers = FieldTable::default();
        let name = |name: &str| ShortString::try_new(name).unwrap();
        headers.insert(name("cloudEvents:id"), AMQPValue::LongString(id.to_string().into()));
        headers.insert(name("attempt"), AMQPValue::LongInt(3));
        headers.insert(name("x-death"), AMQPValue::FieldTable(FieldTable::default()));
        let properties = BasicProperties::default().with_headers(headers);
        let message = decode("orders", &properties, Vec::new()).unwrap();
        assert_eq!((message.id, message.headers.get("attempt")), (id, Some("3")));
    }

    #[test]
    fn a_delivery_without_an_id_is_malformed_and_keeps_its_bytes() {
        let malformed = decode("orders", &BasicProperties::default(), b"x".to_vec()).unwrap_err();
        assert!(malformed.problem.contains("no id"), "{}", malformed.problem);
        assert_eq!(&malformed.payload[..], b"x");
    }
}
