//! Conversion between a message and a line of JSON, with CloudEvents attributes under their own
//! names, like `{"attributes":{"id":"…"},"key":"order-7","headers":{},"payload":"base64"}`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use message::cloudevents::{Envelope, attributes, trace_headers};
use message::{Malformed, Message};
use serde::{Deserialize, Serialize};

/// The maximum size of a payload, in bytes.
pub const MAX_PAYLOAD: usize = 1 << 20;

#[derive(Serialize, Deserialize)]
struct Record {
    attributes: Vec<(String, String)>,
    key: Option<String>,
    #[serde(default)]
    headers: Vec<(String, String)>,
    payload: String,
}

/// Returns the line of a message, with its line end.
pub(crate) fn write(message: &Message) -> Result<Vec<u8>, String> {
    let size = message.payload.len();
    if size > MAX_PAYLOAD {
        return Err(format!(
            "the payload has {size} bytes, a directory takes {MAX_PAYLOAD}: send less, or a reference"
        ));
    }
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let mut all: Vec<_> = attributes(message).map(|(name, value)| owned((name, &value))).collect();
    all.push(owned(("datacontenttype", message.content_type.as_str())));
    let record = Record {
        attributes: all,
        key: message.key.as_ref().map(|key| key.as_str().to_owned()),
        headers: trace_headers(message).chain(message.headers.iter()).map(owned).collect(),
        payload: STANDARD.encode(&message.payload),
    };
    let mut line =
        serde_json::to_vec(&record).map_err(|error| format!("cannot write the message: {error}"))?;
    line.push(b'\n');
    Ok(line)
}

/// Reads a message from a line.
///
/// # Errors
/// [`Malformed`] with everything that could be read.
pub(crate) fn read(topic: &str, line: &[u8]) -> Result<Message, Box<Malformed>> {
    let raw = |problem: String| {
        Box::new(Malformed {
            problem,
            topic: topic.to_owned(),
            payload: line.to_vec().into(),
            ..Malformed::default()
        })
    };
    let record: Record =
        serde_json::from_slice(line).map_err(|error| raw(format!("the line is not a record: {error}")))?;
    let payload = STANDARD
        .decode(&record.payload)
        .map_err(|error| raw(format!("the payload of the record is not base64: {error}")))?;
    let envelope = Envelope {
        topic: topic.to_owned(),
        key: record.key,
        attributes: record.attributes,
        headers: record.headers,
        payload: payload.into(),
        ..Envelope::default()
    };
    envelope.open()
}
