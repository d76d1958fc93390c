//! Reassembles messages that were split, by the rules of `docs/wire.md`, without using the toolkit.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use checker::Occurrence;
use uuid::Uuid;

use crate::content::content;
use crate::plain::PlainRecord;

/// Incomplete messages, by id and number of chunks.
#[derive(Debug, Default)]
pub struct Wholes(HashMap<(Uuid, u32), BTreeMap<u32, Vec<u8>>>);

impl Wholes {
    /// Returns the message of a record whose attributes have this prefix: its own message, or the
    /// message whose last missing chunk it is. If one relay stops halfway and another sends the
    /// message again, chunks remain or fill gaps. Either way it is the same message.
    pub fn take(&mut self, record: &PlainRecord, place: &Arc<str>, prefix: &str) -> Option<Occurrence> {
        let attribute = |name: &str| record.header(&format!("{prefix}{name}"))?.parse().ok();
        let id = record.message_id.as_deref().and_then(|id| Uuid::parse_str(id).ok());
        let part = attribute("chunkindex").zip(attribute("chunkcount"));
        let whole = match (id, part) {
            (Some(id), Some(part)) => Cow::Owned(self.put(id, part, record.payload.clone())?),
            _ => Cow::Borrowed(&record.payload),
        };
        let headers = record.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let content = content(record.key.as_deref(), &whole, headers);
        Some(Occurrence { id, place: Arc::clone(place), content })
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
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let record = PlainRecord {
            key: None,
            message_id: Some(ID.to_string()),
            headers: headers.into_iter().map(owned).collect(),
            payload: payload.as_bytes().to_vec(),
        };
        wholes.take(&record, &"t[0]".into(), "ce_")?.content.payload
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
