//! The messages that the cases send, and the facts in their payloads.

use message::{ContentType, EventType, Message, OrderingKey, Source, Topic, TraceContext};

use crate::Failure;
use crate::facts::{Fact, Order, all_stored};

/// The example in the W3C recommendation.
pub const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Bytes that are not text in any encoding that a broker could apply by mistake.
pub const BINARY: [u8; 8] = [0x00, 0xff, 0x7f, 0x80, 0xc3, 0x28, 0x0d, 0x0a];
/// [`BINARY`] in base64 (RFC 4648), written by hand.
pub const BINARY_BASE64: &str = "AP9/gMMoDQo=";

/// Returns the `seq`-th message of a key, with both in its JSON payload.
///
/// # Errors
/// The name of the topic or the key is not valid.
pub fn order(topic: &str, key: &str, seq: i64) -> Result<Message, Failure> {
    let payload = format!(r#"{{"key":"{key}","seq":{seq}}}"#);
    Ok(Message::new(Topic::new(topic)?, EventType::new("order.placed")?, payload)
        .with_key(OrderingKey::new(key)?)
        .with_content_type(ContentType::json()))
}

/// Returns `rounds` messages for each of `keys` keys. The keys alternate.
///
/// # Errors
/// The name of the topic is not valid.
pub fn orders(topic: &str, keys: usize, rounds: i64) -> Result<Vec<Message>, Failure> {
    let round = |seq| (0..keys).map(move |key| order(topic, &format!("key-{key}"), seq));
    (1..=rounds).flat_map(round).collect()
}

/// Returns a message that uses every field: key, free headers, trace context, source, media type.
///
/// # Errors
/// The name of the topic is not valid.
pub fn complete(topic: &str) -> Result<Message, Failure> {
    let mut message = order(topic, "order-7", 1)?;
    message.kind = EventType::new("order.placed.v2")?;
    message.source = Source::new("/shops/7/orders")?;
    message.content_type = ContentType::new("application/vnd.workload.order+json; charset=utf-8")?;
    message.headers.insert("tenant", "acme")?;
    message.headers.insert("X-Note", "Grüße, \"quoted\" \\ and a tab\t.")?;
    message.trace = Some(TraceContext::new(TRACEPARENT, Some(String::from("vendor=1,other=a:b")))?);
    Ok(message)
}

/// Returns a message without key, headers or trace context whose payload is not text.
///
/// # Errors
/// The name of the topic is not valid.
pub fn binary(topic: &str) -> Result<Message, Failure> {
    Ok(Message::new(Topic::new(topic)?, EventType::new("image.stored")?, BINARY.to_vec()))
}

/// Reads the fact in the payload of an [`order`].
///
/// # Errors
/// The payload is not that of an [`order`].
pub fn fact(payload: &[u8]) -> Result<Fact, Failure> {
    let order: serde_json::Value = serde_json::from_slice(payload)?;
    let (key, seq) = (order["key"].as_str().ok_or("no key")?, order["seq"].as_i64().ok_or("no number")?);
    Ok(Fact::new(key, seq))
}

/// Checks that the records hold all of these orders and no others, in sequence if the broker keeps
/// the order. Copies are allowed unless `once` is set, because the unconfirmed messages of a lost
/// session are sent again.
///
/// # Errors
/// The breaches that the checker found.
///
/// # Panics
/// With `once`, if there are more records than messages.
pub fn assert_holds(payloads: &[Vec<u8>], sent: &[Message], order: Order, once: bool) -> Result<(), Failure> {
    let stored: Vec<Fact> = payloads.iter().map(|payload| fact(payload)).collect::<Result<_, _>>()?;
    let sent: Vec<Fact> = sent.iter().map(|message| fact(&message.payload)).collect::<Result<_, _>>()?;
    all_stored(&sent, &stored, order)?;
    assert!(!once || stored.len() == sent.len(), "{} records of {} messages", stored.len(), sent.len());
    Ok(())
}
