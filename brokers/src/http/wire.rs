//! Converts messages to HTTP requests and back: the CloudEvents binding
//! (<https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/http-protocol-binding.md>).
//!
//! In binary mode the attributes are headers `ce-*`, whose values are percent-encoded, and the body
//! is the payload. In structured mode the body is the event in JSON. Both modes have two attributes
//! that other brokers do not need: `topic`, because several topics may share an endpoint, and
//! `partitionkey` (the CloudEvents extension) with the ordering key, beside `subject`.
//!
//! Free headers are headers under their own names. Those that HTTP cannot carry, or would take for
//! its own, are one attribute `headers`, as on SQS. In structured mode all of them are.

use std::collections::HashMap;
use std::fmt::Write as _;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use message::cloudevents::{Envelope, attributes, is_attribute, trace_headers};
use message::{Malformed, Message, PublishError, WireHeaders};

use super::config::Mode;
use crate::structured::{self, Event, HEADERS};

/// The media type of the body in structured mode.
const STRUCTURED: &str = "application/cloudevents+json; charset=utf-8";

/// The prefix of CloudEvents attributes among the headers.
const PREFIX: &str = "ce-";

/// The attributes besides those of every broker.
const TOPIC: &str = "topic";
const PARTITION_KEY: &str = "partitionkey";

/// The header that makes a repetition recognizable (draft-ietf-httpapi-idempotency-key-header-07).
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Names that belong to a connection, a proxy, the sender's identity or this adapter. A free header
/// under such a name would change the meaning of the request: anyone who may set a header of a
/// message could forge its origin, sign in, or ask for another method or path.
const RESERVED: [&str; 23] = [
    "authorization",
    "connection",
    "cookie",
    "date",
    "expect",
    "forwarded",
    "host",
    "idempotency-key",
    "keep-alive",
    "max-forwards",
    "origin",
    "range",
    "referer",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "true-client-ip",
    "user-agent",
    "via",
    "x-client-ip",
    "x-method-override",
    "x-real-ip",
];
const RESERVED_PREFIXES: [&str; 11] = [
    "accept",
    PREFIX,
    "content-",
    "if-",
    "proxy-",
    "sec-",
    "webhook-",
    "x-forwarded",
    "x-http-method",
    "x-original-",
    "x-rewrite-",
];

/// A message as a request carries it, without its signature.
#[derive(Debug, Clone)]
pub(super) struct Record {
    /// The identity of the message, the same in every attempt.
    pub(super) id: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Encodes a message. `left_out` names a free header that is not sent, in any spelling.
///
/// # Errors
/// [`PublishError::refused`] when it has more than `bytes_max` bytes.
pub(super) fn encode(
    message: &Message,
    mode: Mode,
    left_out: Option<&str>,
    bytes_max: usize,
) -> Result<Record, PublishError> {
    let written = match mode {
        Mode::Binary => binary(message, left_out),
        Mode::Structured => structured(message, left_out),
    };
    let mut record = written.map_err(|error| {
        PublishError::refused("the message cannot be written as a request").with_source(error).without_retry()
    })?;
    for (name, value) in trace_headers(message) {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            record.headers.insert(name, value);
        }
    }
    let bytes = record.bytes();
    if bytes > bytes_max {
        return Err(PublishError::refused(format!(
            "the message for {} has {bytes} bytes as a request, and http.message_bytes_max is {bytes_max}: shorten \
             the payload, store it elsewhere and send a reference, or raise the limit",
            message.topic
        )));
    }
    Ok(record)
}

impl Record {
    fn new(message: &Message, content_type: &str, body: Bytes) -> Result<Self, http::Error> {
        let id = identity(message);
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::try_from(content_type)?);
        // A string of structured fields (RFC 9651); a UUID needs no escapes.
        headers.insert(IDEMPOTENCY_KEY, HeaderValue::try_from(format!("\"{id}\""))?);
        Ok(Self { id, headers, body })
    }

    fn bytes(&self) -> usize {
        let headers = self.headers.iter();
        headers.map(|(name, value)| name.as_str().len() + value.len() + 4).sum::<usize>() + self.body.len()
    }
}

