//! Digests of bytes that must not change.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// Number of bytes in a digest. Half of SHA-256 is enough to distinguish copies, and a million
/// digests need little memory.
pub(crate) const BYTES: usize = 16;

/// A digest of a payload, of headers, or of everything that must not change under one id. It is
/// written in hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; BYTES]);

impl Digest {
    /// Returns the digest of some bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self::of_hash(&Sha256::digest(bytes))
    }

    /// Returns the digest of headers, independent of their order.
    #[must_use]
    pub fn of_headers<N: AsRef<[u8]>, V: AsRef<[u8]>>(headers: impl IntoIterator<Item = (N, V)>) -> Self {
        let mut headers: Vec<_> = headers.into_iter().collect();
        headers.sort_by(|a, b| (a.0.as_ref(), a.1.as_ref()).cmp(&(b.0.as_ref(), b.1.as_ref())));
        let mut hash = Sha256::new();
        for part in headers.iter().flat_map(|(name, value)| [name.as_ref(), value.as_ref()]) {
            // The length prevents two different sets of headers from having the same bytes.
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        Self::of_hash(&hash.finalize())
    }

    /// Returns the beginning of an existing hash, such as the fingerprint in an inbox row. A
    /// shorter hash is padded with zeros.
    #[must_use]
    pub fn of_hash(hash: &[u8]) -> Self {
        let mut bytes = [0; BYTES];
        let length = hash.len().min(BYTES);
        bytes[..length].copy_from_slice(&hash[..length]);
        Self(bytes)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let mut bytes = [0; BYTES];
        hex::decode_to_slice(&text, &mut bytes).map_err(|error| {
            D::Error::custom(format!("{text:?} is not a digest of {BYTES} bytes: {error}"))
        })?;
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_have_one_digest_in_any_order_and_do_not_run_together() {
        let digest = |headers: &[(&str, &str)]| Digest::of_headers(headers.iter().copied());
        assert_eq!(digest(&[("a", "1"), ("b", "2")]), digest(&[("b", "2"), ("a", "1")]));
        assert_ne!(digest(&[("a", "1b"), ("c", "")]), digest(&[("a", "1"), ("bc", "")]));
        assert_ne!(digest(&[]), digest(&[("", "")]));
    }

    #[test]
    fn a_digest_is_read_back_and_anything_else_is_refused_with_its_value() {
        let digest = Digest::of(b"payload");
        let text = serde_json::to_string(&digest).unwrap();
        assert_eq!(serde_json::from_str::<Digest>(&text).unwrap(), digest);
        let refused = serde_json::from_str::<Digest>("\"c0ffee\"").unwrap_err().to_string();
        assert!(refused.contains("c0ffee") && refused.contains("16 bytes"), "{refused}");
    }
}
