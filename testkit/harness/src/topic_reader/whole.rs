//! Reassembles messages that were split, by the rules of `docs/wire.md`, without using the toolkit.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use checker::Occurrence;
use uuid::Uuid;

use crate::content::content;

/// A record as a plain client reads it.
#[derive(Debug)]
pub struct Record<'a> {
    /// The message id.
    pub id: Option<Uuid>,
    /// The partition or queue.
    pub place: Arc<str>,
    /// The ordering key.
    pub key: Option<&'a str>,
    /// All headers, including the attributes of the envelope.
    pub headers: Vec<(&'a str, &'a str)>,
    /// The payload, or a part of it.
    pub payload: &'a [u8],
}

/// Incomplete messages, by id and number of chunks.
#[derive(Debug, Default)]
pub struct Wholes(HashMap<(Uuid, u32), BTreeMap<u32, Vec<u8>>>);

impl Wholes {
    /// Returns the message of a record: its own message, or the message whose last missing chunk it
    /// is. If one relay stops halfway and another sends the message again, chunks remain or fill
    /// gaps. Either way it is the same message.
    pub fn take(&mut self, record: Record<'_>, prefix: &str) -> Option<Occurrence> {
        let Record { id, place, key, headers, payload } = record;
        let attribute = |name: &str| -> Option<u32> {
            let (_, value) = headers.iter().find(|(header, _)| header.strip_prefix(prefix) == Some(name))?;
            value.parse().ok()
        };
        let part = attribute("chunkindex").zip(attribute("chunkcount"));
        let whole = match (id, part) {
            (Some(id), Some(part)) => Cow::Owned(self.put(id, part, payload.to_vec())?),
            _ => Cow::Borrowed(payload),
        };
        Some(Occurrence { id, place, content: content(key, &whole, headers) })
    }

    /// Stores a chunk. Returns the payload of the whole message if this was the last missing chunk.
    pub fn put(&mut self, id: Uuid, (index, count): (u32, u32), payload: Vec<u8>) -> Option<Vec<u8>> {
        let parts = self.0.entry((id, count)).or_default();
        parts.insert(index, payload);
        if parts.len() < count as usize {
            return None;
        }
        Some(self.0.remove(&(id, count))?.into_values().flatten().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use checker::Digest;

    const ID: Uuid = Uuid::from_u128(7);

    fn take(wholes: &mut Wholes, part: Option<(&str, &str)>, payload: &str) -> Option<Digest> {
        let mut headers = vec![("storm-tenant", "a")];
        if let Some((index, count)) = part {
            headers.extend([("ce_chunkindex", index), ("ce_chunkcount", count)]);
        }
        let record =
            Record { id: Some(ID), place: "t[0]".into(), key: None, headers, payload: payload.as_bytes() };
        wholes.take(record, "ce_")?.content.payload
    }

    #[test]
    fn a_message_is_there_with_its_last_missing_chunk() {
        let mut wholes = Wholes::default();
        assert_eq!(take(&mut wholes, None, "small"), Some(Digest::of(b"small")));
        for (index, payload, whole) in [
            ("0", "ab", None),
            ("1", "cd", None),
            // A relay was killed here, and another one starts over.
            ("0", "ab", None),
            ("2", "e", Some("abcde")),
            ("1", "cd", None),
            ("2", "e", None),
            ("0", "ab", Some("abcde")),
        ] {
            let told = take(&mut wholes, Some((index, "3")), payload);
            assert_eq!(told, whole.map(|whole| Digest::of(whole.as_bytes())), "{index}");
        }
        assert_eq!(take(&mut wholes, Some(("0", "2")), "abc"), None, "of another way to split it");
    }
}