/// Returns the identity of a request: the message id, and for a chunk its place, because all chunks
/// of a message share the id.
pub(super) fn identity(message: &Message) -> String {
    match &message.chunk {
        None => message.id.to_string(),
        Some(chunk) => format!("{}-{}-{}", message.id, chunk.index(), chunk.count()),
    }
}

type Written = Result<Record, Box<dyn std::error::Error + Send + Sync>>;

/// Returns the attributes besides those of every broker.
fn extensions(message: &Message) -> Vec<(&'static str, &str)> {
    let key = message.key.as_ref().map(|key| (PARTITION_KEY, key.as_str()));
    [(TOPIC, message.topic.as_str())].into_iter().chain(key).collect()
}

fn structured(message: &Message, left_out: Option<&str>) -> Written {
    let headers = message.headers.iter().filter(|(name, _)| !is_left_out(name, left_out));
    let body = structured::write(message, headers, &extensions(message))?;
    Ok(Record::new(message, STRUCTURED, Bytes::from(body))?)
}

fn binary(message: &Message, left_out: Option<&str>) -> Written {
    let mut record = Record::new(message, message.content_type.as_str(), message.payload.clone())?;
    let mut attribute = |name: &str, value: &str| {
        let name = HeaderName::try_from(format!("{PREFIX}{name}"))?;
        record.headers.insert(name, HeaderValue::try_from(percent_encoded(value))?);
        Ok::<_, http::Error>(())
    };
    for (name, value) in attributes(message) {
        attribute(name, &value)?;
    }
    for (name, value) in extensions(message) {
        attribute(name, value)?;
    }
    let mut others = Vec::new();
    let names = message.headers.iter().map(|(name, _)| name.to_ascii_lowercase());
    let counts = names.fold(HashMap::<String, usize>::new(), |mut counts, name| {
        *counts.entry(name).or_default() += 1;
        counts
    });
    for (name, value) in message.headers.iter().filter(|(name, _)| !is_left_out(name, left_out)) {
        match plain(name, value) {
            // HTTP does not distinguish names that differ only in case.
            Some((plain, value)) if counts.get(plain.as_str()) == Some(&1) => {
                record.headers.insert(plain, value);
            }
            _ => others.push((name, value)),
        }
    }
    if let Some(text) = structured::headers_text(others.into_iter())? {
        let name = HeaderName::try_from(format!("{PREFIX}{HEADERS}"))?;
        record.headers.insert(name, HeaderValue::try_from(percent_encoded(&text))?);
    }
    Ok(record)
}

fn is_left_out(name: &str, left_out: Option<&str>) -> bool {
    left_out.is_some_and(|left_out| name.eq_ignore_ascii_case(left_out))
}

/// Returns a free header as HTTP carries it; `None` if HTTP would change it or take it for its own.
fn plain(name: &str, value: &str) -> Option<(HeaderName, HeaderValue)> {
    let name = HeaderName::try_from(name).ok().filter(|name| !is_reserved(name.as_str()))?;
    // A parser drops white space around a value.
    let is_kept = value.trim_matches([' ', '\t']).len() == value.len();
    is_kept.then(|| HeaderValue::from_bytes(value.as_bytes()).ok()).flatten().map(|value| (name, value))
}

/// Returns whether a name in lower case is not that of a free header.
fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name)
        || RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || matches!(name, "traceparent" | "tracestate")
}

/// Encodes the value of an attribute (section 3.1.3.2 of the binding): spaces, double quotes,
/// percent signs, and everything that is not printable ASCII.
fn percent_encoded(value: &str) -> String {
    value.bytes().fold(String::with_capacity(value.len()), |mut text, byte| {
        match byte {
            b'"' | b'%' => write!(text, "%{byte:02X}"),
            b'!'..=b'~' => write!(text, "{}", char::from(byte)),
            _ => write!(text, "%{byte:02X}"),
        }
        // Writing to a String cannot fail.
        .unwrap_or_default();
        text
    })
}

