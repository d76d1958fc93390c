//! The labels of an entry, by which relays that share an outbox divide its messages.

use std::collections::BTreeMap;

/// Kind and headers of an entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels {
    /// Its CloudEvents type.
    pub kind: String,
    /// Its headers; `None` when they are not an object of texts, or above 4 MiB as JSON. The entry
    /// is not a valid message then.
    pub headers: Option<BTreeMap<String, String>>,
}

impl Labels {
    /// Reads stored labels. A row without headers has an empty set.
    pub(crate) fn read(kind: String, headers: Option<&[u8]>) -> Self {
        let headers = match headers {
            Some(json) => serde_json::from_slice(json).ok(),
            None => Some(BTreeMap::new()),
        };
        Self { kind, headers }
    }

    /// Returns the size of kind and headers in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let headers = self.headers.iter().flatten().map(|(name, value)| name.len() + value.len());
        (self.kind.len() + headers.sum::<usize>()) as u64
    }

    /// Returns the names of the headers.
    #[must_use]
    pub fn header_names(&self) -> Vec<String> {
        self.headers.iter().flat_map(BTreeMap::keys).cloned().collect()
    }
}
