//! The labels of an entry, by which relays that share an outbox divide it up.

use std::collections::BTreeMap;

/// Kind and headers of an entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels {
    /// Its CloudEvents type.
    pub kind: String,
    /// Its headers; `None` when they are no object of texts, or above 4 MiB as JSON, so that the
    /// entry is no message.
    pub headers: Option<BTreeMap<String, String>>,
}

impl Labels {
    /// The labels as they are stored; without headers there are none.
    pub(crate) fn read(kind: String, headers: Option<&[u8]>) -> Self {
        let headers = match headers {
            Some(json) => serde_json::from_slice(json).ok(),
            None => Some(BTreeMap::new()),
        };
        Self { kind, headers }
    }

    /// Returns the bytes of kind and headers.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let headers = self.headers.iter().flatten().map(|(name, value)| name.len() + value.len());
        (self.kind.len() + headers.sum::<usize>()) as u64
    }

    /// The names of the headers.
    #[must_use]
    pub fn header_names(&self) -> Vec<String> {
        self.headers.iter().flat_map(BTreeMap::keys).cloned().collect()
    }
}
