//! Canonical JSON: one text for every way of writing the same JSON.
//!
//! White space and the order of members do not matter. Numbers are compared as they are written: as
//! floating point (as in RFC 8785), different amounts would become equal.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

/// Maximum depth of JSON that is compared by its content. Deeper JSON is compared byte by byte.
pub const DEPTH_MAX: u32 = 64;

/// Returns JSON with sorted members and without white space; `None` for a body that is not JSON,
/// has duplicate members or is too deep.
#[must_use]
pub fn canonical(body: &[u8]) -> Option<Vec<u8>> {
    let value: &RawValue = serde_json::from_slice(body).ok()?;
    let mut text = Vec::with_capacity(body.len());
    write(value, 0, &mut text)?;
    Some(text)
}

fn write(value: &RawValue, depth: u32, text: &mut Vec<u8>) -> Option<()> {
    if depth > DEPTH_MAX {
        return None;
    }
    match value.get().as_bytes().first()? {
        b'{' => {
            let Members(members) = serde_json::from_str(value.get()).ok()?;
            text.push(b'{');
            for (at, (name, member)) in members.iter().enumerate() {
                if at > 0 {
                    text.push(b',');
                }
                serde_json::to_writer(&mut *text, name).ok()?;
                text.push(b':');
                write(member, depth + 1, text)?;
            }
            text.push(b'}');
        }
        b'[' => {
            let items: Vec<&RawValue> = serde_json::from_str(value.get()).ok()?;
            text.push(b'[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    text.push(b',');
                }
                write(item, depth + 1, text)?;
            }
            text.push(b']');
        }
        // Decodes and encodes again, so that all ways of escaping become one text.
        b'"' => {
            let string: String = serde_json::from_str(value.get()).ok()?;
            serde_json::to_writer(text, &string).ok()?;
        }
        _ => text.extend_from_slice(value.get().as_bytes()),
    }
    Some(())
}

/// The members of an object by name. Duplicate names are an error.
struct Members<'a>(BTreeMap<String, &'a RawValue>);

impl<'de> serde::Deserialize<'de> for Members<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object without duplicate members")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
                    if members.insert(name, value).is_some() {
                        return Err(serde::de::Error::custom("a member occurs twice"));
                    }
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(Visitor)
    }
}
