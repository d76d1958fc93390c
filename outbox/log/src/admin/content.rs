//! The content of parked entries for operators: as it is now, and as an edit found and left it.

use std::fmt;

use sha2::{Digest, Sha256};

/// Maximum bytes of a payload, and of headers as JSON, that the audit keeps of an edit.
pub const CONTENT_KEPT_BYTES_MAX: u64 = 64 << 10;

/// The content of an entry, for the digests of an edit. PostgreSQL computes its own.
pub(crate) struct Content<'a> {
    pub(crate) payload: &'a [u8],
    pub(crate) headers: Option<&'a [u8]>,
}

impl Content<'_> {
    /// Returns the SHA-256 of payload and headers with their lengths, in hexadecimal.
    pub(crate) fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for part in [self.payload, self.headers.unwrap_or_default()] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The content of a parked entry. `Debug` prints no content.
#[derive(Clone, PartialEq, Eq)]
pub struct ParkedContent {
    /// The size of its payload in bytes.
    pub payload_bytes: u64,
    /// Its payload; `None` when it is larger than [`CONTENT_KEPT_BYTES_MAX`].
    pub payload: Option<Vec<u8>>,
    /// Its headers as a JSON object; `None` without headers, or when they are larger.
    pub headers: Option<Vec<u8>>,
    /// Whether it has headers.
    pub has_headers: bool,
}

impl ParkedContent {
    /// Returns the SHA-256 of payload and headers, as the audit of an edit has it; `None` when one
    /// of them is too large to be read.
    #[must_use]
    pub fn digest(&self) -> Option<String> {
        let headers = self.headers.as_deref();
        let is_whole = headers.is_some() == self.has_headers;
        let payload = self.payload.as_deref().filter(|_| is_whole)?;
        Some(Content { payload, headers }.digest())
    }

    /// Returns the headers as the audit keeps them: no headers are an empty object.
    pub(crate) fn kept_headers(&self) -> Option<Vec<u8>> {
        if self.has_headers { self.headers.clone() } else { Some(b"{}".to_vec()) }
    }
}

impl fmt::Debug for ParkedContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParkedContent").field("payload_bytes", &self.payload_bytes).finish_non_exhaustive()
    }
}

/// The content before and after an edit, as far as the audit keeps it. `Debug` prints no content.
#[derive(Clone, PartialEq, Eq)]
pub struct EditRecord {
    /// The message.
    pub message_id: String,
    /// The payload that was replaced; `None` when it was larger than [`CONTENT_KEPT_BYTES_MAX`].
    pub payload_before: Option<Vec<u8>>,
    /// The headers that were replaced, as a JSON object; `None` when they were larger.
    pub headers_before: Option<Vec<u8>>,
    /// The payload after the edit; `None` when it was larger.
    pub payload_after: Option<Vec<u8>>,
    /// The headers after the edit, as a JSON object; `None` when they were larger.
    pub headers_after: Option<Vec<u8>>,
}

impl fmt::Debug for EditRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EditRecord").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_content_has_a_digest() {
        let whole = ParkedContent {
            payload_bytes: 1,
            payload: Some(b"1".to_vec()),
            headers: Some(b"{}".to_vec()),
            has_headers: true,
        };
        assert!(whole.digest().is_some());
        assert_eq!(ParkedContent { payload: None, ..whole.clone() }.digest(), None);
        let cut = ParkedContent { headers: None, ..whole };
        assert_eq!((cut.digest(), cut.kept_headers()), (None, None));
        let none = ParkedContent { has_headers: false, ..cut };
        assert_eq!((none.digest().is_some(), none.kept_headers()), (true, Some(b"{}".to_vec())));
        assert!(!format!("{none:?}").contains("[49]"));
    }

    #[test]
    fn digests_tell_payload_and_headers_apart() {
        let digest = |payload: &[u8], headers: Option<&str>| {
            Content { payload, headers: headers.map(str::as_bytes) }.digest()
        };
        assert_eq!(digest(b"a", None).len(), 64);
        assert_ne!(digest(b"ab", None), digest(b"a", Some("b")));
    }
}