/// Decodes the value of an attribute: first double quotes, as other senders write them (RFC 9110,
/// section 5.6.4), then percent signs. What is not encoded stays as it is.
pub(super) fn percent_decoded(value: &[u8]) -> String {
    let unquoted: Vec<u8> = match value {
        [b'"', inner @ .., b'"'] => unescaped(inner),
        value => value.to_vec(),
    };
    let digit = |at: usize| unquoted.get(at).and_then(|digit| char::from(*digit).to_digit(16));
    let mut bytes = Vec::with_capacity(unquoted.len());
    let mut at = 0;
    while let Some(byte) = unquoted.get(at) {
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push(u8::try_from(high * 16 + low).unwrap_or(b'?'));
                at += 3;
            }
            _ => {
                bytes.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn unescaped(quoted: &[u8]) -> Vec<u8> {
    let mut is_escape = false;
    let kept = quoted.iter().filter(|byte| {
        is_escape = **byte == b'\\' && !is_escape;
        !is_escape
    });
    kept.copied().collect()
}

/// Reads a request, in binary or structured mode, as a message. `topic` is used unless the request
/// names one.
///
/// # Errors
/// [`Malformed`] with everything that arrived.
pub fn read(topic: &str, headers: &HeaderMap, body: Bytes) -> Result<Message, Box<Malformed>> {
    let mut envelope = Envelope { topic: topic.to_owned(), ..Envelope::default() };
    let mut seen = WireHeaders::default();
    headers.iter().for_each(|(name, value)| seen.add(name.as_str().len(), value.len()));
    if let Err(mut cut) = seen.check() {
        let kept = headers.iter().filter(|(name, value)| cut.keeps(name.as_str(), value.len()));
        kept.for_each(|(name, value)| push(&mut envelope, name.as_str(), value));
        envelope.payload = body;
        return Err(Box::new(envelope.into_malformed(cut.to_string()).cut("http.headers_cut", &cut)));
    }
    headers.iter().for_each(|(name, value)| push(&mut envelope, name.as_str(), value));
    if is_structured(headers) {
        return read_event(envelope, body);
    }
    envelope.payload = body;
    if let Some(text) = take(&mut envelope.headers, HEADERS_OF_THE_BINDING)
        && let Err(problem) = structured::read_headers_text(&mut envelope, text)
    {
        return Err(Box::new(envelope.into_malformed(problem)));
    }
    place(&mut envelope, |envelope, name| take(&mut envelope.attributes, name));
    envelope.open()
}

/// Returns whether the body of a request is the event: its content type declares it, and no header
/// has an id. With an id in the headers, the payload merely happens to be an event.
pub(super) fn is_structured(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content_type.is_some_and(structured::is_event) && !headers.contains_key("ce-id")
}

/// The name under which [`push`] keeps the attribute `headers`, which no free header has.
const HEADERS_OF_THE_BINDING: &str = "ce-headers";

fn push(envelope: &mut Envelope, name: &str, value: &HeaderValue) {
    let text = || String::from_utf8_lossy(value.as_bytes()).into_owned();
    match name.strip_prefix(PREFIX) {
        Some(HEADERS) => {
            envelope.headers.push((HEADERS_OF_THE_BINDING.to_owned(), percent_decoded(value.as_bytes())));
        }
        Some(attribute) => {
            let is_known = is_attribute(attribute) || [TOPIC, PARTITION_KEY].contains(&attribute);
            let place = if is_known { &mut envelope.attributes } else { &mut envelope.headers };
            place.push((attribute.to_owned(), percent_decoded(value.as_bytes())));
        }
        None if name == CONTENT_TYPE.as_str() => envelope.content_type = Some(text()),
        None if is_reserved(name) && !name.starts_with("trace") => {}
        None => envelope.headers.push((name.to_owned(), text())),
    }
}

fn read_event(mut envelope: Envelope, body: Bytes) -> Result<Message, Box<Malformed>> {
    let content_type = envelope.content_type.take();
    // Only the body is signed. So the event says everything, and the headers beside it nothing.
    let beside = std::mem::take(&mut envelope.headers);
    let attributes = std::mem::take(&mut envelope.attributes);
    let text = body.clone();
    let read = std::str::from_utf8(&text).map_err(|_| String::from("the CloudEvent is not UTF-8"));
    let event = read.and_then(Event::parse).and_then(|event| event.fill(&mut envelope).map(|()| event));
    match event {
        Err(problem) => {
            let headers = beside.into_iter().filter(|(name, _)| name != HEADERS_OF_THE_BINDING).collect();
            let topic = envelope.topic;
            let whole =
                Envelope { topic, content_type, attributes, headers, payload: body, ..Envelope::default() };
            Err(Box::new(whole.into_malformed(problem)))
        }
        Ok(event) => {
            place(&mut envelope, |envelope, name| {
                let value = event.text(name)?;
                take_last(&mut envelope.headers, name);
                Some(value)
            });
            envelope.open().map_err(|mut malformed| {
                malformed.properties.extend(event.unread("http"));
                malformed
            })
        }
    }
}

/// Moves the attributes besides those of every broker to their places.
fn place(envelope: &mut Envelope, mut take: impl FnMut(&mut Envelope, &str) -> Option<String>) {
    if let Some(topic) = take(envelope, TOPIC) {
        envelope.topic = topic;
    }
    envelope.key = take(envelope, PARTITION_KEY);
}

fn take(pairs: &mut Vec<(String, String)>, name: &str) -> Option<String> {
    let at = pairs.iter().position(|(known, _)| known == name)?;
    Some(pairs.remove(at).1)
}

/// Takes an attribute of an event out of its headers. Attributes come in the order of their names,
/// so those from the attribute `headers` are before it.
fn take_last(pairs: &mut Vec<(String, String)>, name: &str) {
    if let Some(at) = pairs.iter().rposition(|(known, _)| known == name) {
        pairs.remove(at);
    }
}

#[cfg(test)]
mod tests {
    use message::{Chunk, ContentType, EventType, OrderingKey, Source, Topic, TraceContext};

    use super::*;

    fn sample() -> Message {
        let payload = r#"{"total":12}"#;
        let mut message =
            Message::new(Topic::new("orders").unwrap(), EventType::new("order.placed").unwrap(), payload)
                .with_key(OrderingKey::new("Straße \"7\" 100%").unwrap())
                .with_content_type(ContentType::json());
        message.source = Source::new("/shops/7").unwrap();
        message.headers.insert("tenant", "acme").unwrap();
        message.headers.insert("note", "Grüße, \"quoted\" 100%\tend").unwrap();
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        message.trace = Some(TraceContext::new(parent, Some("a=b".into())).unwrap());
        message
    }

    fn again(message: &Message, mode: Mode) -> Message {
        let record = encode(message, mode, None, 1 << 20).unwrap();
        read("elsewhere", &record.headers, record.body).unwrap()
    }

    #[test]
    fn binary_mode_is_as_the_binding_says() {
        let message = sample();
        let record = encode(&message, Mode::Binary, None, 1 << 20).unwrap();
        let of = |name: &str| std::str::from_utf8(record.headers.get(name).unwrap().as_bytes()).unwrap();
        assert_eq!(
            (of("ce-specversion"), of("ce-type"), of("ce-source")),
            ("1.0", "order.placed", "/shops/7")
        );
        assert_eq!(of("ce-subject"), "Stra%C3%9Fe%20%227%22%20100%25");
        assert_eq!((of("ce-partitionkey"), of("ce-topic")), (of("ce-subject"), "orders"));
        assert_eq!((of("content-type"), &record.body[..]), ("application/json", &br#"{"total":12}"#[..]));
        assert_eq!((of("tenant"), of("note")), ("acme", "Grüße, \"quoted\" 100%\tend"));
        assert_eq!((of("traceparent"), of("tracestate")), (message.trace.as_ref().unwrap().parent(), "a=b"));
        assert_eq!(
            (of("ce-id"), of("idempotency-key")),
            (message.id.to_string().as_str(), format!("\"{}\"", message.id).as_str())
        );
        assert!(
            record.headers.get("ce-datacontenttype").is_none() && record.headers.get("ce-headers").is_none()
        );
    }

    /// The example in the binding: the euro sign, and an emoji beyond the basic plane.
    #[test]
    fn values_are_encoded_and_decoded_as_the_binding_says() {
        for (plain, encoded) in
            [("Euro € 😀", "Euro%20%E2%82%AC%20%F0%9F%98%80"), ("a~!", "a~!"), ("\u{7f}", "%7F")]
        {
            assert_eq!(percent_encoded(plain), encoded);
            assert_eq!(percent_decoded(encoded.as_bytes()), plain);
        }
        for (encoded, plain) in [
            ("%e2%82%ac", "€"),
            (r#""a \"b\" \\""#, r#"a "b" \"#),
            ("100%", "100%"),
            ("%zz%4", "%zz%4"),
            ("a+b", "a+b"),
        ] {
            assert_eq!(percent_decoded(encoded.as_bytes()), plain, "{encoded}");
        }
    }

    #[test]
    fn structured_mode_is_one_event() {
        let message = sample();
        let record = encode(&message, Mode::Structured, None, 1 << 20).unwrap();
        assert_eq!(record.headers.get("content-type").unwrap(), STRUCTURED);
        assert!(record.headers.get("ce-id").is_none() && record.headers.get("tenant").is_none());
        let event: serde_json::Value = serde_json::from_slice(&record.body).unwrap();
        assert_eq!((&event["id"], &event["data"]["total"]), (&message.id.to_string().into(), &12.into()));
        assert_eq!((&event["topic"], &event["partitionkey"]), (&"orders".into(), &event["subject"]));
        assert_eq!(record.headers.get("traceparent").unwrap(), message.trace.as_ref().unwrap().parent());
    }

    /// Goal: what a signature does not cover changes nothing of a message in structured mode.
    /// Oracle: the message, with and without a key.
    #[test]
    fn a_header_beside_an_event_says_nothing() {
        let mut keyless = sample();
        keyless.key = None;
        for message in [sample(), keyless] {
            let mut record = encode(&message, Mode::Structured, None, 1 << 20).unwrap();
            for name in ["ce-type", "ce-source", "ce-subject", "ce-topic", "ce-partitionkey", "ce-time"]
                .into_iter()
                .chain(["ce-chunkindex", "ce-specversion", "ce-note", "ce-headers", "tenant", "other"])
            {
                record.headers.insert(name, HeaderValue::from_static("forged"));
            }
            assert_eq!(read("elsewhere", &record.headers, record.body).unwrap(), message);
        }
    }

    #[test]
    fn a_message_survives_the_wire_in_both_modes() {
        let mut strange = sample();
        // HTTP cannot carry these, or would take them for its own.
        for (name, value) in [
            ("Transfer-Encoding", "chunked"),
            ("content-length", "0"),
            ("webhook-signature", "v1,forged"),
            ("Idempotency-Key", "\"other\""),
            ("spaces", " around "),
            ("empty", ""),
            ("topic", "another"),
            ("partitionkey", "another"),
            ("headers", "{}"),
        ] {
            strange.headers.insert(name, value).unwrap();
        }
        let mut bytes = sample();
        bytes.payload = Bytes::from_static(&[0, 0xff, b'\r', b'\n']);
        bytes.content_type = ContentType::octets();
        let mut keyless = sample();
        keyless.key = None;
        keyless.headers.insert("partitionkey", "no key").unwrap();
        let bare = Message::new(Topic::new("bare").unwrap(), EventType::new("e").unwrap(), "");
        for message in [sample(), strange, bytes, keyless, bare] {
            for mode in [Mode::Binary, Mode::Structured] {
                assert_eq!(again(&message, mode), message, "{mode:?}");
            }
        }
    }

    #[test]
    fn no_free_header_changes_the_meaning_of_a_request() {
        let mut message = sample();
        for name in RESERVED
            .into_iter()
            .chain(["Content-Encoding", "webhook-id", "Proxy-Authorization", "accept"])
            .chain([
                "X-Forwarded-For",
                "X-HTTP-Method-Override",
                "x-original-url",
                "If-None-Match",
                "Sec-Fetch-Site",
            ])
        {
            message.headers.insert(name, "forged").unwrap();
        }
        let record = encode(&message, Mode::Binary, None, 1 << 20).unwrap();
        assert!(!record.headers.values().any(|value| value == "forged"));
        assert_eq!(again(&message, Mode::Binary), message);
    }

    #[test]
    fn names_that_differ_in_case_only_are_kept_apart() {
        let mut message = sample();
        message.headers.insert("Tenant", "other").unwrap();
        for mode in [Mode::Binary, Mode::Structured] {
            assert_eq!(again(&message, mode), message, "{mode:?}");
        }
    }

    #[test]
    fn the_header_that_names_the_endpoint_is_not_sent() {
        let mut message = sample();
        message.headers.insert("endpoint", "https://a.example/s3cret").unwrap();
        message.headers.insert("Endpoint", "https://b.example/s3cret").unwrap();
        for mode in [Mode::Binary, Mode::Structured] {
            let record = encode(&message, mode, Some("endpoint"), 1 << 20).unwrap();
            assert!(record.headers.get("endpoint").is_none());
            assert!(!String::from_utf8_lossy(&record.body).contains("s3cret"));
        }
    }

    #[test]
    fn each_chunk_has_an_identity_of_its_own() {
        let mut message = sample();
        let whole = message::Fingerprint::of(&message);
        message.payload = Bytes::from_static(b"ab");
        message.chunk = Chunk::new(1, 2, 4, whole).ok().map(Box::new);
        let record = encode(&message, Mode::Binary, None, 1 << 20).unwrap();
        assert_eq!(record.id, format!("{}-1-2", message.id));
        assert_eq!(record.headers.get("ce-chunkindex").unwrap(), "1");
        assert_eq!(again(&message, Mode::Structured), message);
    }

    #[test]
    fn a_message_that_is_too_large_is_refused_with_size_and_limit() {
        let mut message = sample();
        message.payload = Bytes::from(vec![b'x'; 2_000]);
        for mode in [Mode::Binary, Mode::Structured] {
            let error = encode(&message, mode, None, 2_000).unwrap_err();
            assert_eq!(error.fault(), message::Fault::Message);
            assert!(error.to_string().contains("http.message_bytes_max is 2000"), "{error}");
        }
    }

    #[test]
    fn what_is_no_message_keeps_its_evidence() {
        let mut headers = HeaderMap::new();
        headers.insert("ce-id", HeaderValue::from_static("17"));
        headers.insert("host", HeaderValue::from_static("a.example"));
        headers.insert("x-note", HeaderValue::from_static("n"));
        let malformed = read("orders", &headers, Bytes::from_static(b"body")).unwrap_err();
        assert_eq!(
            (malformed.find("ce_id"), malformed.header("x-note"), malformed.header("host")),
            (Some("17"), Some("n"), None)
        );
        assert_eq!((malformed.topic.as_str(), &malformed.payload[..]), ("orders", &b"body"[..]));
        headers.remove("ce-id");
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/cloudevents+json"));
        for (body, problem) in [
            (&b"\xff"[..], "not UTF-8"),
            (b"{}", "no specversion"),
            (br#"{"specversion":"1.0","id":"1"}"#, "UUID"),
        ] {
            let malformed = read("orders", &headers, Bytes::copy_from_slice(body)).unwrap_err();
            assert!(malformed.problem.contains(problem), "{malformed}");
        }
    }
}
