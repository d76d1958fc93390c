//! The labels of an entry, by which relays that share an outbox divide it up.

use std::collections::BTreeMap;

/// Kind and headers of an entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels {
    /// Its CloudEvents type.
    pub kind: String,
    /// Its headers; `None` when they are no object of texts, so that the entry is no message.
    pub headers: Option<BTreeMap<String, String>>,
}

impl Labels {
    /// The labels as they are stored; without headers there are none.
    pub(crate) fn read(kind: String, headers: Option<&str>) -> Self {
        let headers = match headers {
            Some(text) => serde_json::from_str(text).ok(),
            None => Some(BTreeMap::new()),
        };
        Self { kind, headers }
    }

    /// The names of the headers.
    #[must_use]
    pub fn header_names(&self) -> Vec<String> {
        self.headers.iter().flat_map(BTreeMap::keys).cloned().collect()
    }
}
