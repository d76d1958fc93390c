//! Reads CloudEvents in the JSON event format, where the event is the whole body
//! (<https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md>).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::marker::PhantomData;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::cloudevents::{Envelope, beginning, is_attribute};
use crate::text::ContentType;
use crate::wire_headers::{WIRE_HEADERS_MAX, WireHeaders};

/// The attribute that carries free headers in events that this toolkit writes: a JSON object as
/// text.
pub const HEADERS: &str = "headers";

/// The attribute that distinguishes events from other objects in a body.
const VERSION: &str = "specversion";

/// The members of a JSON object. Beyond [`WIRE_HEADERS_MAX`] they are counted, but not kept.
#[derive(Debug)]
pub(crate) struct Members<V> {
    pub(crate) kept: BTreeMap<String, V>,
    count: usize,
    /// Whether one of them, kept or not, makes the object an event.
    has_version: bool,
    /// The first name that occurs twice: which of its values counts is unknown.
    repeated: Option<String>,
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Members<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read<V>(PhantomData<V>);

        impl<'de, V: Deserialize<'de>> Visitor<'de> for Read<V> {
            type Value = Members<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<V>, A::Error> {
                let mut members =
                    Members { kept: BTreeMap::new(), count: 0, has_version: false, repeated: None };
                while members.count < WIRE_HEADERS_MAX
                    && let Some((name, value)) = map.next_entry::<String, V>()?
                {
                    members.has_version |= name == VERSION;
                    match members.kept.entry(name) {
                        Entry::Vacant(place) => _ = place.insert(value),
                        Entry::Occupied(first) => {
                            members.repeated.get_or_insert_with(|| first.key().clone());
                        }
                    }
                    members.count += 1;
                }
                while let Some((name, IgnoredAny)) = map.next_entry::<String, _>()? {
                    members.has_version |= name == VERSION;
                    members.count += 1;
                }
                Ok(members)
            }
        }

        deserializer.deserialize_map(Read(PhantomData))
    }
}

impl<V> Members<V> {
    /// Checks that all members were kept, and that each occurs once.
    pub(crate) fn check(&self) -> Result<(), String> {
        WireHeaders { count: self.count, bytes: 0 }.check().map_err(|cut| cut.to_string())?;
        match &self.repeated {
            Some(name) => {
                Err(format!("the member {:?} of the JSON object occurs twice; send it once", beginning(name)))
            }
            None => Ok(()),
        }
    }
}

/// The members of an event, in the JSON event format.
#[derive(Debug)]
pub struct Event<'a>(Members<&'a RawValue>);

impl<'a> Event<'a> {
    /// Parses a body.
    ///
    /// # Errors
    /// The reason why the body is not an event.
    pub fn parse(body: &'a str) -> Result<Self, String> {
        let event: Members<&RawValue> = serde_json::from_str(body)
            .map_err(|error| format!("the body is not a CloudEvent in JSON ({error})"))?;
        // Any other object is a payload, however many members it has.
        if event.has_version {
            Ok(Self(event))
        } else {
            Err(String::from("the body has no specversion, so it is not a CloudEvent"))
        }
    }

    /// Fills an envelope with attributes, extensions (as headers) and payload.
    ///
    /// # Errors
    /// Names the member that cannot be read, or the bound of [`WireHeaders`] that the event exceeds
    /// with the headers that the envelope has. The envelope is not usable then.
    pub fn fill(&self, envelope: &mut Envelope) -> Result<(), String> {
        self.0.check()?;
        if self.0.kept.contains_key("data") && self.0.kept.contains_key("data_base64") {
            return Err(String::from("the CloudEvent has both data and data_base64; send one of them"));
        }
        for (name, value) in &self.0.kept {
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
        let mut headers = WireHeaders::default();
        let all = envelope.attributes.iter().chain(&envelope.headers);
        all.for_each(|(name, value)| headers.add(name.len(), value.len()));
        headers.check().map_err(|cut| cut.to_string())?;
        envelope.payload = self.payload(envelope)?;
        Ok(())
    }

    /// Returns an attribute, if it is plain text.
    pub fn text(&self, name: &str) -> Option<String> {
        self.0.kept.get(name).and_then(|value| plain_text(value))
    }

    fn payload(&self, envelope: &mut Envelope) -> Result<Bytes, String> {
        if let Some(encoded) = self.0.kept.get("data_base64") {
            let text: String = serde_json::from_str(encoded.get())
                .map_err(|error| format!("the CloudEvents member data_base64 is not a string: {error}"))?;
            return STANDARD
                .decode(&text)
                .map(Bytes::from)
                .map_err(|error| format!("the CloudEvents member data_base64 is not base64: {error}"));
        }
        let Some(data) = self.0.kept.get("data") else { return Ok(Bytes::new()) };
        let declared = envelope.attributes.iter().find(|(name, _)| name == "datacontenttype");
        let json = match declared {
            Some((_, declared)) => {
                ContentType::new(declared.as_str()).is_ok_and(|content_type| content_type.is_json())
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
    pub fn unread(&self, broker: &str) -> impl Iterator<Item = (String, String)> {
        let is_unread = |name: &str, value: &RawValue| {
            !["data", "data_base64"].contains(&name) && plain_text(value).is_none()
        };
        let members = self.0.kept.iter().filter(move |(name, value)| is_unread(name, value));
        members.map(move |(name, value)| (format!("{broker}.event.{name}"), value.get().to_owned()))
    }
}

/// Reads the `headers` attribute of our own events.
fn read_headers(envelope: &mut Envelope, value: &RawValue) -> Result<(), String> {
    let text: String = serde_json::from_str(value.get())
        .map_err(|error| format!("the CloudEvents attribute headers is not a string: {error}"))?;
    read_headers_text(envelope, text)
}

/// Reads the text of the attribute [`HEADERS`]. An attribute of this name from another producer is
/// an ordinary header.
///
/// # Errors
/// There are more headers than a delivery may have.
pub fn read_headers_text(envelope: &mut Envelope, text: String) -> Result<(), String> {
    match serde_json::from_str::<Members<String>>(&text) {
        Ok(headers) => {
            headers.check()?;
            envelope.headers.extend(headers.kept);
        }
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
